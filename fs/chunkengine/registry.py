"""Which targets a disk holds, and the notes of storage beside them.

Holding a target is made durable at once.  A removed one leaves a record, so that the configuration,
which may still list it, does not bring it back empty; once that lists it no more the record goes.
A removal is begun durably and ended durably; in between are any number of small batches, and
whoever finds it begun goes on with it.  Notes are small records of storage's own: the engine keeps
them, and tells them apart by target and key alone.

Concurrency: thread-safe; the caller lets nobody else change the same target meanwhile.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from ..schema.ids import TargetId
from .api import Note
from .books import Books
from .format import (
    CHUNK_PREFIX,
    TARGET_HELD,
    TARGET_REMOVED,
    TARGET_REMOVING,
    ChunkKey,
    note_key,
    target_key,
    target_prefix,
    used_key,
)
from .ports import MetaStore

LOT_COUNT_MAX: Final = 256
"""Chunks removed, or notes deleted, in one batch."""


class Registry:
    """The targets of one disk."""

    def __init__(self, meta: MetaStore, books: Books) -> None:
        self._meta = meta
        self._books = books

    def target_ids(self) -> list[TargetId]:
        """See `ChunkEngine`."""
        with self._books as ledger:
            return sorted(t for t, is_removing in ledger.targets.items() if not is_removing)

    def removing(self) -> list[TargetId]:
        """Return the targets whose removal has begun and not ended."""
        with self._books as ledger:
            return sorted(t for t, is_removing in ledger.targets.items() if is_removing)

    def add(self, target_id: TargetId) -> None:
        """See `ChunkEngine.add_target`."""
        with self._books as ledger:
            ledger.check_target(target_id)
            if target_id in ledger.targets:
                return
        with self._books.poison_on_failure("recording a target"):
            self._meta.write_synced([(target_key(target_id), TARGET_HELD)])
        with self._books as ledger:
            ledger.targets[target_id] = False
            ledger.removed.discard(target_id)

    def hold(self, configured: Iterable[TargetId]) -> None:
        """Add what the configuration lists, but for targets that were removed;
        forget removals of others.
        """
        with self._books as ledger:
            removed = set(ledger.removed)
            others = removed.difference(configured)
            if others:
                ledger.put([(target_key(target_id), None) for target_id in sorted(others)])
                ledger.removed -= others
        for target_id in configured:
            if target_id not in removed:
                self.add(target_id)

    def begin_removal(self, target_id: TargetId) -> None:
        """See `ChunkEngine.begin_removal`."""
        with self._books as ledger:
            if target_id not in ledger.targets:
                return
        with self._books.poison_on_failure("recording a removal"):
            self._meta.write_synced([(target_key(target_id), TARGET_REMOVING)])

    def remove(
        self, target_id: TargetId, limit_epoch: Callable[[], None], lot_count_max: int
    ) -> bool:
        """Remove a target but for making the end durable; `limit_epoch` is called between lots.

        Returns False when so many lots (0: no bound) were not enough.
        """
        with self._books as ledger:
            if target_id not in ledger.targets:
                return True
            ledger.targets[target_id] = True
        with self._books.poison_on_failure("recording a removal"):
            self._meta.write_synced([(target_key(target_id), TARGET_REMOVING)])
        lot_count = 0
        while self._remove_lot(target_id):
            limit_epoch()
            lot_count += 1
            if lot_count == lot_count_max:
                return False
        while keys := [n.key for n in islice(self._notes(target_id), LOT_COUNT_MAX)]:
            self.forget_notes(target_id, keys)
        with self._books as ledger:
            ledger.put([(used_key(target_id), None), (target_key(target_id), TARGET_REMOVED)])
            ledger.used.pop(target_id, None)
            ledger.removed.add(target_id)
            del ledger.targets[target_id]
        return True

    def notes(self, target_id: TargetId) -> list[Note]:
        """See `ChunkEngine`."""
        self._books.check()
        return list(self._notes(target_id))

    def put_notes(
        self, target_id: TargetId, notes: Sequence[Note], *, is_durable: bool = False
    ) -> None:
        """See `ChunkEngine`."""
        with self._books as ledger:
            ledger.check_target(target_id)
            ledger.put_notes(target_id, notes)
        if is_durable:
            with self._books.poison_on_failure("recording notes"):
                self._meta.write_synced([])

    def forget_notes(self, target_id: TargetId, keys: Sequence[bytes]) -> None:
        """See `ChunkEngine`."""
        for start in range(0, len(keys), LOT_COUNT_MAX):
            lot = keys[start : start + LOT_COUNT_MAX]
            with self._books as ledger:
                ledger.put([(note_key(target_id, key), None) for key in lot])

    def _notes(self, target_id: TargetId) -> Iterator[Note]:
        start, end = note_key(target_id, b""), note_key(TargetId(target_id + 1), b"")
        for stored, value in self._meta.scan(start, end):
            yield Note(stored[len(start) :], value)

    def _remove_lot(self, target_id: TargetId) -> bool:
        """Remove some chunks in one batch; False when there are none left."""
        first = CHUNK_PREFIX + target_prefix(target_id)
        last = CHUNK_PREFIX + target_prefix(TargetId(target_id + 1))
        with self._books as ledger:
            found = islice(self._meta.scan(first, last), LOT_COUNT_MAX)
            keys = [ChunkKey(stored[1:]) for stored, _ in found]
            if not keys:
                prefix = target_prefix(target_id)
                pending = (key for key in ledger.pendings if key.startswith(prefix))
                keys = list(islice(pending, LOT_COUNT_MAX))
            ledger.remove(keys)
        return bool(keys)
