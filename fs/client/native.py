"""The native client: files by path, read and written in batches, without a mount.

`EmberFs` is the public asynchronous API (trio); `fs.client.blocking` is the same for plain threads.  It is
unbuffered: a write is replicated when it returns, and durable after `fsync` or `close`.

Invariants:
    - Close-to-open holds as on a mount: what one client closed, another opens and sees.
    - Every write-open file carries a file session, so its chunks outlive a removal until close.

Does not: cache, read ahead, or gather small writes; the mount's vfs does.
"""

import os
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import trio

from ..runtime.ports import Buffer, Runtime
from ..schema import services
from ..schema.ids import InodeId
from ..schema.inode import Inode, InodeType, inode_from_pb
from ..schema.layout import MAX_FILE_LENGTH_BYTES, FileRef, Layout
from ..schema.proto import common_pb2, meta_pb2
from ..schema.status import FsError, Status
from .api import ChunkStore, FileRead, MetaCaller

LIST_PAGE_COUNT = 1000
STAT_BATCH_COUNT = 512
SESSION_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Identity:
    """On whose behalf a client acts."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @classmethod
    def of_process(cls) -> Self:
        """Return the identity of this process."""
        return cls(os.geteuid(), os.getegid(), tuple(os.getgroups()))

    def caller(self) -> common_pb2.CallerPb:
        """Return a fresh request header."""
        return common_pb2.CallerPb(uid=self.uid, gid=self.gid, groups=self.groups)


@dataclass(frozen=True, slots=True)
class DirEntry:
    """One name of a directory, with the attributes of what it names."""

    name: str
    inode: Inode


@dataclass(frozen=True, slots=True)
class DirectoryUsage:
    """What lies below a directory, itself not counted, and the limits set there."""

    path: str
    """Empty when it is longer than a path may be."""
    byte_count: int
    file_count: int
    """All that is no directory."""
    directory_count: int
    bytes_max: int
    """0: no limit."""
    inodes_max: int
    """On files and directories together; 0: no limit."""


def _usage_from_pb(message: meta_pb2.DirectoryUsagePb) -> DirectoryUsage:
    usage, quota = message.usage, message.quota
    return DirectoryUsage(
        os.fsdecode(message.path),
        usage.bytes,
        usage.files,
        usage.directories,
        quota.bytes_max,
        quota.inodes_max,
    )


@dataclass(frozen=True, slots=True)
class TrashEntry:
    """A name in one's trash."""

    name: str
    """There; what it was called before is the end of `path`."""
    path: str
    """Where it was; empty when that was longer than a path may be."""
    removed_ns: int
    due_ns: int
    """When it is removed for good, since the epoch; 0: it was made there and stays."""
    is_dir: bool
    place: tuple[int, bytes]
    """(directory in the trash, name)."""
    origin: tuple[int, bytes]
    """(directory, name) from where it was moved."""


def _trash_entry(directory_id: int, entry: meta_pb2.DentryPb) -> TrashEntry:
    mark = entry.trash
    return TrashEntry(
        os.fsdecode(entry.name),
        os.fsdecode(mark.path),
        mark.removed_ns,
        mark.due_ns,
        entry.type == common_pb2.DIRECTORY,
        (directory_id, entry.name),
        (mark.parent_inode_id, mark.name),
    )


