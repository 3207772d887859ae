"""What files hold: open files, and many files or ranges in one batch."""

import errno
import io
import os
import posixpath
import secrets
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

from fsspec.caching import caches

from fs.client.blocking import BlockingFile
from fs.schema.status import FsError, Status

from ..clusters import os_error, os_errors
from .files import EmberReader, RawFile, buffered
from .names import Names

BATCH_BYTES_MAX: Final = 256 * 1024 * 1024
"""Read in one batch; more ranges than that are several."""
NAME_START_BYTES: Final = 200
"""Of a file's name, in the name it has until it is committed."""
_MODES: Final = {"rb", "wb", "xb", "ab", "r+b", "w+b", "x+b", "a+b"}
_Range = tuple[str, int | None, int | None]


class Content(Names):
    """See module head."""

    def touch(self, path: Any, truncate: bool = True, **_kwargs: Any) -> None:
        """Make an empty file, or empty one; with truncate=False set the times
        of one that exists.
        """
        path = self._strip_protocol(path)
        if truncate or not self.exists(path):
            with self.open(path, "wb" if truncate else "ab"):
                return
        with os_errors(path):
            self.connection.set_attributes(path, times_now=True)
        self._changed(path)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        *,
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        cache_type: str | None = None,
        permissions: int = 0o644,
        **_kwargs: Any,
    ) -> Any:
        """Open a file; `cache_type` and `cache_options`:
        one of fsspec's caches instead of our own readahead.
        """
        mode = mode if "b" in mode else f"{mode}b"
        mode = mode.replace("b+", "+b")
        if mode not in _MODES:
            raise ValueError(f"{path}: mode {mode!r} is none of r, w, a, x, each with + or not")
        if cache_type is not None and cache_type not in caches:
            known = ", ".join(sorted(name for name in caches if name))
            raise ValueError(f"{path}: cache_type {cache_type!r} is none of fsspec's: {known}")
        block_size = block_size or self.blocksize
        handle, name = self._open_handle(path, mode, permissions, autocommit=autocommit)
        raw = RawFile(self, name, mode, handle, block_size=block_size)
        options = {"cache_type": cache_type, "cache_options": cache_options}
        file = buffered(raw, block_size)
        file.set_up(self, path, block_size, autocommit=autocommit, options=options)
        if isinstance(file, EmberReader) and cache_type is not None:
            file.cache = caches[cache_type](
                block_size, file.fetch_range, handle.length, **(cache_options or {})
            )
        return file

    def _open_handle(
        self, path: str, mode: str, permissions: int, *, autocommit: bool
    ) -> tuple[BlockingFile, str]:
        """Return the open file and its name, which is another one until it is committed."""
        if mode == "rb":
            with os_errors(path):
                return self.connection.open(path), path
        if not autocommit and mode[0] not in "wx":
            raise io.UnsupportedOperation(
                f"{path}: what is appended or changed in place cannot be taken back; use mode w"
            )
        if mode == "r+b":
            with os_errors(path):
                return self.connection.open(path, is_writable=True), path
        is_new = mode[0] == "x"
        name = path
        if not autocommit:
            if is_new and self.lexists(path):
                raise FileExistsError(errno.EEXIST, "exists already", path)
            above, last = posixpath.split(path)
            name, is_new = posixpath.join(above, _beside(last)), True

        with os_errors(path):
            handle = self._below_directories(
                path,
                partial(
                    self.connection.create,
                    name,
                    permissions,
                    exclusive=is_new,
                    truncate=mode[0] == "w",
                ),
            )
        self._changed(path)
        return handle, name

    def cat_file(
        self, path: Any, start: int | None = None, end: int | None = None, **_kwargs: Any
    ) -> bytes:
        """Return the bytes of a file, or of a slice of it."""
        (found,) = self._read_ranges([(self._strip_protocol(path), start, end)])
        if isinstance(found, OSError):
            raise found
        return found

    def cat_ranges(
        self,
        paths: list[Any],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **_kwargs: Any,
    ) -> list[Any]:
        """Return many slices of files, read in one batch."""
        # Nothing is gained by reading what lies between: a batch is one request to each node.
        del max_gap
        if not isinstance(paths, list):
            raise TypeError("paths must be a list")
        starts = list(starts) if isinstance(starts, Iterable) else [starts] * len(paths)
        ends = list(ends) if isinstance(ends, Iterable) else [ends] * len(paths)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("paths, starts and ends must be of one length")
        found = self._read_ranges(list(zip(self._strip_protocol(paths), starts, ends, strict=True)))
        return _judge(found, on_error)

    def cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any
    ) -> Any:
        """Return the content of a file, or those of many by path, read in one batch."""
        paths = self.expand_path(path, recursive=recursive)
        if (
            len(paths) == 1
            and not isinstance(path, list)
            and paths[0] == self._strip_protocol(path)
        ):
            return self.cat_file(paths[0], **kwargs)
        if recursive:
            paths = self._without_directories(paths)
        start, end = kwargs.get("start"), kwargs.get("end")
        found = self._read_ranges([(one, start, end) for one in paths])
        if on_error == "omit":
            pairs = zip(paths, found, strict=True)
            return {one: data for one, data in pairs if not isinstance(data, OSError)}
        return dict(zip(paths, _judge(found, on_error), strict=True))

    def _without_directories(self, paths: Sequence[str]) -> list[str]:
        """Return the paths that lead to no directory, asked for in one request;
        what fails, fails when it is read.
        """
        with os_errors(paths[0] if paths else ""):
            found = self.connection.stat_many(paths)
        pairs = zip(paths, found, strict=True)
        return [path for path, one in pairs if isinstance(one, FsError) or not one.is_dir]

    def _read_ranges(self, ranges: Sequence[_Range]) -> list[bytes | OSError]:
        """Return the bytes of each range, or why they could not be read."""
        paths = list(dict.fromkeys(path for path, _, _ in ranges))
        with os_errors(paths[0] if paths else ""):
            files = dict(zip(paths, self.connection.open_many(paths), strict=True))
        found: list[bytes | OSError] = []
        batch: list[tuple[BlockingFile, int, memoryview]] = []
        places: list[tuple[int, str]] = []
        held_bytes = 0
        for path, start, end in ranges:
            file = files[path]
            if isinstance(file, FsError):
                found.append(os_error(file, path))
                continue
            first, last, _ = slice(start, end).indices(file.length)
            buffer = memoryview(bytearray(max(0, last - first)))
            places.append((len(found), path))
            found.append(b"")
            batch.append((file, first, buffer))
            held_bytes += len(buffer)
            if held_bytes >= BATCH_BYTES_MAX:
                self._read_batch(batch, places, found)
                held_bytes = 0
        self._read_batch(batch, places, found)
        return found

    def _read_batch(
        self,
        batch: list[tuple[BlockingFile, int, memoryview]],
        places: list[tuple[int, str]],
        found: list[bytes | OSError],
    ) -> None:
        """Read a batch into `found`, or why that failed, and empty it."""
        if not batch:
            return
        try:
            counts: Sequence[int | FsError] = self.connection.read_each(batch)
        except FsError as error:
            counts = [error] * len(batch)
        for (index, path), (_, _, buffer), count in zip(places, batch, counts, strict=True):
            if isinstance(count, FsError):
                found[index] = os_error(count, path)
            else:
                found[index] = bytes(buffer[:count])
        batch.clear()
        places.clear()

    def pipe_file(self, path: Any, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write a whole file; mode create: which must not exist."""
        # What is no bytes is refused while the file has what it had.
        path, content = self._strip_protocol(path), memoryview(value).cast("B")
        with self.open(path, "xb" if mode == "create" else "wb", **kwargs) as file:
            file.write(content)

    def pipe(self, path: Any, value: Any = None, **kwargs: Any) -> None:
        """Write a whole file, or many by path, side by side."""
        if not isinstance(path, dict):
            self.pipe_file(path, value, **kwargs)
            return
        if self._intrans or kwargs:
            for one, content in path.items():
                self.pipe_file(one, content, **kwargs)
            return
        contents = {
            self._strip_protocol(one): memoryview(content).cast("B")
            for one, content in path.items()
        }
        with os_errors(next(iter(contents), "")):
            failed = self.connection.write_files(contents)
            if self.auto_mkdir and (missing := _missing(failed)):
                for above in {self._parent(one) for one in missing}:
                    self._makedirs(above, 0o755, exist_ok=True)
                again = self.connection.write_files({one: contents[one] for one in missing})
                failed = {one: e for one, e in failed.items() if one not in missing} | again
        self._changed(*contents)
        for one, error in failed.items():
            raise os_error(error, one) from error

    def put_file(self, lpath: Any, rpath: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        """Copy a local file here; mode create: to a path that must not exist."""
        rpath = self._strip_protocol(rpath)
        if mode == "create" and not os.path.isdir(lpath):  # noqa: PTH112 - as fsspec gives it
            with self.open(rpath, "xb"):
                pass
        super().put_file(lpath, rpath, **kwargs)

    def head(self, path: Any, size: int = 1024) -> bytes:
        """Return the first bytes of a file."""
        return self.cat_file(path, end=size)

    def tail(self, path: Any, size: int = 1024) -> bytes:
        """Return the last bytes of a file."""
        return self.cat_file(path, start=-size) if size else b""


def _beside(name: str) -> str:
    """Return a name that nobody else uses and that is none too long,
    for what is to have `name` later.
    """
    start = os.fsencode(name)[:NAME_START_BYTES].decode(errors="ignore")
    return f".{start}.{secrets.token_hex(8)}"


def _missing(failed: dict[str, FsError]) -> list[str]:
    return [path for path, error in failed.items() if error.status is Status.NOT_FOUND]


def _judge(found: Iterable[bytes | OSError], on_error: str) -> list[Any]:
    """Return what was read, and failures too, unless they are to be raised."""
    results = list(found)
    for one in results:
        if isinstance(one, OSError) and on_error == "raise":
            raise one
    return results
