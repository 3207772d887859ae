"""Directories in which programs of both mounts make names and take them away: who has agreed on a name sees at once whether it is there.

One mount makes a directory, and may get the lease of its names (decision 0152); both add names to it, by all ways there are.  A name is changed by
one program at a time; right after that either mount must find it, or must not.  So the mount that has the lease must not answer by itself what
the other one has just made.

Requests take longer here than on a network, so leases last longer, too, else they would be over when their replies come.  Where wall clocks of
services are set by hours, who adds a name may not wait; then nobody looks before a lease has ended by itself.
"""

import errno
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final
from unittest.mock import patch

import trio

from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.protocol import Opcode
from fs.client.vfs import leased_names
from fs.meta import name_leases

from .kernel_calls import ModelKernel
from .page_cache import ROOT

PLACE_COUNT: Final = 2
WORKER_COUNT: Final = 4
NAMES: Final = tuple(b"name-%d" % i for i in range(5))
OTHER: Final = b"other"
"""Nobody makes it."""
MAKERS_SHARE: Final = 0.8
LEASE_S: Final = 2.0
LENGTHS: Final = {"WAIT_S": 2.1, "TOLD_AGE_S_MAX": 8.0, "IDLE_S": 20.0}
"""Of what others do; as in `fs.schema.name_lease`."""
ANEW_SHARE: Final = 0.1
"""Of the turns another directory is made in place of one."""


@contextmanager
def leases_are_long() -> Iterator[None]:
    """Have leases last for longer than replies take here, and those who wait for their end wait longer."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(leased_names, "LEASE_S", LEASE_S))
        for name, length_s in LENGTHS.items():
            stack.enter_context(patch.object(name_leases, name, length_s))
        yield


@dataclass(eq=False)
class Place:
    """One directory."""

    node_id: int
    label: str
    maker: ModelKernel
    kinds: dict[bytes, str] = field(default_factory=dict)
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
        self.checked_count = 0

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
        return Place(_node_id(reply), name.decode(), kernel)

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
        kind = place.kinds.get(name)
        self._say("names: mount", self._kernels.index(kernel), kind or "adds", place.label, name)
        if kind is not None:
            opcode = Opcode.RMDIR if kind == "directory" else Opcode.UNLINK
            await kernel._ask(opcode, place.node_id, name + b"\0")
            del place.kinds[name]
            return
        adds = [self._create, self._create, self._mkdir, self._symlink, self._move_in, self._link]
        if not await self._is_there(kernel, place, name):  # as a kernel that looks up first
            place.kinds[name] = await self._random.choice(adds)(kernel, place, name)
        else:
            raise AssertionError(f"{name!r} in {place.label} is there before it is made")

    async def _create(self, kernel: ModelKernel, place: Place, name: bytes) -> str:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        body = p.CREATE_IN.pack(flags, 0o100644, 0, 0) + name + b"\0"
        reply = await kernel._ask(Opcode.CREATE, place.node_id, body)
        handle_id, *_ = p.OPEN_OUT.unpack_from(reply, p.ENTRY_OUT.size + p.ATTR.size)
        released = p.RELEASE_IN.pack(handle_id, flags, 0, 0)
        await kernel._ask(Opcode.FLUSH, _node_id(reply), p.FLUSH_IN.pack(handle_id, 0, 0, 0))
        await kernel._ask(Opcode.RELEASE, _node_id(reply), released)
        self._forget(kernel, reply)
        return "file"

    async def _mkdir(self, kernel: ModelKernel, place: Place, name: bytes) -> str:
        body = p.MKDIR_IN.pack(0o755, 0) + name + b"\0"
        self._forget(kernel, await kernel._ask(Opcode.MKDIR, place.node_id, body))
        return "directory"

    async def _symlink(self, kernel: ModelKernel, place: Place, name: bytes) -> str:
        body = name + b"\0there\0"
        self._forget(kernel, await kernel._ask(Opcode.SYMLINK, place.node_id, body))
        return "link"

    @asynccontextmanager
    async def _in_root(self, kernel: ModelKernel) -> AsyncIterator[tuple[int, bytes]]:
        """Make a symbolic link in the root directory, for whoever gives it a name elsewhere."""
        self._made_count += 1
        name = b"own-%d" % self._made_count
        reply = await kernel._ask(Opcode.SYMLINK, ROOT, name + b"\0there\0")
        try:
            yield _node_id(reply), name
        finally:
            self._forget(kernel, reply)

    async def _move_in(self, kernel: ModelKernel, place: Place, name: bytes) -> str:
        async with self._in_root(kernel) as (_, own):
            body = p.RENAME2_IN.pack(place.node_id, 0, 0) + own + b"\0" + name + b"\0"
            await kernel._ask(Opcode.RENAME2, ROOT, body)
        return "link"

    async def _link(self, kernel: ModelKernel, place: Place, name: bytes) -> str:
        async with self._in_root(kernel) as (node_id, own):
            body = p.LINK_IN.pack(node_id) + name + b"\0"
            self._forget(kernel, await kernel._ask(Opcode.LINK, place.node_id, body))
            await kernel._ask(Opcode.UNLINK, ROOT, own + b"\0")
        return "link"

    def _forget(self, kernel: ModelKernel, reply: bytes) -> None:
        kernel._send(Opcode.FORGET, _node_id(reply), p.FORGET_IN.pack(1), None)

    async def _is_there(self, kernel: ModelKernel, place: Place, name: bytes) -> bool:
        try:
            reply = await kernel._ask(Opcode.LOOKUP, place.node_id, name + b"\0")
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        self._forget(kernel, reply)
        return True

    async def _check(self, place: Place, name: bytes) -> None:
        if not self._clocks_agree:
            await trio.sleep(LEASE_S)
        for kernel in self._random.sample(self._kernels, len(self._kernels)):
            is_there, number = name in place.kinds, self._kernels.index(kernel)
            found = await self._is_there(kernel, place, name)
            assert found == is_there, f"mount {number}: {name!r} in {place.label} is there: {found}"
            assert not await self._is_there(kernel, place, OTHER), f"{OTHER!r} in {place.label}"
            self.checked_count += 1


def _node_id(reply: bytes) -> int:
    node_id, *_ = p.ENTRY_OUT.unpack_from(reply)
    assert isinstance(node_id, int)
    return node_id