class EmberFs:
    """A file system seen through one client.  Any number of tasks may use it at once."""

    def __init__(
        self, meta: MetaCaller, chunks: ChunkStore, *, runtime: Runtime, identity: Identity
    ) -> None:
        self._meta = meta
        self._chunks = chunks
        self._runtime = runtime
        self._identity = identity

    # ---- names -----------------------------------------------------------------------------------

    async def stat(self, path: str, *, follow: bool = True) -> Inode:
        """Return the attributes of what a path names; raises FsError(NOT_FOUND and others)."""
        reply = await self._meta.call(
            services.META_RESOLVE_PATH,
            meta_pb2.ResolvePathReq(
                caller=self._identity.caller(), path=os.fsencode(path), follow_last=follow
            ),
        )
        return inode_from_pb(reply.inode)

    async def stat_many(
        self, paths: Sequence[str], *, follow: bool = True
    ) -> list[Inode | FsError]:
        """Return for each path its attributes, or why there are none; asked for in batches."""
        found: list[Inode | FsError] = []
        for start in range(0, len(paths), STAT_BATCH_COUNT):
            request = meta_pb2.BatchResolvePathReq(
                caller=self._identity.caller(),
                paths=[os.fsencode(path) for path in paths[start : start + STAT_BATCH_COUNT]],
                follow_last=follow,
            )
            reply = await self._meta.call(services.META_BATCH_RESOLVE_PATH, request)
            found += [
                inode_from_pb(slot.inode)
                if slot.HasField("inode")
                else FsError(Status(slot.status), slot.detail)
                for slot in reply.resolved
            ]
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

    async def _parent(self, path: str) -> tuple[InodeId, bytes]:
        """Return (inode id of the directory, last component) of a path."""
        directory, name = os.path.split(path.rstrip("/"))
        if not name:
            raise FsError(Status.INVALID_ARGUMENT, f"{path!r} has no last component")
        return (await self.stat(directory or "/")).inode_id, os.fsencode(name)

    async def listdir(self, path: str) -> list[DirEntry]:
        """Return the entries of a directory in byte order of their names, without . and .. ."""
        inode_id = (await self.stat(path)).inode_id
        found = await self._list(inode_id, with_inodes=True)
        return [DirEntry(os.fsdecode(e.name), inode_from_pb(e.inode)) for e in found]

    async def _list(self, inode_id: int, *, with_inodes: bool) -> list[meta_pb2.DentryPb]:
        entries: list[meta_pb2.DentryPb] = []
        after = b""
        while True:
            request = meta_pb2.ListReq(
                caller=self._identity.caller(),
                inode_id=inode_id,
                after=after,
                entry_count_max=LIST_PAGE_COUNT,
                with_inodes=with_inodes,
            )
            page = await self._meta.call(services.META_LIST, request)
            entries.extend(page.entries)
            if not page.has_more:
                return entries
            after = page.entries[-1].name

    async def mkdir(self, path: str, mode: int = 0o755, *, exist_ok: bool = False) -> Inode:
        """Make one directory; raises FsError(EXISTS) unless `exist_ok` and it is a directory."""
        parent, name = await self._parent(path)
        request = meta_pb2.MkdirReq(
            caller=self._identity.caller(), parent_inode_id=parent, name=name, mode=mode
        )
        try:
            reply = await self._meta.call(services.META_MKDIR, request)
        except FsError as error:
            if error.status is not Status.EXISTS or not exist_ok:
                raise
            found = await self.stat(path)
            if not found.is_dir:
                raise
            return found
        return inode_from_pb(reply.inode)

    async def makedirs(self, path: str, mode: int = 0o755) -> None:
        """Make a directory and all that are missing above it."""
        parts = [part for part in path.split("/") if part]
        for count in range(1, len(parts) + 1):
            await self.mkdir("/" + "/".join(parts[:count]), mode, exist_ok=True)

    async def unlink(self, path: str) -> None:
        """Remove a name that is not a directory."""
        parent, name = await self._parent(path)
        request = meta_pb2.UnlinkReq(
            caller=self._identity.caller(), parent_inode_id=parent, name=name
        )
        await self._meta.call(services.META_UNLINK, request)

    async def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        parent, name = await self._parent(path)
        request = meta_pb2.RmdirReq(
            caller=self._identity.caller(), parent_inode_id=parent, name=name
        )
        await self._meta.call(services.META_RMDIR, request)

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
        old_parent, old_name = await self._parent(old)
        new_parent, new_name = await self._parent(new)
        request = meta_pb2.RenameReq(
            caller=self._identity.caller(),
            old_parent_inode_id=old_parent,
            old_name=old_name,
            new_parent_inode_id=new_parent,
            new_name=new_name,
            no_replace=no_replace,
            exchange=exchange,
        )
        await self._meta.call(services.META_RENAME, request)

    # ---- the trash -------------------------------------------------------------------------------

    async def move_to_trash(self, path: str, expire_s: int = 0) -> None:
        """Move what a path names to one's trash; what lies in the trash is removed for good.

        Args:
            path: of anything; of a directory with all below it, which takes no longer.
            expire_s: how long it can be restored, up to 30 days; 0: as the cluster is configured.

        Raises:
            FsError: as of a removal; NOT_PERMITTED also for a directory of somebody else.
        """
        parent, name = await self._parent(path)
        request = meta_pb2.MoveToTrashReq(
            caller=self._identity.caller(), parent_inode_id=parent, name=name, expire_s=expire_s
        )
        await self._meta.call(services.META_MOVE_TO_TRASH, request)

    async def trash(self) -> list[TrashEntry]:
        """Return what is in one's trash, by name."""
        try:
            inode_id = (await self.stat(f"/.trash/{self._identity.uid}")).inode_id
        except FsError as error:
            if error.status is Status.NOT_FOUND:
                return []
            raise
        return [_trash_entry(inode_id, e) for e in await self._list(inode_id, with_inodes=False)]

    async def restore(self, entry: TrashEntry, to: str = "") -> str:
        """Move a name out of the trash, to `to` or to where it was; return where that is now.

        Raises:
            FsError: EXISTS: something has that name now; NOT_FOUND: the directory where it was is gone; BUSY: that
                directory is in the trash, too; and as of a rename.
        """
        parent, name = await self._parent(to) if to else await self._origin(entry)
        request = meta_pb2.RenameReq(
            caller=self._identity.caller(),
            old_parent_inode_id=entry.place[0],
            old_name=entry.place[1],
            new_parent_inode_id=parent,
            new_name=name,
            no_replace=True,
        )
        await self._meta.call(services.META_RENAME, request)
        return to or f"{(await self.real_path(parent)).rstrip('/')}/{os.fsdecode(name)}"

    async def _origin(self, entry: TrashEntry) -> tuple[int, bytes]:
        parent, name = entry.origin
        try:
            above = await self.real_path(parent)
        except FsError as error:
            if error.status not in {Status.NOT_FOUND, Status.STALE}:
                raise
            what = f"the directory of {entry.path or entry.name} is gone: say where to restore it"
            raise FsError(Status.NOT_FOUND, what) from error
        if above.startswith("/.trash/"):
            what = f"the directory of {entry.path or entry.name} is in the trash: restore it first"
            raise FsError(Status.BUSY, what)
        return parent, name

    async def remove_for_good(self, entry: TrashEntry) -> None:
        """Remove a name in the trash now."""
        parent, name = entry.place
        request = meta_pb2.MoveToTrashReq(
            caller=self._identity.caller(), parent_inode_id=parent, name=name
        )
        await self._meta.call(services.META_MOVE_TO_TRASH, request)

    async def paths_of(self, inode_id: int) -> list[str]:
        """Return where a directory is, or the names of anything else in the one directory where it counts.

        Raises:
            FsError: STALE: there is no such inode; NOT_FOUND: it has no name any more; ACCESS_DENIED.
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
        """Return where a directory is; raises FsError(NOT_FOUND, STALE, NOT_DIRECTORY or NAME_TOO_LONG)."""
        request = meta_pb2.GetRealPathReq(caller=self._identity.caller(), inode_id=inode_id)
        reply = await self._meta.call(services.META_GET_REAL_PATH, request)
        return os.fsdecode(reply.path)

    # ---- locks on directories --------------------------------------------------------------------

    async def lock_directory(self, path: str, *, preempt: bool = False) -> None:
        """Let no other client change names in a directory, until this client unlocks it or is gone.

        Args:
            path: of the directory; those below it are not locked.
            preempt: also if another client holds it, who is not told; only by its owner or root.

        Raises:
            FsError: NO_LOCK: another client holds it; ACCESS_DENIED, NOT_PERMITTED, NOT_DIRECTORY, NOT_FOUND.
        """
        action = meta_pb2.LOCK_PREEMPT if preempt else meta_pb2.LOCK_TAKE
        await self._lock(path, action)

    async def unlock_directory(self, path: str, *, clear: bool = False) -> None:
        """Unlock a directory; `clear`: also another client's lock, by its owner or root.  Raises as `lock_directory`."""
        await self._lock(path, meta_pb2.LOCK_CLEAR if clear else meta_pb2.LOCK_FREE)

    async def _lock(self, path: str, action: meta_pb2.DirectoryLockAction.ValueType) -> None:
        inode_id = (await self.stat(path)).inode_id
        request = meta_pb2.LockDirectoryReq(
            caller=self._identity.caller(), inode_id=inode_id, action=action
        )
        await self._meta.call(services.META_LOCK_DIRECTORY, request)

    # ---- usage and quotas ------------------------------------------------------------------------

    async def usage(self, path: str) -> tuple[DirectoryUsage, list[DirectoryUsage]]:
        """Return the usage of a directory, and of those at or above it that have quotas, nearest first."""
        inode_id = (await self.stat(path)).inode_id
        request = meta_pb2.GetUsageReq(caller=self._identity.caller(), inode_id=inode_id)
        reply = await self._meta.call(services.META_GET_USAGE, request)
        return _usage_from_pb(reply.directory), [_usage_from_pb(entry) for entry in reply.limiting]

    async def set_quota(self, path: str, *, bytes_max: int, inodes_max: int) -> None:
        """Limit what may lie below a directory, 0: no limit; raises FsError(NOT_PERMITTED) but for root."""
        inode_id = (await self.stat(path)).inode_id
        quota = meta_pb2.QuotaPb(bytes_max=bytes_max, inodes_max=inodes_max)
        request = meta_pb2.SetQuotaReq(
            caller=self._identity.caller(), inode_id=inode_id, quota=quota
        )
        await self._meta.call(services.META_SET_QUOTA, request)

    async def quotas(self) -> list[DirectoryUsage]:
        """Return all directories that have quotas, by age; raises FsError(NOT_PERMITTED) but for root."""
        found: list[DirectoryUsage] = []
        after = 0
        while True:
            request = meta_pb2.ListQuotasReq(caller=self._identity.caller(), after_inode_id=after)
            page = await self._meta.call(services.META_LIST_QUOTAS, request)
            found.extend(_usage_from_pb(entry) for entry in page.entries)
            if not page.has_more:
                return found
            after = page.last_inode_id

    # ---- files -----------------------------------------------------------------------------------

    async def open(self, path: str) -> "EmberFile":
        """Open a file for reading; `async with` or `close` it."""
        found = await self.stat(path)
        request = meta_pb2.OpenReq(
            caller=self._identity.caller(), inode_id=found.inode_id, wants_read=True
        )
        reply = await self._meta.call(services.META_OPEN, request)
        return self._file(inode_from_pb(reply.inode), path, session_id="")

    async def create(
        self, path: str, mode: int = 0o644, *, exclusive: bool = False, truncate: bool = True
    ) -> "EmberFile":
        """Open a file for reading and writing, made if it does not exist; emptied if `truncate`."""
        parent, name = await self._parent(path)
        session_id = self._runtime.random.randbytes(SESSION_ID_BYTES).hex()
        request = meta_pb2.CreateReq(
            caller=self._identity.caller(),
            parent_inode_id=parent,
            name=name,
            mode=mode,
            is_exclusive=exclusive,
            is_truncate=truncate,
            wants_read=True,
            wants_write=True,
            session=meta_pb2.FileSessionPb(session_id=session_id, is_write=True),
        )
        reply = await self._meta.call(services.META_CREATE, request)
        file = self._file(inode_from_pb(reply.inode), path, session_id)
        file.is_metered = reply.is_metered
        return file

    def _file(self, inode: Inode, path: str, session_id: str) -> "EmberFile":
        if inode.type is not InodeType.FILE:
            raise FsError(Status.NOT_REGULAR, path)
        return EmberFile(
            inode, path, self._meta, self._chunks, identity=self._identity, session_id=session_id
        )

    async def read_file(self, path: str) -> bytes:
        """Return the whole content of a file."""
        async with await self.open(path) as file:
            return await file.read(0, file.length)

    async def write_file(self, path: str, data: Buffer) -> None:
        """Replace the content of a file and make it durable."""
        async with await self.create(path) as file:
            await file.write(0, data)

    async def read_batch(self, reads: "Sequence[tuple[EmberFile, int, memoryview]]") -> list[int]:
        """Read (file, offset, buffer) triples in as few requests as possible.

        Returns:
            For each, the bytes filled: fewer than its buffer's length only at the end of the file.
        """
        for file, offset, _ in reads:
            _check_offset(file.path, offset)
        wanted = [
            FileRead(file.ref, offset, buffer[: max(0, file.length - offset)])
            for file, offset, buffer in reads
        ]
        await self._chunks.read([read for read in wanted if len(read.buffer)])
        return [len(read.buffer) for read in wanted]


