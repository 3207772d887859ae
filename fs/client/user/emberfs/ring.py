"""The batch interface through the mount daemon: `RingClient`.

Each call takes a ring (emberfs/lanes.py), hands its transfers in, and waits for
them on that ring's bell.  Buffers in memory of `allocate` (or `share`) are moved
without a copy; others through a stage.

Invariants:
    - After a fork the child drops its copies of connection and rings; it connects, and registers
      files and memory, at the first use there.
    - Where the daemon has gone and another serves the mount (emberfs/daemon.py), files that were
      open stay lost, as the kernel's descriptors do; memory is good again.
"""

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, cast

from .batch import OpenMode, Transfer, listed, transfer_error
from .closing import Closing, shown
from .connection import socket_address
from .daemon import Daemon
from .ior import Ior, Rings
from .iov import Iovs, SharedIov
from .lanes import ENTRY_COUNT, Lanes
from .plan import Plan
from .posix import NEW_FILE_MODE, open_flags
from .protocol import LENGTH_MAX, EntryFlag, Op, Priority
from .ring_file import RingFile, checked_buffers, is_plain_read, of_another_mount, own_file
from .rows import SHARED_BYTES_MIN, Buffers, RingRows, Rows, copy_rows, shared_columns
from .urls import is_url

_ROWS_MIN: Final = 4
"""Columns do not pay for fewer."""
_NO_FLAGS: Final = EntryFlag(0)
_NO_MEMORY: Final = {errno.ENOMEM, errno.ENOSPC, errno.EMFILE}


