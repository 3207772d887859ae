"""Names and attributes: everything that is one call of meta, plus what this mount has open.

When a name is removed or replaced while this mount has the file open, the request carries a file session
("keep session"), so that the content outlives the name.  The target of a name is known from the lookup that
the kernel made right before; should it have changed in between, the session is added afterwards.
"""

import stat
from dataclasses import dataclass
from typing import TypeVar

from ...rpc.api import UnderWay
from ...schema import services
from ...schema.ids import InodeId
from ...schema.inode import Inode, InodeType, inode_from_pb
from ...schema.method import Method, ReqT
from ...schema.proto import common_pb2, meta_pb2
from ...schema.status import FsError, Status
from ..api import OnMetaReply
from .attributes import ExtendedAttributes
from .core import VfsCore
from .files import Files, TakesTaskError
from .open_file import SET_ID_BITS, FileHandle, InodeState, SetTimes
from .ports import Caller
from .shared import Known

ChangeRspT = TypeVar(
    "ChangeRspT", meta_pb2.CreateRsp, meta_pb2.InodeRsp, meta_pb2.RemoveRsp, meta_pb2.RenameRsp
)

DENTRY_COUNT_MAX = 65_536
_TYPE_OF_MODE = {
    0: InodeType.FILE,
    stat.S_IFREG: InodeType.FILE,
    stat.S_IFIFO: InodeType.FIFO,
    stat.S_IFSOCK: InodeType.SOCKET,
    stat.S_IFCHR: InodeType.CHAR_DEVICE,
    stat.S_IFBLK: InodeType.BLOCK_DEVICE,
}


