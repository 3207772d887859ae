"""The native client's names: looking up, listing, making, linking, renaming, removing; attributes.

Does not: open files (native.py); nor look at what a path means to a program: a path is
absolute, and `/` is the root.
"""

import os
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from google.protobuf.message import Message

from ..rpc.frame import decode_error
from ..schema import services
from ..schema.ids import ROOT_INODE_ID, InodeId
from ..schema.inode import Inode, InodeType, inode_from_pb
from ..schema.method import Method, ReqT, RspT
from ..schema.proto import common_pb2, meta_pb2
from ..schema.status import FsError, Status
from .api import MetaCaller
from .entries import DirEntry, FoundPath, Identity
from .side_by_side import side_by_side

LIST_PAGE_COUNT = 1000
STAT_BATCH_COUNT = 512
LISTINGS_AT_ONCE = 32
"""Directories that `find` asks for side by side."""


class Place(NamedTuple):
    """A directory by its path, and the fields of a request where it belongs."""

    directory: str
    path_field: str = "directory"
    id_field: str = "parent_inode_id"

    def put_path(self, request: Message) -> None:
        """Give the directory by path; the root by its inode id, which is known."""
        if self.directory == "/":
            setattr(request, self.id_field, ROOT_INODE_ID)
        else:
            setattr(request, self.path_field, os.fsencode(self.directory))

    def put_id(self, request: Message, inode_id: InodeId) -> None:
        """Give the directory by inode id."""
        request.ClearField(self.path_field)
        setattr(request, self.id_field, inode_id)


def split_path(path: str) -> tuple[str, bytes]:
    """Return (directory, last component) of a path, with or without slashes at its end;
    raises FsError(INVALID_ARGUMENT) when it has no last one.
    """
    directory, name = os.path.split(path.rstrip("/"))
    if not name:
        raise FsError(Status.INVALID_ARGUMENT, f"{path!r} has no last component")
    return directory or "/", os.fsencode(name)


