"""One program: its connection, and the files, memory and rings that it has registered.

A program is a process: what it has is gone when its connection ends or the process does,
whichever comes first, even if a child holds a copy of the connection.  Requests are answered in
any order; each names its serial number.
"""

import array
import errno
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence, Sized
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from typing import Final, NamedTuple, Protocol

import trio
from emberfs.protocol import (
    ENTRY_COUNT_MAX,
    PACKET_BYTES_MAX,
    REPLY,
    REQUEST,
    TICKET,
    VERSION,
    Call,
    Priority,
    ring_bytes,
)

from ...schema.status import FsError, Status
from ..vfs.batches import Batches
from ..vfs.hf3fs_segments import Segments
from .checks import Share
from .descriptors import SPACE, Closer, received
from .memory import Memory, is_memory_file, new_memory, shared_memory
from .ring import Ring
from .turns import Turns

_log = logging.getLogger(__name__)

FILE_COUNT_MAX: Final = 65_536
MEMORY_COUNT_MAX: Final = 4096
RING_COUNT_MAX: Final = 64
CALLS_AT_ONCE: Final = 16
_DETAIL_BYTES_MAX: Final = 512
_SLOW_BYTES: Final = 16 << 20
_PEER: Final = struct.Struct("=iII")


class Refusal(Exception):  # noqa: N818 - no failure of the system: what a program is to be told
    """A request that cannot be done."""

    def __init__(self, error_number: int, detail: str) -> None:
        super().__init__(detail)
        self.errno = error_number


class Request(NamedTuple):
    """See `REQUEST`."""

    call: int
    serial: int
    id: int
    depth: int
    timeout_ms: int
    priority: int
    first: int
    second: int


class Answer(NamedTuple):
    """What is said and handed over; descriptors are closed after."""

    id: int = 0
    number: int = 0
    fds: Sequence[int] = ()


@dataclass(slots=True)
class _Running:
    """A ring that is served."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)


class Room(Protocol):
    """What of the memory of all programs together one user's may have."""

    def take(self, count: int) -> None:
        """Raise Refusal(ENOMEM) when there is no room for so many bytes."""

    def give_back(self, count: int) -> None:
        """They are not needed any more."""