@dataclass(frozen=True, slots=True)
class AttrChange:
    """What setattr is to change; None leaves a field as it is."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    length: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None
    iflags: int | None = None
    atime_now: bool = False
    mtime_now: bool = False

    @property
    def has_times(self) -> bool:
        """True when a time changes, to a value or to now."""
        has_value = self.atime_ns is not None or self.mtime_ns is not None
        return has_value or self.atime_now or self.mtime_now

    @property
    def is_times_only(self) -> bool:
        """True when nothing but times changes."""
        return self.mode is None and self.uid is None and self.gid is None and self.length is None

    @property
    def is_values_only(self) -> bool:
        """True when nothing but times changes, and to values that the caller gave."""
        is_now = self.atime_now or self.mtime_now or self.iflags is not None
        return self.has_times and self.is_times_only and not is_now


class Namespace(ExtendedAttributes):
    """The namespace half of `Vfs`."""

    def __init__(self, core: VfsCore, files: Files) -> None:
        super().__init__(core)
        self._files = files
        self._dentries: dict[tuple[InodeId, bytes], InodeId] = {}

    # -- what the kernel holds ----------------------------------------------------------------------

    def give(self, inode: Inode, *, lookup_count: int = 0, age_s: float = 0.0) -> Inode:
        """Note that the kernel is handed these attributes, which meta told `age_s` ago, `lookup_count` times as an entry."""
        known = self._core.known.get(inode.inode_id)
        if known is None:
            known = self._core.known[inode.inode_id] = Known()
        known.lookup_count += lookup_count
        known.note_names(inode)
        left_s = max(0.0, self._core.section.attr_timeout_s - age_s)
        if inode.file is not None:
            self._core.note_given(known, inode, left_s)
        else:
            known.symlink_target = inode.symlink_target
            self._core.told.forget(inode.inode_id)
        known.note_lacks(inode, self._core.now_s(), left_s)
        return inode

    def give_listed(
        self, parent: InodeId, name: bytes, inode: Inode, *, age_s: float = 0.0
    ) -> None:
        """Note that a listing hands the kernel an entry, told `age_s` ago, that it may use for a while without a lookup.

        An open must not trust it: it names what it expects, and meta refuses when the name has come to mean
        something else.  The kernel then looks the name up and opens again.
        """
        may_use = self.listed.may_use(parent, name, inode)
        self.give(inode, lookup_count=1, age_s=age_s)
        if may_use:
            self.listed.note(parent, name, inode)

    def forget(self, inode_id: InodeId, lookup_count: int) -> None:
        """The kernel drops `lookup_count` references; unknown inodes and too many are ignored."""
        known = self._core.known.get(inode_id)
        if known is None:
            return
        known.lookup_count -= lookup_count
        if known.lookup_count <= 0:
            del self._core.known[inode_id]

    def _entry(self, parent: InodeId, name: bytes, message: common_pb2.InodePb) -> Inode:
        inode = self._core.absorbed(message)
        self.remember_dentry(parent, name, inode.inode_id)
        self.give(inode, lookup_count=1)
        self.listed.expire(inode.inode_id)
        return inode

    def remember_dentry(self, parent: InodeId, name: bytes, inode_id: InodeId) -> None:
        """Note what a name refers to, for keep sessions; bounded, oldest first out."""
        self._dentries[parent, name] = inode_id
        if len(self._dentries) > DENTRY_COUNT_MAX:
            del self._dentries[next(iter(self._dentries))]

    async def _call_changing(
        self, method: Method[ReqT, ChangeRspT], request: ReqT, *places: tuple[InodeId, bytes]
    ) -> ChangeRspT:
        """Call meta for a change of the names at `places`."""
        mark = self._core.told.mark()
        try:
            reply = await self._core.call(method, request)
        finally:
            for place in places:
                self._core.changes.note_name(*place)
        self._core.note_told(reply.directories, mark)
        return reply

    # -- lookup and attributes ----------------------------------------------------------------------

    async def lookup(self, parent: InodeId, name: bytes, caller: Caller) -> Inode:
        """Return what a name refers to; "." and ".." are allowed."""
        request = meta_pb2.LookupReq(caller=caller.to_pb(), parent_inode_id=parent, name=name)
        while True:
            mark = self._core.changes.mark()
            reply = await self._core.call(services.META_LOOKUP, request)
            inode_id = InodeId(reply.inode.inode_id)
            is_told_apart = await self.listed.is_told_apart(parent, name, inode_id, caller)
            if is_told_apart and not self._is_late(reply.inode, mark):
                return self._entry(parent, name, reply.inode)

    def _is_late(self, message: common_pb2.InodePb, mark: int) -> bool:
        """Return whether attributes that were asked for at `mark` may be from before a change of this mount; it knows what it has open."""
        inode_id = InodeId(message.inode_id)
        return self._core.changes.is_since(mark, inode_id) and inode_id not in self._core.states

    def begin_lookup(
        self,
        parent: InodeId,
        name: bytes,
        caller: Caller,
        on_end: OnMetaReply[meta_pb2.InodeRsp],
    ) -> UnderWay | None:
        """Begin what `lookup` does; `on_end` hands the reply to `looked_up`, with `mark_now` from before.

        None: not begun, so `lookup` has to do it.
        It is tried once: an error that another try may cure is no answer.
        """
        begins = self._core.begins
        if begins is None:
            return None
        request = meta_pb2.LookupReq(caller=caller.to_pb(), parent_inode_id=parent, name=name)
        return begins.begin(services.META_LOOKUP, request, on_end)

    def mark_now(self) -> int:
        """Return what `looked_up` wants to know of the moment before a look-up is begun."""
        return self._core.changes.mark()

    def looked_up(self, parent: InodeId, name: bytes, reply: meta_pb2.InodeRsp, mark: int) -> Inode:
        """Return what a name refers to, as the reply to a look-up says that was begun at `mark`.

        Raises:
            TakesTaskError: it may be from before a change of this mount, or the kernel may take the inode by another name: `lookup`
                has to be done.
        """
        inode_id = InodeId(reply.inode.inode_id)
        if self._is_late(reply.inode, mark) or self.listed.is_otherwise(parent, name, inode_id):
            raise TakesTaskError
        return self._entry(parent, name, reply.inode)

    async def getattr(self, inode_id: InodeId, caller: Caller) -> Inode:
        """Return attributes, with what this mount wrote and has not reported yet.

        Of what the kernel holds and lost its last name, as far as this mount saw that, they stay when meta has
        forgotten it.
        """
        request = meta_pb2.GetAttrReq(caller=caller.to_pb(), inode_id=inode_id)
        while True:
            mark = self._core.changes.mark()
            try:
                reply = await self._core.call(services.META_GET_ATTR, request)
            except FsError as error:
                known = self._core.known.get(inode_id)
                if error.status is not Status.STALE or known is None or known.removed is None:
                    raise
                return known.removed
            if self._is_late(reply.inode, mark):
                continue
            inode, state = self._core.absorbed(reply.inode), self._core.states.get(inode_id)
            if state is not None and state.is_length_unknown:
                await self._core.settle_length(state)
                inode = state.present(state.inode)
            return self.give(inode)

    def told(self, inode_id: InodeId) -> tuple[Inode, float] | None:
        """Return what `getattr` would, where that is known, and for how many seconds it may be used.

        Of an open file it is what meta told last, with what was written since: the kernel forgets the times of a file at each write.
        """
        core = self._core
        state = core.states.get(inode_id)
        if state is None:
            return core.told.find(inode_id)
        left_s, known = state.told_until_s - core.now_s(), core.known.get(inode_id)
        if left_s <= 0.0 or known is None or state.is_length_unknown:
            core.told.miss_count += 1
            return None
        core.told.hit_count += 1
        inode = state.present(state.inode)
        self._give_again(known, inode, left_s)
        return inode, left_s

    def _give_again(self, known: Known, inode: Inode, left_s: float) -> None:
        # What they say is not there was noted when meta told them, and counts from then on.
        known.note_names(inode)
        self._core.note_given(known, inode, left_s)

    def _shown(self, state: InodeState) -> Inode:
        inode, known = state.present(state.inode), self._core.known.get(state.inode_id)
        if known is None:
            return self.give(inode)
        self._give_again(known, inode, self.usable_s(state.inode_id))
        return inode

    def usable_s(self, inode_id: InodeId) -> float:
        """Return for how many seconds what `setattr` has just returned may be used."""
        longest_s, state = self._core.section.attr_timeout_s, self._core.states.get(inode_id)
        if state is None or state.set_times is None:
            return longest_s
        return min(longest_s, max(0.0, state.told_until_s - self._core.now_s()))

    async def setattr(
        self, inode_id: InodeId, change: AttrChange, handle_id: int | None, caller: Caller
    ) -> Inode:
        """Change attributes; a length change comes after everything written before it."""
        self._core.told.note_changed(inode_id)
        try:
            return await self._setattr(inode_id, change, handle_id, caller)
        except BaseException:
            self._core.forget_told(inode_id)
            raise
        finally:
            self._core.told.note_changed(inode_id)
            self._core.changes.note_inode(inode_id)

    @staticmethod
    def keeps_set_id(handle: FileHandle) -> bool:
        """Return whether `drop_set_id` would change anything."""
        mode = handle.state.inode.mode
        return mode_after_write(mode) != mode

    async def drop_set_id(self, handle: FileHandle) -> None:
        """Take set-id bits from a file that is about to be written through a handle; meta knows from which mode."""
        if not self.keeps_set_id(handle):
            return
        core, inode_id = self._core, handle.state.inode_id
        request = meta_pb2.SyncReq(
            caller=handle.caller.to_pb(), inode_id=inode_id, clears_suid=True
        )
        core.told.note_changed(inode_id)
        try:
            reply = await core.call(services.META_SYNC, request)
        finally:
            core.told.note_changed(inode_id)
            core.changes.note_inode(inode_id)
        self.give(core.absorbed(reply.inode))
        await core.kernel.invalidate_attributes(inode_id)

    async def _setattr(
        self, inode_id: InodeId, change: AttrChange, handle_id: int | None, caller: Caller
    ) -> Inode:
        request = meta_pb2.SetAttrReq(
            caller=caller.to_pb(),
            inode_id=inode_id,
            mode=change.mode,
            uid=change.uid,
            gid=change.gid,
            atime_ns=change.atime_ns,
            mtime_ns=change.mtime_ns,
            length=change.length,
            iflags=change.iflags,
            atime_now=change.atime_now,
            mtime_now=change.mtime_now,
        )
        self.listed.expect(request)
        if change.length is not None:
            return self.give(await self._files.truncate(inode_id, request, handle_id))
        state = self._core.states.get(inode_id)
        if state is not None and change.is_values_only:
            times = SetTimes(change.atime_ns, change.mtime_ns, self._core.runtime.clock.wall_ns())
            if self._core.keep_times(state, caller, times):
                return self._shown(state)
        sets_id = change.mode is not None and change.mode & SET_ID_BITS
        if change.has_times or (sets_id and state is not None and state.clears_suid):
            await self._files.settle(inode_id)
        try:
            reply = await self._core.call(services.META_SET_ATTR, request)
        except FsError as error:
            if error.status is not Status.NOT_PERMITTED or not change.is_times_only:
                raise
            reply = await self._set_times_now(request, change)
        return self.give(self._core.absorbed(reply.inode))

    async def _set_times_now(
        self, request: meta_pb2.SetAttrReq, change: AttrChange
    ) -> meta_pb2.InodeRsp:
        # Who may write but does not own may set times to "now" only.  FUSE shows us "now" as a value;
        # meta checks the permission for it again.
        again = meta_pb2.SetAttrReq(
            caller=request.caller,
            inode_id=request.inode_id,
            atime_now=change.atime_ns is not None,
            mtime_now=change.mtime_ns is not None,
            expected_parent_inode_id=request.expected_parent_inode_id,
            expected_name=request.expected_name,
        )
        return await self._core.call(services.META_SET_ATTR, again)

    async def readlink(self, inode_id: InodeId, caller: Caller) -> bytes:
        """Return the target of a symbolic link."""
        known = self._core.known.get(inode_id)
        if known is not None and known.symlink_target:
            return known.symlink_target
        request = meta_pb2.GetAttrReq(caller=caller.to_pb(), inode_id=inode_id)
        inode = inode_from_pb((await self._core.call(services.META_GET_ATTR, request)).inode)
        if inode.type is not InodeType.SYMLINK:
            raise FsError(Status.INVALID_ARGUMENT, f"inode {inode_id} is no symbolic link")
        return inode.symlink_target

    async def access(self, inode_id: InodeId, mask: int, caller: Caller) -> None:
        """Raise ACCESS_DENIED unless the caller has all rights of the mask (R 4, W 2, X 1)."""
        request = meta_pb2.AccessReq(caller=caller.to_pb(), inode_id=inode_id, mask=mask)
        await self._core.call(services.META_ACCESS, request)

    # -- making and removing names ------------------------------------------------------------------

    async def mkdir(
        self, parent: InodeId, name: bytes, mode: int, caller: Caller, *, umask: int = 0
    ) -> Inode:
        """Create a directory; a default access control list of the parent counts instead of `umask`."""
        request = meta_pb2.MkdirReq(
            caller=caller.to_pb(),
            parent_inode_id=parent,
            name=name,
            mode=mode & 0o7777,
            umask=umask,
        )
        reply = await self._call_changing(services.META_MKDIR, request, (parent, name))
        return self._entry(parent, name, reply.inode)

    async def symlink(self, parent: InodeId, name: bytes, target: bytes, caller: Caller) -> Inode:
        """Create a symbolic link."""
        request = meta_pb2.SymlinkReq(
            caller=caller.to_pb(), parent_inode_id=parent, name=name, target=target
        )
        reply = await self._call_changing(services.META_SYMLINK, request, (parent, name))
        return self._entry(parent, name, reply.inode)

    async def mknod(
        self,
        parent: InodeId,
        name: bytes,
        st_mode: int,
        caller: Caller,
        *,
        rdev: int = 0,
        umask: int = 0,
    ) -> Inode:
        """Create a file, fifo, socket or device node by its st_mode; `umask` as in `mkdir`."""
        type_ = _TYPE_OF_MODE.get(stat.S_IFMT(st_mode))
        if type_ is None:
            raise FsError(Status.INVALID_ARGUMENT, f"mknod with mode {st_mode:o}")
        if type_ is InodeType.FILE:
            return await self._create_closed(parent, name, st_mode, caller, umask=umask)
        request = meta_pb2.MknodReq(
            caller=caller.to_pb(),
            parent_inode_id=parent,
            name=name,
            type=common_pb2.InodeTypePb.ValueType(type_),
            mode=st_mode & 0o7777,
            rdev=rdev,
            umask=umask,
        )
        reply = await self._call_changing(services.META_MKNOD, request, (parent, name))
        return self._entry(parent, name, reply.inode)

    async def _create_closed(
        self, parent: InodeId, name: bytes, mode: int, caller: Caller, *, umask: int
    ) -> Inode:
        request = meta_pb2.CreateReq(
            caller=caller.to_pb(),
            parent_inode_id=parent,
            name=name,
            mode=mode & 0o7777,
            umask=umask,
            is_exclusive=True,
        )
        reply = await self._call_changing(services.META_CREATE, request, (parent, name))
        return self._entry(parent, name, reply.inode)

    async def link(self, inode_id: InodeId, parent: InodeId, name: bytes, caller: Caller) -> Inode:
        """Give an inode one more name, or the first one to what was made without."""
        state = self._core.states.get(inode_id)
        if state is not None and not state.inode.nlink:
            # From then on it counts for quotas, with all that was written so far.
            await self._files.settle(inode_id)
        request = meta_pb2.LinkReq(
            caller=caller.to_pb(), inode_id=inode_id, parent_inode_id=parent, name=name
        )
        self.listed.expect(request)
        reply = await self._call_changing(services.META_LINK, request, (parent, name))
        self._core.changes.note_inode(inode_id)
        return self._entry(parent, name, reply.inode)

    async def unlink(self, parent: InodeId, name: bytes, caller: Caller) -> None:
        """Remove a name; content stays readable through files that this mount has open."""
        request = meta_pb2.UnlinkReq(caller=caller.to_pb(), parent_inode_id=parent, name=name)
        state = self._open_state(parent, name)
        if state is not None:
            request.keep_session.CopyFrom(self._keep_session(state))
            request.keep_inode_id = state.inode_id
        reply = await self._call_changing(services.META_UNLINK, request, (parent, name))
        self._dentries.pop((parent, name), None)
        if reply.HasField("removed"):
            self.listed.note_removed(InodeId(reply.removed.inode_id), parent, name)
            await self._note_removed(reply.removed, state, caller)

    async def rmdir(self, parent: InodeId, name: bytes, caller: Caller) -> None:
        """Remove an empty directory."""
        request = meta_pb2.RmdirReq(caller=caller.to_pb(), parent_inode_id=parent, name=name)
        reply = await self._call_changing(services.META_RMDIR, request, (parent, name))
        self._core.told.note_changed(InodeId(reply.removed.inode_id))
        self._note_gone(inode_from_pb(reply.removed))
        self._dentries.pop((parent, name), None)

    async def rename(
        self,
        old: tuple[InodeId, bytes],
        new: tuple[InodeId, bytes],
        caller: Caller,
        *,
        no_replace: bool = False,
        exchange: bool = False,
    ) -> None:
        """Rename (parent inode id, name) `old` to `new`, atomically.

        Raises:
            FsError: EXISTS with `no_replace`, and whatever meta says.
        """
        request = meta_pb2.RenameReq(
            caller=caller.to_pb(),
            old_parent_inode_id=old[0],
            old_name=old[1],
            new_parent_inode_id=new[0],
            new_name=new[1],
            no_replace=no_replace,
            exchange=exchange,
        )
        state = None if exchange or no_replace else self._open_state(*new)
        if state is not None:
            request.keep_session.CopyFrom(self._keep_session(state))
            request.keep_inode_id = state.inode_id
        reply = await self._call_changing(services.META_RENAME, request, old, new)
        self._note_moved(InodeId(reply.moved.inode_id), old, new)
        for inode in (reply.moved, reply.replaced):
            if inode.type == common_pb2.DIRECTORY:
                self._core.told.note_changed(InodeId(inode.inode_id))
            elif inode.inode_id in self._core.states:
                self._core.absorbed(inode)
        self._dentries.pop(old, None)
        if exchange:
            self._dentries.pop(new, None)
            return
        self.remember_dentry(*new, InodeId(reply.moved.inode_id))
        if reply.HasField("replaced"):
            await self._note_removed(reply.replaced, state, caller)

    def _note_moved(
        self, inode_id: InodeId, old: tuple[InodeId, bytes], new: tuple[InodeId, bytes]
    ) -> None:
        """The kernel takes what it knows of a name along: what may be used without asking goes by the new one from now on."""
        self._core.changes.note_inode(inode_id)
        self.listed.note_moved(inode_id, old, new)

    def _open_state(self, parent: InodeId, name: bytes) -> InodeState | None:
        inode_id = self._dentries.get((parent, name))
        state = None if inode_id is None else self._core.states.get(inode_id)
        return state if state is not None and state.handles else None

    def _keep_session(self, state: InodeState) -> meta_pb2.FileSessionPb:
        if state.keep_session is None:
            state.keep_session = self._core.new_session_id()
        return meta_pb2.FileSessionPb(session_id=state.keep_session)

    def _note_gone(self, inode: Inode) -> None:
        known = self._core.known.get(inode.inode_id)
        if known is not None:
            known.note_names(inode)

    async def _note_removed(
        self, removed: common_pb2.InodePb, kept: InodeState | None, caller: Caller
    ) -> None:
        inode = inode_from_pb(removed)
        self._core.changes.note_inode(inode.inode_id)
        self._note_gone(inode)
        if inode.file is None:
            return
        state = self._core.states.get(inode.inode_id)
        if state is None:
            self._core.seen.pop(inode.inode_id, None)
            return
        state.absorb(inode)
        if inode.nlink == 0 and state is not kept and state.handles:
            # Another client gave the name to this inode after our last lookup of it.
            request = meta_pb2.OpenReq(
                caller=caller.to_pb(),
                inode_id=inode.inode_id,
                session=self._keep_session(state),
            )
            try:
                await self._core.call(services.META_OPEN, request)
            except FsError as error:
                if error.status is not Status.STALE:
                    raise
                # The reply came so late that its content is gone.  The name is, too, as asked; its readers are told.
                state.keep_session = None


def mode_after_write(mode: int) -> int:
    """Return a mode without what lets a changed program run as somebody else."""
    mode &= ~stat.S_ISUID
    return mode & ~stat.S_ISGID if mode & stat.S_IXGRP else mode
