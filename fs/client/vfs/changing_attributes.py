"""Changing attributes: what goes to meta at once,
and what goes with the report of what was written.

Invariant: a change of length, or of times to now, comes after everything that was
written before it through this mount.
"""

import stat
from collections.abc import Coroutine
from typing import Any, NamedTuple

from ...schema import services
from ...schema.ids import InodeId
from ...schema.inode import Inode
from ...schema.proto import meta_pb2
from ...schema.status import FsError, Status
from .change import Change, OnMade, begin
from .core import VfsCore
from .files import Files
from .handles import TakesTaskError
from .looking_up import LookingUp, lacks_length
from .open_file import SET_ID_BITS, FileHandle, InodeState
from .ports import Caller
from .set_owner import ACCESS_LIST, LIST_BITS, AskedOwner, mode_of_list
from .set_times import SetTimes


class AttrChange(NamedTuple):
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
    def sets_atime(self) -> bool:
        """True when the time of access is set, to a value or to now."""
        return self.atime_ns is not None or self.atime_now

    @property
    def is_times_only(self) -> bool:
        """True when nothing but times changes."""
        return self.mode is None and self.uid is None and self.gid is None and self.length is None

    @property
    def is_values_only(self) -> bool:
        """True when nothing but times changes, and to values that the caller gave."""
        is_now = self.atime_now or self.mtime_now or self.iflags is not None
        return self.has_times and self.is_times_only and not is_now

    @property
    def is_owner_only(self) -> bool:
        """True when nothing but mode, owner or group changes."""
        is_asked = (self.mode, self.uid, self.gid) != (None, None, None)
        return is_asked and not self.has_times and self.length is None and self.iflags is None


