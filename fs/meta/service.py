"""The metadata service: one method per RPC, each one transaction of an operation in `ops`.

Here stands what operations must not do: check what a request may contain at all, reserve inode ids,
ask storage, wait for the disk.  Methods are named like the RPCs of fs/schema/proto/meta.proto, which
states what they mean; what they raise is what their operation raises, and RPC_BAD_REQUEST.

Invariants:
    - A request without a caller is refused: it would be root's otherwise.
    - Times never go back within one service.

Concurrency: any number of requests at once; conflicts are resolved by the key-value layer.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar

import trio
from google.protobuf.message import Message

from ..kv.api import KvEngine, Transaction
from ..kv.transact import snapshot_read, transact
from ..rpc.api import Call, Identity
from ..runtime.ports import Runtime
from ..schema.config import ProcessConfig
from ..schema.proto import meta_pb2 as meta
from ..schema.proto.common_pb2 import CallerPb, InodePb
from ..schema.status import FsError, Retry, Status
from ..schema.user import User
from .content_driver import ContentDriver
from .context import (
    CLIENT_ID_BYTES_MAX,
    GROUP_COUNT_MAX,
    REQUEST_ID_BYTES,
    Caller,
    LayoutSource,
    OpContext,
    PreciseLength,
    UsageFencedError,
    caller_from_pb,
)
from .event_log import EventLog
from .events import event_of, expiry_event
from .idempotency import refuse
from .inode_ids import InodeIds
from .inodes import load_inode
from .lineage import Lineages
from .lock_waits import LockWaits
from .ops.access import access
from .ops.create import create
from .ops.end_session import end_session
from .ops.extend_stripe import extend_stripe
from .ops.fence_tree import fence_tree
from .ops.get_attr import batch_get_attr, get_attr
from .ops.get_real_path import get_real_path
from .ops.get_usage import get_usage
from .ops.link import link
from .ops.list_ import list_
from .ops.lock import end_client_locks, find_lock_conflict, set_lock
from .ops.lock_directory import end_directory_lock, lock_directory
from .ops.lookup import lookup
from .ops.make_directories import make_directories, new_count_max
from .ops.mkdir import mkdir
from .ops.mknod import mknod
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
from .read_ahead import request_keys
from .resolve import batch_resolve_path, resolve_path
from .told import tell_directories
from .users import admit

ReqT = TypeVar("ReqT", bound=Message)
RspT = TypeVar("RspT")

Operation = Callable[[Transaction, OpContext, ReqT], Awaitable[RspT]]

SPACE_AGE_S_MAX: Final = 2.0
"""StatFs answers from what storage said at most this long ago."""

PRUNE_COUNT_MAX: Final = 4096

FENCE_AFTER_RUNS: Final = 4
"""A move of a directory that has been rerun so often because of changes below makes them wait."""

FENCE_PAUSE_S: Final = 0.01

ROOT_CALLER: Final = Caller(0, 0, frozenset({0}))
"""On whose behalf the service itself acts."""


class _ContendedError(Exception):
    """What an operation moves is changed all the time."""


def check_caller(message: CallerPb) -> None:
    """Raise FsError(RPC_BAD_REQUEST) for ids of a wrong size or too many groups."""
    if len(message.client_id) > CLIENT_ID_BYTES_MAX or "\x00" in message.client_id:
        raise FsError(Status.RPC_BAD_REQUEST, f"client id {message.client_id!r}")
    if message.request_id and len(message.request_id) != REQUEST_ID_BYTES:
        raise FsError(Status.RPC_BAD_REQUEST, f"request id of {len(message.request_id)} bytes")
    if len(message.groups) > GROUP_COUNT_MAX:
        raise FsError(Status.RPC_BAD_REQUEST, f"{len(message.groups)} groups")


def _begun(
    op: Operation[ReqT, RspT], ctx: OpContext, request: ReqT
) -> Callable[[Transaction], Awaitable[RspT]]:
    """Return the operation as a function of a transaction, which first reads what it will need for certain."""

    async def run(tr: Transaction) -> RspT:
        await tr.prefetch(request_keys(ctx.caller, request))
        reply = await op(tr, ctx, request)
        await tell_directories(tr, request, reply)
        return reply

    return run


class MetaService:
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
        self._engine = engine
        self._runtime = runtime
        self._config = config.meta
        self._retry_time_s_max = config.kv.retry_time_s_max
        self._layouts = layouts
        self._chunks = chunks
        self._lineages = Lineages()
        self.events = EventLog(config, runtime)
        self.inode_ids = InodeIds(engine, runtime, self._retry_time_s_max)
        self.driver = ContentDriver(engine, runtime, chunks, self._retry_time_s_max)
        self._lock_waits = LockWaits()
        self._last_now_ns = 0
        self._last_asked_s = runtime.clock.monotonic_s()
        self._space = (0, 0)
        self._space_until_s = -1.0
        self._space_lock = trio.Lock()

    def admit(self, user: User, peer: Identity, request: Message) -> None:
        """See fs/meta/users.py."""
        admit(user, peer, request)

    # ---- how an operation is run -------------------------------------------------------------

    def now_ns(self) -> int:
        """Return the wall time, strictly growing.

        When the wall clock is set back, time goes on here at half its pace until that clock has caught up: it
        neither repeats itself nor stands still, which would keep everything that waits for a time.
        """
        asked_s = self._runtime.clock.monotonic_s()
        slow_ns = int((asked_s - self._last_asked_s) * 1e9 / 2)
        self._last_asked_s = asked_s
        slow_ns = self._last_now_ns + max(1, slow_ns)
        self._last_now_ns = max(slow_ns, self._runtime.clock.wall_ns())
        return self._last_now_ns

    def own_context(self, known: PreciseLength | None = None) -> OpContext:
        """Return the context of work that the service does by itself."""
        return self._context(ROOT_CALLER, known=known)

    def _context(
        self, caller: Caller, new_inode_id: int = 0, known: PreciseLength | None = None
    ) -> OpContext:
        return OpContext(
            caller,
            self.now_ns(),
            self._config,
            self._layouts,
            self._lineages,
            new_inode_id=new_inode_id,
            precise_length=known,
        )

    def _caller(self, request: object) -> Caller:
        if isinstance(request, meta.CloseReq):
            request = request.sync
        if not request.HasField("caller"):  # type: ignore[attr-defined]
            raise FsError(Status.RPC_BAD_REQUEST, f"{type(request).__name__} without a caller")
        message: CallerPb = request.caller  # type: ignore[attr-defined]
        check_caller(message)
        if not message.request_id:
            # Reruns of this one attempt must still know each other.
            message.request_id = self._runtime.random.randbytes(REQUEST_ID_BYTES)
        return caller_from_pb(message)

    async def _read(self, op: Operation[ReqT, RspT], request: ReqT) -> RspT:
        ctx = self._context(self._caller(request))
        return await snapshot_read(self._engine, _begun(op, ctx, request))

    async def _change(
        self, op: Operation[ReqT, RspT], request: ReqT, *, new_inode_id: int = 0
    ) -> RspT:
        caller = self._caller(request)

        async def attempt() -> RspT:
            ctx = self._context(caller, new_inode_id)
            return await self.driver.transact(_begun(op, ctx, request))

        return await self._settled(caller, request, attempt)

    async def _settled(
        self, caller: Caller, request: Message, attempt: Callable[[], Awaitable[RspT]]
    ) -> RspT:
        """As `_decided`; what was done is logged."""
        reply = await self._decided(caller, attempt)
        if self.events.is_on and isinstance(reply, Message):
            event = event_of(caller, request, reply)
            if event is not None:
                self.events.note(event)
        return reply

    async def _decided(self, caller: Caller, attempt: Callable[[], Awaitable[RspT]]) -> RspT:
        """As `_past_fences`; when a repeat is refused, no earlier try of it may succeed later."""
        try:
            return await self._past_fences(attempt)
        except FsError as error:
            if not caller.is_repeat or error.retry is not Retry.NEVER:
                raise
            refusal, now_ns = error, self.now_ns()
        if await self.driver.transact(lambda tr: refuse(tr, caller, refusal, now_ns=now_ns)):
            raise refusal
        return await self._past_fences(attempt)

    async def _past_fences(self, attempt: Callable[[], Awaitable[RspT]]) -> RspT:
        """Run an operation again while a directory above is about to be moved."""
        deadline_s = None
        while True:
            try:
                return await attempt()
            except UsageFencedError as error:
                now_s = self._runtime.clock.monotonic_s()
                deadline_s = deadline_s or now_s + self._retry_time_s_max
                if now_s > deadline_s:
                    raise FsError(Status.BUSY, f"{error} is being moved again and again") from error
            await trio.sleep(FENCE_PAUSE_S)

    async def _move(
        self,
        op: Operation[ReqT, RspT],
        request: ReqT,
        *places: tuple[int, bytes],
        new_inode_id: int = 0,
    ) -> RspT:
        """As `_change`, for what moves whole directories; `places`: (parent, name) of those."""
        caller = self._caller(request)
        may_contend = True

        async def attempt() -> RspT:
            ctx = self._context(caller, new_inode_id)
            run_once, run_count = _begun(op, ctx, request), 0

            async def run(tr: Transaction) -> RspT:
                nonlocal run_count
                run_count += 1
                if may_contend and run_count > FENCE_AFTER_RUNS:
                    raise _ContendedError
                return await run_once(tr)

            return await self.driver.transact(run)

        try:
            return await self._settled(caller, request, attempt)
        except _ContendedError:
            may_contend = False
        ctx = self._context(caller)
        await self.driver.transact(lambda tr: fence_tree(tr, ctx, places))
        return await self._settled(caller, request, attempt)

    async def _make(self, op: Operation[ReqT, RspT], request: ReqT) -> RspT:
        return await self._change(op, request, new_inode_id=await self.inode_ids.take())

    async def _change_content(
        self, op: Operation[ReqT, RspT], request: ReqT, *, new_inode_id: int = 0
    ) -> RspT:
        """As `_change`, for operations that may need the chunks of the file first."""
        caller = self._caller(request)

        async def attempt(known: PreciseLength | None) -> RspT:
            ctx = self._context(caller, new_inode_id, known)
            return await self.driver.transact(_begun(op, ctx, request))

        return await self._settled(caller, request, lambda: self.driver.run(attempt))

    async def _finish_truncation(self, inode: InodePb) -> None:
        """Do the second half of a truncation, after its first transaction has committed."""
        if inode.file.truncate_pending:
            await self.driver.finish_truncation(inode.inode_id)
            inode.file.truncate_pending = False
            if inode.file.has_holes:
                found = await self._read_inode(inode.inode_id)
                inode.used_bytes, inode.file.has_holes = found.used_bytes, found.file.has_holes

    async def _read_inode(self, inode_id: int) -> InodePb:
        return await snapshot_read(self._engine, lambda tr: load_inode(tr, inode_id, snapshot=True))

    # ---- reading -----------------------------------------------------------------------------

    async def get_attr(self, _call: Call, request: meta.GetAttrReq) -> meta.InodeRsp:
        """Serve GetAttr."""
        return await self._read(get_attr, request)

    async def batch_get_attr(
        self, _call: Call, request: meta.BatchGetAttrReq
    ) -> meta.BatchGetAttrRsp:
        """Serve BatchGetAttr."""
        return await self._read(batch_get_attr, request)

    async def lookup(self, _call: Call, request: meta.LookupReq) -> meta.InodeRsp:
        """Serve Lookup."""
        return await self._read(lookup, request)

    async def resolve_path(self, _call: Call, request: meta.ResolvePathReq) -> meta.InodeRsp:
        """Serve ResolvePath."""
        return await self._read(resolve_path, request)

    async def batch_resolve_path(
        self, _call: Call, request: meta.BatchResolvePathReq
    ) -> meta.BatchResolvePathRsp:
        """Serve BatchResolvePath."""
        return await self._read(batch_resolve_path, request)

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
        return await self._move(remove_tree, request, place)

    async def rename(self, _call: Call, request: meta.RenameReq) -> meta.RenameRsp:
        """Serve Rename."""
        old = request.old_parent_inode_id, request.old_name
        new = request.new_parent_inode_id, request.new_name
        return await self._move(rename, request, old, new)

    async def move_to_trash(self, _call: Call, request: meta.MoveToTrashReq) -> meta.MoveToTrashRsp:
        """Serve MoveToTrash."""
        place = request.parent_inode_id, request.name
        new_inode_id = await self.inode_ids.take()  # of the user's directory, the first time
        return await self._move(move_to_trash, request, place, new_inode_id=new_inode_id)

    async def expire(self, key: bytes) -> bool:
        """Remove from the trash what a TRSH key is about; return whether there was anything to do."""
        request_id = self._runtime.random.randbytes(REQUEST_ID_BYTES)
        caller = replace(ROOT_CALLER, request_id=request_id)

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
        return await self._change_content(reserve_append, request)

    async def reserve_space(self, _call: Call, request: meta.ReserveSpaceReq) -> meta.InodeRsp:
        """Serve ReserveSpace."""
        return await self._change_content(reserve_space, request)

    async def extend_stripe(self, _call: Call, request: meta.ExtendStripeReq) -> meta.InodeRsp:
        """Serve ExtendStripe."""
        return await self._change_content(extend_stripe, request)

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
        if reply.is_done:  # also a lock for reading in place of one for writing frees something
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
        client_id = self._caller(request).client_id
        if len(request.sessions) > PRUNE_COUNT_MAX:
            raise FsError(Status.RPC_BAD_REQUEST, f"{len(request.sessions)} sessions")
        if request.is_settled:
            await self._change(close_settled, request)
            return meta.PruneSessionsRsp()
        for pruned in request.sessions:
            await self.end_session(pruned.inode_id, pruned.session_id, client_id)
        return meta.PruneSessionsRsp()

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
