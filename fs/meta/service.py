"""The metadata service: one method per RPC, each one transaction of an operation in `ops`.

Here stands what operations must not do: check what a request may contain at all, reserve inode ids,
ask storage, wait for the disk.  Methods are named like the RPCs of fs/schema/proto/meta.proto,
which states what they mean; what they raise is what their operation raises, and RPC_BAD_REQUEST.

How an operation is run stands in fs/meta/runner.py, with its invariants.  Concurrency: as there.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import trio
from google.protobuf.message import Message

from ..kv.api import KvEngine
from ..kv.local import LocalEngine
from ..kv.transact import transact
from ..rpc.api import Call, Identity, Reply
from ..runtime.ports import Runtime
from ..runtime.until_wait import in_task
from ..schema.config import ProcessConfig
from ..schema.proto import meta_pb2 as meta
from ..schema.status import FsError, Status
from ..schema.user import User
from .context import REQUEST_ID_BYTES, LayoutSource, PreciseLength
from .events import expiry_event
from .lock_waits import LockWaits
from .ops.access import access
from .ops.create import create
from .ops.end_session import end_session
from .ops.extend_stripe import extend_stripe
from .ops.get_attr import batch_get_attr, get_attr
from .ops.get_real_path import get_real_path
from .ops.get_usage import get_usage
from .ops.link import link
from .ops.list_ import list_
from .ops.lock import end_client_locks, find_lock_conflict, set_lock
from .ops.lock_directory import end_directory_lock, lock_directory
from .ops.lock_wait import end_lock_wait, end_owner_waits
from .ops.lookup import lookup
from .ops.make_directories import make_directories, new_count_max
from .ops.mkdir import mkdir
from .ops.mknod import mknod
from .ops.note_reads import TOGETHER_MAX, note_reads
from .ops.open import open_
from .ops.quotas import list_quotas, set_quota
from .ops.remove_tree import remove_tree
from .ops.rename import rename
from .ops.reserve_append import reserve_append
from .ops.reserve_space import reserve_space
from .ops.rmdir import rmdir
from .ops.set_attr import set_attr
from .ops.stat_fs import stat_fs
from .ops.symlink import symlink
from .ops.sync import close, close_settled, sync
from .ops.trash import expire, move_to_trash
from .ops.unlink import unlink
from .ops.xattr import get_xattr, list_xattrs, remove_xattr, set_xattr
from .ports import ChunkPort
from .resolve import batch_resolve_path, resolve_path
from .runner import ROOT_CALLER, RequestRunner
from .users import admit

SPACE_AGE_S_MAX: Final = 2.0
"""StatFs answers from what storage said at most this long ago."""

PRUNE_COUNT_MAX: Final = 4096
NOTED_COUNT_MAX: Final = 4096

TRIED: Final = (
    "GetAttr",
    "Lookup",
    "Access",
    "GetXattr",
    "ListXattrs",
    "Create",
    "Mkdir",
    "Symlink",
    "Mknod",
    "Link",
    "Unlink",
    "Rmdir",
    "Rename",
    "Open",
    "SetAttr",
    "SetXattr",
    "RemoveXattr",
    "Sync",
    "Close",
    "PruneSessions",
)
"""These hardly ever wait, or only for a flush."""


class MetaService(RequestRunner):
    """What the RPC server calls."""

    def __init__(
        self,
        engine: KvEngine,
        runtime: Runtime,
        config: ProcessConfig,
        *,
        layouts: LayoutSource,
        chunks: ChunkPort,
    ) -> None:
        super().__init__(engine, runtime, config, layouts=layouts, chunks=chunks)
        self._chunks = chunks
        self.free_all_of: Callable[[str], Awaitable[None]]
        """Ends the file sessions of a client, and frees its locks; set by who looks after those."""
        self._lock_waits = LockWaits()
        self._space = (0, 0)
        self._space_until_s = -1.0
        self._space_lock = trio.Lock()

    @property
    def tried_methods(self) -> Sequence[str]:
        """Methods that need not wait where the store is part of this process;
        see `Server.add_service`.

        Of what changes something, what has been done is remembered by its
        request id, or may be done again.
        """
        return TRIED if isinstance(self._engine, LocalEngine) else ()

    def admit(self, user: User, peer: Identity, request: Message) -> None:
        """See fs/meta/users.py."""
        admit(user, peer, request)

    # ---- reading -----------------------------------------------------------------------------

    async def get_attr(self, _call: Call, request: meta.GetAttrReq) -> meta.InodeRsp:
        """Serve GetAttr."""
        return await self._read(get_attr, request)

    async def batch_get_attr(
        self, _call: Call, request: meta.BatchGetAttrReq
    ) -> meta.BatchGetAttrRsp | Reply[meta.BatchGetAttrRsp]:
        """Serve BatchGetAttr."""
        reply, payload = await self._read(batch_get_attr, request)
        return Reply(reply, payload) if payload else reply

    async def lookup(self, _call: Call, request: meta.LookupReq) -> meta.InodeRsp:
        """Serve Lookup."""
        return await self._read(lookup, request)

    async def resolve_path(self, _call: Call, request: meta.ResolvePathReq) -> meta.InodeRsp:
        """Serve ResolvePath."""
        return await self._read_content(resolve_path, request)

    async def batch_resolve_path(
        self, _call: Call, request: meta.BatchResolvePathReq
    ) -> meta.BatchResolvePathRsp | Reply[meta.BatchResolvePathRsp]:
        """Serve BatchResolvePath."""
        reply, payload = await self._read_content(batch_resolve_path, request)
        return Reply(reply, payload) if payload else reply

    async def get_real_path(self, _call: Call, request: meta.GetRealPathReq) -> meta.GetRealPathRsp:
        """Serve GetRealPath."""
        return await self._read(get_real_path, request)

    async def list(self, _call: Call, request: meta.ListReq) -> meta.ListRsp:
        """Serve List."""
        return await self._read(list_, request)

    async def access(self, _call: Call, request: meta.AccessReq) -> meta.AccessRsp:
        """Serve Access."""
        return await self._read(access, request)

    async def get_xattr(self, _call: Call, request: meta.GetXattrReq) -> meta.GetXattrRsp:
        """Serve GetXattr."""
        return await self._read(get_xattr, request)

    async def list_xattrs(self, _call: Call, request: meta.ListXattrsReq) -> meta.ListXattrsRsp:
        """Serve ListXattrs."""
        return await self._read(list_xattrs, request)

    async def stat_fs(self, _call: Call, request: meta.StatFsReq) -> meta.StatFsRsp:
        """Serve StatFs."""
        reply = await self._read(stat_fs, request)
        async with self._space_lock:
            now_s = self._runtime.clock.monotonic_s()
            if now_s >= self._space_until_s:
                self._space = await self._chunks.space()
                self._space_until_s = now_s + SPACE_AGE_S_MAX
        capacity_bytes, free_bytes = self._space
        reply.free_bytes = min(reply.free_bytes, free_bytes) if reply.capacity_bytes else free_bytes
        reply.capacity_bytes = reply.capacity_bytes or capacity_bytes
        return reply

    # ---- names -------------------------------------------------------------------------------

    async def create(self, _call: Call, request: meta.CreateReq) -> meta.CreateRsp:
        """Serve Create."""
        new_inode_id = await self.inode_ids.take()
        reply = await self._change_content(create, request, new_inode_id=new_inode_id)
        if request.is_truncate:
            await self._finish_truncation(reply.inode)
        return reply

    async def mkdir(self, _call: Call, request: meta.MkdirReq) -> meta.InodeRsp:
        """Serve Mkdir."""
        return await self._make(mkdir, request)

    async def make_directories(
        self, _call: Call, request: meta.MakeDirectoriesReq
    ) -> meta.MakeDirectoriesRsp:
        """Serve MakeDirectories."""
        count = new_count_max(request.path)
        op = make_directories([await self.inode_ids.take() for _ in range(count)])
        return await self._change(op, request)

    async def symlink(self, _call: Call, request: meta.SymlinkReq) -> meta.InodeRsp:
        """Serve Symlink."""
        return await self._make(symlink, request)

    async def mknod(self, _call: Call, request: meta.MknodReq) -> meta.InodeRsp:
        """Serve Mknod."""
        return await self._make(mknod, request)

    async def link(self, _call: Call, request: meta.LinkReq) -> meta.InodeRsp:
        """Serve Link."""
        return await self._change(link, request)

    async def unlink(self, _call: Call, request: meta.UnlinkReq) -> meta.RemoveRsp:
        """Serve Unlink."""
        return await self._change(unlink, request)

    async def rmdir(self, _call: Call, request: meta.RmdirReq) -> meta.RemoveRsp:
        """Serve Rmdir."""
        return await self._change(rmdir, request)

    async def remove_tree(self, _call: Call, request: meta.RemoveTreeReq) -> meta.RemoveRsp:
        """Serve RemoveTree."""
        place = request.parent_inode_id, request.name
        return await self._move(remove_tree, request, lambda: (place,))

    async def rename(self, _call: Call, request: meta.RenameReq) -> meta.RenameRsp:
        """Serve Rename."""

        def places() -> tuple[tuple[int, bytes], ...]:  # known by inode id once it has been tried
            old = request.old_parent_inode_id, request.old_name
            return old, (request.new_parent_inode_id, request.new_name)

        new_inode_id = await self.inode_ids.take() if request.leaves_whiteout else 0
        return await self._move(rename, request, places, new_inode_id=new_inode_id)

    async def move_to_trash(self, _call: Call, request: meta.MoveToTrashReq) -> meta.MoveToTrashRsp:
        """Serve MoveToTrash."""
        place = request.parent_inode_id, request.name
        new_inode_id = await self.inode_ids.take()  # of the user's directory, the first time
        return await self._move(move_to_trash, request, lambda: (place,), new_inode_id=new_inode_id)

    async def expire(self, key: bytes) -> bool:
        """Remove from the trash what a TRSH key is about;
        return whether there was anything to do.
        """
        request_id = self._runtime.random.randbytes(REQUEST_ID_BYTES)
        caller = ROOT_CALLER._replace(request_id=request_id)

        async def attempt() -> bool:
            ctx = self._context(caller)
            return await self.driver.transact(lambda tr: expire(tr, ctx, key))

        was_there = await self._past_fences(attempt)
        if was_there:
            self.events.note(expiry_event(key))
        return was_there

    # ---- attributes and content --------------------------------------------------------------

    async def open(self, _call: Call, request: meta.OpenReq) -> meta.InodeRsp:
        """Serve Open."""
        if not (request.is_truncate or request.HasField("session")):
            return await self._read_content(open_, request)  # it leaves nothing behind
        reply = await self._change_content(open_, request)
        if request.is_truncate:
            await self._finish_truncation(reply.inode)
        return reply

    async def set_attr(self, _call: Call, request: meta.SetAttrReq) -> meta.InodeRsp:
        """Serve SetAttr."""
        reply = await self._change_content(set_attr, request)
        if request.HasField("length"):
            await self._finish_truncation(reply.inode)
        return reply

    async def sync(self, _call: Call, request: meta.SyncReq) -> meta.InodeRsp:
        """Serve Sync."""
        reply = await self._change_content(sync, request)
        await self._cut_refused(reply)
        if request.is_durable:
            await self._engine.sync()
        return reply

    async def _cut_refused(self, reply: meta.InodeRsp) -> None:
        """After a refused report: cut what it was about, and raise FsError(QUOTA_EXCEEDED)."""
        if reply.is_over_quota:
            await self._finish_truncation(reply.inode)
            what = f"inode {reply.inode.inode_id:#x}: bytes written without room for them are cut"
            raise FsError(Status.QUOTA_EXCEEDED, what)

    async def close(self, _call: Call, request: meta.CloseReq) -> meta.InodeRsp:
        """Serve Close."""
        reply = await self._change_content(close, request)
        await self._cut_refused(reply)
        if request.sync.is_durable:
            await self._engine.sync()
        return reply

    async def reserve_append(
        self, _call: Call, request: meta.ReserveAppendReq
    ) -> meta.ReserveAppendRsp:
        """Serve ReserveAppend."""
        reply = await self._change_content(reserve_append, request)
        if not reply.offset and reply.inode.file.truncate_ver:
            await self._engine.sync()  # as in `extend_stripe`
        return reply

    async def reserve_space(self, _call: Call, request: meta.ReserveSpaceReq) -> meta.InodeRsp:
        """Serve ReserveSpace."""
        return await self._change_content(reserve_space, request)

    async def extend_stripe(self, _call: Call, request: meta.ExtendStripeReq) -> meta.InodeRsp:
        """Serve ExtendStripe."""
        reply = await self._change_content(extend_stripe, request)
        file = reply.inode.file
        is_ended = request.ends_inline or request.report_id
        if is_ended or (file.truncate_ver and not file.length):
            # What the caller writes to chunks now must not meet bytes that are inline again: by a
            # late report that the power has let fit once more, or since it has taken back that
            # another client emptied the file, whose number storage then knows as over.
            await self._engine.sync()
        return reply

    async def set_xattr(self, _call: Call, request: meta.SetXattrReq) -> meta.SetXattrRsp:
        """Serve SetXattr."""
        return await self._change(set_xattr, request)

    async def remove_xattr(self, _call: Call, request: meta.RemoveXattrReq) -> meta.RemoveXattrRsp:
        """Serve RemoveXattr."""
        return await self._change(remove_xattr, request)

    # ---- advisory locks ------------------------------------------------------------------------

    async def set_lock(self, _call: Call, request: meta.SetLockReq) -> meta.SetLockRsp:
        """Serve SetLock."""
        reply = await self._change(set_lock, request)
        if reply.is_done or reply.has_freed:
            # Also a lock for reading in place of one for writing frees something.
            self._lock_waits.wake(request.inode_id)
        return reply

    async def find_lock_conflict(
        self, _call: Call, request: meta.FindLockConflictReq
    ) -> meta.FindLockConflictRsp:
        """Serve FindLockConflict."""
        return await self._lock_waits.wait(request, lambda: self._read(find_lock_conflict, request))

    async def end_locks(self, inode_id: int, client_id: str) -> None:
        """Free what a client that is gone holds on one file."""
        await transact(
            self._engine,
            lambda tr: end_client_locks(tr, inode_id, client_id),
            runtime=self._runtime,
            retry_time_s_max=self._retry_time_s_max,
        )
        self._lock_waits.wake(inode_id)

    async def end_lock_wait(self, _call: Call, request: meta.EndLockWaitReq) -> meta.EndLockWaitRsp:
        """Serve EndLockWait."""
        return await self._change(end_lock_wait, request)

    async def end_lock_waits(self, owner: int, client_id: str) -> None:
        """Forget what an owner of locks of a client that is gone waited for."""
        await transact(
            self._engine,
            lambda tr: end_owner_waits(tr, owner, client_id),
            runtime=self._runtime,
            retry_time_s_max=self._retry_time_s_max,
        )

    async def free_client(self, call: Call, request: meta.FreeClientReq) -> meta.FreeClientRsp:
        """Serve FreeClient: what one client held that is gone, and not the caller."""
        caller_id = self._caller(request).client_id
        if request.client_id in {"", caller_id, call.peer.client_id}:
            detail = f"{request.client_id!r} is no client that is gone"
            raise FsError(Status.RPC_BAD_REQUEST, detail)
        await in_task()
        await self.free_all_of(request.client_id)
        return meta.FreeClientRsp()

    async def lock_directory(self, _call: Call, request: meta.LockDirectoryReq) -> meta.InodeRsp:
        """Serve LockDirectory."""
        return await self._change(lock_directory, request)

    async def end_directory_lock(self, inode_id: int, client_id: str) -> None:
        """Unlock a directory whose client is gone."""
        ctx = self.own_context()
        await self.driver.transact(lambda tr: end_directory_lock(tr, ctx, inode_id, client_id))

    # ---- usage and quotas --------------------------------------------------------------------

    async def get_usage(self, _call: Call, request: meta.GetUsageReq) -> meta.GetUsageRsp:
        """Serve GetUsage."""
        return await self._read(get_usage, request)

    async def set_quota(self, _call: Call, request: meta.SetQuotaReq) -> meta.SetQuotaRsp:
        """Serve SetQuota."""
        return await self._change(set_quota, request)

    async def list_quotas(self, _call: Call, request: meta.ListQuotasReq) -> meta.ListQuotasRsp:
        """Serve ListQuotas."""
        return await self._read(list_quotas, request)

    # ---- the rest ----------------------------------------------------------------------------

    async def prune_sessions(
        self, _call: Call, request: meta.PruneSessionsReq
    ) -> meta.PruneSessionsRsp:
        """Serve PruneSessions: only sessions of the caller's own client are ended."""
        client_id = self._caller(request, is_change=False).client_id
        if len(request.sessions) > PRUNE_COUNT_MAX:
            raise FsError(Status.RPC_BAD_REQUEST, f"{len(request.sessions)} sessions")
        if request.is_settled:
            await self._change(close_settled, request)
            return meta.PruneSessionsRsp()
        await in_task()  # a transaction for each: others have their turns in between
        for pruned in request.sessions:
            await self.end_session(pruned.inode_id, pruned.session_id, client_id)
        return meta.PruneSessionsRsp()

    async def note_reads(self, _call: Call, request: meta.NoteReadsReq) -> meta.NoteReadsRsp:
        """Serve NoteReads: in several transactions, between which others have their turns."""
        caller, reads = self._caller(request, is_change=False), request.reads
        if len(reads) > NOTED_COUNT_MAX:
            raise FsError(Status.RPC_BAD_REQUEST, f"{len(reads)} reads")
        await in_task()
        reply = meta.NoteReadsRsp()
        for start in range(0, len(reads), TOGETHER_MAX):
            part, ctx = reads[start : start + TOGETHER_MAX], self._context(caller)
            op = partial(note_reads, ctx=ctx, reads=part)
            reply.atimes_ns.extend(await self.driver.transact(op))
        return reply

    async def end_session(self, inode_id: int, session_id: str, client_id: str) -> bool:
        """End one file session, recording the precise length of what its writer left.

        Returns whether it existed and belonged to the client.
        """

        async def attempt(known: PreciseLength | None) -> bool:
            ctx = self.own_context(known)
            return await self.driver.transact(
                lambda tr: end_session(tr, ctx, inode_id, session_id, client_id)
            )

        return await self.driver.run(attempt)

    async def sync_meta(self, _call: Call, request: meta.SyncMetaReq) -> meta.SyncMetaRsp:
        """Serve SyncMeta."""
        self._caller(request)
        await self._engine.sync()
        return meta.SyncMetaRsp()
