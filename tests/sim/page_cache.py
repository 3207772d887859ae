"""A model of what Linux keeps of a mount: pages, attributes and names,
in front of the real FUSE server and vfs.

It sends the requests that fs/fuse of Linux 6 sends, in the order in which it may send them, and
does with the replies what that does:

    pages        are there, locked, before the READ that fills them is sent, and stay locked until
                 its reply; a short one lowers the size that is shown and leaves zeros, but not
                 where attributes have changed since the kernel made it, which is before it queues:
                 then zeros are shown.  Whoever drops pages waits for their locks.  A write fills
                 pages before its WRITE is sent.
    attributes   are used until they expire; each change of this side counts up a version, and a
                 reply whose request is older changes nothing.  Another size, or another time of
                 change, drops all pages (AUTO_INVAL_DATA), one after the other: until then they
                 are read by the new size.
    opens        drop the pages unless told to keep them; O_TRUNC drops them too and empties the
                 file once the reply is there.
    RELEASE      is sent when nobody waits for it any more, and no READ
                 through the file is under way.
    maps         have pages read that are not there, and ask for no attributes; O_DIRECT goes
                 past the pages in requests of its own, one after the other, and drops those
                 that it overwrites before.
    notices      of changes drop attributes, or these and pages, from another thread: at any time,
                 between any two requests.

Whoever waits for a reply acts on it some time after it came, as a thread does
that has to be scheduled first.

Does not model: writing through maps, writeback cache (never agreed on), access control lists,
locks, interrupts, asynchronous O_DIRECT.
"""

import math
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import trio

from fs.client.fuse.direct import handshake
from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.device import Request
from fs.client.fuse.direct.protocol import Opcode
from fs.kernels.device import ANSWER, READ_REQUEST
from fs.runtime.ports import Buffer
from fs.schema.config import ClientSection
from fs.schema.ids import InodeId

PAGE_BYTES: Final = 4096
REQUEST_PAGES_MAX: Final = 256
ROOT: Final = 1
_FLAGS: Final = (1 << 32) - 1
_INIT: Final = p.INIT_IN.pack(p.MAJOR, p.MINOR, 1 << 17, _FLAGS) + p.INIT_IN_FLAGS2.pack(0)
S: Final = 1_000_000_000

T = TypeVar("T")


_THREAD_COUNT: Final = 3


