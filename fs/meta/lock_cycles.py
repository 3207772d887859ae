"""Whether a wait for a lock would end in a wait for itself:
who waits for whom, over all files and clients.  Pure.

An owner waits for each holder of a lock that forbids what it wants, and a wait that closes a circle
of such owners never ends.  Only processes are looked at, and so only locks of fcntl: what an open
file description waits for is freed by whoever has it open, and no circle tells anything about that.

Who asks loads, layer by layer, what the owners in the way wait for, and the locks of those files,
all of one snapshot.  The work is bounded: with more owners in the way than OWNER_COUNT_MAX nothing
is said, and the wait is as good as any other.

Source: fcntl(2), EDEADLK; Linux, posix_locks_deadlock() in fs/locks.c, which follows one holder
at a time, and ten at the most.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .file_locks import FileLock, Holder, conflicts_of

OWNER_COUNT_MAX = 1024
"""Owners that are looked at for one wait."""


@dataclass(frozen=True, slots=True)
class LockWait:
    """An owner waits for a lock on a file."""

    wait_id: int
    inode_id: int
    lock: FileLock


class CycleSearch:
    """Looks for a way from those whom a lock would wait for back to who wants it."""

    def __init__(self, wanted: FileLock, locks: Iterable[FileLock]) -> None:
        self._waiting = wanted.holder
        self._seen: set[Holder] = set()
        self.is_found = False
        """There is a way back: the lock must not be waited for."""
        self.owners: Sequence[Holder] = ()
        """Whose waits are to be looked at next, in a fixed order; none: all is known."""
        self._go_on({lock.holder for lock in conflicts_of(locks, wanted)})

    def step(self, waits: Iterable[LockWait], locks: Mapping[int, Sequence[FileLock]]) -> None:
        """Learn what `owners` wait for, and the locks of these files by inode;
        then there are other owners.
        """
        found: set[Holder] = set()
        for wait in waits:
            found |= {lock.holder for lock in conflicts_of(locks[wait.inode_id], wait.lock)}
        self._go_on(found)

    def _go_on(self, found: set[Holder]) -> None:
        self.is_found = self._waiting in found
        new = found - self._seen
        self._seen |= new
        is_over = self.is_found or len(self._seen) > OWNER_COUNT_MAX
        self.owners = () if is_over else sorted(new, key=lambda one: (one.client_id, one.owner))