class RingClient(Closing):
    """See `BatchClient` and the module head."""

    def __init__(self, mount_path: str | os.PathLike[str]) -> None:
        """Connect to the mount that a path is on.

        Raises:
            OSError: EOPNOTSUPP: it is on no mount that serves batches; ENOTCONN: nothing is mounted
                where it should be; ENOENT, ECONNREFUSED and others.
            ValueError: a URL.
        """
        if is_url(mount_path):
            raise ValueError(
                f"{mount_path}: is no path of a mount: open_client of emberfs.opening takes URLs"
            )
        # In another working directory a child, or who looks for another daemon, finds it as well.
        path = os.fspath(mount_path)
        self._mount_path = str(Path(path).absolute()) if path else path
        self.daemon = Daemon(self._mount_path)
        """Who serves the mount; files, memory and rings of it are this client's."""
        self._files: set[RingFile] = set()
        self._iovs = Iovs(self.daemon)
        self._buffers = Buffers(self._iovs)
        self._rings = Rings(self.daemon)
        self._lanes = Lanes(self._rings, self._iovs)
        self.daemon.on_other = self._iovs.regions.forget_ids
        self.daemon.on_fork = self._after_fork

    def _after_fork(self) -> None:
        self._rings.abandon()
        self._rings = Rings(self.daemon)
        for file in self._files:
            file.after_fork()
        self._iovs.regions.forget_ids()
        self._lanes = Lanes(self._rings, self._iovs)

    def __repr__(self) -> str:
        return shown(self, f"of {self._mount_path!r}", is_closed=self.daemon.is_closed)

    def __reduce__(self) -> tuple[type["RingClient"], tuple[str]]:
        return RingClient, (self._mount_path,)

    def open(self, path: str | os.PathLike[str], mode: OpenMode = "r") -> RingFile:
        """See `BatchClient`."""
        path, flags = os.fspath(path), open_flags(mode)
        if self.daemon.is_closed:
            raise OSError(errno.EBADF, "this client is closed", path)
        if mode in {"w", "x"}:
            self._need_mount_of(path)
        return self.adopt(path, os.open(path, flags, NEW_FILE_MODE))

    def _need_mount_of(self, path: str) -> None:
        """Raise OSError before a file is made, or emptied, that is not on the client's mount:
        ENOTCONN: nothing is mounted; EXDEV, EOPNOTSUPP: it is on another one, or on none.
        """
        folder = os.path.dirname(path) or os.curdir  # noqa: PTH120 - as it is, also with ".."
        try:
            device = os.stat(folder).st_dev  # noqa: PTH116
        except OSError:
            return  # opening says why
        if device == self.daemon.connection().device:
            return
        socket_address(folder)
        if device != os.stat(self._mount_path).st_dev:  # noqa: PTH116
            raise of_another_mount(self.daemon, path)

    def adopt(self, path: str, fd: int) -> RingFile:
        """Return a file for a descriptor that is open on the mount,
        which is taken over also if this fails.

        Raises:
            OSError: EOPNOTSUPP: it is of another file system.
        """
        file = RingFile(self.daemon, path, fd, self._files.discard)
        try:
            file.register()
        except BaseException:
            file.abandon()
            raise
        with self.daemon.lock:
            self._files.add(file)
        return file

    def allocate(self, size: int, *, block_size: int = 0) -> SharedIov:
        """See `BatchClient`; with `block_size` no single entry crosses a multiple of it."""
        return self._iovs.allocate(size, block_size=block_size)

    def share(self, fd: int, size: int, *, block_size: int = 0) -> SharedIov:
        """Return memory of a memory file that others may have, too; `fd` stays the caller's.

        Sealed against shrinking it is reached without a copy, otherwise
        (a file in /dev/shm) with one.
        """
        return self._iovs.share(fd, size, block_size=block_size)

    def segment(self, number: bytes) -> SharedIov:
        """Return memory that a program of this user has registered by a link in `3fs-virt/iovs`,
        by the 16 bytes of its UUID.

        Raises:
            OSError: ENOENT: none has, or the mount offers no such directory; ENOSYS: its
                daemon is of an earlier release.
        """
        return self._iovs.segment(number)

    def ring(
        self,
        entry_count: int = ENTRY_COUNT,
        *,
        depth: int = 0,
        timeout_s: float = 0.0,
        priority: Priority = Priority.NORMAL,
    ) -> Ior:
        """Return a ring of one's own, for one thread at a time; ends with the client.

        See `Ior`.
        """
        return self._rings.new(entry_count, depth=depth, timeout_s=timeout_s, priority=priority)

    def read(self, transfers: Iterable[Transfer], *, flags: EntryFlag = _NO_FLAGS) -> list[int]:
        """See `BatchClient`."""
        transfers = listed(transfers)
        if len(transfers) >= _ROWS_MIN:
            rows = self._shared_rows(transfers, flags)
            if rows is not None:
                return self._read_shared(rows)
        if len(transfers) == 1:
            count = self._read_one(transfers[0], flags)
            if count is not None:
                return [count]
        return self._move(self._plan(Op.READ, transfers, flags))

    def _shared_rows(self, transfers: Sequence[Transfer], flags: EntryFlag) -> RingRows | None:
        """Return reads by columns; None: they are not so plain, and a plan does or refuses them."""
        with self.daemon.lock:
            found = shared_columns(transfers, self._iovs.regions, self.daemon)
        # One that is closed, or lost with its daemon, must not keep the others from being read.
        if found is None or not all(
            cast(RingFile, file).is_registered for file in set(found[0].files)
        ):
            return None
        try:
            return RingRows(*found, flags=flags)
        except TypeError:  # an offset that is no integer
            return None

    def _read_one(self, transfer: Transfer, flags: EntryFlag) -> int | None:
        """Do a read that needs one entry, without a plan, which costs more than that;
        None: it needs one, and nothing is done.
        """
        file, offset, buffer = transfer
        if not isinstance(file, RingFile) or not is_plain_read(file, offset, buffer, self.daemon):
            return None
        found = self._iovs.regions.find_again(buffer) or self._iovs.find(buffer)
        length = buffer.nbytes
        if found is None or found[0].block_size or not 0 < length <= LENGTH_MAX:
            return None
        region, place = found
        lane = self._lanes.take()
        try:
            memory_id = region.id or self._iovs.region_id(region)
            result = lane.ring.move_one(
                0, offset, place, length, file.id, memory_id, Op.READ, flags
            )
        except BaseException:
            self._lanes.give_back(lane)
            raise
        self._lanes.keep(lane)
        if result < 0:
            raise transfer_error(-result, file.path)
        return result

    def _read_shared(self, rows: RingRows) -> list[int]:
        lane = self._lanes.take()
        try:
            return rows.move(lane)
        finally:
            self._lanes.give_back(lane)

    def write(self, transfers: Iterable[Transfer]) -> None:
        """See `BatchClient`."""
        self._move(self._plan(Op.WRITE, listed(transfers), _NO_FLAGS))

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
            own_file(file, self.daemon)
        if not rows.files:
            return []
        staged = None
        if len(buffer) >= SHARED_BYTES_MIN and self._iovs.find(buffer) is None:
            staged = self._shared(len(buffer))
        if staged is None:
            return self._move_rows(rows, buffer)
        counts = self._move_rows(rows, staged)
        copy_rows(rows, counts, staged, buffer)
        return counts

    def _move_rows(self, rows: Rows, buffer: memoryview) -> list[int]:
        found = self._iovs.find(buffer)
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
        self, transfers: Iterable[Transfer], *, flags: EntryFlag = _NO_FLAGS
    ) -> list[int]:
        """Do what `read` does, in a coroutine of asyncio or trio;
        cancelled, the buffers are not reached any more.
        """
        return await self._move_async(self._plan(Op.READ, listed(transfers), flags))

    async def write_async(self, transfers: Iterable[Transfer]) -> None:
        """Do what `write` does, in a coroutine of asyncio or trio;
        cancelled, any part may have been written.
        """
        await self._move_async(self._plan(Op.WRITE, listed(transfers), _NO_FLAGS))

    def _plan(self, op: Op, transfers: Sequence[Transfer], flags: EntryFlag) -> Plan:
        buffers = checked_buffers(op, transfers, self.daemon)
        with self.daemon.lock:
            plan = Plan(op, transfers, buffers, map(self._iovs.regions.find, buffers), flags)
        for file in {transfer.file for transfer in transfers}:
            try:
                own_file(file, self.daemon).register()
            except OSError as error:  # closed, or lost with its daemon: the others are to be moved
                plan.refuse(file, error)
        return plan

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
        if self.daemon.is_closed:
            return
        failures = []
        for file in list(self._files):
            try:
                file.close()
            except OSError as error:
                failures.append(error)
        connection = self.daemon.end()
        self._rings.abandon()
        if connection is not None:
            connection.close()
        if failures:
            raise failures[0]
