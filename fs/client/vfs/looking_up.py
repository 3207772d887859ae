"""Looking names and attributes up, and what the kernel then holds of them.

What the kernel is handed is noted: an open must know what the kernel may still show, and a
removal what it may still ask for.
"""

import math
from typing import NamedTuple

from ...rpc.api import UnderWay
from ...runtime.oldest import forget_oldest
from ...schema import services
from ...schema.ids import InodeId
from ...schema.inode import Inode, InodeType, inode_from_pb
from ...schema.proto import common_pb2, meta_pb2
from ...schema.status import FsError, Status
from ..api import OnMetaReply
from .ahead_names import AheadNames
from .attributes import ExtendedAttributes
from .core import VfsCore
from .handles import TakesTaskError
from .known import TAKEN_LATER_S, Known, Shown
from .listed_file import ListedFile
from .open_file import InodeState
from .ports import Caller
from .removed import Removed
from .shown_names import ShownNames

DENTRY_COUNT_MAX = 65_536
SEARCHED_KNOWN_MAX = 16_384
"""Of so many inodes, in a millisecond, one is found by the name that a listing has shown."""


class Moment(NamedTuple):
    """When something was asked for."""

    mark: int
    """See `Changes`."""
    at_s: float


class LookingUp(ExtendedAttributes):
    """The part of `Namespace` that changes nothing."""

    def __init__(self, core: VfsCore) -> None:
        super().__init__(core)
        self._dentries: dict[tuple[InodeId, bytes], InodeId] = {}
        self.removed = Removed(core)
        self.ahead = AheadNames(core, self.listed)

    def is_open(self, inode_id: InodeId) -> bool:
        """Return whether a regular file is open here,
        or what was written to it is still on its way.
        """
        return inode_id in self._core.states

    # -- what the kernel holds ---------------------------------------------------------------------

    def give(
        self,
        inode: Inode,
        *,
        lookup_count: int = 0,
        age_s: float = 0.0,
        asked_s: float = math.inf,
        now_s: float | None = None,
    ) -> Inode:
        """Note that the kernel is handed these attributes, which meta told `age_s` ago,
        `lookup_count` times as an entry.

        Args:
            inode: the attributes.
            lookup_count: how often it is handed them as those of a name.
            age_s: how long ago meta told them.
            asked_s: see `Shared.note_given`.
            now_s: the time, if it has just been looked at.
        """
        core, inode_id = self._core, inode.inode_id
        if now_s is None:
            now_s = core.now_s()
        known = core.known.get(inode_id)
        if known is None:
            known = core.known[inode_id] = Known()
        known.lookup_count += lookup_count
        known.note_names(inode)
        left_s = max(0.0, core.section.attr_timeout_s - age_s)
        if inode.file is not None:
            core.note_given(known, inode, left_s, asked_s, now_s)
        else:
            known.link = inode if inode.symlink_target else None
            core.told.forget(inode_id)
        known.note_lacks(inode, now_s, left_s)
        if not known.is_birth_told and inode_id not in core.states:
            core.given.note(inode, left_s, now_s)
        return inode

    def give_listed(
        self,
        parent: InodeId,
        name: bytes,
        inode: Inode,
        *,
        age_s: float = 0.0,
        shown: ShownNames | None = None,
        may_use: bool | None = None,
        now_s: float | None = None,
    ) -> None:
        """Note that a listing hands the kernel an entry, told `age_s` ago,
        that it may use for a while without a lookup, once it has taken in `shown`.

        An open must not trust it: it names what it expects, and meta refuses when the name has
        come to mean something else.  The kernel then looks the name up and opens again.  None:
        it is taken in, and nothing was done since it was asked for.  `may_use` is what
        `ListedNames.may_use` has just said of it, if it was asked, and `now_s` the time, if
        that has just been looked at.
        """
        asked_s, listed_s = (shown.asked_s, shown.listed_s) if shown else (math.inf, math.inf)
        if may_use is None:
            may_use = self.listed.may_use(parent, name, inode, listed_s)
        self.give(inode, lookup_count=1, age_s=age_s, asked_s=asked_s, now_s=now_s)
        if inode.file is None:
            self.remember_dentry(parent, name, inode.inode_id)
        if may_use:
            self.listed.note(parent, name, inode, shown, now_s)

    def give_listed_file(
        self,
        place: tuple[InodeId, bytes],
        told: ListedFile,
        shown: ShownNames,
        *,
        age_s: float,
        now_s: float,
    ) -> bool:
        """Do as `give_listed` with a regular file that no program of this mount has open,
        at `place`: directory and name.

        Returns:
            What `ListedNames.may_use` says of it.
        """
        core, inode_id = self._core, told.inode_id
        known = core.known.get(inode_id)
        may_use = told.nlink == 1
        if known is None:
            known = core.known[inode_id] = Known()
        else:
            may_use = may_use and self.listed.may_use_known(place, known, shown.listed_s)
        known.lookup_count += 1
        if not told.nlink or known.nameless is not None:
            known.note_names(told.message)
        left_s = max(0.0, core.section.attr_timeout_s - age_s)
        core.note_given(known, told, left_s, shown.asked_s, now_s)
        known.note_lacks(told, now_s, left_s)
        if not known.is_birth_told:
            core.given.note(told, left_s, now_s)
        if may_use:
            self.listed.note_known(place, known, shown, now_s)
        return may_use

    def forget(self, inode_id: InodeId, lookup_count: int) -> None:
        """The kernel drops `lookup_count` references; unknown inodes and too many are ignored."""
        known = self._core.known.get(inode_id)
        if known is None:
            return
        known.lookup_count -= lookup_count
        if known.lookup_count <= 0:
            del self._core.known[inode_id]
            self._core.given.forget(inode_id)
            self._core.held.forget(inode_id)

    def _entry(
        self,
        parent: InodeId,
        name: bytes,
        message: common_pb2.InodePb,
        asked_s: float = math.inf,
    ) -> Inode:
        return self._entry_of(parent, name, self._core.absorbed(message), asked_s)

    def _entry_of(
        self,
        parent: InodeId,
        name: bytes,
        inode: Inode,
        asked_s: float = math.inf,
        lookup_count: int = 1,
    ) -> Inode:
        self.remember_dentry(parent, name, inode.inode_id)
        self.give(inode, lookup_count=lookup_count, asked_s=asked_s)
        self.listed.note_looked_up(parent, name, inode.inode_id)
        if self._core.listers.is_looked_at(parent) and not inode.is_dir:
            self._core.listers.note_found(parent, self._core.now_s())
        return inode

    def remember_dentry(self, parent: InodeId, name: bytes, inode_id: InodeId) -> None:
        """Note what a name refers to, for keep sessions and `is_kept`;
        bounded, oldest first out.
        """
        self._dentries[parent, name] = inode_id
        forget_oldest(self._dentries, DENTRY_COUNT_MAX)

    def is_kept(self, parent: InodeId, name: bytes) -> bool | None:
        """Return whether the kernel keeps what a name has led to, as far as one can tell:
        it knows the inode.  None: that would take too long.
        """
        place, known = (parent, name), self._core.known
        if self._dentries.get(place) in known:
            return True
        if len(known) > SEARCHED_KNOWN_MAX:
            return None
        return any(one.listed_as == place for one in known.values())

    # -- lookup and attributes ---------------------------------------------------------------------

    def is_absent(self, parent: InodeId, name: bytes, caller: Caller) -> bool:
        """Return whether meta would certainly say NOT_FOUND of a name, and need not be asked."""
        return self._core.leased.is_absent(parent, name, caller)

    def may_know_names(self, parent: InodeId) -> bool:
        """Return whether `is_absent` may be true, or `entry_at_hand` return it,
        for some names of a directory.
        """
        return self._core.leased.may_know(parent)

    def entry_at_hand(self, parent: InodeId, name: bytes, caller: Caller) -> Shown | None:
        """Return, as an entry for the kernel, the file that a name certainly leads to,
        with the attributes that the kernel shows; None: meta has to be asked.

        They may be out of date, so the kernel may use them for nothing but to remove or move the
        name: there it looks at the owner, which has to be the caller, so that meta judges.  It asks
        for others before it shows them, or judges by them.
        """
        leased, shown = self._core.leased, self._shown_by_name(parent, name, caller)
        if shown is None:
            leased.not_at_hand_count += 1
            return None
        leased.at_hand_count += 1
        known = self._core.known[shown.inode_id]
        known.lookup_count += 1
        # What it is given next it may take before this.
        self._core.note_given(known, shown, TAKEN_LATER_S, self._core.now_s())
        self._core.given.forget(shown.inode_id)
        self.remember_dentry(parent, name, shown.inode_id)
        self.listed.note_looked_up(parent, name, shown.inode_id)
        self._core.listers.note_found(parent, self._core.now_s())
        return shown

    def _shown_by_name(self, parent: InodeId, name: bytes, caller: Caller) -> Shown | None:
        core = self._core
        inode_id = core.leased.leads_to(parent, name, caller)
        known = None if inode_id is None else core.known.get(inode_id)
        if inode_id is None or known is None or inode_id in core.states or inode_id in core.cuts:
            return None
        shown, seen = known.shown(inode_id, core.now_s()), core.seen.get(inode_id)
        # Of another length than it shows the kernel would drop pages, or show zeros.
        if shown is None or seen is None or seen.length != shown.length:
            return None
        may_be_refused = shown.uid != caller.uid or shown.gid not in (caller.gid, *caller.groups)
        if may_be_refused or self.listed.is_otherwise(parent, name, inode_id):
            return None
        return shown

    def entry_ahead(
        self, parent: InodeId, name: bytes, caller: Caller
    ) -> tuple[ListedFile, float] | None:
        """Return, as an entry for the kernel, the file that a name leads to that was listed without
        attributes, and how old that is; None: meta has to be asked.

        It is noted as an entry of a listing that the kernel may use (`give_listed`).
        """
        core, now_s = self._core, self._core.now_s()
        found = self.ahead.take(parent, name, caller, now_s)
        if found is None:
            return None
        file, age_s = found
        shown = ShownNames(now_s, core.section.listed_timeout_s, now_s, now_s - age_s)
        shown.note_taken_in(now_s)
        self.give_listed_file((parent, name), file, shown, age_s=age_s, now_s=now_s)
        self.remember_dentry(parent, name, file.inode_id)
        core.listers.note_found(parent, now_s)
        return found

    def may_be_ahead(self, parent: InodeId) -> bool:
        """Return whether `entry_ahead` may return names of a directory, or ask for them."""
        return self.ahead.has(parent)

    async def lookup(
        self, parent: InodeId, name: bytes, caller: Caller, *, waited_s: float = 0.0
    ) -> Inode:
        """Return what a name refers to; "." and ".." are allowed.

        The kernel has waited for `waited_s` already.
        """
        asked_s = self._core.now_s() - waited_s
        if self.is_absent(parent, name, caller):
            raise FsError(Status.NOT_FOUND, f"{name!r} in {parent:#x}")
        request = meta_pb2.LookupReq(
            caller=caller.to_pb(), parent_inode_id=parent, name=name, tells_removed=True
        )
        while True:
            mark = self._core.changes.mark()
            reply = await self._core.call(services.META_LOOKUP, request)
            self._note_directory(reply.inode, asked_s)
            inode_id = InodeId(reply.inode.inode_id)
            if not await self.listed.is_told_apart(parent, name, inode_id, caller):
                continue
            await self._learn_length(reply.inode)
            if not self._is_late(reply.inode, mark):
                return self._entry(parent, name, reply.inode, asked_s)

    def _lacks_length(self, message: common_pb2.InodePb) -> InodeState | None:
        """Return the state of an open file whose length the chains have to tell,
        after what meta has just told of it.
        """
        state = self._core.states.get(InodeId(message.inode_id))
        if state is None:
            return None
        self._core.absorbed(message)
        return state if lacks_length(state) else None

    async def _learn_length(self, message: common_pb2.InodePb) -> None:
        """Have the chains tell the length, if they have to, of a file that is about to be shown."""
        state = self._lacks_length(message)
        if state is not None:
            await self._core.settle_length(state)

    def _is_late(self, message: common_pb2.InodePb, mark: int) -> bool:
        """Return whether attributes that were asked for at `mark` may be from before a change
        of this mount; it knows what it has open.
        """
        inode_id = InodeId(message.inode_id)
        return self._core.changes.is_since(mark, inode_id) and inode_id not in self._core.states

    async def _newest_of(self, message: common_pb2.InodePb, mark: int) -> Inode:
        """Return what the reply to a change tells that was asked for at `mark`,
        as `Shared.newest_after`.
        """
        await self._learn_length(message)
        return await self._core.newest_after(self._core.absorbed(message), mark)

    def begin_lookup(
        self,
        parent: InodeId,
        name: bytes,
        caller: Caller,
        on_end: OnMetaReply[meta_pb2.InodeRsp],
        *,
        opens: bool = False,
    ) -> UnderWay | None:
        """Begin what `lookup` does; `on_end` hands the reply to `looked_up`,
        with `mark_now` from before.

        With `opens` the reply is that to an open for reading, too, if it says so.
        None: not begun, so `lookup` has to do it.
        It is tried once: an error that another try may cure is no answer.
        """
        begins = self._core.begins
        if begins is None:
            return None
        request = meta_pb2.LookupReq()
        caller.put(request.caller)
        request.parent_inode_id = parent
        request.name = name
        request.tells_removed = True
        if opens:
            request.opens = True
        return begins.begin(services.META_LOOKUP, request, on_end)

    def may_be_new(self, parent: InodeId, name: bytes) -> bool:
        """Return whether a name may lead to what the kernel does not know yet; a guess."""
        return self._dentries.get((parent, name)) not in self._core.known

    def told_once_at(self, inode_id: InodeId) -> int | None:
        """Return, of an inode that the kernel has been told of by one look-up alone, what changes
        whenever it is told of it again; None: by others, too.
        """
        known = self._core.known.get(inode_id)
        return known.touched_at if known is not None and known.lookup_count == 1 else None

    def _note_directory(self, message: common_pb2.InodePb, asked_s: float) -> None:
        if message.type == common_pb2.DIRECTORY:
            self._core.leased.note_shown(message, asked_s)

    def mark_now(self) -> Moment:
        """Return what `looked_up` wants to know of the moment before a look-up is begun."""
        return Moment(self._core.changes.mark(), self._core.now_s())

    def looked_up(
        self, parent: InodeId, name: bytes, reply: meta_pb2.InodeRsp, asked: Moment
    ) -> Inode:
        """Return what a name refers to, as the reply to a look-up says that was begun at `asked`;
        once it is handed to the kernel call `note_entry`.

        Raises:
            TakesTaskError: it may be from before a change of this mount, the kernel
                may take the inode by another name, or the chains have to tell the
                length: `lookup` has to be done.
        """
        inode_id = InodeId(reply.inode.inode_id)
        self._note_directory(reply.inode, asked.at_s)
        if self._is_late(reply.inode, asked.mark):
            raise TakesTaskError
        if self.listed.is_otherwise(parent, name, inode_id):
            raise TakesTaskError
        if self._lacks_length(reply.inode) is not None:
            raise TakesTaskError
        inode = self._core.absorbed(reply.inode)
        known = self._core.known.get(inode_id)
        if known is None:
            known = self._core.known[inode_id] = Known()
        known.lookup_count += 1
        return inode

    def note_entry(self, parent: InodeId, name: bytes, inode: Inode, asked: Moment) -> None:
        """Note that the kernel has been handed what `looked_up` returned,
        before anything else is done.
        """
        try:
            self._entry_of(parent, name, inode, asked.at_s, lookup_count=0)
        except BaseException:
            # For want of memory: what the kernel shows is not known then, so the
            # next open has it forget that.
            self._core.known[inode.inode_id].unsure_until_s = math.inf
            raise

    async def getattr(self, inode_id: InodeId, caller: Caller) -> Inode:
        """Return attributes, with what this mount wrote and has not reported yet.

        Of what the kernel holds and lost its last name, as far as this mount saw that, they
        stay when meta has forgotten it.
        """
        asked_s = self._core.now_s()
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
            self._note_directory(reply.inode, asked_s)
            await self._learn_length(reply.inode)
            if self._is_late(reply.inode, mark):
                continue
            return self.give(self._core.absorbed(reply.inode), asked_s=asked_s)

    def told(self, inode_id: InodeId) -> tuple[Inode, float] | None:
        """Return what `getattr` would, where that is known,
        and for how many seconds it may be used.

        Of an open file it is what meta told last, with what was written since: the kernel forgets
        the times of a file at each write.
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
        self._give_again(known, inode, left_s, core.now_s())
        return inode, left_s

    def told_with_birth(self, inode_id: InodeId) -> tuple[Inode, float] | None:
        """Return what `told` would, or what the kernel was given last:
        but for the time of making, it would not have asked.

        To be told to the kernel together with the time of making.
        """
        core = self._core
        found = core.given.find(inode_id)
        if found is None:
            found = self.told(inode_id)
        else:
            core.told.hit_count += 1
        if found is not None:
            self._note_birth_told(inode_id)
        return found

    async def getattr_with_birth(self, inode_id: InodeId, caller: Caller) -> Inode:
        """Return what `getattr` would, to be told to the kernel together
        with the time of making.
        """
        inode = await self.getattr(inode_id, caller)
        self._note_birth_told(inode_id)
        return inode

    def _note_birth_told(self, inode_id: InodeId) -> None:
        known = self._core.known.get(inode_id)
        if known is not None:
            known.is_birth_told = True
        self._core.given.forget(inode_id)

    def _give_again(
        self, known: Known, inode: Inode, left_s: float, asked_s: float = math.inf
    ) -> None:
        # What they say is not there was noted when meta told them, and counts from then on.
        known.note_names(inode)
        self._core.note_given(known, inode, left_s, asked_s)

    async def readlink(self, inode_id: InodeId, caller: Caller) -> bytes:
        """Return the target of a symbolic link."""
        self._core.given.forget(inode_id)  # the kernel counts it as read, and asks for its times
        known = self._core.known.get(inode_id)
        link = None if known is None else known.link
        if link is None:
            request = meta_pb2.GetAttrReq(caller=caller.to_pb(), inode_id=inode_id)
            link = inode_from_pb((await self._core.call(services.META_GET_ATTR, request)).inode)
        if link.type is not InodeType.SYMLINK:
            raise FsError(Status.INVALID_ARGUMENT, f"inode {inode_id} is no symbolic link")
        self._core.reads.note(inode_id, link.atime_ns, link.mtime_ns, link.ctime_ns)
        return link.symlink_target

    async def access(self, inode_id: InodeId, mask: int, caller: Caller) -> None:
        """Raise ACCESS_DENIED unless the caller has all rights of the mask (R 4, W 2, X 1)."""
        if caller.uid and inode_id in self._core.owned:
            await self._core.try_settle_owner(self._core.owned[inode_id])
        request = meta_pb2.AccessReq(caller=caller.to_pb(), inode_id=inode_id, mask=mask)
        await self._core.call(services.META_ACCESS, request)


def lacks_length(state: InodeState | None) -> bool:
    """Return whether it is a file that is open here, and the chains have to tell its length."""
    return state is not None and state.is_length_unknown and state.has_unreported
