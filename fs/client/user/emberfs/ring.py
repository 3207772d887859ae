"""The batch interface through the mount daemon: `RingClient`.

Each call takes a ring (emberfs/lanes.py), hands its transfers in, and waits for them on that ring's bell.  Buffers in
memory of `allocate` (or `share`) are moved without a copy; others through a stage.

Invariants:
    - After a fork the child drops its copies of connection and rings; it connects, and registers files and memory,
      at the first use there.
    - A daemon that has gone fails the calls of that time; the next ones look for another that serves the mount, and fail with
      ENOTCONN while there is none: the mount point may be bare then, and what is missing there is not missing in the file
      system.  Files that were open stay lost, as the kernel's descriptors do; memory is good again.
"""

import errno
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from .batch import OpenMode, Transfer, need_size
from .closing import Closing
from .connection import Connection
from .ior import Ior
from .lanes import ENTRY_COUNT, Lanes
from .memory import Region, Regions
from .plan import Plan
from .posix import NEW_FILE_MODE, open_flags
from .protocol import LENGTH_MAX, TICKET, Call, EntryFlag, Op, Priority
from .ring_file import RingFile, checked_buffers, is_plain_read, own_file
from .rows import SHARED_BYTES_MIN, Buffers, RingRows, Rows, copy_rows, shared_columns

T = TypeVar("T")

_ROWS_MIN: Final = 4
"""Columns do not pay for fewer."""
_NO_FLAGS: Final = EntryFlag(0)
HUGE_BYTES: Final = 2 << 20
"""A huge page; what is smaller stays in small ones."""
_NOT_SERVED: Final = {errno.ENOENT, errno.EOPNOTSUPP, errno.ECONNREFUSED, errno.ENOTDIR}
"""What a mount point without a mount answers, or the address of a daemon that is no more."""
_NO_MEMORY: Final = {errno.ENOMEM, errno.ENOSPC, errno.EMFILE}


class SharedIov(Closing):
    """See `Iov`."""

    def __init__(self, client: "RingClient", mapping: mmap.mmap, region: Region) -> None:
        self.client = client
        self._region = region
        self._mapping: mmap.mmap | None = mapping
        self._view = memoryview(mapping)

    @property
    def view(self) -> memoryview:
        """See `Iov`."""
        return self._view

    @property
    def block_size(self) -> int:
        """No transfer may cross a multiple of it; 0: any may."""
        return self._region.block_size

    @property
    def id(self) -> int:
        """At the daemon."""
        return self.client.region_id(self._region)

    def close(self) -> None:
        """See `Iov`."""
        if self._mapping is None:
            return
        self._view.release()
        self._region.is_closing = True
        try:
            self._mapping.close()
        except BufferError:
            self._region.is_closing = False
            self._view = memoryview(self._mapping)
            raise
        self._mapping = None
        self.client.drop_ended()


