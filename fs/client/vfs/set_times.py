"""Times that a program set, for as long as meta has not been told of them.  Pure."""

from dataclasses import dataclass, replace

from ...schema.inode import Inode


@dataclass(frozen=True, slots=True)
class SetTimes:
    """Times that a program set after its last write,
    and that meta is told of with that write; None: not set.
    """

    atime_ns: int | None
    mtime_ns: int | None
    set_ns: int
    """When, by this mount's clock."""
    atime_seen_ns: int = 0
    mtime_seen_ns: int = 0
    """What meta had then, as far as this mount knew, or has from this mount since:
    other ones may have been set later, on another mount.
    """

    def after(self, before: "SetTimes") -> "SetTimes":
        """Return these times together with those that were set before them and are not set anew."""
        atime = self if self.atime_ns is not None else before
        mtime = self if self.mtime_ns is not None else before
        return SetTimes(
            atime.atime_ns, mtime.mtime_ns, self.set_ns, atime.atime_seen_ns, mtime.mtime_seen_ns
        )

    def reported(self, inode: Inode) -> "SetTimes":
        """Return these times when meta has taken them over into `inode`, or some of them."""
        return replace(
            self,
            atime_seen_ns=inode.atime_ns if inode.atime_ns == self.atime_ns else self.atime_seen_ns,
            mtime_seen_ns=inode.mtime_ns if inode.mtime_ns == self.mtime_ns else self.mtime_seen_ns,
        )
