"""Names that are certainly absent: of directories that this mount has made and that nobody else adds names to (decision 0152).

The kernel looks a name up before it makes it.  Meta tells with its reply to each change that for a moment only this client may add names to
the directory, its lease.  Of a directory that was made through this mount all names are known that it has ever tried to give; any other one is
absent while the lease lasts, and the look-up is answered without a call.

Invariants:
    - Names of a directory are kept from its making on, when it was empty, for as long as meta names this client in each reply about it.  A name is
      noted before meta is asked to make it, and stays, whatever becomes of it: also if it is removed, or the store loses its last changes.
    - A lease counts from before the request was sent whose reply tells of it.
    - Absent is a name only for the caller who changed names of that directory last, or has just made it as his own, with the right to search: so
      meta would let him search it.

Does not: ask meta, remember where names lead, judge changes; meta does, whatever was said before.  Pure.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ...schema.ids import InodeId
from ...schema.inode import NAME_BYTES_MAX
from ...schema.name_lease import LEASE_S
from ...schema.proto import common_pb2
from .ports import Caller

TOUCHED_COUNT_MAX: Final = 4096
"""Directories, of which nothing is kept, that are remembered for having been changed while one of them may be being made."""
_OWNER_SEARCH: Final = 0o100
_DOTS: Final = (b".", b"..")


class Asked(NamedTuple):
    """A change of names that meta is about to be asked for."""

    caller: Caller
    asked_s: float
    mark: int


class _Directory:
    __slots__ = ("caller", "names", "until_s")

    def __init__(self, caller: Caller | None, until_s: float) -> None:
        self.names: set[bytes] = set()
        self.caller = caller
        self.until_s = until_s


class LeasedNames:
    """See module head; of one mount."""

    def __init__(self, client_id: str, count_max: int, now_s: Callable[[], float]) -> None:
        """Keep so many names and directories at most; 0: none, and have no leases."""
        self._client_id = client_id
        self._count_max = count_max
        self._now_s = now_s
        self._directories: dict[InodeId, _Directory] = {}
        """Those whose lease was renewed last come last."""
        self._name_count = 0
        self._touched: dict[InodeId, int] = {}
        """When names of others were changed, in that order."""
        self._touch_count = self._forgotten_count = 0
        self.hit_count = self.miss_count = 0
        """Look-ups in directories of which names are kept: answered here, and others."""

    def adopt(self, count_max: int) -> None:
        """Keep so many from now on."""
        self._count_max = count_max
        self._shrink()

    @property
    def is_wanted(self) -> bool:
        """True if leases are to be asked for."""
        return self._count_max > 0

    def ask(self, caller: Caller, places: Iterable[tuple[InodeId, bytes]]) -> Asked:
        """Note that meta is about to be asked to change these names, and may give them to something; return what `told` wants."""
        for parent, name in places:
            self._note(parent, name)
        return Asked(caller, self._now_s(), self._touch_count)

    def _note(self, parent: InodeId, name: bytes) -> None:
        directory = self._directories.get(parent)
        if directory is None:
            self._touch_count += 1
            self._touched.pop(parent, None)
            self._touched[parent] = self._touch_count
            if len(self._touched) > TOUCHED_COUNT_MAX:
                self._forgotten_count = self._touched.pop(next(iter(self._touched)))
        elif name not in directory.names:
            directory.names.add(name)
            self._name_count += 1
            self._shrink()

    def _shrink(self) -> None:
        while self._name_count + len(self._directories) > self._count_max:
            self._forget(next(iter(self._directories)))

    def _forget(self, inode_id: InodeId) -> None:
        directory = self._directories.pop(inode_id, None)
        if directory is not None:
            self._name_count -= len(directory.names)

    def note_made(self, inode: common_pb2.InodePb, asked: Asked) -> None:
        """Take in a directory that was just made; from now on its names are known, if it is certainly still empty."""
        inode_id, part = InodeId(inode.inode_id), inode.directory
        if inode_id in self._directories:  # the store has lost the one that had this number
            self._forget(inode_id)
            return
        is_ours = part.lease_client_id == self._client_id and not part.is_lease_ending
        is_touched = self._touched.get(inode_id, self._forgotten_count) > asked.mark
        if not is_ours or is_touched or inode.ctime_ns != inode.btime_ns:
            return
        may_search = inode.uid == asked.caller.uid and inode.mode & _OWNER_SEARCH
        caller = asked.caller if may_search else None
        self._directories[inode_id] = _Directory(caller, asked.asked_s + LEASE_S)
        self._shrink()

    def note_told(self, inodes: Iterable[common_pb2.InodePb], asked: Asked) -> None:
        """Take in the directories that the reply to a change told of."""
        for inode in inodes:
            inode_id = InodeId(inode.inode_id)
            directory = self._directories.get(inode_id)
            if directory is None:
                continue
            part = inode.directory
            if part.lease_client_id != self._client_id:
                self._forget(inode_id)
            elif not part.is_lease_ending:
                del self._directories[inode_id]
                self._directories[inode_id] = directory
                directory.until_s = max(directory.until_s, asked.asked_s + LEASE_S)
                directory.caller = asked.caller

    def may_know(self, parent: InodeId) -> bool:
        """Return whether `is_absent` may say so of some names: quicker than that."""
        return parent in self._directories

    def is_absent(self, parent: InodeId, name: bytes, caller: Caller) -> bool:
        """Return whether meta would certainly tell this caller that there is no such name; False: it has to be asked."""
        directory = self._directories.get(parent)
        if directory is None:
            return False
        is_known = (
            name not in directory.names
            and (caller is directory.caller or caller == directory.caller)
            and name not in _DOTS
            and len(name) <= NAME_BYTES_MAX
            and self._now_s() < directory.until_s
        )
        if is_known:
            self.hit_count += 1
        else:
            self.miss_count += 1
        return is_known
