"""Mode, owner and group that a program set, for as long as meta has not been told of them.  Pure.

Only such as may wait: whoever may do something with the file before, as meta
judges him, may do so afterwards.
"""

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...schema.inode import Inode
from ...schema.proto import meta_pb2
from .ports import Caller

ACCESS_LIST: Final = b"system.posix_acl_access"
"""The extended attribute that is one of these lists."""
LIST_BITS: Final = 0o777
"""Those of a mode that such a list says."""

_SPECIAL_BITS: Final = 0o7000
_RIGHTS: Final = 0o7
_ACL: Final = struct.Struct("<IHHIHHIHHI")
_ACL_VERSION, _NO_ID = 2, 0xFFFFFFFF
_OWNER_TAG, _GROUP_TAG, _OTHER_TAG = 0x01, 0x04, 0x20


class AskedOwner(NamedTuple):
    """What is to be set; None leaves a field as it is."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class SetOwner:
    """What a program has set and meta is told of with what was written; None: not set."""

    asked: AskedOwner
    caller: Caller
    set_ns: int
    """When it was set last, by this mount's clock."""
    seen: tuple[int, int, int]
    """Mode, owner and group that meta had then, as far as this mount knew."""
    is_left: bool = False
    """A report has brought them, and meta has left them alone:
    it refuses them, or is of a release that does not know of them.
    """

    def is_superseded(self, inode: Inode) -> bool:
        """Return whether others, as attributes of meta tell, have set theirs since."""
        return (inode.mode, inode.uid, inode.gid) != self.seen and inode.ctime_ns > self.set_ns

    def after(self, before: "SetOwner") -> "SetOwner":
        """Return these together with those that were set before them and are not set anew."""
        mode, uid, gid = self.asked
        asked = AskedOwner(
            before.asked.mode if mode is None else mode,
            before.asked.uid if uid is None else uid,
            before.asked.gid if gid is None else gid,
        )
        return SetOwner(asked, self.caller, self.set_ns, before.seen)

    def over(self, inode: Inode) -> tuple[int, int, int]:
        """Return mode, owner and group that meta told in `inode` with these over them."""
        mode, uid, gid = self.asked
        return (
            inode.mode if mode is None else mode,
            inode.uid if uid is None else uid,
            inode.gid if gid is None else gid,
        )

    def to_pb(self) -> meta_pb2.OwnerReportPb:
        """Return what a report says of them."""
        mode, uid, gid = self.asked
        mode_seen, uid_seen, gid_seen = self.seen
        return meta_pb2.OwnerReportPb(
            mode=mode,
            uid=uid,
            gid=gid,
            mode_seen=mode_seen,
            uid_seen=uid_seen,
            gid_seen=gid_seen,
            set_ns=self.set_ns,
        )


def takes_nothing(before: tuple[int, int, int], asked: AskedOwner) -> bool:
    """Return whether nobody who has a right by mode,
    owner and group as they are `before` lacks it after this, or would notice that it comes later.

    Root has all rights anyway.  Of who was the owner, or in the group, nothing is taken only if he
    is root, or the others have as much; who becomes the owner, or comes into the group, must not
    have had more before.  Bits that let a program run as somebody else do not wait.
    """
    old, uid, gid = before
    mode = old if asked.mode is None else asked.mode
    if (old | mode) & _SPECIAL_BITS or old & ~mode:
        return False
    of_owner, of_group, of_others = old >> 6 & _RIGHTS, old >> 3 & _RIGHTS, old & _RIGHTS
    if asked.uid not in (None, uid) and (uid != 0 or (of_group | of_others) & ~of_owner):
        return False
    return asked.gid in (None, gid) or of_group == of_others


def mode_of_list(value: bytes) -> int | None:
    """Return the permission bits that an access control list says and no more than these;
    None: it says more, or is none.

    What copies a file with its rights, as cp does, sets them by such a list instead of a chmod.
    """
    if len(value) != _ACL.size:
        return None
    fields: tuple[int, ...] = _ACL.unpack(value)
    owner, group, other = rights = fields[2::3]
    if (fields[0], *fields[1::3]) != (_ACL_VERSION, _OWNER_TAG, _GROUP_TAG, _OTHER_TAG):
        return None
    if max(rights) > _RIGHTS or set(fields[3::3]) != {_NO_ID}:
        return None
    return owner << 6 | group << 3 | other
