"""Blocks with space behind them, also on a disk that is nearly full.

The last free space of the disk is kept for the metadata store, which a refused write would end for
good: below storage.reject_create_free_bytes_min no new chunk is taken, below a share of it no
further block, no new version, at last no removal.  What is prepared can still be committed then.
Others may fill the disk too, so the free space is asked for each time, and removals have a spare
file to live on (fs/chunkengine/spare.py).

Space of free blocks serves only blocks of their size.  Up to storage.space_at_hand_bytes_max
of it is kept at hand for new versions: where nobody has written before, a disk may be much
slower.  Whoever asks the engine is told that it is free.  What is more, and on a disk that is
short of space nearly all of it, is given back: to the file system, where blocks of every
size, and others, may take it.

Concurrency: thread-safe; the engine's lock is held for the books only,
never while the disk is asked.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from ..schema.config import StorageSection
from ..schema.status import FsError, Status
from .allocator import Allocator, Reservation, runs_of
from .books import Books
from .format import ChunkKey, Position, capacity_of, chunk_id_of_key, place_of
from .ports import DataFiles
from .recovery import punch_group, punch_quietly
from .spare import Spare

GROW_SHARE: Final = 2
WRITE_SHARE: Final = 4
REMOVE_SHARE: Final = 16

FREE_SHARE: Final = 4
"""At most one in so many of all free bytes is kept at hand:
others who fill the disk cannot ask for it, and are noticed a second later.
"""

EACH_KEPT_BYTES: Final = 16 << 20
"""Of blocks of each size stay at hand in any case, until no other space is left."""

RECLAIM_BYTES: Final = 256 << 20
"""Given back at a time."""

TRY_COUNT_MAX: Final = 4
"""Others may take what was flushed or given back."""


class BlockSpace:
    """The space of one disk."""

    def __init__(self, files: DataFiles, books: Books, section: StorageSection) -> None:
        self._files = files
        self._books = books
        self._create_free_bytes_min = section.reject_create_free_bytes_min
        self._at_hand_bytes_max = section.space_at_hand_bytes_max if files.writes_in_place() else 0
        self._spare = Spare(files, self._create_free_bytes_min)
        self._spare.set_aside()

    def is_short(self) -> bool:
        """Return whether a new version or a removal may first have space given back,
        which takes a while; a hint.
        """
        needed = self._create_free_bytes_min // WRITE_SHARE
        return needed > 0 and self._files.free_bytes() < needed

    def check_write(self, key: ChunkKey) -> None:
        """Raise FsError(NO_SPACE) when no new version may be made."""
        kept = self._create_free_bytes_min // WRITE_SHARE
        try:
            self._check(key, 0, kept)
        except FsError:
            if not self._make_room(kept):
                raise

    def check_remove(self, key: ChunkKey) -> None:
        """Raise FsError(NO_SPACE) when not even a removal may be recorded."""
        kept = self._create_free_bytes_min // REMOVE_SHARE
        self._help(kept)
        self._check(key, 0, kept)

    def help_store(self) -> None:
        """Give the spare file up if the metadata store needs its space,
        to write or to merge what it wrote.
        """
        self._help(self._create_free_bytes_min // WRITE_SHARE)

    def _help(self, needed: int) -> None:
        if needed and not self._make_room(needed):
            self._spare.give_up()

    def allocate(
        self, key: ChunkKey, size_class: int, *, is_create: bool, sync: Callable[[], None]
    ) -> Position:
        """Return a block with space behind it.

        A full disk is flushed, to free the quarantine, and then given back what free blocks hold.
        While others overwrite there is always something quarantined, and they may take what a flush
        frees: so it is flushed once only, unless nothing is left to give back.

        Raises:
            FsError: NO_SPACE, IO_ERROR.
        """
        kept = self._create_free_bytes_min // (1 if is_create else GROW_SHARE)
        is_flushed = False
        for tries_left in reversed(range(TRY_COUNT_MAX)):
            with self._books as ledger:
                position, reservation = ledger.allocate(size_class)
            if reservation is None:
                return position
            try:
                self._reserve(key, position, reservation, kept)
            except FsError as error:
                has_quarantine = self._take_back(position, reservation)
                if error.status is not Status.NO_SPACE or not tries_left:
                    raise
                if has_quarantine and not is_flushed:
                    sync()
                    is_flushed = True
                elif self._reclaim(kept + capacity_of(position)):
                    continue
                elif has_quarantine:
                    sync()
                else:
                    raise
            except BaseException:  # no memory
                self._take_back(position, reservation)
                raise
            else:
                return position
        raise AssertionError(key)

    def allocate_elsewhere(
        self, key: ChunkKey, size_class: int, avoid: Collection[int]
    ) -> Position | None:
        """Return a block for moving a chunk, outside of the groups `avoid`;
        None if there is no room for it.
        """
        with self._books as ledger:
            found = ledger.allocate_elsewhere(size_class, avoid)
        if found is None:
            return None
        position, reservation = found
        if reservation is not None:
            try:
                self._reserve(key, position, reservation, self._create_free_bytes_min // GROW_SHARE)
            except FsError as error:
                self._take_back(position, reservation)
                if error.status is not Status.NO_SPACE:
                    raise
                return None
            except BaseException:  # no memory
                self._take_back(position, reservation)
                raise
        return position

    def give_back(self, emptied: Collection[int]) -> None:
        """Return the space of groups that ran empty, beyond what is kept, to the file system,
        and set some aside if it is time to.

        Args:
            emptied: the size classes of these groups.
        """
        free = self._files.free_bytes() if emptied else 0
        for size_class in emptied:
            with self._books.lock:
                if self._books.failure:
                    return  # a batch that failed may have freed what the store still names
                allocator = self._books.ledger.allocator
                surplus = allocator.reusable_bytes() - self._kept_bytes(allocator, free)
                numbers = allocator.classes[size_class].take_empty(surplus)
            try:
                for number in numbers:
                    punch_group(self._files, size_class, number)
            finally:  # also where memory is short: what was not given back is claimed anew
                with self._books.lock:
                    allocator.classes[size_class].finish_retire(numbers)
        self._spare.set_aside()

    def has_surplus(self) -> bool:
        """Return whether more is at hand than is kept; where nothing is kept, True."""
        free = self._files.free_bytes()
        with self._books as ledger:
            kept = self._kept_bytes(ledger.allocator, free)
            return not kept or ledger.allocator.reusable_bytes() > kept

    def trim(self) -> None:
        """Return what is at hand beyond what is kept."""
        free = self._files.free_bytes()
        with self._books as ledger:
            kept = self._kept_bytes(ledger.allocator, free)
            taken = ledger.allocator.take_surplus(kept, EACH_KEPT_BYTES)
        self.punch_blocks(taken)

    def make_way(self) -> None:
        """Do the same if others have taken so much of the disk that far more is at hand than
        is kept; to be called often.
        """
        free = self._files.free_bytes()
        with self._books as ledger:
            is_due = (FREE_SHARE // 2) * ledger.allocator.reusable_bytes() > free
        if is_due:
            self.trim()

    def _kept_bytes(self, allocator: Allocator, free: int) -> int:
        return min(self._at_hand_bytes_max, (free + allocator.reusable_bytes()) // FREE_SHARE)

    def _make_room(self, needed: int) -> bool:
        """Return whether so much is free, if need be once nearly all
        that is at hand has been given back.
        """
        if self._files.free_bytes() >= needed:
            return True
        with self._books as ledger:
            taken = ledger.allocator.take_surplus(0, EACH_KEPT_BYTES)
        self.punch_blocks(taken)
        return bool(taken) and self._files.free_bytes() >= needed

    def _check(self, key: ChunkKey, wanted: int, kept: int) -> None:
        free = self._files.free_bytes() if wanted or kept else 0
        if free - wanted < kept:
            raise FsError(
                Status.NO_SPACE,
                f"chunk {chunk_id_of_key(key)}: {free} bytes free on the disk, {kept} are kept",
            )

    def _reserve(
        self, key: ChunkKey, position: Position, reservation: Reservation, kept: int
    ) -> None:
        """Claim space for a run of blocks, near the end for one."""
        one = capacity_of(position)
        self._check(key, one, kept)
        if self._files.free_bytes() - one * reservation.block_count >= kept:
            file_id, start = place_of(reservation.first)
            self._files.reserve(file_id, start, one * reservation.block_count)
            return
        with self._books.lock:
            self._books.ledger.allocator.unreserve(reservation)
        file_id, start = place_of(position)
        self._files.reserve(file_id, start, one)
        with self._books.lock:
            self._books.ledger.allocator.note_reserved(position)

    def _reclaim(self, wanted: int) -> bool:
        """Give back space of free blocks; False when there was none.

        Nobody gets the blocks meanwhile.
        """
        with self._books as ledger:
            positions = ledger.allocator.take_reserved(max(wanted, RECLAIM_BYTES))
        self.punch_blocks(positions)
        return bool(positions)

    def punch_blocks(self, positions: Sequence[Position]) -> None:
        """Give back the space of blocks that the allocator has set aside for it;
        they are free then.
        """
        try:
            for first, count in runs_of(positions):
                file_id, start = place_of(first)
                punch_quietly(self._files, file_id, start, count * capacity_of(first))
        finally:
            with self._books.lock:
                for position in positions:
                    self._books.ledger.abandon(position)

    def _take_back(self, position: Position, reservation: Reservation) -> bool:
        """Undo an allocation whose space was refused; return whether blocks are quarantined."""
        with self._books.lock:
            self._books.ledger.allocator.unreserve(reservation)
            self._books.ledger.abandon(position)
            return bool(self._books.ledger.epoch.quarantine)