class Program:
    """See module head."""

    def __init__(
        self,
        connection: trio.socket.SocketType,
        batches: Batches,
        turns: Turns,
        room_of: Callable[[int], Room],
        closer: Closer,
        *,
        segments: Segments | None = None,
    ) -> None:
        """Take over `connection`; `room_of` returns a user's;
        `segments`: those of `3fs-virt`, if the mount offers it.
        """
        self._connection = connection
        self._batches = batches
        self._turns = turns
        self._closer = closer
        self._segments = segments
        self._nursery: trio.Nursery
        self._files: dict[int, Share] = {}
        self._memories: dict[int, Memory] = {}
        self._rings: dict[int, _Running] = {}
        self._last_id = 0
        self._calls = trio.Semaphore(CALLS_AT_ONCE)
        self._sending = trio.Lock()
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        self.pid, self.uid, _ = _PEER.unpack(peer)
        self._room = room_of(self.uid)
        self._handlers: dict[int, Callable[[Request, int], Awaitable[Answer]]] = {
            Call.HELLO: self._hello,
            Call.NEW_MEMORY: self._new_memory,
            Call.SHARE_MEMORY: self._share_memory,
            Call.DROP_MEMORY: self._drop_memory,
            Call.NEW_RING: self._new_ring,
            Call.DROP_RING: self._drop_ring,
            Call.ADD_FILE: self._add_file,
            Call.FILE_LENGTH: self._file_length,
            Call.SYNC_FILE: self._sync_file,
            Call.DROP_FILE: self._drop_file,
            Call.FIND_SEGMENT: self._find_segment,
        }

    async def run(self) -> None:
        """Serve until the program is gone, then free all that it had."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._watch_process)
                await self._listen()
                nursery.cancel_scope.cancel()
        finally:
            self._closer.end(self.uid, socket.socket(fileno=self._connection.detach()))
            for memory in self._memories.values():
                self._forget(memory)
            with trio.CancelScope(shield=True):
                for share in self._files.values():
                    await self._end_share(share)

    async def _watch_process(self) -> None:
        try:
            fd = os.pidfd_open(self.pid)
        except OSError as error:  # of another PID namespace, or gone: the connection will tell
            _log.info("process %d is not watched: %s", self.pid, error)
            return
        try:
            await trio.lowlevel.wait_readable(fd)
        finally:
            os.close(fd)
        self._nursery.cancel_scope.cancel()

    async def _end_share(self, share: Share) -> None:
        try:
            await self._batches.close(share.handle_id)
        except FsError as error:
            _log.warning("process %d: what it wrote last: %s", self.pid, error)

    def _forget(self, memory: Memory) -> None:
        self._room.give_back(memory.mapped_bytes)
        if memory.mapped_bytes >= _SLOW_BYTES:  # giving many pages back takes its time
            try:
                trio.lowlevel.start_thread_soon(memory.close, methodcaller("unwrap"))
            except RuntimeError:  # no thread is to be had
                pass
            else:
                return
        memory.close()

    # -- packets ----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            await self._calls.acquire()
            try:
                packet, ancillary, _, _ = await self._connection.recvmsg(
                    PACKET_BYTES_MAX, SPACE, socket.MSG_CMSG_CLOEXEC
                )
            except ConnectionResetError:
                return
            fds = received(ancillary)
            is_busy = bool(fds) and self._closer.is_busy(self.uid)
            if len(packet) != REQUEST.size or len(fds) > 1 or is_busy:
                if packet:
                    _log.warning("process %d: a packet that is no request", self.pid)
                self._closer.close(self.uid, fds)
                return
            request = Request._make(REQUEST.unpack(packet))
            self._nursery.start_soon(self._serve, request, fds[0] if fds else -1)

    async def _serve(self, request: Request, fd: int) -> None:
        """Answer one request, and close what came with it."""
        try:
            packet, fds = await self._answer(request, fd)
            await self._send(packet, fds)
        finally:
            if fd >= 0 and request.call != Call.SHARE_MEMORY:
                await self._close(fd)
            self._calls.release()

    async def _answer(self, request: Request, fd: int) -> tuple[bytes, Sequence[int]]:
        """Return a reply and its descriptors; an edge of the process,
        where a bug must not end the mount.
        """
        try:
            handler = self._handlers.get(request.call)
            if handler is None:
                raise Refusal(errno.ENOSYS, f"no call {request.call}")  # noqa: TRY301 - one place that answers
            answer = await handler(request, fd)
        except (FsError, OSError, Refusal) as error:
            detail = str(error).encode(errors="replace")[:_DETAIL_BYTES_MAX]
            head = REPLY.pack(request.serial, error.errno or errno.EIO, 0, 0, 0)
            return head + detail, ()
        except Exception:  # noqa: BLE001 - logged, and told to the program
            _log.exception("bug in call %d of process %d", request.call, self.pid)
            return REPLY.pack(request.serial, errno.EIO, 0, 0, 0), ()
        return REPLY.pack(request.serial, 0, answer.id, 0, answer.number), answer.fds

    async def _send(self, packet: bytes, fds: Sequence[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            async with self._sending:
                await self._connection.sendmsg([packet], rights)
        except OSError as error:  # it has gone away; `_listen` sees that, too
            _log.debug("process %d: answering: %s", self.pid, error)
        finally:
            for fd in fds:
                os.close(fd)

    async def _close(self, *fds: int) -> None:
        """Close what a program has sent; cancelled, it is closed all the same."""
        await self._closer.close(self.uid, fds).wait()

    def _new_id(self, held: Sized, count_max: int) -> int:
        if len(held) >= count_max:
            raise Refusal(errno.EMFILE, f"{count_max} of these are registered already")
        self._last_id = (self._last_id + 1) % 2**32
        return self._last_id

    # -- memory -----------------------------------------------------------------------------------

    async def _hello(self, request: Request, _: int) -> Answer:
        if request.id != VERSION:
            raise Refusal(errno.EPROTO, f"this mount speaks version {VERSION}, not {request.id}")
        return Answer(VERSION)

    async def _new_memory(self, request: Request, _: int) -> Answer:
        size, block_size = request.first, request.second
        if size == 0:
            raise Refusal(errno.EINVAL, "memory of 0 bytes")
        new_id = self._new_id(self._memories, MEMORY_COUNT_MAX)
        self._room.take(size)
        try:
            memory, fd = new_memory(size, block_size)
        except BaseException:
            self._room.give_back(size)
            raise
        self._memories[new_id] = memory
        return Answer(new_id, size, (fd,))

    async def _share_memory(self, request: Request, fd: int) -> Answer:
        size, block_size = request.first, request.second
        if fd < 0:
            raise Refusal(errno.EINVAL, "no memory was sent along")
        if size == 0 or not is_memory_file(fd):
            await self._close(fd)
            raise Refusal(errno.EINVAL, "what was sent is no memory file, or no bytes of it")
        try:
            new_id = self._new_id(self._memories, MEMORY_COUNT_MAX)
            self._room.take(size)
        except BaseException:
            os.close(fd)
            raise
        try:
            memory = shared_memory(fd, size, block_size)
        except BaseException:
            self._room.give_back(size)
            raise
        self._room.give_back(size - memory.mapped_bytes)
        self._memories[new_id] = memory
        return Answer(new_id, size)

    async def _drop_memory(self, request: Request, _: int) -> Answer:
        memory = self._memories.pop(request.id, None)
        if memory is None:
            raise Refusal(errno.EINVAL, f"no memory {request.id}")
        self._forget(memory)
        return Answer()

    async def _find_segment(self, request: Request, _: int) -> Answer:
        if self._segments is None:
            raise Refusal(errno.ENOENT, "this mount offers no 3fs-virt")
        number = TICKET.pack(request.first, request.second)
        segment = self._segments.find_by_id(number, self.uid)
        return Answer(segment.block_size, segment.size, (os.dup(segment.fd),))

    # -- rings ------------------------------------------------------------------------------------

    async def _new_ring(self, request: Request, _: int) -> Answer:
        entry_count, depth = request.id, request.depth
        if not 1 <= entry_count <= ENTRY_COUNT_MAX:
            possible = f"1 to {ENTRY_COUNT_MAX} are possible"
            raise Refusal(errno.EINVAL, f"a ring of {entry_count} entries: {possible}")
        if abs(depth) > entry_count:
            raise Refusal(errno.EINVAL, f"depth {depth} on a ring of {entry_count} entries")
        if request.priority not in Priority.__members__.values():
            raise Refusal(errno.EINVAL, f"priority {request.priority}")
        new_id = self._new_id(self._rings, RING_COUNT_MAX)
        size = ring_bytes(entry_count)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ExitStack() as undo:
            undo.callback(ours.close)
            undo.callback(theirs.close)
            self._room.take(size)
            undo.callback(self._room.give_back, size)
            memory, fd = new_memory(size)
            undo.pop_all()
        ring = Ring(
            memory,
            ours,
            entry_count=entry_count,
            depth=depth,
            timeout_s=request.timeout_ms / 1000,
            priority=Priority(request.priority),
            files=self._files,
            memories=self._memories,
            batches=self._batches,
            turns=self._turns,
            uid=self.uid,
            pid=self.pid,
            end_bell=partial(self._closer.end, self.uid),
        )
        self._rings[new_id] = _Running()
        self._nursery.start_soon(self._run_ring, ring, new_id, size)
        return Answer(new_id, size, (fd, theirs.detach()))

    async def _run_ring(self, ring: Ring, ring_id: int, size: int) -> None:
        running = self._rings[ring_id]
        try:
            with running.scope:
                await ring.run()
        finally:
            self._room.give_back(size)
            del self._rings[ring_id]
            running.ended.set()
        if ring.breach:
            _log.warning("process %d of user %d: %s", self.pid, self.uid, ring.breach)
            self._nursery.cancel_scope.cancel()

    async def _drop_ring(self, request: Request, _: int) -> Answer:
        running = self._rings.get(request.id)
        if running is None:
            raise Refusal(errno.EINVAL, f"no ring {request.id}")
        running.scope.cancel()
        await running.ended.wait()  # no read reaches the program's memory any more
        return Answer()

    # -- files ------------------------------------------------------------------------------------

    async def _add_file(self, request: Request, _: int) -> Answer:
        new_id = self._new_id(self._files, FILE_COUNT_MAX)
        ticket = TICKET.pack(request.first, request.second)
        handle_id = self._batches.open(ticket, is_by_root=self.uid == 0)
        self._files[new_id] = Share(handle_id, *self._batches.rights(handle_id))
        return Answer(new_id)

    def _share(self, file_id: int) -> Share:
        share = self._files.get(file_id)
        if share is None:
            raise FsError(Status.BAD_FILE, f"no file {file_id}")
        return share

    async def _file_length(self, request: Request, _: int) -> Answer:
        return Answer(0, self._batches.length(self._share(request.id).handle_id))

    async def _sync_file(self, request: Request, _: int) -> Answer:
        await self._batches.sync(self._share(request.id).handle_id)
        return Answer()

    async def _drop_file(self, request: Request, _: int) -> Answer:
        share = self._share(request.id)
        del self._files[request.id]
        with trio.CancelScope(shield=True):
            await self._batches.close(share.handle_id)
        return Answer()