class Paths:
    """The half of `EmberFs` that deals with names, and what the other parts of it ask meta with."""

    def __init__(self, meta: MetaCaller, identity: Identity) -> None:
        self._meta = meta
        self._identity = identity
        self._is_told_paths = True
        """Meta takes directories by path; a service of an earlier release does not."""

    async def stat(self, path: str, *, follow: bool = True) -> Inode:
        """Return the attributes of what a path names; raises FsError(NOT_FOUND and others)."""
        return inode_from_pb((await self._resolve(path, follow=follow)).inode)

    async def _resolve(
        self, path: str, *, follow: bool = True, wants_read: bool = False
    ) -> meta_pb2.InodeRsp:
        """Return the attributes of what a path names,
        and whether meta has checked that it may be read.
        """
        request = meta_pb2.ResolvePathReq(
            caller=self._identity.caller(),
            path=os.fsencode(path),
            follow_last=follow,
            wants_read=wants_read,
            takes_inline=wants_read,
        )
        return await self._meta.call(services.META_RESOLVE_PATH, request)

    async def stat_many(
        self, paths: Sequence[str], *, follow: bool = True
    ) -> list[Inode | FsError]:
        """Return for each path its attributes, or why there are none; asked for in batches."""
        return [
            inode_from_pb(slot.inode)
            if slot.HasField("inode")
            else decode_error(slot.status, slot.detail.encode())
            for slot in await self._resolve_many(paths, follow=follow)
        ]

    async def _resolve_many(
        self, paths: Sequence[str], *, follow: bool
    ) -> list[meta_pb2.ResolvedPathPb]:
        """As `_resolve`, for many paths, asked for in batches; those that are not found say why."""
        found: list[meta_pb2.ResolvedPathPb] = []
        for start in range(0, len(paths), STAT_BATCH_COUNT):
            request = meta_pb2.BatchResolvePathReq(
                caller=self._identity.caller(),
                paths=[os.fsencode(path) for path in paths[start : start + STAT_BATCH_COUNT]],
                follow_last=follow,
            )
            reply = await self._meta.call(services.META_BATCH_RESOLVE_PATH, request)
            found += reply.resolved
        return found

    async def exists(self, path: str) -> bool:
        """Return whether a path names anything."""
        try:
            await self.stat(path)
        except FsError as error:
            if error.status is Status.NOT_FOUND:
                return False
            raise
        return True

    async def _require_meant(self, path: str, named: str | None = None) -> None:
        """Refuse a path that ends in a slash, as only a directory's may, for something else.

        Args:
            path: as it was given.
            named: the path of what it is about; None: that one itself.

        Raises:
            FsError: NOT_DIRECTORY, NOT_FOUND and others.
        """
        if not path.endswith("/"):
            return
        about = (named or path).rstrip("/") or "/"
        if not (await self.stat(about, follow=False)).is_dir:
            raise FsError(Status.NOT_DIRECTORY, f"{path} ends in a slash, {about} is no directory")

    async def _require_found(self, path: str) -> None:
        """Refuse a path that ends in a slash for what is no directory and is to be made;
        what is there already is told by who makes it.  Raises FsError(NOT_FOUND and others).
        """
        if path.endswith("/"):
            await self.stat(path.rstrip("/") or "/", follow=False)

    async def _parent(self, path: str) -> tuple[InodeId, bytes]:
        """Return (inode id of the directory, last component) of a path."""
        directory, name = split_path(path)
        return await self._directory_id(directory), name

    async def _directory_id(self, directory: str) -> InodeId:
        return ROOT_INODE_ID if directory == "/" else (await self.stat(directory)).inode_id

    async def _change(self, method: Method[ReqT, RspT], request: ReqT, *places: Place) -> RspT:
        """Call what changes names in directories, which the request gives by their paths or,
        where it must, by inode ids.
        """
        if self._is_told_paths:
            for place in places:
                place.put_path(request)
            try:
                return await self._meta.call(method, request)
            except FsError as error:
                if error.status is not Status.STALE:
                    raise
            # So an earlier release says, which looks for inode 0.  Nothing was
            # changed; this is another request.
            request.caller.CopyFrom(self._identity.caller())  # type: ignore[attr-defined]
        found: dict[str, InodeId] = {}
        for place in places:
            if place.directory not in found:
                found[place.directory] = await self._directory_id(place.directory)
            place.put_id(request, found[place.directory])
        reply = await self._meta.call(method, request)
        self._is_told_paths = False  # so it was for the path, and not what else may be gone
        return reply

    async def listdir(self, path: str, *, count_max: int | None = None) -> list[DirEntry]:
        """Return the entries of a directory in byte order of their names, without . and .. ;
        `count_max`: the first ones.
        """
        inode_id = (await self.stat(path)).inode_id
        return await self._entries(inode_id, count_max=count_max)

    async def _entries(self, inode_id: int, *, count_max: int | None = None) -> list[DirEntry]:
        """Return the entries of a directory; raises FsError where nobody can tell what one is:
        were it left out, it would look removed.
        """
        found: list[DirEntry] = []
        for entry in await self._list(inode_id, with_inodes=True, count_max=count_max):
            told = entry.inode if entry.HasField("inode") else None
            told = told or await self._look_up(inode_id, entry.name)
            if told is not None:
                found.append(DirEntry(os.fsdecode(entry.name), inode_from_pb(told)))
        return found

    async def _look_up(self, directory_id: int, name: bytes) -> common_pb2.InodePb | None:
        """Return what a name leads to of which a listing tells nothing; None: it is gone.

        Raises:
            FsError: why it tells nothing: METADATA_DAMAGED, or ACCESS_DENIED: who may read a
                directory and not search it.
        """
        request = meta_pb2.LookupReq(
            caller=self._identity.caller(), parent_inode_id=directory_id, name=name
        )
        try:
            return (await self._meta.call(services.META_LOOKUP, request)).inode
        except FsError as error:
            if error.status not in {Status.NOT_FOUND, Status.STALE}:
                raise
            return None

    async def _list(
        self, inode_id: int, *, with_inodes: bool, count_max: int | None = None
    ) -> list[meta_pb2.DentryPb]:
        entries: list[meta_pb2.DentryPb] = []
        after = b""
        while count_max is None or len(entries) < count_max:
            count_left = LIST_PAGE_COUNT if count_max is None else count_max - len(entries)
            request = meta_pb2.ListReq(
                caller=self._identity.caller(),
                inode_id=inode_id,
                after=after,
                entry_count_max=min(LIST_PAGE_COUNT, count_left),
                with_inodes=with_inodes,
            )
            page = await self._meta.call(services.META_LIST, request)
            entries.extend(page.entries)
            if not page.has_more:
                break
            after = page.entries[-1].name
        return entries

    async def find(self, path: str, *, depth_max: int | None = None) -> list[FoundPath]:
        """Return everything below a directory, by path; links are named, not followed.

        Directories are listed side by side, so this is no snapshot: what others
        remove meanwhile may be missing.

        Args:
            path: of a directory.
            depth_max: 1: what lies right in it, and so on; default: all.

        Raises:
            FsError: NOT_FOUND, NOT_DIRECTORY; ACCESS_DENIED also for a directory below.
        """
        found: list[FoundPath] = []
        level = [(path.rstrip("/"), (await self.stat(path)).inode_id)]
        depth = 0
        while level and (depth_max is None or depth < depth_max):
            listings = await side_by_side(
                [
                    partial(self._list_if_there, inode_id, is_first=depth == 0)
                    for _, inode_id in level
                ],
                at_once_max=LISTINGS_AT_ONCE,
            )
            below = [
                FoundPath(f"{above}/{entry.name}", entry.inode)
                for (above, _), entries in zip(level, listings, strict=True)
                for entry in entries
            ]
            found += below
            level = [(one.path, one.inode.inode_id) for one in below if one.inode.is_dir]
            depth += 1
        found.sort(key=lambda one: one.path)
        return found

    async def _list_if_there(self, inode_id: int, *, is_first: bool) -> list[DirEntry]:
        try:
            return await self._entries(inode_id)
        except FsError as error:
            if is_first or error.status not in {Status.NOT_FOUND, Status.STALE}:
                raise
            return []  # removed since its parent was listed

    async def mkdir(self, path: str, mode: int = 0o755, *, exist_ok: bool = False) -> Inode:
        """Make one directory; raises FsError(EXISTS) unless `exist_ok` and it is a directory."""
        directory, name = split_path(path)
        request = meta_pb2.MkdirReq(caller=self._identity.caller(), name=name, mode=mode)
        try:
            reply = await self._change(services.META_MKDIR, request, Place(directory))
        except FsError as error:
            if error.status is not Status.EXISTS or not exist_ok:
                raise
            found = await self.stat(path)
            if not found.is_dir:
                raise
            return found
        return inode_from_pb(reply.inode)

    async def makedirs(self, path: str, mode: int = 0o755) -> None:
        """Make a directory and all that are missing above it, all or none;
        that it is there is no error.

        Args:
            path: may lead through symbolic links; at most 256 directories may be missing.
            mode: of what is made; whoever makes it may write and search what lies on the way.

        Raises:
            FsError: EXISTS or NOT_DIRECTORY: something on the path is no directory;
                ACCESS_DENIED, QUOTA_EXCEEDED, NAME_TOO_LONG, NOT_FOUND (a link that leads
                nowhere), ARGUMENT_TOO_LARGE.
        """
        request = meta_pb2.MakeDirectoriesReq(
            caller=self._identity.caller(),
            parent_inode_id=ROOT_INODE_ID,
            path=os.fsencode(path),
            mode=mode,
        )
        await self._meta.call(services.META_MAKE_DIRECTORIES, request)

    async def unlink(self, path: str) -> None:
        """Remove a name that is not a directory."""
        await self._require_meant(path)
        directory, name = split_path(path)
        request = meta_pb2.UnlinkReq(caller=self._identity.caller(), name=name)
        await self._change(services.META_UNLINK, request, Place(directory))

    async def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        directory, name = split_path(path)
        request = meta_pb2.RmdirReq(caller=self._identity.caller(), name=name)
        await self._change(services.META_RMDIR, request, Place(directory))

    async def remove_tree(self, path: str) -> None:
        """Remove a directory with all below it, in one step for every other client."""
        parent, name = await self._parent(path)
        request = meta_pb2.RemoveTreeReq(
            caller=self._identity.caller(), parent_inode_id=parent, name=name
        )
        await self._meta.call(services.META_REMOVE_TREE, request)

    async def rename(
        self, old: str, new: str, *, no_replace: bool = False, exchange: bool = False
    ) -> None:
        """Rename atomically, replacing what `new` names unless told otherwise."""
        await self._require_meant(old)
        await self._require_meant(new, new if exchange else old)
        (old_directory, old_name), (new_directory, new_name) = split_path(old), split_path(new)
        request = meta_pb2.RenameReq(
            caller=self._identity.caller(),
            old_name=old_name,
            new_name=new_name,
            no_replace=no_replace,
            exchange=exchange,
        )
        await self._change(
            services.META_RENAME,
            request,
            Place(old_directory, "old_directory", "old_parent_inode_id"),
            Place(new_directory, "new_directory", "new_parent_inode_id"),
        )

    async def link(self, old: str, new: str) -> None:
        """Give a file one more name; a symbolic link at `old` is not followed."""
        inode_id = (await self.stat(old, follow=False)).inode_id
        await self._require_found(new)
        directory, name = split_path(new)
        request = meta_pb2.LinkReq(caller=self._identity.caller(), inode_id=inode_id, name=name)
        await self._change(services.META_LINK, request, Place(directory))

    async def symlink(self, target: str, path: str) -> None:
        """Make a symbolic link at `path`; its target, absolute or relative to where it is,
        need not exist.
        """
        await self._require_found(path)
        directory, name = split_path(path)
        request = meta_pb2.SymlinkReq(
            caller=self._identity.caller(), name=name, target=os.fsencode(target)
        )
        await self._change(services.META_SYMLINK, request, Place(directory))

    async def readlink(self, path: str) -> str:
        """Return the target of a symbolic link; raises FsError(INVALID_ARGUMENT)
        for anything else.
        """
        found = await self.stat(path, follow=False)
        if found.type is not InodeType.SYMLINK:
            raise FsError(Status.INVALID_ARGUMENT, f"{path} is no symbolic link")
        return os.fsdecode(found.symlink_target)

    async def set_attributes(
        self,
        path: str,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
        times_now: bool = False,
        follow: bool = True,
    ) -> Inode:
        """Change what is given, and leave the rest;
        `times_now`: both times, which needs only the right to write.

        Raises:
            FsError: NOT_PERMITTED, ACCESS_DENIED, NOT_FOUND.
        """
        inode_id = (await self.stat(path, follow=follow)).inode_id
        request = meta_pb2.SetAttrReq(
            caller=self._identity.caller(),
            inode_id=inode_id,
            mode=mode,
            uid=uid,
            gid=gid,
            atime_ns=atime_ns,
            mtime_ns=mtime_ns,
            atime_now=times_now,
            mtime_now=times_now,
        )
        return inode_from_pb((await self._meta.call(services.META_SET_ATTR, request)).inode)

    async def paths_of(self, inode_id: int) -> list[str]:
        """Return where a directory is, or the names of anything else in the one directory
        where it counts.

        Raises:
            FsError: STALE: there is no such inode; NOT_FOUND: it has no
                name any more; ACCESS_DENIED.
        """
        request = meta_pb2.GetAttrReq(caller=self._identity.caller(), inode_id=inode_id)
        inode = (await self._meta.call(services.META_GET_ATTR, request)).inode
        if inode.type == common_pb2.DIRECTORY:
            return [await self.real_path(inode_id)]
        if not inode.home_inode_id:
            raise FsError(Status.NOT_FOUND, f"inode {inode_id} has no name any more")
        above = (await self.real_path(inode.home_inode_id)).rstrip("/")
        entries = await self._list(inode.home_inode_id, with_inodes=False)
        return [f"{above}/{os.fsdecode(e.name)}" for e in entries if e.inode_id == inode_id]

    async def real_path(self, inode_id: int) -> str:
        """Return where a directory is; raises FsError(NOT_FOUND, STALE, NOT_DIRECTORY,
        ACCESS_DENIED or NAME_TOO_LONG).
        """
        request = meta_pb2.GetRealPathReq(caller=self._identity.caller(), inode_id=inode_id)
        reply = await self._meta.call(services.META_GET_REAL_PATH, request)
        return os.fsdecode(reply.path)