def _check_offset(path: str, offset: int) -> None:
    if offset < 0:
        raise FsError(Status.INVALID_ARGUMENT, f"{path}: offset {offset}")


class EmberFile:
    """An open file.  Tasks may read at once; writes of overlapping ranges are the caller's to order."""

    def __init__(
        self,
        inode: Inode,
        path: str,
        meta: MetaCaller,
        chunks: ChunkStore,
        *,
        identity: Identity,
        session_id: str,
    ) -> None:
        assert inode.file is not None
        self.path = path
        self._inode = inode
        self._meta = meta
        self._chunks = chunks
        self._identity = identity
        self._session_id = session_id
        self._dyn_stripe = inode.file.dyn_stripe
        self._truncate_ver = inode.file.truncate_ver
        self._length = inode.file.length
        self._written_end = 0
        self._is_length_unknown = False
        self._write_count = 0
        self.is_metered = False
        """A quota of bytes lies above: growth must be promised first."""
        self._promised_length = inode.file.promised_length
        self._reported_count = 0
        """Of `_write_count`: a write that ends during a report is not taken for reported."""

    @property
    def length(self) -> int:
        """Bytes in the file, as known at open and grown by writes through this object."""
        return self._length

    @property
    def layout(self) -> Layout:
        """How the file is cut and spread."""
        assert self._inode.file is not None
        return self._inode.file.layout

    @property
    def ref(self) -> FileRef:
        """Names the file's chunks to the storage side."""
        assert self._inode.file is not None
        cut = self._inode.file.finished_cut
        return FileRef(self._inode.inode_id, self.layout, self._dyn_stripe, cut)

    async def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset` on; return the bytes filled, fewer only at the end of the file."""
        _check_offset(self.path, offset)
        wanted = buffer[: max(0, self._length - offset)]
        if len(wanted):
            await self._chunks.read([FileRead(self.ref, offset, wanted)])
        return len(wanted)

    async def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset` on."""
        _check_offset(self.path, offset)
        buffer = bytearray(max(0, min(length, self._length - offset)))
        await self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    async def write(self, offset: int, data: Buffer) -> None:
        """Write bytes; replicated when it returns, durable after `fsync`.

        Raises:
            FsError: QUOTA_EXCEEDED: nothing was written; NO_SPACE and others: some of the bytes may have been.
        """
        _check_offset(self.path, offset)
        if not self._session_id:
            raise FsError(Status.BAD_FILE, f"{self.path} is open for reading only")
        view = memoryview(data)
        end = offset + len(view)
        if end > MAX_FILE_LENGTH_BYTES:
            raise FsError(Status.FILE_TOO_LARGE, f"{self.path}: {end} bytes")
        if self.is_metered and end > self._promised_length:
            await self._secure(end)
        await self._cover(end)
        is_written = False
        try:
            await self._chunks.write(self.ref, offset, view)
            is_written = True
        finally:
            self._write_count += 1
            # Bytes of a failed write may be there, beyond what is known: the chains must tell the length.
            self._is_length_unknown = self._is_length_unknown or not is_written
        self._written_end = max(self._written_end, end)
        self._length = max(self._length, end)

    async def _secure(self, end: int) -> None:
        request = meta_pb2.ReserveSpaceReq(
            caller=self._identity.caller(), inode_id=self._inode.inode_id, length=end
        )
        reply = await self._meta.call(services.META_RESERVE_SPACE, request)
        inode = inode_from_pb(reply.inode)
        assert inode.file is not None
        self.is_metered, self._promised_length = reply.is_metered, inode.file.promised_length

    async def _cover(self, end: int) -> None:
        """Extend the dynamic stripe so that chunks up to byte `end` may exist."""
        chunk_count = -(-end // self.layout.chunk_size_bytes)
        needed = min(chunk_count, self.layout.stripe_size)
        if needed <= self._dyn_stripe:
            return
        request = meta_pb2.ExtendStripeReq(
            caller=self._identity.caller(),
            inode_id=self._inode.inode_id,
            dyn_stripe_min=needed,
        )
        reply = await self._meta.call(services.META_EXTEND_STRIPE, request)
        self._dyn_stripe = reply.inode.file.dyn_stripe

    @property
    def _has_new_data(self) -> bool:
        return self._write_count > self._reported_count

    def _sync_request(self) -> meta_pb2.SyncReq:
        request = meta_pb2.SyncReq(
            caller=self._identity.caller(),
            inode_id=self._inode.inode_id,
            has_new_data=self._has_new_data,
            is_durable=True,
        )
        if self._has_new_data and not self._is_length_unknown:
            request.length_hint.length = self._written_end
            request.length_hint.truncate_ver = self._truncate_ver
        return request

    async def fsync(self) -> None:
        """Return when everything written so far, and the length, would survive a power loss.

        Raises:
            FsError: QUOTA_EXCEEDED: a limit was set after the file was opened, and what was written since the
                last fsync is dropped; and others.
        """
        if not self._session_id:
            return
        request, write_count = self._sync_request(), self._write_count
        try:
            reply = await self._durable(self._meta.call(services.META_SYNC, request))
        except FsError as error:
            if error.status is Status.QUOTA_EXCEEDED:
                await self._forget_refused(write_count)
            raise
        self._reported_count = max(self._reported_count, write_count)
        self._length = max(self._written_end, reply.inode.file.length)

    async def _forget_refused(self, write_count: int) -> None:
        request = meta_pb2.GetAttrReq(caller=self._identity.caller(), inode_id=self._inode.inode_id)
        inode = inode_from_pb((await self._meta.call(services.META_GET_ATTR, request)).inode)
        assert inode.file is not None
        self._reported_count = max(self._reported_count, write_count)
        self._truncate_ver, self._length = inode.file.truncate_ver, inode.file.length
        self._written_end, self._is_length_unknown = 0, False
        self.is_metered, self._promised_length = True, inode.file.promised_length

    async def close(self) -> None:
        """Make a written file durable and visible, and end its session; repeating does nothing."""
        if not self._session_id:
            return
        request = meta_pb2.CloseReq(sync=self._sync_request(), session_id=self._session_id)
        self._session_id = ""
        call = self._meta.call(services.META_CLOSE, request)
        await (self._durable(call) if self._has_new_data else call)

    async def _durable(self, report: Awaitable[meta_pb2.InodeRsp]) -> meta_pb2.InodeRsp:
        """Make the chunks durable while the metadata is reported; return the reply."""
        failures: list[FsError] = []

        async def sync_chunks() -> None:
            try:
                await self._chunks.sync([self.ref])
            except FsError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sync_chunks)
            try:
                reply = await report
            except FsError as error:
                failures.insert(0, error)
        if failures:
            raise failures[0]
        return reply  # type: ignore[possibly-undefined]  # set unless a failure was noted

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
