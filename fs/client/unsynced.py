"""Which files have updates that no sync has covered yet, and whether a chain has lost any of them.

An acknowledged update is on every serving target of its chain, at first only in the memory of
their machines.  The manager counts in the chain how often that may have been lost
(`Chain.loss_count`): a sync that meets another count than its updates were made under has to
fail, because it cannot make durable what is gone.

Invariants:
    - A note holds the smallest count under which an update of the file on the chain was
      acknowledged since the last sync.
    - A note is dropped by a sync, or a durable update, that covers it, or told by one that fails,
      or when it is so old that storage has flushed by itself and no loss was counted since; the
      last only where there are very many.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..schema.routing import Chain, RoutingInfo
from ..schema.status import FsError, Status

NOTE_COUNT_MAX: Final = 50_000
"""More are kept only while they are younger than `FLUSHED_S`."""
FLUSHED_S: Final = 300.0
"""Twice as long as a storage node takes to flush by itself: it begins every 10 s,
and a disk that has worked on it for twelve times storage.disk_hang_s is given up.
"""

Key = tuple[int, int]
"""Inode id, chain id."""


@dataclass(frozen=True, slots=True)
class Note:
    """See the module head; every update makes a new one."""

    loss_count: int
    time_s: float


class Unsynced:
    """All notes of one client."""

    def __init__(self) -> None:
        self._notes: dict[Key, Note] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._notes)

    def note(self, inode_id: int, chain: Chain, now_s: float) -> None:
        """Remember that an update was acknowledged under this picture of its chain."""
        key = (inode_id, chain.chain_id)
        earlier = self._notes.pop(key, None)
        count = chain.loss_count if earlier is None else min(earlier.loss_count, chain.loss_count)
        self._notes[key] = Note(count, now_s)

    def get(self, inode_id: int, chain: Chain) -> Note | None:
        """Return the note of a file on a chain."""
        return self._notes.get((inode_id, chain.chain_id))

    def cover(self, inode_id: int, chain: Chain, before: Note | None) -> bool:
        """Take in that an update of the file is durable,
        and with it what its chain had acknowledged before it was sent.

        Args:
            inode_id: the file.
            chain: as it was when its targets flushed.
            before: what `get` returned before the update was sent.

        Returns:
            False if something was lost before: that is for a sync to tell, which
            has to cover this update, too.
        """
        key = (inode_id, chain.chain_id)
        if before is not None and before.loss_count != chain.loss_count:
            return False
        if before is not None and self._notes.get(key) is before:
            del self._notes[key]
        return True

    def trim(self, info: RoutingInfo, now_s: float) -> None:
        """Drop the oldest notes while there are too many,
        if storage has flushed what they stand for.
        """
        while len(self._notes) > NOTE_COUNT_MAX:
            key, oldest = next(iter(self._notes.items()))
            chain = info.chains.get(key[1])  # type: ignore[call-overload]
            is_lost = chain is not None and chain.loss_count != oldest.loss_count
            if is_lost or oldest.time_s > now_s - FLUSHED_S:
                return
            del self._notes[key]

    def of(self, keys: Iterable[Key]) -> dict[Key, Note]:
        """Return what a sync of these files on these chains that begins now has to cover."""
        return {key: self._notes[key] for key in keys if key in self._notes}

    def settle(self, covered: dict[Key, Note], loss_counts: dict[int, int]) -> None:
        """End a sync: forget what it has covered, but not what was updated since it began.

        Args:
            covered: what `of` returned before the sync.
            loss_counts: of the chains that have synced, each as of a version under which it did.

        Raises:
            FsError: WRITES_LOST, told once.
        """
        lost: list[Key] = []
        for key, note in covered.items():
            count = loss_counts.get(key[1])
            if count is None:
                continue
            if count != note.loss_count:
                lost.append(key)
            if self._notes.get(key) is note:
                del self._notes[key]
            elif count != note.loss_count and (newer := self._notes.get(key)) is not None:
                self._notes[key] = Note(count, newer.time_s)
        if lost:
            inode_id, chain_id = lost[0]
            detail = (
                f"inode {inode_id} chain {chain_id}: what was written since the last sync may be "
                "gone"
            )
            raise FsError(Status.WRITES_LOST, detail)
