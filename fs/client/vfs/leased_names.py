"""What names lead to, or that they are absent,
where only this mount changes names (decisions 0152, 0161).

The kernel looks a name up before it makes or removes it.  With its reply to each change meta tells
that for a moment only this client may change names of the directory: its *lease*.  While the lease
lasts, and the directory was made through this mount:
    - All names are known that this mount has ever tried to give.  Any other name is absent.
    - A name that this mount has removed is absent, too.
    - A name that it has made leads to what it was told then.

Invariants:
    - Names of a directory are kept from its making on, when it was empty, for as long as meta names
      this client in each reply about it.  A name is noted before meta is asked to make it.  It
      stays, whatever becomes of it: also if it is removed, or the store loses its last changes.
    - What a name leads to is known from the reply to its change, if no other change of it was under
      way meanwhile, nor any since.  Once a change was without a reply, it is not known until that
      reply has come and another change has followed.
    - That knowledge is forgotten where the store may have lost its last changes since: after
      `SURE_S` without a reply that shows the directory as it was left.
    - A lease counts from before the request was sent whose reply tells of it.
    - A name is absent only for the caller who changed names of that directory last, or has just
      made it as his own, with the right to search.  So meta would let him search it.

Does not: ask meta, know attributes, judge changes; meta does, whatever was said before.  Pure.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from ...runtime.oldest import forget_oldest
from ...schema.ids import InodeId
from ...schema.inode import NAME_BYTES_MAX
from ...schema.name_lease import LEASE_S, SURE_S
from ...schema.proto import common_pb2
from .ports import Caller

TOUCHED_COUNT_MAX: Final = 4096
"""Directories, of which nothing is kept, that are remembered for having been changed while one
of them may be being made.
"""
_OWNER_SEARCH: Final = 0o100
_DOTS: Final = (b".", b"..")
ABSENT: Final = InodeId(0)
"""What a name leads to that is not there."""


class _Directory:
    __slots__ = (
        "caller",
        "has_overlapped",
        "known",
        "left_ctime_ns",
        "names",
        "open_count",
        "sure_until_s",
        "under_way",
        "until_s",
    )

    def __init__(self, caller: Caller | None, asked_s: float, ctime_ns: int) -> None:
        self.names: set[bytes] = set()
        """All that were ever given."""
        self.known: dict[bytes, InodeId] = {}
        """What some of them lead to."""
        self.under_way: dict[bytes, int] = {}
        """How many changes of a name have not ended;
        less than zero: what comes of them is not known.
        """
        self.open_count = 0
        """Changes that have not ended."""
        self.has_overlapped = False
        """Whether one of them has, or the last that ended, with another one."""
        self.left_ctime_ns = ctime_ns
        """When it changed last, by a change that began when all others had ended:
        where it says so all of them are there.  0: that is not known.
        """
        self.caller = caller
        self.until_s = asked_s + LEASE_S
        self.sure_until_s = asked_s + SURE_S

    def begin_change(self) -> None:
        self.has_overlapped = self.open_count > 0
        self.open_count += 1

    def begin(self, name: bytes) -> None:
        self.known.pop(name, None)
        count = self.under_way.get(name, 0)
        self.under_way[name] = -abs(count) - 1 if count else 1

    def fail(self, name: bytes) -> None:
        """Whether it is made nobody knows; it may be yet."""
        self.under_way[name] = -abs(self.under_way[name])

    def end(self, name: bytes, leads_to: InodeId | None) -> None:
        count = self.under_way.pop(name)
        if count < -1:
            self.under_way[name] = count + 1
        elif count == 1 and leads_to is not None:
            self.known[name] = leads_to


class Asked(NamedTuple):
    """A change of names that meta is about to be asked for."""

    caller: Caller
    asked_s: float
    mark: int
    names: Sequence[tuple[_Directory | None, bytes]]
    """As they were asked for; those of which something is kept."""


def _distinct(names: Sequence[tuple[_Directory | None, bytes]]) -> list[_Directory]:
    found: list[_Directory] = []
    for directory, _ in names:
        if directory is not None and directory not in found:
            found.append(directory)
    return found


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
        """Look-ups in directories of which names are kept: of what is absent, and others."""
        self.at_hand_count = self.not_at_hand_count = 0
        """Those of the others that were answered without meta, as a removal was expected to follow;
        and those that could not be.
        """

    def adopt(self, count_max: int) -> None:
        """Keep so many from now on."""
        self._count_max = count_max
        self._shrink()

    @property
    def is_wanted(self) -> bool:
        """True if leases are to be asked for."""
        return self._count_max > 0

    def ask(self, caller: Caller, places: Iterable[tuple[InodeId, bytes]]) -> Asked:
        """Note that meta is about to be asked to change these names,
        and may give them to something; return what `note_told` wants.

        `end` is to be called with the outcome, `fail` whenever a try ends without one.
        """
        names = [(self._note(parent, name), name) for parent, name in places]
        if len(names) == 1:
            ((changed, _),) = names
            if changed is not None:
                changed.begin_change()
        else:
            for directory in _distinct(names):
                directory.begin_change()
        return Asked(caller, self._now_s(), self._touch_count, names)

    def _note(self, parent: InodeId, name: bytes) -> _Directory | None:
        directory = self._directories.get(parent)
        if directory is None:
            self._touch_count += 1
            self._touched.pop(parent, None)
            self._touched[parent] = self._touch_count
            forgotten = forget_oldest(self._touched, TOUCHED_COUNT_MAX)
            if forgotten is not None:
                self._forgotten_count = forgotten
            return None
        directory.begin(name)
        if name not in directory.names:
            directory.names.add(name)
            self._name_count += 1
            self._shrink()
        return directory

    def fail(self, asked: Asked) -> None:
        """A try of a change has ended without a reply:
        it may have been made all the same, or be yet.
        """
        for directory, name in asked.names:
            if directory is not None:
                directory.fail(name)

    def withdraw(self, asked: Asked) -> None:
        """Meta is not asked for a change after all, or has refused it:
        its names are not known, as before it, until another one follows.
        """
        self.end(asked, *[None] * len(asked.names))

    def end(self, asked: Asked, *leads_to: InodeId | None) -> None:
        """Take in what the names of a change that was made lead to since then, in their order;
        `ABSENT`: to nothing, None: that is not known.
        """
        # A reply that was under way for longer may be of before a loss.
        is_sure = self._now_s() < asked.asked_s + SURE_S
        for directory in _distinct(asked.names):
            directory.open_count -= 1
        for (changed, name), inode_id in zip(asked.names, leads_to, strict=True):
            if changed is not None:
                changed.end(name, inode_id if is_sure else None)

    def _shrink(self) -> None:
        while self._name_count + len(self._directories) > self._count_max:
            self._forget(next(iter(self._directories)))

    def _forget(self, inode_id: InodeId) -> None:
        directory = self._directories.pop(inode_id, None)
        if directory is not None:
            self._name_count -= len(directory.names)

    def note_made(self, inode: common_pb2.InodePb, asked: Asked) -> None:
        """Take in a directory that was just made; from now on its names are known,
        if it is certainly still empty.
        """
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
        self._directories[inode_id] = _Directory(caller, asked.asked_s, inode.ctime_ns)
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
                continue
            if self._now_s() >= directory.sure_until_s:
                directory.known.clear()
            is_alone = directory.open_count == 1 and not directory.has_overlapped
            directory.left_ctime_ns = inode.ctime_ns if is_alone else 0
            if not part.is_lease_ending:
                del self._directories[inode_id]
                self._directories[inode_id] = directory
                directory.until_s = max(directory.until_s, asked.asked_s + LEASE_S)
                directory.sure_until_s = max(directory.sure_until_s, asked.asked_s + SURE_S)
                directory.caller = asked.caller

    def note_shown(self, inode: common_pb2.InodePb, asked_s: float) -> None:
        """Take in the attributes of a directory, which meta was asked for then:
        nothing has been lost where it is as this mount has left it.
        """
        directory, sure_until_s = self._directories.get(InodeId(inode.inode_id)), asked_s + SURE_S
        if directory is None or inode.directory.lease_client_id != self._client_id:
            return
        if inode.ctime_ns == directory.left_ctime_ns and self._now_s() < sure_until_s:
            directory.sure_until_s = max(directory.sure_until_s, sure_until_s)

    def may_know(self, parent: InodeId) -> bool:
        """Return whether `is_absent` or `leads_to` may know of some names: quicker than these."""
        return parent in self._directories

    def _may_say(self, directory: _Directory, caller: Caller) -> bool:
        is_let_in = caller is directory.caller or caller == directory.caller
        return is_let_in and self._now_s() < directory.until_s

    def leads_to(self, parent: InodeId, name: bytes, caller: Caller) -> InodeId | None:
        """Return which inode meta would certainly tell this caller that a name leads to;
        None: it has to be asked, or the name is absent.
        """
        directory = self._directories.get(parent)
        if directory is None or not self._may_say(directory, caller):
            return None
        return directory.known.get(name) or None

    def is_absent(self, parent: InodeId, name: bytes, caller: Caller) -> bool:
        """Return whether meta would certainly tell this caller that there is no such name;
        False: it has to be asked.
        """
        directory = self._directories.get(parent)
        if directory is None:
            return False
        is_known = (
            (name not in directory.names or directory.known.get(name) == ABSENT)
            and name not in _DOTS
            and len(name) <= NAME_BYTES_MAX
            and self._may_say(directory, caller)
        )
        if is_known:
            self.hit_count += 1
        else:
            self.miss_count += 1
        return is_known
