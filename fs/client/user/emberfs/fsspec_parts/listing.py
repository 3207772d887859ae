"""What there is: attributes, listings, walks, and the listings that are kept when asked for."""

import os
import posixpath
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from fs.schema.inode import Inode, InodeType
from fs.schema.status import FsError, Status

from ..clusters import is_missing, os_error, os_errors
from .base import EmberBase

_TYPE_NAMES: Final = {InodeType.FILE: "file", InodeType.DIRECTORY: "directory"}


class Listing(EmberBase):
    """See module head."""

    def info(self, path: Any, **_kwargs: Any) -> dict[str, Any]:
        """Return name, size, type, times and more of a path."""
        path = self._strip_protocol(path)
        with os_errors(path):
            inode = self.connection.stat(path, follow=False)
            if inode.type is InodeType.SYMLINK:
                return _info(path, inode, self.connection.stat(path))
        return _info(path, inode, inode)

    def _infos(self, pairs: Sequence[tuple[str, Inode]]) -> list[dict[str, Any]]:
        """Return the infos of (path, inode) pairs; where links lead is asked for in one request."""
        links = [path for path, inode in pairs if inode.type is InodeType.SYMLINK]
        led_to = self.connection.stat_many(links) if links else []
        targets = dict(zip(links, led_to, strict=True))
        return [_info(path, inode, targets.get(path, inode)) for path, inode in pairs]

    def ls(self, path: Any, detail: bool = True, refresh: bool = False, **_kwargs: Any) -> Any:
        """Return the infos, or the paths, of what lies in a directory; of a file, its own."""
        path = self._strip_protocol(path)
        found = None if refresh or not self._keeps_listings else self._ls_from_cache(path)
        if found is None:
            found = self._listing(path)
            if self._keeps_listings:
                self.dircache[path] = found
        return list(found) if detail else [one["name"] for one in found]

    def _listing(self, path: str) -> list[dict[str, Any]]:
        above = path.rstrip("/")
        try:
            entries = self.connection.listdir(path)
            return self._infos([(f"{above}/{entry.name}", entry.inode) for entry in entries])
        except FsError as error:
            if error.status is Status.NOT_DIRECTORY:
                return [self.info(path)]  # which raises when it is a directory above that is none
            raise os_error(error, path) from error

    def _ls_from_cache(self, path: str) -> list[dict[str, Any]] | None:
        try:
            return list(self.dircache[path])
        except KeyError:
            return None

    def invalidate_cache(self, path: Any = None) -> None:
        """Forget the listings of a path and of the directory it is in, or all."""
        super().invalidate_cache(path)
        if path is None:
            self.dircache.clear()
            return
        path = self._strip_protocol(path)
        self.dircache.pop(path, None)
        self.dircache.pop(self._parent(path), None)

    def _changed(self, *paths: str) -> None:
        if self._keeps_listings:
            for path in paths:
                self.invalidate_cache(path)

    def find(
        self,
        path: Any,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **_kwargs: Any,
    ) -> Any:
        """Return everything below a path, by path; of a file, itself;
        of what is not there, nothing.
        """
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        path = self._strip_protocol(path)
        try:
            top = self.connection.stat(path)
            below = self.connection.find(path, depth_max=maxdepth) if top.is_dir else []
            infos = self._infos([(one.path, one.inode) for one in below])
        except FsError as error:
            if is_missing(error):
                return {} if detail else []
            raise os_error(error, path) from error
        if withdirs or not top.is_dir:
            infos.append(self.info(path))
        wanted = {
            one["name"]: one
            for one in sorted(infos, key=lambda one: one["name"])
            if withdirs or one["type"] != "directory"
        }
        return wanted if detail else list(wanted)

    def walk(
        self,
        path: Any,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: Any = "omit",
        detail: bool = False,
        **kwargs: Any,
    ) -> Iterator[tuple[str, Any, Any]]:
        """Yield (path, directories, files) of each directory;
        links to directories are named, not walked into.
        """
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        path = self._strip_protocol(path)
        try:
            listing = self.ls(path, detail=True, **kwargs)
        except OSError as error:
            if on_error == "raise":
                raise
            if callable(on_error):
                on_error(error)
            return
        by_name = {posixpath.basename(one["name"]): one for one in listing}
        dirs: Any = {n: one for n, one in by_name.items() if one["type"] == "directory"}
        files: Any = {n: one for n, one in by_name.items() if one["type"] != "directory"}
        if listing and listing[0]["name"] == path:  # a file
            files = {"": listing[0]}
        links = {n for n, one in dirs.items() if one["islink"]}
        if not detail:
            dirs, files = list(dirs), list(files)
        if topdown:
            yield path, dirs, files
        deeper = None if maxdepth is None else maxdepth - 1
        if deeper is None or deeper > 0:
            for name in dirs:
                if name not in links:
                    yield from self.walk(
                        posixpath.join(path, name), deeper, topdown, on_error, detail, **kwargs
                    )
        if not topdown:
            yield path, dirs, files

    def du(
        self,
        path: Any,
        total: bool = True,
        maxdepth: int | None = None,
        withdirs: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the bytes below a path, from one request when the total of all is asked for,
        or those of each file.
        """
        path = self._strip_protocol(path)
        if total and maxdepth is None:
            with os_errors(path):
                inode = self.connection.stat(path)
                return self.connection.usage(path)[0].byte_count if inode.is_dir else inode.length
        found = self.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True, **kwargs)
        sizes = {name: one["size"] for name, one in found.items()}
        return sum(sizes.values()) if total else sizes

    def _is(self, path: Any, test: Callable[[Inode], bool], *, follow: bool = True) -> bool:
        path = self._strip_protocol(path)
        try:
            return test(self.connection.stat(path, follow=follow))
        except FsError as error:
            if is_missing(error):
                return False
            raise os_error(error, path) from error

    def exists(self, path: Any, **_kwargs: Any) -> bool:
        """Return whether a path leads to anything."""
        return self._is(path, lambda _inode: True)

    def lexists(self, path: Any, **_kwargs: Any) -> bool:
        """Return whether a path names anything, be it a link to nowhere."""
        return self._is(path, lambda _inode: True, follow=False)

    def isdir(self, path: Any) -> bool:
        """Return whether a path leads to a directory."""
        return self._is(path, lambda inode: inode.is_dir)

    def isfile(self, path: Any) -> bool:
        """Return whether a path leads to a regular file."""
        return self._is(path, lambda inode: inode.type is InodeType.FILE)

    def islink(self, path: Any) -> bool:
        """Return whether a path names a symbolic link."""
        return self._is(path, lambda inode: inode.type is InodeType.SYMLINK, follow=False)

    def sizes(self, paths: Sequence[Any]) -> list[int | None]:
        """Return the bytes of each file, asked for in one request."""
        stripped = [self._strip_protocol(path) for path in paths]
        with os_errors(stripped[0] if stripped else ""):
            found = self.connection.stat_many(stripped)
        sizes: list[int | None] = []
        for path, inode in zip(stripped, found, strict=True):
            if isinstance(inode, FsError):
                raise os_error(inode, path) from inode
            sizes.append(0 if inode.is_dir else inode.length)
        return sizes

    def created(self, path: Any) -> datetime:
        """Return when a path was made, in UTC."""
        return datetime.fromtimestamp(self.info(path)["created"], UTC)

    def modified(self, path: Any) -> datetime:
        """Return when the content of a path changed last, in UTC."""
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def ukey(self, path: Any) -> str:
        """Return what changes whenever the content of a file may have."""
        one = self.info(path)
        said = (one["ino"], one["version"], one["size"], one["mtime"])
        return sha256(repr(said).encode()).hexdigest()

    def checksum(self, path: Any) -> int:
        """Return `ukey` as a number."""
        return int(self.ukey(path), 16)


def _info(path: str, inode: Inode, target: Inode | FsError) -> dict[str, Any]:
    """Return what fsspec is told of a path; `target`: where it leads, if it is a link."""
    is_link = inode.type is InodeType.SYMLINK
    is_broken = isinstance(target, FsError)
    seen = inode if isinstance(target, FsError) else target
    said = {
        "name": path,
        "size": 0 if seen.is_dir or is_broken else seen.length,
        "type": "other" if is_broken else _TYPE_NAMES.get(seen.type, "other"),
        "created": inode.btime_ns / 1e9,
        "islink": is_link,
        "mode": seen.st_mode,
        "uid": seen.uid,
        "gid": seen.gid,
        "mtime": seen.mtime_ns / 1e9,
        "ino": seen.inode_id,
        "nlink": seen.nlink,
        "version": seen.file.data_ver if seen.file is not None else seen.ctime_ns,
    }
    if is_link:
        said["destination"] = os.fsdecode(inode.symlink_target)
    return said