class RingClient(Closing):
    """See `BatchClient` and the module head."""

    def __init__(self, mount_path: str | os.PathLike[str]) -> None:
        """Connect to the mount that a path is on.

        Raises:
            OSError: EOPNOTSUPP: it is on no mount that serves batches; ENOENT, ECONNREFUSED and others.
        """
        self._mount_path = os.fspath(mount_path)
        self.generation = 0
        """Grows where a connection is given up; what was registered before is registered again."""
        self.is_closed = False
        """Whether `close` was called."""
        self._files: set[RingFile] = set()
        self._regions = Regions()
        self._buffers = Buffers(self)
        self._reset()
        self._connection: Connection | None = Connection(self._mount_path)
        _clients.add(self)

    def _reset(self) -> None:
        self.lock = threading.RLock()
        self._connection = None
        self._lanes = Lanes(self)
        self._rings: weakref.WeakSet[Ior] = weakref.WeakSet()
        self.generation += 1

    def after_fork(self) -> None:
        """In the child of a fork: drop the copies of what is the parent's."""
        if self._connection is not None:
            self._connection.abandon()
        for ring in list(self._rings):
            ring.abandon()
        for file in self._files:
            file.after_fork()
        self._regions.forget_ids()
        self._reset()

    def __reduce__(self) -> tuple[type["RingClient"], tuple[str]]:
        return RingClient, (self._mount_path,)

    # -- what files and memory need -----------------------------------------------------------------

    def connection(self) -> Connection:
        """Return the connection to the daemon, made where there is none in this process.

        Raises:
            OSError: EBADF: the client is closed; ENOTCONN: nobody serves the mount now; EMFILE and others of this process's own.
        """
        connection = self._connection
        if connection is not None and not connection.has_ended:
            return connection
        with self.lock:
            if self.is_closed:
                raise OSError(errno.EBADF, "this client is closed", self._mount_path)
            if self._connection is not None and self._connection.has_ended:
                self._forget_daemon(self._connection)
            if self._connection is None:
                self._connection = self._connect_again()
            return self._connection

    def _connect_again(self) -> Connection:
        """Connect to who serves the mount now."""
        try:
            return Connection(self._mount_path)
        except OSError as error:
            if error.errno not in _NOT_SERVED:
                raise
            what = f"the mount is not served now: {error.strerror}"
            raise OSError(errno.ENOTCONN, what, self._mount_path) from error

    def ask(self, ask: Callable[[Connection], T]) -> T:
        """Ask the daemon for what it can do twice: another one if this one turns out to have gone; raises OSError."""
        connection = self.connection()
        try:
            return ask(connection)
        except OSError:
            if not connection.has_ended:
                raise
        return ask(self.connection())

    def _forget_daemon(self, ended: Connection) -> None:
        """It has gone; the mount may be served by another one now, which knows of nothing."""
        ended.close()
        self._connection = None
        self.generation += 1
        self._regions.forget_ids()

    def region_id(self, region: Region) -> int:
        """Return the number of a region at the daemon, registered where it is not."""
        if region.id:
            return region.id
        with self.lock:
            if not region.id:
                region.id = self.ask(
                    lambda connection: connection.call(
                        Call.SHARE_MEMORY, first=region.size, second=region.block_size, fd=region.fd
                    )
                ).id
            return region.id

    def forget_file(self, file: RingFile) -> None:
        """A file was closed."""
        self._files.discard(file)

    def drop_ended(self) -> None:
        """Tell the daemon of memory that nobody uses any more."""
        with self.lock:
            ended = self._regions.take_ended()
        for region in ended:
            connection = self._connection
            if region.id and connection is not None and not connection.has_ended:
                connection.call(Call.DROP_MEMORY, region.id)

    # -- BatchClient ----------------------------------------------------------------------------------

    def open(self, path: str, mode: OpenMode = "r") -> RingFile:
        """See `BatchClient`."""
        flags = open_flags(mode)
        if self.is_closed:
            raise OSError(errno.EBADF, "this client is closed", path)
        return self.adopt(path, os.open(path, flags, NEW_FILE_MODE))

    def adopt(self, path: str, fd: int) -> RingFile:
        """Return a file for a descriptor that is open on the mount, which is taken over also if this fails.

        Raises:
            OSError: EOPNOTSUPP: it is of another file system.
        """
        try:
            file = RingFile(self, path, fd)
            file.register()
        except BaseException:
            os.close(fd)
            raise
        with self.lock:
            self._files.add(file)
        return file

    def allocate(self, size: int, *, block_size: int = 0) -> SharedIov:
        """See `BatchClient`; with `block_size` no single entry crosses a multiple of it."""
        self.drop_ended()
        need_size(size)
        answer = self.ask(
            lambda connection: connection.call(Call.NEW_MEMORY, first=size, second=block_size)
        )
        return self._iov(answer.fds[0], size, block_size, answer.id, is_new=True)

    def share(self, fd: int, size: int, *, block_size: int = 0) -> SharedIov:
        """Return memory of a memory file that others may have, too; `fd` stays the caller's.

        Sealed against shrinking it is reached without a copy, otherwise (a file in /dev/shm) with one.
        """
        self.drop_ended()
        answer = self.ask(
            lambda connection: connection.call(
                Call.SHARE_MEMORY, first=size, second=block_size, fd=fd
            )
        )
        return self._iov(os.dup(fd), size, block_size, answer.id)

    def segment(self, number: bytes) -> SharedIov:
        """Return memory that a program of this user has registered by a link in `3fs-virt/iovs`, by the 16 bytes of its UUID.

        Raises:
            OSError: ENOENT: none has, or the mount offers no such directory; ENOSYS: its daemon is of an earlier release.
        """
        first, second = TICKET.unpack(number)
        answer = self.ask(
            lambda connection: connection.call(Call.FIND_SEGMENT, first=first, second=second)
        )
        (fd,) = answer.fds
        try:
            return self.share(fd, answer.number, block_size=answer.id)
        finally:
            os.close(fd)

    def _iov(
        self, fd: int, size: int, block_size: int, region_id: int, *, is_new: bool = False
    ) -> SharedIov:
        try:
            mapping = mmap.mmap(fd, size)
            if (
                is_new and size >= HUGE_BYTES
            ):  # who touches a page first decides of which kind it is
                with suppress(OSError):  # a kernel without huge pages
                    mapping.madvise(mmap.MADV_HUGEPAGE)
        except BaseException:
            os.close(fd)
            self.connection().call(Call.DROP_MEMORY, region_id)
            raise
        region = Region(mapping, fd, block_size)
        region.id = region_id
        with self.lock:
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
        ring = self.ask(
            lambda connection: Ior(
                connection,
                self,
                entry_count,
                depth=depth,
                timeout_s=timeout_s,
                priority=priority,
            )
        )
        with self.lock:
            self._rings.add(ring)
        return ring

    def read(self, transfers: Sequence[Transfer], *, flags: EntryFlag = _NO_FLAGS) -> list[int]:
        """See `BatchClient`."""
        if len(transfers) >= _ROWS_MIN:
            with self.lock:
                found = shared_columns(transfers, self._regions, self)
            if found is not None:
                rows, region = found
                return self._read_shared(RingRows(rows, region, flags=flags))
        if len(transfers) == 1:
            count = self._read_one(transfers[0], flags)
            if count is not None:
                return [count]
        return self._move(self._plan(Op.READ, transfers, flags))

    def _read_one(self, transfer: Transfer, flags: EntryFlag) -> int | None:
        """Do a read that needs one entry, without a plan, which costs more than that; None: it needs one, and nothing is done."""
        file, offset, buffer = transfer
        if not isinstance(file, RingFile) or not is_plain_read(file, offset, buffer, self):
            return None
        found = self._regions.find_again(buffer)
        if found is None:
            with self.lock:
                found = self._regions.find(buffer)
        length = buffer.nbytes
        if found is None or found[0].block_size or not 0 < length <= LENGTH_MAX:
            return None
        region, place = found
        lane = self._lanes.take()
        try:
            memory_id = region.id or self.region_id(region)
            result = lane.ring.move_one(
                0, offset, place, length, file.id, memory_id, Op.READ, flags
            )
        except BaseException:
            self._lanes.give_back(lane)
            raise
        self._lanes.keep(lane)
        if result < 0:
            raise OSError(-result, os.strerror(-result), file.path)
        return result

    def _read_shared(self, rows: RingRows) -> list[int]:
        lane = self._lanes.take()
        try:
            return rows.move(lane)
        finally:
            self._lanes.give_back(lane)

    def write(self, transfers: Sequence[Transfer]) -> None:
        """See `BatchClient`."""
        self._move(self._plan(Op.WRITE, transfers, _NO_FLAGS))

    def new_buffer(self, size: int) -> memoryview:
        """See `emberfs.rows.new_buffer`."""
        return (self._shared(size) if self._buffers.can_hand_out(size) else None) or memoryview(
            bytearray(size)
        )

    def _shared(self, size: int) -> memoryview | None:
        """Return memory that is not to be kept for long; None: there is none to be had."""
        try:
            return self._buffers.take(size)
        except OSError as error:
            if error.errno not in _NO_MEMORY:
                raise
            return None

    def read_rows(self, rows: Rows, buffer: memoryview) -> list[int]:
        """See `emberfs.rows.read_rows`, by which it is to be called."""
        for file in set(rows.files):
            own_file(file, self)
        if not rows.files:
            return []
        staged = None
        if len(buffer) >= SHARED_BYTES_MIN and self._region_of(buffer) is None:
            staged = self._shared(len(buffer))
        if staged is None:
            return self._move_rows(rows, buffer)
        counts = self._move_rows(rows, staged)
        copy_rows(rows, counts, staged, buffer)
        return counts

    def _region_of(self, buffer: memoryview) -> tuple[Region, int] | None:
        with self.lock:
            return self._regions.find(buffer)

    def _move_rows(self, rows: Rows, buffer: memoryview) -> list[int]:
        found = self._region_of(buffer)
        is_plain = found is not None and not found[0].block_size
        if found is None or not is_plain or max(rows.sizes) > LENGTH_MAX:
            return self.read(
                [
                    Transfer(file, offset, buffer[place : place + size])
                    for file, offset, size, place in zip(*rows, strict=True)
                ]
            )
        region, start = found
        return self._read_shared(RingRows(rows, region, region_offset=start))

    async def read_async(
        self, transfers: Sequence[Transfer], *, flags: EntryFlag = _NO_FLAGS
    ) -> list[int]:
        """Do what `read` does, in a coroutine of asyncio or trio; cancelled, the buffers are not reached any more."""
        return await self._move_async(self._plan(Op.READ, transfers, flags))

    async def write_async(self, transfers: Sequence[Transfer]) -> None:
        """Do what `write` does, in a coroutine of asyncio or trio; cancelled, any part may have been written."""
        await self._move_async(self._plan(Op.WRITE, transfers, _NO_FLAGS))

    def _plan(self, op: Op, transfers: Sequence[Transfer], flags: EntryFlag) -> Plan:
        buffers = checked_buffers(op, transfers, self)
        with self.lock:
            return Plan(op, transfers, buffers, map(self._regions.find, buffers), flags)

    def _move(self, plan: Plan) -> list[int]:
        lane = self._lanes.take()
        try:
            while plan.waiting or lane.ring.outstanding:
                lane.start(plan)
                lane.note(plan, lane.ring.collect(1))
        finally:
            self._lanes.give_back(lane)
        return plan.counts()

    async def _move_async(self, plan: Plan) -> list[int]:
        async with self._lanes.lane_async() as lane:
            while plan.waiting or lane.ring.outstanding:
                lane.start(plan)
                lane.note(plan, await lane.ring.collect_async(1))
        return plan.counts()

    def close(self) -> None:
        """See `BatchClient`.  Memory stays readable as long as it is referred to.

        Raises:
            OSError: the first failure of closing a file.
        """
        if self.is_closed:
            return
        failures = []
        for file in list(self._files):
            try:
                file.close()
            except OSError as error:
                failures.append(error)
        with self.lock:
            self.is_closed = True
            connection, self._connection = self._connection, None
        for ring in list(self._rings):
            ring.abandon()
        if connection is not None:
            connection.close()
        _clients.discard(self)
        if failures:
            raise failures[0]


_clients: weakref.WeakSet[RingClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork)
