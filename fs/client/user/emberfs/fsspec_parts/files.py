"""The open files of `emberfs.fsspec`: Python's own buffered files over the native client.

Purpose: everything that takes a binary file works with them: text wrappers,
pickle, numpy, pyarrow, zipfile ...

Invariants:
    - `flush` sends everything to storage; `fsync` and `close` make it durable, and
      visible to who opens it then.
    - A file that is written in a transaction has another name until `commit`, and no
      trace of it is left by `discard`.
    - In the child of a fork, a file that was open for reading is opened again; one that
      was open for writing refuses.

Concurrency: as other Python files; one thread at a time.
"""

import errno
import io
import os
from collections.abc import Callable
from typing import Any, Final

from fs.client.blocking import BlockingFile
from fs.schema.status import FsError

from ..clusters import close_at_exit, os_error, os_errors
from .names import Names

SMALL_READ_BYTES: Final = 64 * 1024
"""What one small read fetches, until reads follow each other."""
WINDOW_BYTES_MIN: Final = 256 * 1024
"""Fetched by the second small read in a row; each further one doubles it, up to the block size."""


class RawFile(io.RawIOBase):
    """A file without buffers for writing, and with a window for small reads in a row."""

    def __init__(
        self,
        fs: Names,
        path: str,
        mode: str,
        handle: BlockingFile,
        *,
        block_size: int,
        fetch: "Callable[[int, int], bytes] | None" = None,
    ) -> None:
        """Take over an open file.

        Args:
            fs: where it is opened again after a fork.
            path: of the file.
            mode: r, w, a or x, with + or not, and b.
            handle: the open file.
            block_size: bytes that are fetched at the most for a small read.
            fetch: returns the bytes of [start, end) instead of the file itself: a cache.
        """
        self.name, self.mode = path, mode
        self.fetch = fetch
        self._fs = fs
        self._handle = handle
        self._pid = os.getpid()
        self._block_size = block_size
        self._is_append = "a" in mode
        self._position = handle.length if self._is_append else 0
        self._ahead = memoryview(b"")
        self._ahead_start = 0
        self._next_start = 0
        self._window_bytes = 0

    def handle(self) -> BlockingFile:
        """Return the open file, in the child of a fork opened again.

        Raises:
            OSError: ESTALE: the path names another file by now; EBADF: it was open for writing.
        """
        if self._pid == os.getpid():
            return self._handle
        if self.writable():
            raise OSError(errno.EBADF, "was opened for writing before a fork", self.name)
        before = self._handle.inode_id
        with os_errors(self.name):
            self._handle, self._pid = self._fs.connection.open(self.name), os.getpid()
        if self._handle.inode_id != before:
            raise OSError(errno.ESTALE, "another file has this name since the fork", self.name)
        return self._handle

    def readable(self) -> bool:
        """Return whether the mode allows reading."""
        return "r" in self.mode or "+" in self.mode

    def writable(self) -> bool:
        """Return whether the mode allows writing."""
        return self.mode != "rb"

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, which may lie beyond the end; return it."""
        self._check_open()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._handle.length}
        if whence not in base:
            raise ValueError(f"whence {whence}")
        if base[whence] + offset < 0:
            raise OSError(errno.EINVAL, "a position before the start", self.name)
        self._position = base[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, or a part of it; return the bytes filled, 0 at the end."""
        self._check_open()
        if not self.readable():
            raise io.UnsupportedOperation("not open for reading")
        view = memoryview(buffer).cast("B")
        handle, start = self.handle(), self._position
        view = view[: max(0, handle.length - start)]
        if not view:
            return 0
        try:
            count = self._read(handle, start, view)
        except FsError as error:
            raise os_error(error, self.name) from error
        self._position += count
        return count

    def _read(self, handle: BlockingFile, start: int, view: memoryview) -> int:
        if self.fetch is not None:
            found = self.fetch(start, start + len(view))
            view[: len(found)] = found
            return len(found)
        offset = start - self._ahead_start
        if 0 <= offset < len(self._ahead):
            part = self._ahead[offset : offset + len(view)]
            view[: len(part)] = part
            self._next_start = start + len(part)
            return len(part)
        is_in_a_row = start == self._next_start and start > 0
        self._window_bytes = (
            min(max(2 * self._window_bytes, WINDOW_BYTES_MIN), self._block_size)
            if is_in_a_row
            else 0
        )
        if len(view) >= self._window_bytes or self.writable():
            count = handle.read_into(start, view)  # right into the caller's memory
        else:
            window = memoryview(bytearray(self._window_bytes))
            self._ahead = window[: handle.read_into(start, window)]
            self._ahead_start = start
            count = min(len(view), len(self._ahead))
            view[:count] = self._ahead[:count]
        self._next_start = start + count
        return count

    def write(self, data: Any) -> int:
        """Write all of `data`, replicated when it returns; return its bytes."""
        self._check_open()
        if not self.writable():
            raise io.UnsupportedOperation("not open for writing")
        view = memoryview(data).cast("B")
        handle = self.handle()
        with os_errors(self.name):
            if self._is_append:
                self._position = handle.append(view)
            else:
                handle.write(self._position, view)
        self._position += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Cut or lengthen the file to `size` bytes, default: to the position; return that."""
        self._check_open()
        if not self.writable():
            raise io.UnsupportedOperation("not open for writing")
        length = self._position if size is None else size
        with os_errors(self.name):
            self.handle().truncate(length)
        return length

    def fsync(self) -> None:
        """Make what was written durable."""
        with os_errors(self.name):
            self.handle().fsync()

    def length(self) -> int:
        """Return the bytes in the file, as known at open and grown by what was written."""
        return self._handle.length

    def close(self) -> None:
        """Make a written file durable and visible to others; repeating does nothing."""
        if self.closed:
            return
        try:
            if self._pid == os.getpid():
                with os_errors(self.name):
                    self._handle.close()
        finally:
            super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


class _FsspecFile(io.BufferedIOBase):
    """What fsspec expects of a file beyond a Python file; mixed into the three buffered ones."""

    raw: RawFile
    fs: Names
    path: str
    blocksize: int
    autocommit: bool
    open_options: dict[str, Any]

    def set_up(
        self,
        fs: Names,
        path: str,
        block_size: int,
        *,
        autocommit: bool,
        options: dict[str, Any],
    ) -> None:
        """Say where the file is, or will be once committed."""
        self.fs, self.path, self.blocksize = fs, path, block_size
        self.autocommit, self.open_options = autocommit, options

    @property
    def size(self) -> int:
        """Bytes in the file; of one that is written, what has been sent."""
        return self.raw.length()

    @property
    def full_name(self) -> str:
        """Its URL."""
        return self.fs.unstrip_protocol(self.path)

    @property
    def details(self) -> dict[str, Any]:
        """See `EmberFileSystem.info`."""
        return self.fs.info(self.path)

    def info(self) -> dict[str, Any]:
        """See `EmberFileSystem.info`."""
        return self.details

    def fsync(self) -> None:
        """Make everything that was written so far durable, and its length known."""
        self.flush()
        self.raw.fsync()

    def close(self) -> None:
        """Write what is buffered, make it durable and visible to others; repeating does nothing."""
        if self.closed:
            return
        try:
            super().close()
        finally:
            if self.raw.writable():
                self.fs.invalidate_cache(self.path)

    def commit(self) -> None:
        """Give a file that was written in a transaction its name."""
        self.close()
        if not self.autocommit:
            with os_errors(self.path):
                self.fs.connection.rename(self.raw.name, self.path, no_replace="x" in self.raw.mode)
            self.autocommit = True
            self.fs.invalidate_cache(self.path)

    def discard(self) -> None:
        """Remove a file that was written in a transaction."""
        self.close()
        if not self.autocommit:
            with os_errors(self.path):
                self.fs.connection.unlink(self.raw.name)
            self.autocommit = True
            self.fs.invalidate_cache(self.path)

    def __reduce__(self) -> Any:
        if self.raw.mode != "rb":
            raise TypeError(f"{self.path}: a file that is open for writing cannot be pickled")
        return _reopen, (self.fs, self.path, self.tell(), self.blocksize, self.open_options)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return self.__reduce__()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.raw.mode} {self.path}>"


class EmberReader(_FsspecFile, io.BufferedReader):  # type: ignore[misc]  # `raw` is ours, and more than a RawIOBase
    """A file open for reading, which fsspec's `blockcache` can put a cache of its own into."""

    _cache: Any = None

    @property
    def cache(self) -> Any:
        """What reads are served from instead of the readahead:
        one of fsspec's caches; None: nothing.
        """
        return self._cache

    @cache.setter
    def cache(self, cache: Any) -> None:
        self._cache = cache
        self.raw.fetch = cache._fetch  # noqa: SLF001 - the one method that caches have

    @property
    def closed(self) -> bool:
        """Whether `close` was called; `blockcache` sets it after that."""
        return self.raw.closed

    @closed.setter
    def closed(self, _is_closed: bool) -> None:
        """Take it as said: only `close` closes."""

    def fetch_range(self, start: int, end: int) -> bytes:
        """Return the bytes of [start, end), fewer at the end of the file, past any cache."""
        with os_errors(self.path):
            return self.raw.handle().read(start, end - start)

    _fetch_range = fetch_range
    """Its name in fsspec."""


class EmberWriter(_FsspecFile, io.BufferedWriter):  # type: ignore[misc]
    """A file open for writing or appending."""


class EmberUpdater(_FsspecFile, io.BufferedRandom):  # type: ignore[misc]
    """A file open for reading and writing."""


def buffered(raw: RawFile, block_size: int) -> EmberReader | EmberWriter | EmberUpdater:
    """Return the buffered file for a mode; `set_up` is still to be called."""
    if not raw.writable():
        return EmberReader(raw, SMALL_READ_BYTES)
    made = (EmberUpdater if raw.readable() else EmberWriter)(raw, block_size)
    close_at_exit(made)
    return made


def _reopen(fs: Names, path: str, position: int, block_size: int, options: dict[str, Any]) -> Any:
    file = fs.open(path, "rb", block_size=block_size, **options)
    file.seek(position)
    return file
