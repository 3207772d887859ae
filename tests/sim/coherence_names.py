"""Directories in which programs of both mounts make names, move and remove them:
who has agreed on a name sees at once what it leads to.

One mount makes a directory, and may get the lease of its names (decisions 0152, 0161); both change
names in it, by all ways there are, and write to files there.  A name is changed by one program at a
time; right after that either mount must find that very file, or none.  So the mount that has the
lease must not answer by itself what the other one has just changed.

Each look-up counts as one for a removal, so that the mount answers by itself whenever it can.  What
it tells then of attributes the kernel must not use, but for the size, which it takes: that must be
the one that it shows already.

Requests take longer here than on a network, so leases last longer, too, else they would be over
when their replies come.  Where wall clocks of services are set by hours, who adds a name may not
wait; then nobody looks before a lease has ended by itself.
"""

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final
from unittest.mock import patch

import trio

from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.protocol import Opcode
from fs.client.fuse.direct.purposes import Purposes
from fs.client.vfs import leased_names
from fs.meta import name_leases

from .kernel_calls import ModelKernel
from .page_cache import ROOT

PLACE_COUNT: Final = 2
WORKER_COUNT: Final = 4
NAMES: Final = tuple(b"name-%d" % i for i in range(5))
OTHER: Final = b"other"
"""Nobody makes it."""
MAKERS_SHARE: Final = 0.85
KEEPS_NAME_SHARE: Final = 0.4
"""Of the turns a file that is there is written to, or replaced by another one."""
LEASE_S: Final = 2.0
SURE_S: Final = 3.0
LENGTHS: Final = {"WAIT_S": 2.1, "TOLD_AGE_S_MAX": 8.0, "IDLE_S": 20.0}
"""Of what others do; as in `fs.schema.name_lease`."""
_EXCHANGE: Final = 2
ANEW_SHARE: Final = 0.1
"""Of the turns another directory is made in place of one."""


@contextmanager
def leases_are_long() -> Iterator[None]:
    """Have leases last for longer than replies take here,
    and those who wait for their end wait longer.
    """
    with ExitStack() as stack:
        stack.enter_context(patch.object(leased_names, "LEASE_S", LEASE_S))
        stack.enter_context(patch.object(leased_names, "SURE_S", SURE_S))
        stack.enter_context(patch.object(Purposes, "is_removal", lambda *_: True))
        for name, length_s in LENGTHS.items():
            stack.enter_context(patch.object(name_leases, name, length_s))
        yield


@dataclass
class Entry:
    """What a name leads to."""

    kind: str
    node_id: int = 0
    length: int = 0
    """Of a file."""


@dataclass(eq=False)
class Place:
    """One directory."""

    node_id: int
    label: str
    maker: ModelKernel
    entries: dict[bytes, Entry] = field(default_factory=dict)
    """What is there under which name."""
    locks: dict[bytes, trio.Lock] = field(
        default_factory=lambda: {name: trio.Lock() for name in NAMES}
    )


