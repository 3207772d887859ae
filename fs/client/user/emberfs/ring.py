"""The batch interface through the mount daemon: `RingClient`.

Each call takes a ring, hands its transfers in, and waits for them on that ring's bell; so threads do not meet but at the
list of free rings.  Buffers in memory of `allocate` (or `share`) are moved without a copy; others through a stage.

Invariants:
    - A ring goes back to the list only when nothing is under way on it; after an exception it is given up, and only then
      does the call end, so that no read reaches a buffer later.
    - After a fork the child drops its copies of connection and rings; it connects, and registers files and memory,
      at the first use there.
"""

import errno
import fcntl
import mmap
import os
import stat
import threading
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from .batch import BatchFile, OpenMode, Transfer
from .connection import Connection
from .ior import Ior
from .memory import Region, Regions
from .plan import Plan
from .posix import close_descriptor
from .protocol import IOCTL_TICKET, TICKET, Call, EntryFlag, Op, Priority

ENTRY_COUNT: Final = 1024
"""Of the rings behind `read` and `write`."""
STAGE_BYTES: Final = 8 << 20
_MODE: Final = 0o666
_OPEN_FLAGS: Final[dict[OpenMode, int]] = {
    "r": os.O_RDONLY,
    "r+": os.O_RDWR,
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}
_NO_FLAGS: Final = EntryFlag(0)


