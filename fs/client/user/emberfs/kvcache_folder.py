"""The names of a KV cache's segments, on a mount or a local disk (`OsFolder`)
or inside the process (`NativeFolder`).

A segment is an ordinary file with the right name; what else lies in the folder is left alone.

What this module does not do: open files; the batch client does.
"""

import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from .batch import BatchClient, BatchFile
from .mounted import require_mounted
from .posix import PosixClient
from .ring import RingClient

if TYPE_CHECKING:
    from .native import NativeClient, NativeFile

_NAME: Final = re.compile(r"segment-([0-9a-f]{32})")


class Listed(NamedTuple):
    """A segment, by its directory entry."""

    name: str
    length: int
    used_ms: int
    """When it was last written, or `touch`ed."""


def segment_name(segment_id: bytes) -> str:
    """Return the file name that belongs to an id."""
    return f"segment-{segment_id.hex()}"


class Folder(Protocol):
    """Where the segments of a cache lie.  Its methods raise OSError."""

    def path(self, name: str) -> str:
        """Return what the batch client opens."""
        ...

    def require_same(self) -> None:
        """Raise OSError when something else lies there than when it was opened:
        nothing is to be made in it.
        """
        ...

    def segments(self) -> list[Listed]:
        """Return all segments."""
        ...

    def lengthen(self, file: BatchFile, length: int) -> None:
        """Make a new file longer, with a hole, for all who look at it from now on."""
        ...

    def touch(self, name: str) -> None:
        """Note that a segment is used now; harmless if it is gone."""
        ...

    def remove(self, name: str) -> bool:
        """Remove a segment; return False if it was gone."""
        ...


def make_folder(path: str) -> None:
    """Make a folder, which may be there already, but none above it.

    Raises:
        OSError: it cannot be made; ENOENT: none is above it; ENOTCONN: it is on, or below, the
            mount point of a file system that is not mounted.
    """
    folder = Path(path).absolute()
    require_mounted(folder)
    try:
        folder.mkdir(exist_ok=True)
    except FileNotFoundError as error:
        what = f"{folder.parent} is not there, and is not made: if the path is right, make it"
        raise FileNotFoundError(errno.ENOENT, what, path) from error


class OsFolder:
    """See `Folder`; makes the folder if it is not there.

    Invariant: no segment is made where the folder lay when the file system
    that it is on is mounted no more.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        make_folder(path)
        self._began = os.stat(path)  # noqa: PTH116 - as is compared below

    @contextmanager
    def _missing_only_if_mounted(self) -> Iterator[None]:
        """Say of a folder that is missing because its file system is not mounted now
        that it is this.
        """
        try:
            yield
        except FileNotFoundError:
            require_mounted(Path(self._path).absolute())
            raise

    def require_same(self) -> None:
        """See `Folder`."""
        with self._missing_only_if_mounted():
            now = os.stat(self._path)  # noqa: PTH116
        # A file system that is mounted again has the same inode, and maybe another device.
        if now.st_ino != self._began.st_ino and now.st_dev != self._began.st_dev:
            what = "another file system is here than when the cache was opened"
            raise OSError(errno.ENOTCONN, what, self._path)

    def path(self, name: str) -> str:
        """See `Folder`."""
        return f"{self._path}/{name}"

    def segments(self) -> list[Listed]:
        """See `Folder`."""
        found = []
        with self._missing_only_if_mounted(), os.scandir(self._path) as entries:
            for entry in entries:
                if not _NAME.fullmatch(entry.name):
                    continue
                with suppress(FileNotFoundError):  # somebody removed it just now
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        used_ms = status.st_mtime_ns // 1_000_000
                        found.append(Listed(entry.name, status.st_size, used_ms))
        return found

    def lengthen(self, file: BatchFile, length: int) -> None:
        """See `Folder`."""
        os.truncate(file.path, length)

    def touch(self, name: str) -> None:
        """See `Folder`."""
        with suppress(FileNotFoundError):
            os.utime(self.path(name))

    def remove(self, name: str) -> bool:
        """See `Folder`."""
        try:
            Path(self.path(name)).unlink()
        except FileNotFoundError:
            return False
        return True


class NativeFolder:
    """See `Folder`; makes the folder if it is not there."""

    def __init__(self, client: "NativeClient", path: str) -> None:
        from .clusters import os_errors, split_url  # noqa: PLC0415 - needs the file system's own package

        self._client = client
        self._path = split_url(path)[2]
        self._errors = os_errors
        with os_errors(path):
            if not client.fs().exists(self._path):
                client.fs().makedirs(self._path)

    def require_same(self) -> None:
        """See `Folder`: it is of this cluster."""

    def path(self, name: str) -> str:
        """See `Folder`."""
        return f"{self._path.rstrip('/')}/{name}"

    def segments(self) -> list[Listed]:
        """See `Folder`."""
        with self._errors(self._path):
            listed = self._client.fs().listdir(self._path)
        return [
            Listed(entry.name, entry.inode.length, entry.inode.mtime_ns // 1_000_000)
            for entry in listed
            if _NAME.fullmatch(entry.name) and entry.inode.file is not None
        ]

    def lengthen(self, file: BatchFile, length: int) -> None:
        """See `Folder`."""
        with self._errors(file.path):
            cast("NativeFile", file).blocking().truncate(length)

    def touch(self, name: str) -> None:
        """See `Folder`."""
        path = self.path(name)
        with suppress(FileNotFoundError), self._errors(path):
            self._client.fs().set_attributes(path, mtime_ns=time.time_ns())

    def remove(self, name: str) -> bool:
        """See `Folder`."""
        path = self.path(name)
        try:
            with self._errors(path):
                self._client.fs().unlink(path)
        except FileNotFoundError:
            return False
        return True


def open_folder(client: BatchClient, path: str) -> Folder:
    """Return the folder as a client sees it; raises OSError."""
    if isinstance(client, PosixClient | RingClient):
        return OsFolder(path)
    from .native import NativeClient  # noqa: PLC0415 - needs the file system's own package

    if not isinstance(client, NativeClient):
        raise TypeError(f"{client!r} is none of the batch clients")
    return NativeFolder(client, path)
