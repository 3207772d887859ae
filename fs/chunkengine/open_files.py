"""The data files that are open on a local file system: their descriptors, and who uses them.

Descriptors are opened once and kept, at most FD_COUNT_MAX of them besides those in use or written
since their last flush: an unflushed file keeps its descriptor, because a write-back error is
reported to the descriptors that were open when it happened.

Concurrency: a short lock around the table, which the event loop takes, too; nothing waits for
the disk under it.  Opening and making files have a lock of their own, one at a time: where the
disk hangs they may never end.
"""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..runtime.durable_file import sync_directory
from ..schema.lacks import LACKING
from ..schema.status import FsError, Status
from .format import DATA_DIRECTORIES, FILES_PER_SIZE, FileId, file_name
from .ports import Lent

FD_COUNT_MAX: Final = 400
"""Files kept open; one that is read or written past the page cache has two descriptors."""

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
"""A file that nobody uses is closed for it first."""


@dataclass(slots=True)
class OpenFile:
    """One file; its counts are changed under the table's lock."""

    fd: int
    direct_fd: int = -1
    """For reads and writes past the page cache; -1: not opened."""
    holder_count: int = 0
    """Calls under way that keep its lock, which writes need, while they wait for the disk."""
    user_count: int = 0
    is_dirty: bool = False
    lent: Lent | None = None
    """What it is lent as to those that do not wait; made once."""

    def close(self) -> None:
        """Close its descriptors."""
        os.close(self.fd)
        if self.direct_fd >= 0:
            os.close(self.direct_fd)


class OpenFiles:
    """See module head."""

    def __init__(self, directory: Path, *, is_read_only: bool) -> None:
        self._directory = directory
        self._is_read_only = is_read_only
        self.lock = threading.Lock()
        self._opening = threading.Lock()
        """Of who opens a file; taken before `lock`,
        and never by those who must not wait for the disk.
        """
        self.open: dict[FileId, OpenFile] = {}

    def direct_fd(self, file_id: FileId, file: OpenFile) -> int:
        """Return the descriptor for direct reads and writes of a file that the caller uses."""
        if file.direct_fd >= 0:
            return file.direct_fd
        with self._opening:
            if file.direct_fd < 0:
                path = self._directory / file_name(file_id)
                mode = os.O_RDONLY if self._is_read_only else os.O_RDWR
                file.direct_fd = os.open(path, mode | os.O_DIRECT | os.O_CLOEXEC)
            return file.direct_fd

    def direct_now(self, file_id: FileId) -> OpenFile | None:
        """Return a file that has a descriptor for direct reads,
        as `acquire` of one that keeps its lock; None: it has none yet.
        """
        with self.lock:
            file = self.open.get(file_id)
            if file is None or file.direct_fd < 0:
                return None
            _note_use(file, is_write=False, holds=True)
            return file

    @contextmanager
    def using(
        self, file_id: FileId, *, is_write: bool = False, holds: bool = False
    ) -> Iterator[OpenFile | None]:
        """Lend the descriptor; OSError becomes FsError.

        The two data paths do without, for speed.
        """
        file = self.acquire(file_id, is_write=is_write, holds=holds)
        try:
            yield file
        except OSError as error:
            raise self.failed(file_id, error) from error
        finally:
            if file is not None:
                self.release(file, holds=holds)

    def failed(self, file_id: FileId, error: OSError) -> FsError:
        """Return what a refused call on a file is to its caller:
        of what this process lacks the disk knows nothing.
        """
        if error.errno in LACKING:
            status = Status.OUT_OF_RESOURCES
        else:
            status = Status.NO_SPACE if error.errno in NO_ROOM else Status.IO_ERROR
        return FsError(status, f"{self._directory / file_name(file_id)}: {error.strerror}")

    def acquire(self, file_id: FileId, *, is_write: bool, holds: bool = False) -> OpenFile | None:
        """Return the open file; None if there is no such file and it is not to be written.

        With `holds`, for a call that keeps the file's lock; until `release` with it.
        """
        file = self._use(file_id, is_write=is_write, holds=holds)
        if file is not None:
            return file
        with self._opening:
            file = self._use(file_id, is_write=is_write, holds=holds)
            if file is not None:  # somebody else has opened it meanwhile
                return file
            try:
                made = OpenFile(self._opened(file_id, is_write=is_write))
            except FileNotFoundError:
                return None
            except OSError as error:
                raise self.failed(file_id, error) from error
            with self.lock:
                self.open[file_id] = made
                _note_use(made, is_write=is_write, holds=holds)
            return made

    def _use(self, file_id: FileId, *, is_write: bool, holds: bool) -> OpenFile | None:
        """Return the file if it is open."""
        with self.lock:
            file = self.open.get(file_id)
            if file is not None:
                _note_use(file, is_write=is_write, holds=holds)
            return file

    def release(self, file: OpenFile, *, holds: bool = False) -> None:
        """Give back what `acquire` returned."""
        with self.lock:
            file.user_count -= 1
            file.holder_count -= holds

    def _opened(self, file_id: FileId, *, is_write: bool) -> int:
        if len(self.open) >= FD_COUNT_MAX:
            self._close_one()
        while True:
            try:
                return self._open_file(file_id, is_write=is_write)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR or not self._close_one():
                    raise

    def _close_one(self) -> bool:
        """Close a file that nobody needs; False if there is none."""
        with self.lock:
            unused = (n for n, file in self.open.items() if not (file.user_count or file.is_dirty))
            file_id = next(unused, None)
            if file_id is None:
                return False
            file = self.open.pop(file_id)
        file.close()
        return True

    def _open_file(self, file_id: FileId, *, is_write: bool) -> int:
        path = self._directory / file_name(file_id)
        mode = os.O_RDONLY if self._is_read_only else os.O_RDWR
        try:
            return os.open(path, mode | os.O_CLOEXEC)
        except FileNotFoundError:
            if self._is_read_only or not is_write:
                raise
            return _create(path)

    def existing(self) -> Iterator[FileId]:
        """Yield the data files that there are, open or not."""
        for size_class, name in enumerate(DATA_DIRECTORIES):
            folder = self._directory / name
            if not folder.is_dir():
                continue
            names = {f"{name}/{path.name}" for path in folder.iterdir()}
            for index in range(FILES_PER_SIZE):
                file_id = FileId(size_class << 8 | index)
                if file_name(file_id) in names:
                    yield file_id

    def close(self) -> None:
        """Close all; nobody may use one."""
        with self.lock:
            for file in self.open.values():
                file.close()
            self.open.clear()


def _note_use(file: OpenFile, *, is_write: bool, holds: bool) -> None:
    file.user_count += 1
    file.holder_count += holds
    file.is_dirty |= is_write


def _create(path: Path) -> int:
    """Make a data file whose name survives a power loss;
    of one that cannot be had nothing is left.
    """
    if not path.parent.exists():
        path.parent.mkdir()
        try:
            sync_directory(path.parent.parent)
        except BaseException:  # whoever found it would not sync its name
            path.parent.rmdir()
            raise
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        sync_directory(path.parent)
    except BaseException:  # as above
        os.close(fd)
        path.unlink()
        raise
    return fd
