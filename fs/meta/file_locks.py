"""Advisory locks of one file: who may hold which bytes, and what a change leaves.  Pure.

Two kinds that do not see each other, as in Linux: POSIX locks (fcntl) on ranges of bytes, and
whole-file locks (flock), which here are ranges that cover everything.  A holder is an owner
of a client; what an owner is, the client decides (the kernel: a process for POSIX locks, an
open file description for flock).

Invariants of a table:
    - Locks of one holder and kind do not overlap, and two that touch differ in `is_write`.
    - Locks of two holders and one kind overlap only if none of them is for writing.

Does not know of waiting, time, or clients that die.

Source: fcntl(2) and flock(2); POSIX.1-2017, fcntl().
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..schema.proto.common_pb2 import FileLockPb, LockKindPb

LOCK_COUNT_MAX = 1024
"""Of one file, over all holders."""
END_MAX = 2**63 - 1
"""The last byte a lock can cover; as the end of a lock:
to the end of the file, wherever that will be.
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock."""

    client_id: str
    owner: int


@dataclass(frozen=True, slots=True)
class FileLock:
    """A lock on the bytes [first, last]."""

    holder: Holder
    kind: LockKindPb.ValueType
    first: int
    last: int
    is_write: bool
    pid: int = 0
    """Of the process that asked, for people; means something on its own machine only."""

    def overlaps(self, other: "FileLock") -> bool:
        """True when both cover some byte."""
        return self.first <= other.last and other.first <= self.last

    def conflicts(self, other: "FileLock") -> bool:
        """True when both cannot be held at once."""
        return (
            self.kind == other.kind
            and self.holder != other.holder
            and (self.is_write or other.is_write)
            and self.overlaps(other)
        )


def conflict_of(locks: Iterable[FileLock], wanted: FileLock) -> FileLock | None:
    """Return the first held lock, by its bytes, that forbids a wanted one; None: it may be had."""
    return next(conflicts_of(locks, wanted), None)


def conflicts_of(locks: Iterable[FileLock], wanted: FileLock) -> Iterator[FileLock]:
    """Return the held locks that forbid a wanted one."""
    return (lock for lock in locks if lock.conflicts(wanted))


def with_lock(locks: Iterable[FileLock], wanted: FileLock) -> list[FileLock]:
    """Return the table after a lock was granted: it replaces what its holder had on these bytes."""
    return _ordered([*_cut(locks, wanted), wanted])


def without_range(locks: Iterable[FileLock], freed: FileLock) -> list[FileLock]:
    """Return the table after a holder freed the bytes of `freed`; what it had around them stays."""
    return _ordered(_cut(locks, freed))


def without_converted(locks: Iterable[FileLock], refused: FileLock) -> list[FileLock]:
    """Return the table after a wanted lock could not be had: who converts one of flock has lost
    the one that he had, as in Linux, so that two who share a file may both want it alone.
    """
    return without_range(locks, refused) if refused.kind == LockKindPb.FLOCK_LOCK else list(locks)


def without_client(locks: Iterable[FileLock], client_id: str) -> list[FileLock]:
    """Return the table without anything that a client held."""
    return [lock for lock in locks if lock.holder.client_id != client_id]


def _cut(locks: Iterable[FileLock], cut: FileLock) -> list[FileLock]:
    left = []
    for lock in locks:
        if lock.holder != cut.holder or lock.kind != cut.kind or not lock.overlaps(cut):
            left.append(lock)
            continue
        if lock.first < cut.first:
            left.append(replace(lock, last=cut.first - 1))
        if lock.last > cut.last:
            left.append(replace(lock, first=cut.last + 1))
    return left


def _ordered(locks: Iterable[FileLock]) -> list[FileLock]:
    """Return locks by holder and bytes, neighbours of one holder and mode made one."""

    def place(lock: FileLock) -> tuple[object, ...]:
        return lock.kind, lock.holder.client_id, lock.holder.owner, lock.first

    merged: list[FileLock] = []
    for lock in sorted(locks, key=place):
        before = merged[-1] if merged else None
        if (
            before is not None
            and (before.holder, before.kind) == (lock.holder, lock.kind)
            and before.is_write == lock.is_write
            and before.last + 1 == lock.first
        ):
            merged[-1] = replace(before, last=lock.last, pid=lock.pid)
        else:
            merged.append(lock)
    return sorted(merged, key=lambda lock: (lock.first, place(lock)))


def lock_from_pb(message: FileLockPb) -> FileLock:
    """Return a lock from its wire and record form."""
    return FileLock(
        Holder(message.client_id, message.owner),
        message.kind,
        message.first,
        message.last,
        message.is_write,
        message.pid,
    )


def lock_to_pb(lock: FileLock) -> FileLockPb:
    """Inverse of `lock_from_pb`."""
    return FileLockPb(
        client_id=lock.holder.client_id,
        owner=lock.holder.owner,
        kind=lock.kind,
        first=lock.first,
        last=lock.last,
        is_write=lock.is_write,
        pid=lock.pid,
    )


def has_client(locks: Sequence[FileLock], client_id: str) -> bool:
    """True when a client holds anything."""
    return any(lock.holder.client_id == client_id for lock in locks)