class RingFile:
    """See `BatchFile`.  Also an ordinary descriptor: `fileno`."""

    def __init__(self, client: "RingClient", path: str, fd: int) -> None:
        """Take over `fd`, open on the client's mount."""
        self._client = client
        self._path = path
        self._fd = fd
        self._id = 0
        self._generation = -1

    @property
    def path(self) -> str:
        """As it was opened."""
        return self._path

    def fileno(self) -> int:
        """Return the descriptor; -1 when closed."""
        return self._fd

    @property
    def id(self) -> int:
        """At the daemon; registers the file where it is not yet."""
        if self._generation != self._client.generation or not self._id:
            self._register()
        return self._id

    def _register(self) -> None:
        if self._fd < 0:
            raise OSError(errno.EBADF, "the file is closed", self._path)
        connection = self._client.connection()
        try:
            ticket = fcntl.ioctl(self._fd, IOCTL_TICKET, bytes(TICKET.size))
        except OSError as error:
            if error.errno != errno.ENOTTY:
                raise OSError(error.errno, error.strerror, self._path) from error
            what = "not on an EmberFS mount that serves batches"
            raise OSError(errno.EOPNOTSUPP, what, self._path) from error
        first, second = TICKET.unpack(ticket)
        try:
            self._id = connection.call(Call.ADD_FILE, first=first, second=second).id
        except OSError as error:
            number = errno.EISDIR if stat.S_ISDIR(os.fstat(self._fd).st_mode) else error.errno
            raise OSError(number, error.strerror, self._path) from error
        self._generation = self._client.generation

    def length(self) -> int:
        """See `BatchFile`."""
        return self._call(Call.FILE_LENGTH)

    def fsync(self) -> None:
        """See `BatchFile`."""
        self._call(Call.SYNC_FILE)

    def _call(self, call: Call) -> int:
        try:
            return self._client.connection().call(call, self.id).number
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from error

    def close(self) -> None:
        """See `BatchFile`."""
        if self._fd < 0:
            return
        try:
            if self._id and self._generation == self._client.generation:
                self._call(Call.DROP_FILE)
        finally:
            fd, self._fd = self._fd, -1
            self._client.forget_file(self)
            close_descriptor(fd, self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class SharedIov:
    """See `Iov`."""

    def __init__(self, client: "RingClient", mapping: mmap.mmap, region: Region) -> None:
        self._client = client
        self._region = region
        self._mapping: mmap.mmap | None = mapping
        self._view = memoryview(mapping)

    @property
    def view(self) -> memoryview:
        """See `Iov`."""
        return self._view

    @property
    def id(self) -> int:
        """At the daemon."""
        return self._client.region_id(self._region)

    def close(self) -> None:
        """See `Iov`."""
        if self._mapping is None:
            return
        self._view.release()
        try:
            self._mapping.close()
        except BufferError:
            self._view = memoryview(self._mapping)
            raise
        self._mapping = None
        self._client.drop_ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Lane:
    """A ring with its stage, used by one call at a time."""

    def __init__(self, client: "RingClient") -> None:
        self.ring = client.ring(ENTRY_COUNT)
        self._client = client
        self._stage: SharedIov | None = None
        self._stage_used = 0
        self._staged: dict[int, memoryview] = {}

    @property
    def is_free(self) -> bool:
        """Whether nothing is under way."""
        return self.ring.free_count == self.ring.entry_count

    def close(self) -> None:
        """Give the ring up, and its stage."""
        self.ring.close()
        self._staged.clear()
        if self._stage is not None:
            self._stage.close()

    def start(self, plan: Plan) -> None:
        """Hand in as many of the waiting pieces as there is room for."""
        ring, client, op, flags = self.ring, self._client, plan.op, plan.flags
        while plan.waiting and ring.free_count:
            index = plan.waiting[0]
            piece = plan.piece(index)
            transfer = plan.transfers[piece.transfer]
            file = _own(transfer.file)
            offset = transfer.offset + piece.start + piece.moved
            length = piece.length - piece.moved
            if piece.region is not None:
                place = piece.region_offset + piece.moved
                memory_id = client.region_id(piece.region)
            else:
                staged = self._staged_at(index, plan)
                if staged is None:
                    break
                memory_id, place = staged
            ring.put(index, offset, place, length, file.id, memory_id, op, flags)
            plan.waiting.popleft()
        ring.submit()

    def _staged_at(self, index: int, plan: Plan) -> tuple[int, int] | None:
        """Return (memory id, offset) of room for a piece on the stage; None: there is none before others have ended."""
        buffer = plan.buffer_of(plan.piece(index))
        if self._stage is None:
            self._stage = self._client.allocate(STAGE_BYTES)
        if not self._staged:
            self._stage_used = 0
        start, end = self._stage_used, self._stage_used + buffer.nbytes
        if end > STAGE_BYTES:
            return None
        self._stage_used = end
        window = self._stage.view[start:end]
        if plan.op is Op.WRITE:
            window[:] = buffer
        self._staged[index] = window
        return self._stage.id, start

    def note(self, plan: Plan, index: int, result: int) -> None:
        """Take in a completion."""
        window = self._staged.pop(index, None)
        if window is not None and plan.op is Op.READ and result > 0:
            plan.buffer_of(plan.piece(index))[:result] = window[:result]
        plan.note(index, result)


class RingClient:
    """See `BatchClient` and the module head."""

    def __init__(self, mount_path: str | os.PathLike[str]) -> None:
        """Connect to the mount that a path is on.

        Raises:
            OSError: EOPNOTSUPP: it is on no mount that serves batches; ENOENT, ECONNREFUSED and others.
        """
        self._mount_path = os.fspath(mount_path)
        self.generation = 0
        """Grows with every connection; what was registered under another is registered again."""
        self._is_closed = False
        self._files: set[RingFile] = set()
        self._regions = Regions()
        self._reset()
        self.connection()
        _clients.add(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._lanes: list[_Lane] = []
        self._rings: weakref.WeakSet[Ior] = weakref.WeakSet()

    def after_fork(self) -> None:
        """In the child of a fork: drop the copies of what is the parent's."""
        if self._connection is not None:
            self._connection.abandon()
        for ring in list(self._rings):
            ring.abandon()
        self._regions.forget_ids()
        self._reset()

    def __reduce__(self) -> tuple[type["RingClient"], tuple[str]]:
        return RingClient, (self._mount_path,)

    # -- what files and memory need -----------------------------------------------------------------

    def connection(self) -> Connection:
        """Return the connection to the daemon, made where there is none in this process; raises OSError."""
        connection = self._connection
        if connection is not None:
            return connection
        with self._lock:
            if self._is_closed:
                raise OSError(errno.EBADF, "this client is closed", self._mount_path)
            if self._connection is None:
                self._connection = Connection(self._mount_path)
                self.generation += 1
            return self._connection

    def region_id(self, region: Region) -> int:
        """Return the number of a region at the daemon, registered where it is not."""
        if region.id:
            return region.id
        connection = self.connection()
        with self._lock:
            if not region.id:
                region.id = connection.call(
                    Call.SHARE_MEMORY, first=region.size, second=region.block_size, fd=region.fd
                ).id
            return region.id

    def forget_file(self, file: RingFile) -> None:
        """A file was closed."""
        self._files.discard(file)

    def drop_ended(self) -> None:
        """Tell the daemon of memory that nobody uses any more."""
        with self._lock:
            ended = self._regions.take_ended()
        for region in ended:
            if region.id and self._connection is not None:
                self._connection.call(Call.DROP_MEMORY, region.id)

    # -- BatchClient ----------------------------------------------------------------------------------

    def open(self, path: str, mode: OpenMode = "r") -> RingFile:
        """See `BatchClient`."""
        flags = _OPEN_FLAGS.get(mode)
        if flags is None:
            raise ValueError(f"mode {mode!r} is none of {', '.join(_OPEN_FLAGS)}")
        if self._is_closed:
            raise OSError(errno.EBADF, "this client is closed", path)
        return self.adopt(path, os.open(path, flags | os.O_CLOEXEC, _MODE))

    def adopt(self, path: str, fd: int) -> RingFile:
        """Return a file for a descriptor that is open on the mount, which is taken over also if this fails.

        Raises:
            OSError: EOPNOTSUPP: it is of another file system.
        """
        try:
            file = RingFile(self, path, fd)
            file._register()  # noqa: SLF001 - one module
        except BaseException:
            os.close(fd)
            raise
        with self._lock:
            self._files.add(file)
        return file

    def allocate(self, size: int, *, block_size: int = 0) -> SharedIov:
        """See `BatchClient`; with `block_size` no single entry crosses a multiple of it."""
        self.drop_ended()
        if size < 1:
            raise ValueError(f"{size} bytes of memory")
        answer = self.connection().call(Call.NEW_MEMORY, first=size, second=block_size)
        return self._iov(answer.fds[0], size, block_size, answer.id)

    def share(self, fd: int, size: int, *, block_size: int = 0) -> SharedIov:
        """Return memory of a memory file that others may have, too; `fd` stays the caller's.

        Sealed against shrinking it is reached without a copy, otherwise (a file in /dev/shm) with one.
        """
        self.drop_ended()
        answer = self.connection().call(Call.SHARE_MEMORY, first=size, second=block_size, fd=fd)
        return self._iov(os.dup(fd), size, block_size, answer.id)

    def _iov(self, fd: int, size: int, block_size: int, region_id: int) -> SharedIov:
        mapping = mmap.mmap(fd, size)
        region = Region(mapping, fd, block_size)
        region.id = region_id
        with self._lock:
            self._regions.add(mapping, region)
        return SharedIov(self, mapping, region)

    def ring(
        self,
        entry_count: int = ENTRY_COUNT,
        *,
        depth: int = 0,
        timeout_s: float = 0.0,
        priority: Priority = Priority.NORMAL,
    ) -> Ior:
        """Return a ring of one's own, for one thread at a time; ends with the client.  See `Ior`."""
        ring = Ior(
            self.connection(), entry_count, depth=depth, timeout_s=timeout_s, priority=priority
        )
        with self._lock:
            self._rings.add(ring)
        return ring

    def read(self, transfers: Sequence[Transfer], *, flags: EntryFlag = _NO_FLAGS) -> list[int]:
        """See `BatchClient`."""
        return self._move(self._plan(Op.READ, transfers, flags))

    def write(self, transfers: Sequence[Transfer]) -> None:
        """See `BatchClient`."""
        self._move(self._plan(Op.WRITE, transfers, _NO_FLAGS))

    async def read_async(
        self, transfers: Sequence[Transfer], *, flags: EntryFlag = _NO_FLAGS
    ) -> list[int]:
        """Do what `read` does, in a coroutine of asyncio or trio; cancelled, the buffers are not reached any more."""
        return await self._move_async(self._plan(Op.READ, transfers, flags))

    async def write_async(self, transfers: Sequence[Transfer]) -> None:
        """Do what `write` does, in a coroutine of asyncio or trio; cancelled, any part may have been written."""
        await self._move_async(self._plan(Op.WRITE, transfers, _NO_FLAGS))

    def _plan(self, op: Op, transfers: Sequence[Transfer], flags: EntryFlag) -> Plan:
        for transfer in transfers:
            _check(op, transfer)
        buffers = [transfer.buffer for transfer in transfers]
        with self._lock:
            return Plan(op, transfers, buffers, self._regions.find, flags)

    def _move(self, plan: Plan) -> list[int]:
        lane = self._take_lane()
        try:
            while plan.waiting or lane.ring.outstanding:
                lane.start(plan)
                for index, result in lane.ring.wait(1):
                    lane.note(plan, index, result)
        finally:
            self._give_back(lane)
        return plan.counts()

    async def _move_async(self, plan: Plan) -> list[int]:
        lane = self._take_lane()
        try:
            while plan.waiting or lane.ring.outstanding:
                lane.start(plan)
                for index, result in await lane.ring.wait_async(1):
                    lane.note(plan, index, result)
        finally:
            self._give_back(lane)
        return plan.counts()

    def _take_lane(self) -> _Lane:
        with self._lock:
            if self._lanes:
                return self._lanes.pop()
        return _Lane(self)

    def _give_back(self, lane: _Lane) -> None:
        if lane.is_free and not self._is_closed:
            with self._lock:
                self._lanes.append(lane)
        else:
            lane.close()

    def close(self) -> None:
        """See `BatchClient`.  Memory stays readable as long as it is referred to.

        Raises:
            OSError: the first failure of closing a file.
        """
        if self._is_closed:
            return
        failures = []
        for file in list(self._files):
            try:
                file.close()
            except OSError as error:
                failures.append(error)
        with self._lock:
            self._is_closed = True
            connection, self._connection = self._connection, None
        for ring in list(self._rings):
            ring.abandon()
        self._lanes.clear()
        if connection is not None:
            connection.close()
        _clients.discard(self)
        if failures:
            raise failures[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _own(file: BatchFile) -> RingFile:
    if not isinstance(file, RingFile):
        raise TypeError(f"{file!r} was not opened by a RingClient")
    return file


def _check(op: Op, transfer: Transfer) -> None:
    path, buffer = _own(transfer.file).path, transfer.buffer
    if buffer.itemsize != 1 or buffer.ndim != 1 or not buffer.contiguous:
        raise ValueError(f"a buffer for {path!r} is no contiguous view of bytes")
    if op is Op.READ and buffer.readonly:
        raise TypeError(f"a buffer for {path!r} is read-only")
    if transfer.offset < 0:
        raise ValueError(f"offset {transfer.offset} of {path!r}")


_clients: weakref.WeakSet[RingClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork)
