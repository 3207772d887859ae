"""Names that a listing has shown, which the kernel may use for a while without a look-up.

The kernel says only which inode it opens or changes, not by which name.  So an open, and a change
of what is not open, tells meta which name was listed and what it led to.  Meta refuses where that
name has come to mean something else.  The kernel then looks the name up and tries again.

Invariants:
    - Of one file the kernel may use at most one name unasked, and only while it has no
      other as far as the listing knew.
    - No look-up by another name is answered while the listed one means something else
      and the kernel may still use it.

What it does not do: directories, whose names are cached for a time of their
own, and what is only looked at.
"""

import logging
import math

from ...schema import services
from ...schema.ids import InodeId
from ...schema.inode import Inode, InodeType
from ...schema.proto import meta_pb2
from ...schema.status import FsError
from .core import VfsCore
from .known import Known
from .ports import Caller
from .shown_names import ShownNames

log = logging.getLogger(__name__)

Expecting = meta_pb2.LinkReq | meta_pb2.SetAttrReq | meta_pb2.SetXattrReq | meta_pb2.RemoveXattrReq


class ListedNames:
    """Of one mount; what it knows lies with what the kernel holds (`Known.listed_as`)."""

    def __init__(self, core: VfsCore) -> None:
        self._core = core
        self._ahead_until_s = -math.inf
        """Until then look-ups may be answered with what meta was asked for before (ahead_names)."""

    def may_use(
        self, parent: InodeId, name: bytes, inode: Inode, listed_s: float = math.inf
    ) -> bool:
        """Return whether the kernel may use the name that a listing shows:
        an open could not tell which of several it came by.

        Nor whether it came by a symbolic link, so that whoever has replaced one had
        others open what it led to before. Where it was looked up by another name since
        `listed_s`, when meta was asked for the listing, this one may be older, and what
        it was looked up for would be refused.
        """
        if inode.is_dir:
            return True
        if inode.type is InodeType.SYMLINK or inode.nlink != 1:
            return False
        known = self._core.known.get(inode.inode_id)
        return known is None or self.may_use_known((parent, name), known, listed_s)

    def may_use_known(self, place: tuple[InodeId, bytes], known: Known, listed_s: float) -> bool:
        """As `may_use`, of the only name of what is no directory,
        and which the kernel holds already.
        """
        if known.listed_as not in (None, place) and self._may_be_used(known):
            return False
        return known.looked_up_s < listed_s or known.looked_up_as in (None, place)

    def note_asked_ahead(self, until_s: float) -> None:
        """Meta was asked for names ahead, and they may be told until then."""
        self._ahead_until_s = max(self._ahead_until_s, until_s)

    def note_looked_up(self, parent: InodeId, name: bytes, inode_id: InodeId) -> None:
        """A look-up is about to be answered."""
        if self._core.listings.are_open or self._core.now_s() < self._ahead_until_s:
            known = self._core.known[inode_id]
            known.looked_up_as, known.looked_up_s = (parent, name), self._core.now_s()
        self.expire(inode_id)

    def note(
        self,
        parent: InodeId,
        name: bytes,
        inode: Inode,
        shown: ShownNames | None,
        now_s: float | None = None,
    ) -> None:
        """Note that the kernel, which holds the inode,
        may use this name from when it takes the reply in; None: it does so now.
        """
        if inode.is_dir:
            return
        if now_s is None:
            now_s = self._core.now_s()
        if shown is None:
            shown = ShownNames(now_s, self._core.section.listed_timeout_s)
            shown.note_taken_in(now_s)
        self.note_known((parent, name), self._core.known[inode.inode_id], shown, now_s)

    def note_known(
        self, place: tuple[InodeId, bytes], known: Known, shown: ShownNames, now_s: float
    ) -> None:
        """As `note`, of what is no directory."""
        if self._core.section.listed_timeout_s <= 0:
            return
        known.listed_as = place
        before = known.listed_in
        known.listed_in = (
            (*(s for s in before if s.may_be_used(now_s)), shown) if before else (shown,)
        )

    def note_removed(self, inode_id: InodeId, parent: InodeId, name: bytes) -> None:
        """This mount has removed a name: the kernel uses it no more."""
        known = self._core.known.get(inode_id)
        if known is not None and known.listed_as == (parent, name):
            known.listed_as = None

    def note_moved(
        self, inode_id: InodeId, old: tuple[InodeId, bytes], new: tuple[InodeId, bytes]
    ) -> None:
        """This mount has renamed it: the kernel takes what it knows of a name along."""
        known = self._core.known.get(inode_id)
        if known is not None and known.listed_as == old:
            known.listed_as = new

    def expire(self, inode_id: InodeId) -> None:
        """Forget a name that the kernel does not use unasked any more."""
        known = self._core.known.get(inode_id)
        if known is not None and not self._may_be_used(known):
            known.listed_as, known.listed_in = None, ()

    def _may_be_used(self, known: Known) -> bool:
        now_s = self._core.now_s()
        return any(shown.may_be_used(now_s) for shown in known.listed_in)

    def is_otherwise(self, parent: InodeId, name: bytes, inode_id: InodeId) -> bool:
        """Return whether the kernel may still take the inode by another name than this one."""
        known = self._core.known.get(inode_id)
        if known is None or known.listed_as in (None, (parent, name)):
            return False
        return self._may_be_used(known)

    def expect(self, request: Expecting, *, is_by_name: bool = False) -> None:
        """Have a change of what no program has open here say
        by which name the kernel may have come, if it may have without a look-up.

        Meta refuses where that leads elsewhere; the kernel looks the name up and tries again.  Who
        has a file open may mean that, whatever it is called, unless the change is known to come by
        a name.  How long ago the kernel sent the request nobody knows, where this process was
        stopped: so a name counts until the kernel has looked it up again.
        """
        inode_id = InodeId(request.inode_id)
        known, state = self._core.known.get(inode_id), self._core.states.get(inode_id)
        is_open = state is not None and bool(state.handles)
        if (is_open and not is_by_name) or known is None or known.listed_as is None:
            return
        request.expected_parent_inode_id, request.expected_name = known.listed_as

    async def is_told_apart(
        self, parent: InodeId, name: bytes, inode_id: InodeId, caller: Caller
    ) -> bool:
        """Return whether an open can tell by which name it comes;
        False: it can by now, but a look-up from before is out of date.

        Where another mount has taken the listed name away, the kernel would open, and cut, by it
        what is now under this one, for as long as it may use it: so long this waits,
        `client.listed_timeout_s` from when the kernel has taken the listing in.
        """
        if not self.is_otherwise(parent, name, inode_id):
            return True
        known = self._core.known[inode_id]
        assert known.listed_as is not None
        if await self._leads_to(*known.listed_as, inode_id, caller):
            return True  # and each open will expect that
        for shown in known.listed_in:
            await shown.wait_taken_in(self._core.now_s())
        return False

    async def _leads_to(
        self, parent: InodeId, name: bytes, inode_id: InodeId, caller: Caller
    ) -> bool:
        request = meta_pb2.LookupReq(caller=caller.to_pb(), parent_inode_id=parent, name=name)
        try:
            found = await self._core.call(services.META_LOOKUP, request)
        except FsError as error:
            log.debug("%r, which a listing has shown, is not found: %s", name, error)
            return False
        return found.inode.inode_id == inode_id
