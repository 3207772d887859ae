"""EmberFS for fsspec: `ember://` in pandas, pyarrow, DuckDB, zarr, dask and everything else that takes an fsspec URL.

    fs = fsspec.filesystem("ember", cluster="/path/of/ember-up")
    pandas.read_parquet("ember:///data/a.parquet", storage_options={"cluster": "/path/of/ember-up"})
    fsspec.open("ember://CLUSTER_ID@HOST:PORT,HOST:PORT/data/a.csv")

Needs the extra `emberfs[fsspec]`.  Uses the native client: no mount and no daemon.

Invariants:
    - Every error is the OSError that a mount would show (FileNotFoundError, PermissionError ...); none is taken for
      another: `exists` is False only for what is certainly not there.
    - Many files or ranges (`cat`, `cat_ranges`, `pipe`, `find`) are asked for side by side, and read in one batch.
    - Listings are kept only with `use_listings_cache=True`, until `invalidate_cache`, their time, or a change made here.
    - Instances are safe to use from threads, to pickle, and to use in the child of a fork.

A symbolic link has the type and size of what it leads to, and `islink`; `find`, `walk` and recursive operations name it and
do not follow it.
"""

import errno
import io
import os
import posixpath
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeVar

from fsspec.caching import caches
from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from fs.client.blocking import BlockingFile, BlockingFs
from fs.client.entries import Identity
from fs.schema.inode import Inode, InodeType
from fs.schema.status import FsError, Status

from .clusters import (
    PROTOCOLS,
    Place,
    connection,
    find_place,
    is_missing,
    os_error,
    os_errors,
    split_url,
)
from .fsspec_file import RawFile, buffered

BATCH_BYTES_MAX: Final = 256 * 1024 * 1024
"""Read in one batch; more ranges than that are several."""
_MODES: Final = {"rb", "wb", "xb", "ab", "r+b", "w+b", "x+b", "a+b"}
_TYPE_NAMES: Final = {InodeType.FILE: "file", InodeType.DIRECTORY: "directory"}
T = TypeVar("T")
_Range = tuple[str, int | None, int | None]


class EmberFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """See module head; the methods do what `fsspec.AbstractFileSystem` says."""

    protocol = PROTOCOLS
    root_marker = "/"
    async_impl = False
    local_file = False

    def __init__(
        self,
        *,
        cluster: str | os.PathLike[str] | None = None,
        hosts: str | Sequence[str] = (),
        cluster_id: str = "",
        uid: int | None = None,
        gid: int | None = None,
        groups: Sequence[int] = (),
        auto_mkdir: bool = True,
        use_listings_cache: bool = False,
        **storage_options: Any,
    ) -> None:
        """Connect at the first use.

        Args:
            cluster: folder of a cluster that `ember up` started; default: the one that `ember` commands would find.
            hosts: addresses of managers instead, as in a URL.
            cluster_id: of the cluster at the hosts.
            uid: on whose behalf, with gid and groups; default: this process's user.
            gid: of that user.
            groups: other groups of that user.
            auto_mkdir: make the directories that are missing above what is written, as programs expect that were
                written for object stores; False: refuse with FileNotFoundError, as a mount does.
            use_listings_cache: keep listings; also listings_expiry_time (seconds) and max_paths.
            storage_options: fsspec's own.
        """
        super().__init__(use_listings_cache=use_listings_cache, **storage_options)
        self.auto_mkdir = auto_mkdir
        self._keeps_listings = use_listings_cache
        self._cluster, self._hosts, self._cluster_id = cluster, hosts, cluster_id
        own = Identity.of_process()
        self._identity = own
        if uid is not None:
            self._identity = Identity(uid, uid if gid is None else gid, tuple(groups))
        self._found: Place | None = None

    @property
    def connection(self) -> BlockingFs:
        """The native client, shared by all instances of this process that mean the same cluster and user.

        Raises:
            OSError: there is no such cluster, or it does not answer.
        """
        if self._found is None:
            self._found = find_place(
                cluster=self._cluster,
                hosts=self._hosts,
                cluster_id=self._cluster_id,
                identity=self._identity,
            )
        with os_errors(f"ember://{','.join(self._found.addresses)}"):
            return connection(self._found)

    @property
    def fsid(self) -> str:
        """Names the cluster for ever."""
        if self._found is None:
            _ = self.connection
        assert self._found is not None
        return f"ember-{self._found.cluster_id}"

    # ---- URLs and paths --------------------------------------------------------------------------

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return split_url(stringify_path(path))[2]

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        cluster_id, hosts, _ = split_url(stringify_path(path))
        return {
            key: value for key, value in (("cluster_id", cluster_id), ("hosts", hosts)) if value
        }

    def unstrip_protocol(self, name: str) -> str:
        """Return the URL of a path; with hosts when they are known from one."""
        if name.startswith(tuple(f"{protocol}://" for protocol in PROTOCOLS)):
            return name
        authority = ""
        if isinstance(self._hosts, str) and self._hosts:
            authority = f"{self._cluster_id}@{self._hosts}"
        return f"{PROTOCOLS[0]}://{authority}{self._strip_protocol(name)}"

    # ---- what there is ---------------------------------------------------------------------------

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
        """Return everything below a path, by path; of a file, itself; of what is not there, nothing."""
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
        """Yield (path, directories, files) of each directory; links to directories are named, not walked into."""
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
        """Return the bytes below a path, from one request when the total of all is asked for, or those of each file."""
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

    # ---- directories, names ----------------------------------------------------------------------

    def mkdir(self, path: Any, create_parents: bool = True, mode: int = 0o755, **_kw: Any) -> None:
        """Make a directory, with those above it that are missing."""
        path = self._strip_protocol(path)
        if create_parents:
            self._makedirs(self._parent(path), mode, exist_ok=True)
        with os_errors(path):
            self.connection.mkdir(path, mode)
        self._changed(path)

    def makedirs(self, path: Any, exist_ok: bool = False, mode: int = 0o755) -> None:
        """Make a directory and those above it that are missing."""
        self._makedirs(self._strip_protocol(path), mode, exist_ok=exist_ok)

    def _makedirs(self, path: str, mode: int, *, exist_ok: bool) -> None:
        if path == self.root_marker:
            if not exist_ok:
                raise FileExistsError(errno.EEXIST, "this is the root", path)
            return
        with os_errors(path):
            if exist_ok:
                self.connection.makedirs(path, mode)
            else:
                self.connection.makedirs(self._parent(path), mode)
                self.connection.mkdir(path, mode)
        self._changed(path)

    def rmdir(self, path: Any) -> None:
        """Remove an empty directory."""
        path = self._strip_protocol(path)
        with os_errors(path):
            self.connection.rmdir(path)
        self._changed(path)

    def rm_file(self, path: Any) -> None:
        """Remove a name that is no directory."""
        path = self._strip_protocol(path)
        with os_errors(path):
            self.connection.unlink(path)
        self._changed(path)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove paths, which may hold wildcards; a whole tree in one step on the server."""
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        removed: list[str] = []
        for one in self.expand_path(path):
            if any(one.startswith(f"{above}/") for above in removed):
                continue
            with os_errors(one):
                if not self.connection.stat(one, follow=False).is_dir:
                    self.connection.unlink(one)
                elif recursive:
                    self.connection.remove_tree(one)
                    removed.append(one)
                else:
                    raise FsError(Status.IS_DIRECTORY, "say recursive=True to remove it")
            self._changed(one)
        if removed:
            self.dircache.clear()

    def mv(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = True,
        maxdepth: int | None = None,
        **_kwargs: Any,
    ) -> None:
        """Rename on the server, files and directories alike; into `path2` when that is a directory.

        Raises:
            ValueError: maxdepth: a directory is moved whole.
        """
        del recursive  # a rename takes along what lies below
        if maxdepth is not None:
            raise ValueError("a directory is moved whole: maxdepth cannot be kept")
        if isinstance(path1, list) and isinstance(path2, list):
            pairs = list(zip(self._strip_protocol(path1), self._strip_protocol(path2), strict=True))
        else:
            into = str(path2).endswith("/") or self.isdir(path2)
            target = self._strip_protocol(path2)
            old = self.expand_path(path1)
            if len(old) > 1 and not into:
                raise NotADirectoryError(errno.ENOTDIR, "several paths need a directory", target)
            pairs = [
                (one, posixpath.join(target, posixpath.basename(one)) if into else target)
                for one in old
            ]
        for old_path, new_path in pairs:
            if old_path == new_path:
                continue
            with os_errors(old_path, new_path):
                self.connection.stat(
                    old_path, follow=False
                )  # nothing is made for what is not there
                self._below_directories(
                    new_path, partial(self.connection.rename, old_path, new_path)
                )
            self._changed(old_path, new_path)

    def cp_file(self, path1: Any, path2: Any, **_kwargs: Any) -> None:
        """Copy a file through this client, in large pieces; make a directory; copy a link to a directory as a link."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        own = self.connection
        with os_errors(path1, path2):
            if not own.stat(path1).is_dir:
                copy: Callable[[], object] = partial(own.copy_file, path1, path2)
            elif own.stat(path1, follow=False).is_dir:
                copy = partial(own.mkdir, path2, exist_ok=True)
            else:
                copy = partial(own.symlink, own.readlink(path1), path2)
            self._below_directories(path2, copy)
        self._changed(path2)

    def link(self, path1: Any, path2: Any, **_kwargs: Any) -> None:
        """Give a file one more name."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        with os_errors(path1, path2):
            self.connection.link(path1, path2)
        self._changed(path2)

    def symlink(self, path1: str, path2: Any, **_kwargs: Any) -> None:
        """Make a symbolic link at `path2`; the target, absolute or relative, is taken as it is."""
        target = str(path1)
        if target.startswith(tuple(f"{protocol}://" for protocol in PROTOCOLS)):
            target = self._strip_protocol(target)
        path2 = self._strip_protocol(path2)
        with os_errors(target, path2):
            self.connection.symlink(target, path2)
        self._changed(path2)

    def chmod(self, path: Any, mode: int, **_kwargs: Any) -> None:
        """Change the permissions of what a path leads to."""
        path = self._strip_protocol(path)
        with os_errors(path):
            self.connection.set_attributes(path, mode=mode)
        self._changed(path)

    def touch(self, path: Any, truncate: bool = True, **_kwargs: Any) -> None:
        """Make an empty file, or empty one; with truncate=False set the times of one that exists."""
        path = self._strip_protocol(path)
        if truncate or not self.exists(path):
            with self.open(path, "wb" if truncate else "ab"):
                return
        with os_errors(path):
            self.connection.set_attributes(path, times_now=True)
        self._changed(path)

    # ---- content ---------------------------------------------------------------------------------

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
        """Open a file; `cache_type` and `cache_options`: one of fsspec's caches instead of our own readahead."""
        mode = mode if "b" in mode else f"{mode}b"
        mode = mode.replace("b+", "+b")
        if mode not in _MODES:
            raise ValueError(f"mode {mode!r}")
        block_size = block_size or self.blocksize
        handle, name = self._open_handle(path, mode, permissions, autocommit=autocommit)
        raw = RawFile(self, name, mode, handle, block_size=block_size)
        options = {"cache_type": cache_type, "cache_options": cache_options}
        if mode == "rb" and cache_type is not None:
            cache = caches[cache_type](
                block_size, _fetcher(raw), handle.length, **(cache_options or {})
            )
            raw.fetch = cache._fetch  # noqa: SLF001 - the one method that caches have
        file = buffered(raw, block_size)
        file.set_up(self, path, block_size, autocommit=autocommit, options=options)
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
            name, is_new = posixpath.join(above, f".{last[:200]}.{secrets.token_hex(8)}"), True

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

    def _below_directories(self, path: str, make: Callable[[], T]) -> T:
        """Make something at a path; again with the directories above it when these are missing and wanted.

        Raises:
            FsError: of making it.
        """
        try:
            return make()
        except FsError as error:
            if error.status is not Status.NOT_FOUND or not self.auto_mkdir:
                raise
            # Also when they are there by now: another thread may just have made them.
            self._makedirs(self._parent(path), 0o755, exist_ok=True)
            return make()

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
        del (
            max_gap
        )  # nothing is gained by reading what lies between: a batch is one request to each node
        if not isinstance(paths, list):
            raise TypeError("paths must be a list")
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
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
            paths = [p for p in paths if not self.isdir(p)]
        start, end = kwargs.get("start"), kwargs.get("end")
        found = self._read_ranges([(one, start, end) for one in paths])
        if on_error == "omit":
            pairs = zip(paths, found, strict=True)
            return {one: data for one, data in pairs if not isinstance(data, OSError)}
        return dict(zip(paths, _judge(found, on_error), strict=True))

    def _read_ranges(self, ranges: Sequence[_Range]) -> list[bytes | OSError]:
        """Return the bytes of each range, or why they could not be read."""
        paths = list(dict.fromkeys(path for path, _, _ in ranges))
        with os_errors(""):
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
        """Read a batch into `found`, and empty it; when it fails, each by itself, to find out which."""
        if not batch:
            return
        try:
            self.connection.read_batch(batch)
            failed: dict[int, FsError] = {}
        except FsError as error:
            failed = {0: error} if len(batch) == 1 else self._read_each(batch)
        for number, ((index, path), (_, _, buffer)) in enumerate(zip(places, batch, strict=True)):
            failure = failed.get(number)
            found[index] = bytes(buffer) if failure is None else os_error(failure, path)
        batch.clear()
        places.clear()

    def _read_each(
        self, batch: Sequence[tuple[BlockingFile, int, memoryview]]
    ) -> dict[int, FsError]:
        failed: dict[int, FsError] = {}
        for number, one in enumerate(batch):
            try:
                self.connection.read_batch([one])
            except FsError as error:
                failed[number] = error
        return failed

    def pipe_file(self, path: Any, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write a whole file; mode create: which must not exist."""
        path = self._strip_protocol(path)
        with self.open(path, "xb" if mode == "create" else "wb", **kwargs) as file:
            file.write(value)

    def pipe(self, path: Any, value: Any = None, **kwargs: Any) -> None:
        """Write a whole file, or many by path, side by side."""
        if not isinstance(path, dict):
            self.pipe_file(path, value, **kwargs)
            return
        if self._intrans or kwargs:
            for one, content in path.items():
                self.pipe_file(one, content, **kwargs)
            return
        contents = {self._strip_protocol(one): content for one, content in path.items()}
        with os_errors(""):
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

    def _isfilestore(self) -> bool:
        return True


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


def _missing(failed: dict[str, FsError]) -> list[str]:
    return [path for path, error in failed.items() if error.status is Status.NOT_FOUND]


def _fetcher(raw: RawFile) -> Callable[[int, int], bytes]:
    """Return what one of fsspec's caches gets its bytes by."""

    def fetch(start: int, end: int) -> bytes:
        with os_errors(raw.name):
            return raw.handle().read(start, end - start)

    return fetch


def _judge(found: Iterable[bytes | OSError], on_error: str) -> list[Any]:
    """Return what was read, and failures too, unless they are to be raised."""
    results = list(found)
    for one in results:
        if isinstance(one, OSError) and on_error == "raise":
            raise one
    return results
