"""What programs set of files that they have just written, and meta is told of together with that:
times, mode and owner.

Invariants:
    - Kept is only what meta will certainly allow, and takes no right from anybody in the meantime.
    - Nothing is kept for longer than KEPT_S unless meta does not answer, nor beyond a close or an
      fsync, which ends with all of it there.
    - Whoever asks meta for something that depends on mode or owner of a file has it told
      of them first (`settle_owner`).

Which locks: see `core`.
"""

import logging
from dataclasses import replace
from typing import Final

import trio

from ...schema import services
from ...schema.ids import InodeId
from ...schema.proto import meta_pb2
from ...schema.status import FsError, Status
from .inline_files import InlineFiles
from .open_file import InodeState
from .ports import Caller
from .set_owner import AskedOwner, SetOwner, takes_nothing
from .set_times import SetTimes

_log = logging.getLogger(__name__)

KEPT_S: Final = 0.2
"""So long what was set waits for a report of what was written:
who sets it mostly closes the file next.
"""


class Kept(InlineFiles):
    """See module head."""

    def _may_keep(self, state: InodeState) -> bool:
        """Return whether there will be a report soon for anything to go with,
        and what is known of the file is not old.
        """
        is_writable = any(handle.can_write for handle in state.handles.values())
        is_waited_for = is_writable and (state.is_dirty or state.has_unreported)
        # Another mount may have given the file away, or changed what a caller is about to be shown.
        is_known = self.now_s() < state.told_until_s
        is_locked = state.report_lock.locked() or state.lock.locked()
        return is_waited_for and is_known and not (state.append.length or is_locked)

    def keep_times(self, state: InodeState, caller: Caller, times: SetTimes) -> bool:
        """Keep times that a caller sets for the next report;
        False where meta has to be told, or asked, at once.

        What was written goes on its way to storage: who sets times has mostly written all.
        """
        is_allowed = caller.uid in (0, state.inode.uid) and not state.inode.iflags
        # A later one meta would take for the time of the writing, and
        # show as the time of the change.
        is_old = times.mtime_ns is None or times.mtime_ns <= state.inode.ctime_ns
        if not (is_allowed and is_old and self._may_keep(state)):
            return False
        before, known = state.set_times, state.inode
        times = replace(times, atime_seen_ns=known.atime_ns, mtime_seen_ns=known.mtime_ns)
        if before is None:
            self._watch(state)
        state.set_times = times if before is None else times.after(before)
        # What meta is to take goes with the times, and with what else is set before the close.
        if not state.may_go_inline:
            self.start_flush(state, is_durable=self.section.durable_close)
        return True

    def keep_owner(
        self, state: InodeState, caller: Caller, asked: AskedOwner, thread_id: int
    ) -> bool:
        """Keep mode, owner and group that a thread sets for the next report;
        False where meta has to be told, or asked, at once.

        Kept is only what who is writing the file sets: the thread that has made it and has it
        open, whose close is to come.
        """
        handles = state.handles.values()
        is_writers = thread_id > 0 and any(handle.maker_id == thread_id for handle in handles)
        told, before = state.inode, state.set_owner
        # The report is made in the writer's name.
        is_allowed = caller.uid == state.writer.uid and not told.iflags
        is_root = caller.uid == 0
        is_owners = caller.uid == told.uid and asked.uid is None and asked.gid is None
        is_plain = not told.has_acl and told.nlink > 0 and not state.error_count
        if not (is_writers and is_allowed and (is_root or is_owners) and is_plain):
            return False
        seen = told.mode, told.uid, told.gid
        owned = seen if before is None else before.over(told)
        if not (takes_nothing(owned, asked) and self._may_keep(state)):
            return False
        kept = SetOwner(asked, caller, self.runtime.clock.wall_ns(), seen)
        if before is None:
            self._watch(state)
        state.set_owner = kept if before is None else kept.after(before)
        self.owned[state.inode_id] = state
        return True

    def _watch(self, state: InodeState) -> None:
        if self.kept and self.kept[-1][1] is state:
            return  # watched since just now: who sets times sets a mode next
        self.kept.append((self.now_s() + KEPT_S, state))
        if len(self.kept) == 1:
            self.spawn(self._watch_kept)

    async def _watch_kept(self) -> None:
        """Have what was set reported, where no other report has carried it by then;
        runs while anything is kept.
        """
        while self.kept:
            due_s, state = self.kept[0]
            left_s = due_s - self.now_s()
            if left_s > 0.0 and _is_kept(state):
                await trio.sleep(left_s)
                continue
            self.kept.popleft()
            if _is_kept(state):
                self.spawn(self._report_kept, state)

    async def _report_kept(self, state: InodeState) -> None:
        """Tell meta of what was set: the file may stay open for long."""
        try:
            await self.drain(state, is_durable=state.may_go_inline)
            if state.has_unreported:
                await self.report(state, is_durable=False)
            await self.settle_owner(state)
        except FsError as error:  # the close tries it again, and tells
            _log.warning("inode %d: what was set is not reported: %s", state.inode_id, error)
        self.drop_state_if_unused(state)

    async def settle_owner(self, state: InodeState, *, is_durable: bool = False) -> None:
        """Have meta know mode and owner of a file,
        if they wait and no report takes them along that is under way: without its bytes.

        Raises:
            FsError: meta refused them; they are asked for again with the next call.
        """
        if state.set_owner is None:
            return
        is_superseded = False
        async with state.report_lock:
            waiting = state.set_owner
            if waiting is None:
                return
            request = meta_pb2.SyncReq(
                caller=waiting.caller.to_pb(), inode_id=state.inode_id, is_durable=is_durable
            )
            try:
                if not waiting.is_left:
                    request.owner.CopyFrom(waiting.to_pb())
                    reply = await self.call(services.META_SYNC, request)
                    self.absorbed(reply.inode)
                    is_superseded = self.note_owner(state, request, reply)
                left = state.set_owner
                if left is not None:
                    is_superseded = await self._ask_for_owner(state, left)
            except FsError as error:
                if error.status is not Status.STALE:
                    raise
                self.drop_owner(state)  # the file is gone, and its close says so if that matters
                return
        if left is not None and is_durable:
            request.ClearField("owner")
            await self.call(services.META_SYNC, request)
        if is_superseded:
            await self.kernel.invalidate_attributes(state.inode_id)

    async def _ask_for_owner(self, state: InodeState, left: SetOwner) -> bool:
        """Set by themselves what a report has left, as of a service of an earlier release;
        return whether others have set theirs since.
        """
        is_superseded = left.is_superseded(state.inode)
        if not is_superseded:
            mode, uid, gid = left.asked
            request = meta_pb2.SetAttrReq(
                caller=left.caller.to_pb(), inode_id=state.inode_id, mode=mode, uid=uid, gid=gid
            )
            self.absorbed((await self.call(services.META_SET_ATTR, request)).inode)
        self.drop_owner(state)
        return is_superseded

    async def settle_owner_of(self, inode_id: InodeId) -> None:
        """As `settle_owner`, of a file if it is open here; raises FsError."""
        state = self.owned.get(inode_id)
        if state is not None:
            await self.settle_owner(state)

    async def settle_owners(self) -> None:
        """As `settle_owner`, of all files, before somebody is judged by them;
        what is not settled he does not see yet.
        """
        for state in list(self.owned.values()):
            await self.try_settle_owner(state)

    async def try_settle_owner(self, state: InodeState) -> None:
        """As `settle_owner`, where nobody is to be told of an error: the close will be."""
        try:
            await self.settle_owner(state)
        except FsError as error:
            _log.warning("inode %d: mode and owner are not set: %s", state.inode_id, error)


def _is_kept(state: InodeState) -> bool:
    return state.set_times is not None or state.set_owner is not None
