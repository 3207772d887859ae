"""`DataFiles` on a local file system: preadv/pwritev through the page cache;
large new versions, and large first reads, past it.

Descriptors are kept (open_files.py).

Concurrency: as open_files.py; I/O runs outside its lock.
"""

import ctypes
import errno
import logging
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ..kernels.writes import block_checksums, write_rows
from ..kernels.writes_twin import Row
from ..runtime.ports import Buffer
from ..schema.status import FsError, Status
from .direct_write import (
    DIRECT_UNIT_BYTES,
    why_not_direct,
    writes_wait_for_reads,
)
from .format import FileId, file_name
from .open_files import NO_DESCRIPTOR, NO_ROOM, OpenFile, OpenFiles
from .ports import Lent

_log = logging.getLogger(__name__)

SPARE_NAME: Final = "SPARE"
"""Holds space that is given up in need; its content means nothing."""

_IOV_MAX: Final = 1024
_SYNC_FILE_RANGE_WRITE: Final = 2
_PUNCH_HOLE_KEEP_SIZE: Final = 0x03
_NOT_DIRECT: Final = (errno.EINVAL, errno.EOPNOTSUPP)


class LocalDataFiles:
    """Data files below one directory."""

    def __init__(self, directory: Path, *, is_read_only: bool = False) -> None:
        """Take a directory; a read-only one makes no file, a missing one is read as empty."""
        self._directory = directory
        self._files = OpenFiles(directory, is_read_only=is_read_only)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._does_read_hold = writes_wait_for_reads(self._libc, directory)
        self._can_ask_cache = True
        self._has_asked_cache = False
        self._why_not_direct: str | None = None
        """Empty: large writes go past the page cache; None: not found out."""

    def read_at(self, file_id: FileId, offset: int, buffers: Sequence[memoryview]) -> int:
        """See `DataFiles`."""
        holds = self._does_read_hold
        file = self._files.acquire(file_id, is_write=False, holds=holds)
        if file is None:
            return 0
        try:
            wanted = sum(map(len, buffers))
            done = os.preadv(file.fd, buffers, offset)
            while 0 < done < wanted:
                more = os.preadv(file.fd, _after(buffers, done), offset + done)
                if not more:
                    break
                done += more
        except OSError as error:
            raise self._files.failed(file_id, error) from error
        finally:
            self._files.release(file, holds=holds)
        return done

    def read_cached_at(self, file_id: FileId, offset: int, buffers: Sequence[memoryview]) -> bool:
        """See `DataFiles`; on file systems that cannot tell what is cached, always False."""
        # Nothing here waits, so the lock is held throughout: that is cheaper than taking it twice.
        with self._files.lock:
            file = self._files.open.get(file_id)
            if file is None or not self._can_ask_cache:
                return False
            try:
                wanted = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
                return os.preadv(file.fd, buffers, offset, os.RWF_NOWAIT) == wanted
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise self._files.failed(file_id, error) from error
                self._can_ask_cache = False
                return False

    def lend(self, file_id: FileId, *, may_wait: bool = False) -> Lent | None:
        """See `DataFiles`: a file that nobody has opened yet is left to those
        that may wait for the disk.
        """
        if may_wait:
            holds = self._does_read_hold
            opened = self._files.acquire(file_id, is_write=False, holds=holds)
            if opened is None:
                return None
            return Lent(opened.fd, partial(self._files.release, opened, holds=holds))
        with self._files.lock:
            file = self._files.open.get(file_id) if self._can_ask_cache else None
            if file is None or not (self._has_asked_cache or self._ask_cache(file)):
                return None
            lent = file.lent
            if lent is None:
                lent = file.lent = Lent(file.fd, partial(self._files.release, file))
            file.user_count += 1
            return lent

    def lend_past_cache(self, file_id: FileId, *, may_wait: bool = True) -> Lent | None:
        """See `DataFiles`; None also where descriptors are out,
        and a file that was not opened so yet for who must not wait.
        """
        if not may_wait:
            opened = self._files.direct_now(file_id)
            if opened is None:
                return None
            return Lent(opened.direct_fd, partial(self._files.release, opened, holds=True))
        if not self._can_pass_cache():
            return None
        file = self._files.acquire(file_id, is_write=False, holds=True)
        if file is None:
            return None
        give_back = partial(self._files.release, file, holds=True)
        try:
            fd = self._files.direct_fd(file_id, file)
        except OSError as error:
            give_back()
            if error.errno in NO_DESCRIPTOR or error.errno in _NOT_DIRECT:
                return None
            raise self._files.failed(file_id, error) from error
        return Lent(fd, give_back)

    def _ask_cache(self, file: OpenFile) -> bool:
        """Find out, once, whether the file system can tell what is cached."""
        try:
            os.preadv(file.fd, [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            pass  # it can: the byte is not cached
        except OSError as error:
            self._can_ask_cache = error.errno != errno.EOPNOTSUPP
            return False
        self._has_asked_cache = True
        return True

    def begin_read(self, file_id: FileId, offset: int, length: int) -> None:
        """See `DataFiles`."""
        with self._files.using(file_id) as file:
            if file is not None:
                os.posix_fadvise(file.fd, offset, length, os.POSIX_FADV_WILLNEED)

    def write_at(self, file_id: FileId, offset: int, buffers: Sequence[Buffer]) -> None:
        """See `DataFiles`."""
        file = self._files.acquire(file_id, is_write=True)
        assert file is not None, file_id
        try:
            _write_all(file.fd, buffers, offset)
        except OSError as error:
            raise self._files.failed(file_id, error) from error
        finally:
            with self._files.lock:
                file.is_dirty = True  # a flush that began meanwhile may not have had all of it
                file.user_count -= 1

    def is_open(self, file_id: FileId) -> bool:
        """See `DataFiles`; a write would wait for whatever has the lock of the file."""
        file = self._files.open.get(file_id)
        return file is not None and not file.holder_count

    def write_past_cache(
        self, places: Sequence[tuple[FileId, int, Buffer]], block: int
    ) -> list[tuple[int, bytes]]:
        """See `DataFiles`; nothing where the file system is not made for it,
        bytes do not begin with a page, or descriptors are out.
        """
        taken: dict[FileId, OpenFile] = {}
        try:
            descriptors = self._take_direct({place[0] for place in places}, taken)
            if descriptors is None:
                return [(0, block_checksums(data, block)) for _, _, data in places]
            rows: list[Row] = [(descriptors[place[0]], *place[1:]) for place in places]
            found = write_rows(block, DIRECT_UNIT_BYTES, rows)
        finally:
            with self._files.lock:
                for file in taken.values():
                    file.is_dirty = True
                    file.holder_count -= 1
                    file.user_count -= 1
        return [
            (self._judged(place[0], count), checksums)
            for place, (count, checksums) in zip(places, found, strict=True)
        ]

    def _take_direct(
        self, file_ids: Iterable[FileId], taken: dict[FileId, OpenFile]
    ) -> dict[FileId, int] | None:
        """Return descriptors for direct writes, and note the files in `taken`,
        for the caller to give back; None: they cannot be had.
        """
        if not self._can_pass_cache():
            return None
        descriptors = {}
        for file_id in file_ids:
            file = self._files.acquire(file_id, is_write=True, holds=True)
            assert file is not None, file_id
            taken[file_id] = file
            try:
                descriptors[file_id] = self._files.direct_fd(file_id, file)
            except OSError as error:
                if error.errno in NO_DESCRIPTOR:
                    return None
                self._judged(file_id, -(error.errno or errno.EIO))
                return None
        return descriptors

    def _judged(self, file_id: FileId, count: int) -> int:
        """Return how many bytes a direct write has written, which may have been refused as such;
        raises FsError.
        """
        if count >= 0:
            return count
        error = OSError(-count, os.strerror(-count))
        if error.errno not in _NOT_DIRECT:
            raise self._files.failed(file_id, error)
        self._forgo_direct(str(error.strerror))
        return 0

    def _can_pass_cache(self) -> bool:
        if self._why_not_direct is None:
            try:
                self._forgo_direct(why_not_direct(self._libc, self._directory))
            except OSError as error:
                raise FsError(Status.IO_ERROR, f"{self._directory}: {error.strerror}") from error
        return not self._why_not_direct

    def _forgo_direct(self, why: str) -> None:
        """Write everything through the page cache from now on, and say so once;
        not if `why` is empty.
        """
        with self._files.lock:
            is_new = why and not self._why_not_direct
            self._why_not_direct = why or self._why_not_direct or ""
        if is_new:
            where = self._directory
            _log.info("%s: large reads and writes go through the page cache, too: %s", where, why)

    def begin_write_back(self, file_id: FileId, offset: int, length: int) -> None:
        """See `DataFiles`; what cannot be begun, or fails on its way,
        the flush does and reports.
        """
        with self._files.using(file_id) as file:
            if file is not None:
                where = ctypes.c_int64(offset), ctypes.c_int64(length)
                self._libc.sync_file_range(file.fd, *where, _SYNC_FILE_RANGE_WRITE)

    def reserve(self, file_id: FileId, offset: int, length: int) -> None:
        """See `DataFiles`; asks first, since a refused fallocate keeps what it had
        taken until then.

        A file system that cannot is left alone.  Not posix_fallocate: without help of the file
        system it reads a byte of each block and writes it again, and would undo what another thread
        has written there in between.
        """
        with self._files.using(file_id, is_write=True, holds=True) as file:
            assert file is not None, file_id
            if self.free_bytes() < length:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._fallocate(file.fd, 0, offset, length)

    def punch(self, file_id: FileId, offset: int, length: int) -> None:
        """See `DataFiles`; a file system that cannot is left alone,
        the space then stays claimed.
        """
        with self._files.using(file_id, holds=True) as file:
            if file is None:
                return
            self._fallocate(file.fd, _PUNCH_HOLE_KEEP_SIZE, offset, length)

    def _fallocate(self, fd: int, mode: int, offset: int, length: int) -> None:
        where = ctypes.c_int64(offset), ctypes.c_int64(length)
        while self._libc.fallocate(fd, mode, *where) != 0:
            number = ctypes.get_errno()
            if number in (errno.EOPNOTSUPP, errno.ENOSYS):
                return
            if number != errno.EINTR:
                raise OSError(number, os.strerror(number))

    def set_spare(self, length: int) -> int:
        """See `DataFiles`."""
        path = self._directory / SPARE_NAME
        try:
            if not length:
                path.unlink(missing_ok=True)
                return 0
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, length)
            finally:
                os.close(fd)
        except OSError as error:
            path.unlink(missing_ok=True)
            if error.errno not in NO_ROOM:
                raise FsError(Status.IO_ERROR, f"{path}: {error.strerror}") from error
        return self.spare_bytes()

    def spare_bytes(self) -> int:
        """See `DataFiles`."""
        return self._blocks_of(self._directory / SPARE_NAME)

    def held_bytes(self, file_id: FileId) -> int:
        """See `DataFiles`."""
        return self._blocks_of(self._directory / file_name(file_id))

    def _blocks_of(self, path: Path) -> int:
        try:
            return path.stat().st_blocks * 512
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise FsError(Status.IO_ERROR, f"{path}: {error.strerror}") from error

    def flush(self, file_ids: Iterable[FileId]) -> None:
        """See `DataFiles`."""
        for file_id in file_ids:
            with self._files.using(file_id) as file:
                if file is None:
                    continue
                file.is_dirty = False  # a write from here on marks it again
                os.fdatasync(file.fd)

    def flush_all(self) -> None:
        """See `DataFiles`."""
        self.flush(list(self._files.existing()))

    def drop_cache(self, file_ids: Iterable[FileId]) -> None:
        """See `DataFiles`."""
        for file_id in file_ids:
            with self._files.using(file_id) as file:
                if file is not None:
                    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def writes_in_place(self) -> bool:
        """See `DataFiles`; of the file systems that direct writes are for, both do."""
        try:
            return not why_not_direct(self._libc, self._directory)
        except OSError as error:
            raise FsError(Status.IO_ERROR, f"{self._directory}: {error.strerror}") from error

    def free_bytes(self) -> int:
        """See `DataFiles`."""
        info = self._statvfs()
        return info.f_bavail * info.f_frsize

    def capacity_bytes(self) -> int:
        """See `DataFiles`."""
        info = self._statvfs()
        return info.f_blocks * info.f_frsize

    def _statvfs(self) -> os.statvfs_result:
        try:
            return os.statvfs(self._directory)
        except OSError as error:
            raise FsError(Status.IO_ERROR, f"{self._directory}: {error.strerror}") from error

    def close(self) -> None:
        """See `DataFiles`."""
        self._files.close()


def _write_all(fd: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Write the buffers one after the other, in as many calls as it takes."""
    wanted = sum(map(len, buffers))
    done = os.pwritev(fd, buffers[:_IOV_MAX], offset)
    while done < wanted:
        more = os.pwritev(fd, _after(buffers, done)[:_IOV_MAX], offset + done)
        if not more:
            raise OSError(errno.EIO, "nothing was written")
        done += more


def _after(buffers: Sequence[Buffer], done: int) -> list[memoryview]:
    """Return what is left of `buffers` behind the first `done` bytes."""
    rest: list[memoryview] = []
    for buffer in buffers:
        view = memoryview(buffer)
        if done < len(view):
            rest.append(view[done:])
        done = max(0, done - len(view))
    return rest