class ModelDevice:
    """Stands for /dev/fuse: requests go in here, and their replies come out."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._arrived = trio.Event()
        self._ends: dict[int, Callable[[int, bytes], None]] = {}
        self._unique_last = 0
        self._is_gone = False

    def send(
        self,
        opcode: int,
        node_id: int,
        body: bytes,
        on_end: Callable[[int, bytes], None] | None,
        thread_id: int = 0,
    ) -> None:
        """Queue a request; `on_end` is called with errno and reply, in whatever task answers it."""
        self._unique_last += 2
        if on_end is not None:
            self._ends[self._unique_last] = on_end
        # Who lists by which thread decides what is shown with attributes.
        if opcode == Opcode.READDIRPLUS:
            thread_id = self._unique_last // 2 % _THREAD_COUNT + 1
        request = Request(self._unique_last, opcode, node_id, 0, 0, thread_id, body)
        self._requests.append(request)
        self._arrived.set()

    def end(self) -> None:
        """Nobody sends anything any more."""
        self._is_gone = True
        self._arrived.set()

    def receive_now(self, count_max: int) -> tuple[bytes, Request | None]:
        """See Device."""
        if self._is_gone and not self._requests:
            raise EOFError("unmounted")
        rows = []
        while self._requests and len(rows) < count_max:
            one = self._requests.popleft()
            if one.opcode != Opcode.READ:
                return b"".join(rows), one
            asked = p.READ_IN.unpack(one.body)
            head = (READ_REQUEST.size, one.opcode, one.unique, one.node_id, one.uid, one.gid)
            rows.append(READ_REQUEST.pack(*head, one.pid, 0, 0, *asked))
        return b"".join(rows), None

    async def receive(self, look: Callable[[], T | None]) -> T:
        """See Device."""
        while (found := look()) is None:
            self._arrived = trio.Event()
            await self._arrived.wait()
        return found

    def answer(self, answers: bytes, memory: Buffer) -> list[tuple[int, int]]:
        """See Device."""
        for unique, place, length, number in ANSWER.iter_unpack(answers):
            self._ends.pop(unique)(number, bytes(memory[place : place + length]))
        return []

    def reply(self, unique: int, buffers: Sequence[Buffer]) -> None:
        """See Device."""
        self._ends.pop(unique)(0, b"".join(buffers))

    def reply_error(self, unique: int, error_number: int) -> None:
        """See Device."""
        self._ends.pop(unique)(error_number, b"")


class Attributes(NamedTuple):
    """As a reply tells them."""

    size: int
    mtime_ns: int
    mode: int


class Page:
    """One page of a file; it may have been dropped while somebody still waits for its lock."""

    __slots__ = ("_unlocked", "data", "is_uptodate")

    def __init__(self) -> None:
        self.data = bytearray(PAGE_BYTES)
        self.is_uptodate = False
        self._unlocked: trio.Event | None = None

    @property
    def is_locked(self) -> bool:
        return self._unlocked is not None

    def lock(self) -> None:
        assert self._unlocked is None
        self._unlocked = trio.Event()

    def unlock(self) -> None:
        assert self._unlocked is not None
        self._unlocked.set()
        self._unlocked = None

    async def wait_unlocked(self) -> None:
        while self._unlocked is not None:
            await self._unlocked.wait()


@dataclass(eq=False)
class Node:
    """What is kept of an inode."""

    node_id: int
    lookup_count: int = 0
    size: int = 0
    mtime_ns: int = 0
    valid_until_s: float = 0.0
    is_invalid: bool = False
    version: int = 0
    reply_version: int = 0
    """Of the last change by a reply that told attributes."""
    is_size_unstable: bool = False
    pages: dict[int, Page] = field(default_factory=dict)
    lock: trio.Lock = field(default_factory=trio.Lock)
    open_count: int = 0
    """Open files, and whatever else is under way."""
    overlooked_s: float = -1e9
    """When zeros were last to be seen that no mount can prevent; inf: they are.

    Either the answer to a READ was overlooked since a reply had told attributes meanwhile,
    which no mount can know before; or a reply made the file longer, and the page where it ended
    before had not been dropped yet.
    """


@dataclass(eq=False)
class OpenFile:
    """An open file description."""

    node: Node
    handle_id: int
    flags: int
    is_direct: bool
    name: bytes = b""
    """By which it was opened."""
    use_count: int = 1
    """Itself, its maps, and READs that are under way."""


class Caches:
    """What one mount's kernel keeps."""

    def __init__(
        self, device: ModelDevice, source: random.Random, nursery: trio.Nursery, late_s: float
    ) -> None:
        """Know nothing yet.

        Args:
            device: what the server answers.
            source: decides how long things take, and how much is read ahead.
            nursery: of what nobody waits for.
            late_s: how late a thread may act on a reply, at most.
        """
        self._device = device
        self._random = source
        self._nursery = nursery
        self._late_s = late_s
        self._version = 1
        agreed = handshake.agree(_INIT, ClientSection().max_background)
        assert agreed is not None
        self._background = trio.Semaphore(p.INIT_OUT.unpack(agreed.reply)[4])
        """READs that may be under way: further ones wait here,
        with what was known of the attributes before.
        """
        self.nodes: dict[int, Node] = {ROOT: Node(ROOT, lookup_count=1)}
        self._names: dict[tuple[int, bytes], tuple[int, float]] = {}
        self._directory_lock = trio.Lock()
        """Names change under it, and listings take in what they were told."""
        self.write_count = 0
        """WRITEs under way."""
        self.say: Callable[..., None] = lambda *_: None
        """Told of each request and of its end."""

    # ---- requests --------------------------------------------------------------------------------

    async def _pause(self) -> None:
        if self._random.random() < 0.3:
            await trio.sleep(self._random.random() ** 3 * self._late_s)
        else:
            await trio.lowlevel.checkpoint()

    def _send(
        self,
        opcode: int,
        node_id: int,
        body: bytes,
        on_end: Callable[[int, bytes], None] | None,
        thread_id: int = 0,
    ) -> None:
        self.say(Opcode(opcode).name, f"{node_id:x}", f"version {self._version}")
        if on_end is None:
            self._device.send(opcode, node_id, body, None)
            return

        is_write = opcode == Opcode.WRITE
        self.write_count += is_write

        def end(error_number: int, reply: bytes) -> None:
            self.write_count -= is_write
            self.say("    ends", Opcode(opcode).name, f"{node_id:x}", error_number, len(reply))
            on_end(error_number, reply)

        self._device.send(opcode, node_id, body, end, thread_id)

    async def _ask(self, opcode: int, node_id: int, body: bytes = b"", thread_id: int = 0) -> bytes:
        ended, told = trio.Event(), list[tuple[int, bytes]]()

        def end(error_number: int, reply: bytes) -> None:
            told.append((error_number, reply))
            ended.set()

        self._send(opcode, node_id, body, end, thread_id)
        await ended.wait()
        await self._pause()
        ((error_number, reply),) = told
        if error_number:
            raise OSError(error_number, f"{Opcode(opcode).name}: {os.strerror(error_number)}")
        return reply

    def _changed(self, node: Node) -> None:
        self._version += 1
        node.version = self._version

    # ---- attributes ------------------------------------------------------------------------------

    async def _take_attributes(
        self, node: Node, told: Attributes, valid_s: float, version: int
    ) -> None:
        """Take over what a request told that was sent at `version`."""
        if node.version > version or node.is_size_unstable:
            return
        self._changed(node)
        node.reply_version = node.version
        node.is_invalid, node.valid_until_s = False, trio.current_time() + valid_s
        before, (node.size, node.mtime_ns, mode) = (node.size, node.mtime_ns), told
        if mode & 0o170000 != 0o100000:
            return
        if before[0] != told.size:
            await self._cut_pages(node, told.size)
        if before == told[:2]:
            return
        ends_within_page = before[0] % PAGE_BYTES and before[0] < told.size
        if ends_within_page:
            node.overlooked_s = math.inf
        await self._drop_pages(node)
        if ends_within_page:
            node.overlooked_s = trio.current_time()

    async def _update_attributes(self, node: Node) -> tuple[int, int]:
        """Return size and time of change, asked for if what is known has expired."""
        if not node.is_invalid and trio.current_time() <= node.valid_until_s:
            return node.size, node.mtime_ns
        version = self._version
        reply = await self._ask(Opcode.GETATTR, node.node_id, p.GETATTR_IN.pack(0, 0, 0))
        valid_s, valid_ns, _ = p.ATTR_OUT.unpack_from(reply)
        told = attributes_in(reply, p.ATTR_OUT.size)
        await self._take_attributes(node, told, valid_s + valid_ns / S, version)
        return told.size, told.mtime_ns

    async def _take_entry(
        self, reply: bytes, start: int, version: int, place: tuple[int, bytes]
    ) -> Node:
        node_id, _, entry_s, attr_s, entry_ns, attr_ns = p.ENTRY_OUT.unpack_from(reply, start)
        node = self.nodes.setdefault(node_id, Node(node_id))
        node.lookup_count += 1
        node.open_count += 1
        self._names[place] = node_id, trio.current_time() + entry_s + entry_ns / S
        told = attributes_in(reply, start + p.ENTRY_OUT.size)
        await self._take_attributes(node, told, attr_s + attr_ns / S, version)
        node.open_count -= 1
        return node

    async def _look_up(self, name: bytes, *, must_ask: bool = False, thread_id: int = 0) -> Node:
        place = ROOT, name
        node_id, until_s = self._names.get(place, (0, 0.0))
        if node_id and not must_ask and trio.current_time() < until_s:
            return self.nodes[node_id]
        version = self._version
        try:
            reply = await self._ask(Opcode.LOOKUP, ROOT, name + b"\0", thread_id)
        except OSError:
            self._names.pop(place, None)
            raise
        return await self._take_entry(reply, 0, version, place)

    # ---- pages -----------------------------------------------------------------------------------

    async def _drop_pages(self, node: Node, first: int = 0, end: int = 1 << 60) -> None:
        for index, page in sorted(node.pages.items()):
            if first <= index < end:
                await page.wait_unlocked()
                if node.pages.get(index) is page:
                    del node.pages[index]

    async def _cut_pages(self, node: Node, size: int) -> None:
        """Drop what lies behind the end; the last page gets zeros there."""
        whole, rest = divmod(size, PAGE_BYTES)
        if rest and (last := node.pages.get(whole)) is not None:
            await last.wait_unlocked()
            last.data[rest:] = bytes(PAGE_BYTES - rest)
        await self._drop_pages(node, whole + bool(rest))

    async def _empty_pages(self, node: Node, begin: int, end: int) -> None:
        """Drop pages within a range; those that are partly in it get zeros there."""
        for index in sorted({begin // PAGE_BYTES, (end - 1) // PAGE_BYTES}):
            start = index * PAGE_BYTES
            first, last = max(begin - start, 0), min(end - start, PAGE_BYTES)
            page = node.pages.get(index)
            if page is not None and last - first < PAGE_BYTES:
                await page.wait_unlocked()
                page.data[first:last] = bytes(last - first)
        await self._drop_pages(node, -(-begin // PAGE_BYTES), end // PAGE_BYTES)

    def _read_pages(self, file: OpenFile, first: int, count: int) -> None:
        """Have pages read that are not there yet; they are locked until the reply comes."""
        node, pages = file.node, list[Page]()
        last = -(-node.size // PAGE_BYTES)
        while len(pages) < min(count, REQUEST_PAGES_MAX):
            index = first + len(pages)
            if index in node.pages or index >= max(last, first + 1):
                break
            page = node.pages[index] = Page()
            page.lock()
            pages.append(page)
        if pages:
            file.use_count += 1
            node.open_count += 1
            self._nursery.start_soon(self._send_read, file, first, pages)

    async def _send_read(self, file: OpenFile, first: int, pages: list[Page]) -> None:
        version, size = self._version, len(pages) * PAGE_BYTES
        try:
            self._background.acquire_nowait()
        except trio.WouldBlock:
            await self._background.acquire()
        if self._random.random() < 0.3:  # others are in the queue before
            await self._pause()
        ended = trio.Event()

        def end(error_number: int, reply: bytes) -> None:
            self._background.release()
            if not error_number:
                self._note_short(file, first * PAGE_BYTES + len(reply), size, reply, version)
            data = reply.ljust(size, b"\0")
            for number, page in enumerate(pages):
                if not error_number:
                    page.data[:] = data[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]
                    page.is_uptodate = True
                page.unlock()
            ended.set()

        body = p.READ_IN.pack(file.handle_id, first * PAGE_BYTES, size, 0, 0, 0, 0)
        self._send(Opcode.READ, file.node.node_id, body, end)
        await ended.wait()
        file.node.open_count -= 1
        self._end_use(file)

    def _note_short(self, file: OpenFile, end: int, size: int, reply: bytes, version: int) -> None:
        node = file.node
        is_short = len(reply) < size and end < node.size
        if is_short and version >= node.version and not node.is_size_unstable:
            self._changed(node)
            node.size = end
        elif is_short and version < node.reply_version:
            node.overlooked_s = max(node.overlooked_s, trio.current_time())

    def _end_use(self, file: OpenFile) -> None:
        file.use_count -= 1
        if file.use_count == 0:
            body = p.RELEASE_IN.pack(file.handle_id, file.flags, 0, 0)

            def end(_error: int, _reply: bytes) -> None:
                file.node.open_count -= 1

            self._send(Opcode.RELEASE, file.node.node_id, body, end)

    # ---- memory, and what the server says by itself ----------------------------------------------

    async def drop_cache(self, name: bytes) -> None:
        """Drop pages of a file as posix_fadvise(2) does: those that nobody has locked."""
        node_id, _ = self._names.get((ROOT, name), (0, 0.0))
        if (node := self.nodes.get(node_id)) is not None:
            node.pages = {i: page for i, page in node.pages.items() if page.is_locked}

    def evict(self, name: bytes) -> None:
        """Forget a file that nobody uses."""
        node_id, _ = self._names.get((ROOT, name), (0, 0.0))
        node = self.nodes.get(node_id)
        if node is None or node.open_count or node.lock.locked():
            return
        del self.nodes[node_id]
        self._names = {place: value for place, value in self._names.items() if value[0] != node_id}
        self._send(Opcode.FORGET, node_id, p.FORGET_IN.pack(node.lookup_count), None)

    async def invalidate_attributes(self, inode_id: InodeId) -> None:
        """See KernelCache; a thread of the server does it."""
        await self._pause()
        self._invalidated(inode_id)
        await self._pause()

    async def invalidate_content(self, inode_id: InodeId, start: int = 0, length: int = 0) -> None:
        """See KernelCache; as `invalidate_attributes`."""
        del start, length  # more may be forgotten than is asked for
        await self._pause()
        node = self._invalidated(inode_id)
        if node is not None:
            await self._drop_pages(node)
        await self._pause()

    def _invalidated(self, inode_id: InodeId) -> Node | None:
        node = self.nodes.get(inode_id)
        if node is not None:
            self._changed(node)
            node.is_invalid = True
            self.say("notice", f"{inode_id:x}", f"version {self._version}")
        return node


def attributes_in(reply: bytes, start: int) -> Attributes:
    """Return the attributes that a reply tells from `start` on."""
    fields = p.ATTR.unpack_from(reply, start)
    _, size, _, _, mtime_s, _, _, mtime_ns, _, mode, *_ = fields
    return Attributes(size, mtime_s * S + mtime_ns, mode)
