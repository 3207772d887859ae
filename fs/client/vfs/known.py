"""An inode that the kernel holds: what it was given of it, and what it may show.

Invariants:
    - `given_until_s` never goes back: what was handed out may be used for as long as was
      said, whatever came after it.
    - Where it is not certain what the kernel shows, it counts as possible that this is
      something else (`may_show_other`).

Does not: send anything to the kernel, or ask anybody.  Times are arguments.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from ...schema.ids import InodeId
from ...schema.inode import Inode, inode_from_pb
from ...schema.proto import common_pb2
from .listed_file import ListedFile
from .shown_names import ShownNames
from .told_lengths import ToldLengths

TAKEN_LATER_S = 0.25
"""The kernel counts how long it may use attributes from when it takes a reply in,
which is later than when that was sent.
"""


class Rights(NamedTuple):
    """Type and mode as st_mode, user and group of a file."""

    st_mode: int
    uid: int
    gid: int


class Shown(NamedTuple):
    """What the kernel shows of a regular file."""

    inode_id: InodeId
    st_mode: int
    uid: int
    gid: int
    length: int
    mtime_ns: int


@dataclass(slots=True)
class Known(ToldLengths):
    """An inode that the kernel holds."""

    lookup_count: int = 0
    given_length: int = -1
    """Length in the last attributes handed out;
    -1: no regular file, or the kernel has forgotten them.
    """
    given_mtime_ns: int = 0
    given_until_s: float = 0.0
    given_mark: int = 0
    """Until when those may be used, and when they were handed out; see `Changes`."""
    given_rights: Rights | None = None
    """In the last attributes handed out of a regular file."""
    unsure_until_s: float = 0.0
    """Until then the kernel may show another length or time of change than those;
    see `note_content`.
    """
    given_count: int = 0
    """How often any were handed out: the same ones again are news, too,
    to whoever has them forgotten meanwhile.
    """
    own_length: int = -1
    """That the kernel knows of by itself: as it took it last, for all that is known,
    cut and lengthened by its own programs since; -1: none.
    """
    is_own_length_sure: bool = False
    """It shows that length, for certain, if no program of this mount has it open:
    it was told no other one since that another mount may have set.
    """
    own_mtime_ns: int = -1
    """As this mount reported it last: the kernel has forgotten what it had, when it wrote."""
    listed_as: tuple[InodeId, bytes] | None = None
    """The (parent, name) under which the kernel may take this inode without asking again;
    see `give_listed`.
    """
    listed_in: tuple[ShownNames, ...] = ()
    """For as long as names of these may be used it may do so whatever it looked up meanwhile:
    who waits for a listing may act on it later.
    """
    looked_up_as: tuple[InodeId, bytes] | None = None
    looked_up_s: float = -math.inf
    """The (parent, name) of the last look-up that was answered while a directory was open,
    or names were told ahead, and when.
    """
    is_link_refused: bool = False
    """The last further name was refused since the listed one leads elsewhere;
    who asks again without a look-up means the open file.
    """
    link: Inode | None = None
    """The last attributes handed out of a symbolic link, whose target never changes."""
    no_acl_until_s: float = 0.0
    """Until then it counts as known that there is no access control list."""
    acl_unsure_until_s: float = 0.0
    """Until then attributes from before a change of the list may still arrive."""
    bare_until_s: float = 0.0
    bare_unsure_until_s: float = 0.0
    """As the two above, of extended attributes that are kept beside the attributes."""

    nameless: Inode | common_pb2.InodePb | None = None
    """See `removed`."""
    is_birth_told: bool = False
    """The kernel knows when it was made, for as long as it holds it: it asks for that no more."""

    def note_names(self, inode: Inode | common_pb2.InodePb) -> None:
        """Keep the attributes of what has no name,
        so that who holds it without having opened it can ask for them for ever.
        """
        before = self.nameless
        is_late = before is not None and inode.ctime_ns < before.ctime_ns  # from before the removal
        if not is_late:
            self.nameless = None if inode.nlink else inode

    @property
    def removed(self) -> Inode | None:
        """The newest attributes handed out, if by then its last name was gone; see `note_names`."""
        # Of most nobody asks again: the kernel forgets them with their name.
        kept = self.nameless
        return inode_from_pb(kept) if isinstance(kept, common_pb2.InodePb) else kept

    def shown(self, inode_id: InodeId, now_s: float) -> Shown | None:
        """Return what the kernel shows of a regular file that no program of this mount has open;
        None: that is not certain.
        """
        is_sure = self.is_own_length_sure and now_s >= self.unsure_until_s
        if self.given_rights is None or not is_sure or self.given_length == -1:
            return None
        mtime_ns = max(self.given_mtime_ns, self.own_mtime_ns)
        return Shown(inode_id, *self.given_rights, self.own_length, mtime_ns)

    def note_content(
        self, inode: Inode | ListedFile | Shown, now_s: float, valid_s: float, *, is_own: bool
    ) -> None:
        """Note length and time of change in attributes that are about to be handed out
        and may be used for `valid_s`.

        The kernel takes no attributes from a reply whose request it sent before it took those
        of another one.  So where two replies were under way at once, and another mount
        changed the file in between, it may go on with the older ones.  What this mount has
        changed (`is_own`) it knows of.
        """
        given = self.given_length, self.given_mtime_ns
        is_other = self.given_length != -1 and given != (inode.length, inode.mtime_ns)
        if is_other and now_s < self.given_until_s and not is_own:
            self.unsure_until_s = self.given_until_s + valid_s
            self.is_own_length_sure = False
        else:
            self.own_length = inode.length
            self.is_own_length_sure = True
        self.given_length, self.given_mtime_ns = inode.length, inode.mtime_ns
        self.given_count += 1
        self.given_until_s = max(self.given_until_s, now_s + valid_s)

    def note_first(self, inode: Inode | ListedFile | Shown, now_s: float, valid_s: float) -> None:
        """Do what `note_told` and `note_content` do where none were handed out before:
        nothing that the kernel shows can be something else.
        """
        self.given_length = self.own_length = self.told_length = inode.length
        self.is_own_length_sure = True
        self.given_mtime_ns = inode.mtime_ns
        self.given_count = 1
        self.given_until_s = now_s + valid_s

    def note_short(self, length: int) -> None:
        """A read is answered that ends the file sooner than the kernel has been told:
        it shows a shorter file from now on, or soon.
        """
        if self.given_length > length:
            self.unsure_until_s = max(self.unsure_until_s, self.given_until_s + TAKEN_LATER_S)
            self.is_own_length_sure = False

    def may_show_other(self, length: int, mtime_ns: int, now_s: float) -> bool:
        """Return whether the kernel may show another length than this one,
        or another time of change.
        """
        if self.given_length not in (-1, length) or now_s < self.unsure_until_s:
            return True
        is_known = self.given_length == -1 or mtime_ns in (self.given_mtime_ns, self.own_mtime_ns)
        return not is_known and now_s < self.given_until_s + TAKEN_LATER_S

    def note_lacks(self, inode: Inode | ListedFile, now_s: float, age_s_max: float) -> None:
        """Take in what attributes from meta say is not there:
        access control lists, other extended attributes.
        """
        until_s = now_s + age_s_max
        is_sure = not inode.has_acl and now_s >= self.acl_unsure_until_s
        self.no_acl_until_s = until_s if is_sure else 0.0
        is_sure = inode.is_bare and now_s >= self.bare_unsure_until_s
        self.bare_until_s = until_s if is_sure else 0.0