class ChangingAttributes(LookingUp):
    """The part of `Namespace` that changes attributes, but not names."""

    def __init__(self, core: VfsCore, files: Files) -> None:
        super().__init__(core)
        self._files = files

    def _shown(self, state: InodeState) -> Inode:
        inode, known = state.present(state.inode), self._core.known.get(state.inode_id)
        if known is None:
            return self.give(inode)
        self._give_again(known, inode, self.usable_s(state.inode_id))
        return inode

    def usable_s(self, inode_id: InodeId) -> float:
        """Return for how many seconds what `setattr` has just returned may be used."""
        longest_s, state = self._core.section.attr_timeout_s, self._core.states.get(inode_id)
        if state is None or (state.set_times is None and state.set_owner is None):
            return longest_s
        return min(longest_s, max(0.0, state.told_until_s - self._core.now_s()))

    async def setattr(
        self, inode_id: InodeId, change: AttrChange, handle_id: int | None, caller: Caller
    ) -> Inode:
        """Change attributes; a length change comes after everything written before it."""
        if not change.sets_atime:
            return await self._changed(inode_id, change, handle_id, caller)
        reads, is_set = self._core.reads, False
        await reads.wait_setting(inode_id)
        try:
            inode = await self._changed(inode_id, change, handle_id, caller)
            is_set = True
        finally:
            reads.end_setting(inode_id, is_set=is_set)
        return inode

    async def set_iflags(self, inode_id: InodeId, iflags: int, caller: Caller) -> None:
        """Change inode flags; the kernel, which passes that on without looking at it,
        is told that the ctime has moved.
        """
        await self.setattr(inode_id, AttrChange(iflags=iflags), None, caller)
        await self._core.kernel.invalidate_attributes(inode_id)

    async def _changed(
        self, inode_id: InodeId, change: AttrChange, handle_id: int | None, caller: Caller
    ) -> Inode:
        self._core.told.note_changed(inode_id)
        try:
            inode = await self._setattr(inode_id, change, handle_id, caller)
        except BaseException:
            self._core.forget_told(inode_id)
            self._core.note_changed(inode_id)
            raise
        self._core.note_changed(inode_id, is_given=True)
        return inode

    @staticmethod
    def keeps_set_id(handle: FileHandle) -> bool:
        """Return whether `drop_set_id` would change anything."""
        inode = handle.state.inode
        return mode_after_write(handle.caller, inode) != inode.mode

    async def drop_set_id(self, handle: FileHandle) -> None:
        """Take set-id bits from a file that is about to be written through a handle;
        meta knows from which mode.
        """
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
            core.note_changed(inode_id)
        self.give(core.absorbed(reply.inode))
        await core.kernel.invalidate_attributes(inode_id)

    def set_now(
        self, inode_id: InodeId, change: AttrChange, caller: Caller, thread_id: int
    ) -> Inode | None:
        """Do what `setattr` does where it can go with a report;
        None: nothing is done, `setattr` has to do it.

        Args:
            inode_id: of what is to be changed.
            change: what of it.
            caller: who asks.
            thread_id: of the thread that asks, as for `note_maker`; 0: nobody knows.
        """
        state = self._core.states.get(inode_id)
        if state is None:
            return None
        if change.is_values_only:
            is_kept = self._keep_times_now(state, change, caller)
        else:
            asked = AskedOwner(change.mode, change.uid, change.gid)
            is_kept = change.is_owner_only and self._core.keep_owner(
                state, caller, asked, thread_id
            )
        return self._shown_kept(state) if is_kept else None

    def _shown_kept(self, state: InodeState) -> Inode:
        shown = self._shown(state)
        self._core.note_changed(state.inode_id, is_given=True)
        return shown

    def set_list_now(
        self, inode_id: InodeId, name: bytes, value: bytes, caller: Caller, thread_id: int
    ) -> bool:
        """Do what `setxattr` does with an access control list that says what a mode says,
        where that can go with a report; as `set_now`.
        """
        state = self._core.states.get(inode_id)
        if state is None or name != ACCESS_LIST or not state.handles:
            return False
        bits = mode_of_list(value)
        if bits is None:
            return False
        # A file with other bits than these keeps nothing anyway.
        mode = state.inode.mode & ~LIST_BITS | bits
        if not self._core.keep_owner(state, caller, AskedOwner(mode), thread_id):
            return False
        self._core.note_changed(inode_id)
        return True

    def _keep_times_now(self, state: InodeState, change: AttrChange, caller: Caller) -> bool:
        """As `_keep_times`, where no read of the file is on its way to meta."""
        if not change.sets_atime:
            return self._keep_times(state, change, caller)
        reads = self._core.reads
        if not reads.begin_setting(state.inode_id):
            return False
        is_kept = False
        try:
            is_kept = self._keep_times(state, change, caller)
        finally:
            reads.end_setting(state.inode_id, is_set=is_kept)
        return is_kept

    def _keep_times(self, state: InodeState, change: AttrChange, caller: Caller) -> bool:
        times = SetTimes(change.atime_ns, change.mtime_ns, self._core.runtime.clock.wall_ns())
        return self._core.keep_times(state, caller, times)

    def begin_setattr(
        self, inode_id: InodeId, change: AttrChange, caller: Caller, on_end: OnMade[Inode]
    ) -> bool:
        """Begin what `setattr` does where nothing has to be sent or cut first;
        False: nothing is done, `setattr` has to do it.

        TakesTaskError asks for `setattr` afterwards: meta has refused, and may
        not refuse what it asks for.
        """
        core = self._core
        state = core.states.get(inode_id)
        if change.length is not None or (
            state is not None
            and (change.has_times or _sets_id(change, state) or state.set_owner is not None)
        ):
            return False
        if not change.sets_atime:
            return self._ask_for(inode_id, change, caller, on_end)
        if not core.reads.begin_setting(inode_id):
            return False

        def ended(inode: "Inode | None", error: "Exception | None") -> None:
            core.reads.end_setting(inode_id, is_set=error is None)
            on_end(inode, error)

        is_begun = False
        try:
            is_begun = self._ask_for(inode_id, change, caller, ended)
        finally:
            if not is_begun:
                core.reads.end_setting(inode_id, is_set=False)
        return is_begun

    def _ask_for(
        self, inode_id: InodeId, change: AttrChange, caller: Caller, on_end: OnMade[Inode]
    ) -> bool:
        """Ask meta for a change of attributes; as `begin_setattr`."""
        core = self._core
        request = self._setattr_request(inode_id, change, caller)
        self.listed.expect(request)
        mark = core.changes.mark()

        def failed() -> None:
            core.forget_told(inode_id)
            core.note_changed(inode_id)

        # Quoted: they would be evaluated for every change.
        def take(reply: "meta_pb2.InodeRsp") -> "Inode | Coroutine[Any, Any, Inode]":
            inode = core.absorbed(reply.inode)
            if lacks_length(core.states.get(inode_id)) or self._is_late(reply.inode, mark):
                return self._take_learning(reply, mark)
            self.give(inode)
            core.note_changed(inode_id, is_given=True)
            return inode

        def ended(inode: "Inode | None", error: "Exception | None") -> None:
            if change.is_times_only and isinstance(error, FsError):
                error = TakesTaskError() if error.status is Status.NOT_PERMITTED else error
            on_end(inode, error)

        asked = Change(services.META_SET_ATTR, request, take, failed)
        core.told.note_changed(inode_id)
        return begin(core, asked, ended)

    async def _take_learning(self, reply: meta_pb2.InodeRsp, mark: int) -> Inode:
        """Take in what a change has told of a file whose length the chains have to tell,
        or that was changed since `mark`.
        """
        core, inode_id = self._core, InodeId(reply.inode.inode_id)
        try:
            inode = self.give(await self._newest_of(reply.inode, mark))
        except BaseException:
            core.forget_told(inode_id)
            core.note_changed(inode_id)
            raise
        core.note_changed(inode_id, is_given=True)
        return inode

    def _setattr_request(
        self, inode_id: InodeId, change: AttrChange, caller: Caller
    ) -> meta_pb2.SetAttrReq:
        return meta_pb2.SetAttrReq(
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

    async def _setattr(
        self, inode_id: InodeId, change: AttrChange, handle_id: int | None, caller: Caller
    ) -> Inode:
        request = self._setattr_request(inode_id, change, caller)
        # Where a program cuts what it has open, the kernel says by which descriptor.
        is_by_name = change.length is not None and handle_id is None
        self.listed.expect(request, is_by_name=is_by_name)
        if change.length is not None:
            return self.give(await self._files.truncate(inode_id, request, handle_id))
        state = self._core.states.get(inode_id)
        if state is not None and change.is_values_only and self._keep_times(state, change, caller):
            return self._shown(state)
        if change.has_times or (state is not None and _sets_id(change, state)):
            await self._files.settle(inode_id)
        # Who changes it now may be its owner only since then.
        await self._core.settle_owner_of(inode_id)
        mark = self._core.changes.mark()
        try:
            reply = await self._core.call(services.META_SET_ATTR, request)
        except FsError as error:
            if error.status is not Status.NOT_PERMITTED or not change.is_times_only:
                raise
            asked = meta_pb2.GetAttrReq(caller=caller.to_pb(), inode_id=inode_id)
            if (await self._core.call(services.META_GET_ATTR, asked)).inode.iflags:
                raise  # of what is append-only the time now may be set, but no other
            reply = await self._set_times_now(request, change, caller)
        return self.give(await self._newest_of(reply.inode, mark))

    async def _set_times_now(
        self, request: meta_pb2.SetAttrReq, change: AttrChange, caller: Caller
    ) -> meta_pb2.InodeRsp:
        # Who may write but does not own may set times to "now" only.  FUSE shows us "now" as a
        # value; meta checks the permission for it again, of another request: it may remember that
        # it has refused the first one.
        again = meta_pb2.SetAttrReq(
            caller=caller.to_pb(),
            inode_id=request.inode_id,
            atime_now=change.atime_ns is not None,
            mtime_now=change.mtime_ns is not None,
            expected_parent_inode_id=request.expected_parent_inode_id,
            expected_name=request.expected_name,
        )
        return await self._core.call(services.META_SET_ATTR, again)


def _sets_id(change: AttrChange, state: InodeState) -> bool:
    """Return whether a change sets bits that what was written before would take away again."""
    return change.mode is not None and bool(change.mode & SET_ID_BITS) and state.clears_suid


def mode_after_write(caller: Caller, inode: Inode) -> int:
    """Return a mode without what lets a changed program run as somebody else,
    as meta will have it.
    """
    mode = inode.mode & ~stat.S_ISUID
    is_member = inode.gid == caller.gid or inode.gid in caller.groups
    return mode if is_member and not mode & stat.S_IXGRP else mode & ~stat.S_ISGID