class Names:
    """See module head; `work` is one program's."""

    def __init__(
        self,
        kernels: list[ModelKernel],
        source: random.Random,
        say: Callable[..., None],
        *,
        clocks_agree: bool,
    ) -> None:
        self._kernels = kernels
        self._random = source
        self._say = say
        self._clocks_agree = clocks_agree
        self._made_count = 0
        self._places: list[Place] = []
        self._shown: dict[tuple[ModelKernel, int], int] = {}
        """The size that a kernel shows of a file."""
        self._held: dict[tuple[ModelKernel, int], int] = {}
        """How often it was told of it."""
        self.checked_count = self.known_count = 0
        """Look-ups; those of what is there that a mount has answered by itself."""

    async def prepare(self) -> None:
        """Make the first directories."""
        for _ in range(PLACE_COUNT):
            self._places.append(await self._new_place())

    async def _new_place(self) -> Place:
        kernel, number = self._random.choice(self._kernels), self._made_count
        self._made_count += 1
        name = b"names-%d" % number
        self._say("names: mount", self._kernels.index(kernel), "makes", name)
        reply = await kernel._ask(Opcode.MKDIR, ROOT, p.MKDIR_IN.pack(0o755, 0) + name + b"\0")
        return Place(_node_of(reply), name.decode(), kernel)

    async def work(self) -> None:
        """Change names and look at them, for ever."""
        while True:
            await trio.sleep(self._random.random() ** 3 * 0.1)
            number = self._random.randrange(PLACE_COUNT)
            if self._random.random() < ANEW_SHARE:
                self._places[number] = await self._new_place()
            place, name = self._places[number], self._random.choice(NAMES)
            async with place.locks[name]:
                for _ in range(self._random.randrange(1, 4)):
                    # The other one ends the lease for good.
                    is_makers = self._random.random() < MAKERS_SHARE
                    kernel = place.maker if is_makers else self._random.choice(self._kernels)
                    await self._change(kernel, place, name)
                    await self._check(place, name)

    async def _change(self, kernel: ModelKernel, place: Place, name: bytes) -> None:
        entry = place.entries.get(name)
        words = "adds" if entry is None else f"{entry.kind} {entry.node_id:x}"
        self._say("names: mount", self._kernels.index(kernel), words, place.label, name)
        # As a kernel that looks up first.
        found = await self._look(kernel, place, name)
        assert (found is None) == (entry is None), f"{name!r} in {place.label}: {found}"
        if entry is not None:
            is_kept = entry.kind == "file" and self._random.random() < KEEPS_NAME_SHARE
            acts = [self._write, self._replace] if is_kept else [self._remove]
            await self._random.choice(acts)(kernel, place, name, entry)
            return
        adds = [*[self._create] * 3, self._mkdir, self._symlink, self._move_in, self._link]
        place.entries[name] = await self._random.choice(adds)(kernel, place.node_id, name)

    async def _remove(self, kernel: ModelKernel, place: Place, name: bytes, entry: Entry) -> None:
        if entry.kind == "file" and self._random.random() < 0.3:
            own = self._own_name()
            await self._rename(kernel, (place.node_id, name), (ROOT, own))
            await kernel._ask(Opcode.UNLINK, ROOT, own + b"\0")
        else:
            opcode = Opcode.RMDIR if entry.kind == "directory" else Opcode.UNLINK
            await kernel._ask(opcode, place.node_id, name + b"\0")
        del place.entries[name]
        self._let_go(entry)

    async def _replace(self, kernel: ModelKernel, place: Place, name: bytes, entry: Entry) -> None:
        """Put another file in the place of this one; or exchange them, and remove this one."""
        own, flags = self._own_name(), self._random.choice([0, _EXCHANGE])
        place.entries[name] = await self._create(kernel, ROOT, own)
        await self._rename(kernel, (ROOT, own), (place.node_id, name), flags)
        if flags:
            await kernel._ask(Opcode.UNLINK, ROOT, own + b"\0")
        self._let_go(entry)

    async def _rename(
        self,
        kernel: ModelKernel,
        old: tuple[int, bytes],
        new: tuple[int, bytes],
        flags: int = 0,
    ) -> None:
        body = p.RENAME2_IN.pack(new[0], flags, 0) + old[1] + b"\0" + new[1] + b"\0"
        await kernel._ask(Opcode.RENAME2, old[0], body)

    async def _write(self, kernel: ModelKernel, _: Place, __: bytes, entry: Entry) -> None:
        """Write behind the end; that the kernel shows from then on."""
        reply = await kernel._ask(Opcode.OPEN, entry.node_id, p.OPEN_IN.pack(os.O_WRONLY, 0))
        handle_id, *_ = p.OPEN_OUT.unpack(reply)
        data = bytes(self._random.randrange(1, 100))
        body = p.WRITE_IN.pack(handle_id, entry.length, len(data), 0, 0, os.O_WRONLY, 0) + data
        await kernel._ask(Opcode.WRITE, entry.node_id, body)
        await self._close(kernel, entry.node_id, handle_id)
        entry.length += len(data)
        self._shown[kernel, entry.node_id] = entry.length

    async def _close(self, kernel: ModelKernel, node_id: int, handle_id: int) -> None:
        await kernel._ask(Opcode.FLUSH, node_id, p.FLUSH_IN.pack(handle_id, 0, 0, 0))
        await kernel._ask(Opcode.RELEASE, node_id, p.RELEASE_IN.pack(handle_id, os.O_WRONLY, 0, 0))

    async def _create(self, kernel: ModelKernel, parent: int, name: bytes) -> Entry:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        body = p.CREATE_IN.pack(flags, 0o100644, 0, 0) + name + b"\0"
        reply = await kernel._ask(Opcode.CREATE, parent, body)
        handle_id, *_ = p.OPEN_OUT.unpack_from(reply, p.ENTRY_OUT.size + p.ATTR.size)
        node_id = self._take(kernel, reply)
        await self._close(kernel, node_id, handle_id)
        return Entry("file", node_id)

    async def _mkdir(self, kernel: ModelKernel, parent: int, name: bytes) -> Entry:
        body = p.MKDIR_IN.pack(0o755, 0) + name + b"\0"
        return Entry("directory", self._take(kernel, await kernel._ask(Opcode.MKDIR, parent, body)))

    async def _symlink(self, kernel: ModelKernel, parent: int, name: bytes) -> Entry:
        body = name + b"\0there\0"
        return Entry("link", self._take(kernel, await kernel._ask(Opcode.SYMLINK, parent, body)))

    def _own_name(self) -> bytes:
        self._made_count += 1
        return b"own-%d" % self._made_count

    async def _move_in(self, kernel: ModelKernel, parent: int, name: bytes) -> Entry:
        own = self._own_name()
        entry = await self._create(kernel, ROOT, own)
        await self._rename(kernel, (ROOT, own), (parent, name))
        return entry

    async def _link(self, kernel: ModelKernel, parent: int, name: bytes) -> Entry:
        own = self._own_name()
        entry = await self._create(kernel, ROOT, own)
        body = p.LINK_IN.pack(entry.node_id) + name + b"\0"
        self._take(kernel, await kernel._ask(Opcode.LINK, parent, body))
        await kernel._ask(Opcode.UNLINK, ROOT, own + b"\0")
        return entry

    def _take(self, kernel: ModelKernel, reply: bytes) -> int:
        """Return which node an entry of a kernel's tells of,
        with the size that it shows from then on.
        """
        node_id, _, _, attr_s, _, attr_ns = p.ENTRY_OUT.unpack_from(reply)
        _, size, *_ = p.ATTR.unpack_from(reply, p.ENTRY_OUT.size)
        key = kernel, node_id
        if not (attr_s or attr_ns):
            self.known_count += 1
            assert size == self._shown[key], f"{node_id:x}: shown as {self._shown[key]}, now {size}"
        self._shown[key] = size
        self._held[key] = self._held.get(key, 0) + 1
        return int(node_id)

    def _let_go(self, entry: Entry) -> None:
        for kernel in self._kernels:
            count = self._held.pop((kernel, entry.node_id), 0)
            if count and self._random.random() < 0.8:
                kernel._send(Opcode.FORGET, entry.node_id, p.FORGET_IN.pack(count), None)

    async def _look(self, kernel: ModelKernel, place: Place, name: bytes) -> int | None:
        """Return which node a name leads to, None: it is not there."""
        try:
            reply = await kernel._ask(Opcode.LOOKUP, place.node_id, name + b"\0")
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return None
        return self._take(kernel, reply)

    async def _check(self, place: Place, name: bytes) -> None:
        if not self._clocks_agree:
            await trio.sleep(LEASE_S)
        for kernel in self._random.sample(self._kernels, len(self._kernels)):
            entry, number = place.entries.get(name), self._kernels.index(kernel)
            found, meant = await self._look(kernel, place, name), entry and entry.node_id
            assert found == meant, (
                f"mount {number}: {name!r} in {place.label}: {found}, not {meant}"
            )
            if entry is not None and entry.kind == "file":
                reply = await kernel._ask(Opcode.GETATTR, entry.node_id, p.GETATTR_IN.pack(0, 0, 0))
                _, size, *_ = p.ATTR.unpack_from(reply, p.ATTR_OUT.size)
                assert size == entry.length, f"mount {number}: {size} bytes, not {entry.length}"
                self._shown[kernel, entry.node_id] = size
            other = await self._look(kernel, place, OTHER)
            assert other is None, f"{OTHER!r} in {place.label}"
            self.checked_count += 1


def _node_of(reply: bytes) -> int:
    node_id, *_ = p.ENTRY_OUT.unpack_from(reply)
    assert isinstance(node_id, int)
    return node_id
