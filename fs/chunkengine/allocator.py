"""Block allocator: which blocks of the data files are in use.  Pure: no I/O, no clock.

Two bitmaps per group: `persisted` is what the metadata store holds (or is about to, in the
batch being built), `busy` adds blocks that a record no longer names but that may not be
reused yet (a reader holds them, or the batch that freed them is not durable) and blocks
handed out but not yet recorded.

Invariants:
    - persisted is a subset of busy; `allocate` hands out only blocks that are not busy.
    - Blocks whose space has been claimed go before all others; new space is
      claimed only when there are none.
    - Of these and of those, the fullest group is used first, so that others
      run empty and can be returned.
    - What sums over all groups is counted with each change: nobody
      walks them for it under the lock.
    - A group's blocks are handed out lowest first; space is reserved in
      steps of `reserve_step` blocks.
    - Where memory is short in the middle of a change of a group, `Allocator.is_torn` says so for
      good: it may be found where it is not.
    - Where memory is short in the middle of a change of a group, `is_torn` says so for good: what
      is counted, or which group is found, may be wrong from then on.

Concurrency: the caller holds the engine's lock.  Source: 3FS design notes, "Chunk engine".
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from .compaction_plan import GroupUse
from .format import (
    BLOCKS_PER_GROUP,
    SIZE_CLASS_COUNT,
    GroupId,
    Position,
    block_bytes,
    block_of_position,
    group_id,
    group_of_position,
    make_position,
    size_class_of_position,
    split_group_id,
)

RESERVE_BYTES: Final = 16 << 20
"""Space is claimed in runs of about this much:
a whole group of the smallest blocks, one of the largest.
"""

GROUP_BYTES: Final = BLOCKS_PER_GROUP // 8


@dataclass(slots=True)
class Group:
    """256 blocks of one size, neighbours in one data file."""

    number: int
    persisted: int = 0
    busy: int = 0
    reserved: int = 0
    """Blocks whose space has been claimed from the file system."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Neighbouring blocks whose space must be claimed before the first of them is written."""

    first: Position
    block_count: int


class _Levels:
    """Numbers of groups by how many of their blocks are busy."""

    def __init__(self) -> None:
        self._numbers: defaultdict[int, dict[int, None]] = defaultdict(dict)
        self._open = 0
        """Bit n: some group has n busy blocks, n < 256."""

    def enter(self, level: int, number: int) -> None:
        """Put a group where it belongs."""
        self._numbers[level][number] = None
        if level < BLOCKS_PER_GROUP:
            self._open |= 1 << level

    def drop(self, level: int, number: int) -> None:
        """Take a group out; nothing happens if it is not there."""
        self._numbers[level].pop(number, None)
        if not self._numbers[level] and level < BLOCKS_PER_GROUP:
            self._open &= ~(1 << level)

    def fullest(self) -> int | None:
        """Return the fullest group that is not full, None if there is none."""
        return next(iter(self._numbers[self._open.bit_length() - 1])) if self._open else None

    def fullest_first(self) -> Iterator[int]:
        """Yield all groups that are neither full nor empty."""
        for level in range(BLOCKS_PER_GROUP - 1, 0, -1):
            if self._open >> level & 1:
                yield from self._numbers[level]

    def empty(self) -> list[int]:
        """Return the groups without a busy block."""
        return list(self._numbers[0])


class SizeClass:
    """The groups of one block size."""

    def __init__(self, size_class: int, whole: "Allocator") -> None:
        self.size_class = size_class
        self._whole = whole
        self.is_torn = False
        self.block_bytes = block_bytes(size_class)
        self.blocks_per_group = BLOCKS_PER_GROUP
        self.reserve_step = min(BLOCKS_PER_GROUP, max(1, RESERVE_BYTES // self.block_bytes))
        self.groups: dict[int, Group] = {}
        self._levels = _Levels()
        self._at_hand = _Levels()
        """Those that have a free block whose space has been claimed."""
        self._retiring: set[int] = set()
        """Numbers of groups whose space is just being given back:
        not to be made again meanwhile.
        """
        self._lowest_unused = 0
        self._busy_count = self._reserved_count = self._reusable_count = 0
        """Of blocks of all groups: busy; claimed; claimed and not busy."""

    def load(self, number: int, bits: int) -> None:
        """Take over a stored bitmap."""
        assert number not in self.groups, number
        self._add(Group(number, bits, bits, bits))

    def allocate(self) -> tuple[Position, Reservation | None]:
        """Hand out a block, and say what space to claim first, if any."""
        found = self._at_hand.fullest()
        return self._allocate_in(self._fullest() if found is None else self.groups[found])

    def next_claimed(self) -> Position | None:
        """Return the block that `allocate` would hand out,
        if its space has been claimed already.
        """
        number = self._at_hand.fullest()
        if number is None:
            return None
        return make_position(self.size_class, number, _next_block(self.groups[number]))

    def allocate_elsewhere(
        self, avoid: Collection[int]
    ) -> tuple[Position, Reservation | None] | None:
        """Do the same in a group that holds something and is not one of `avoid`;
        None if there is no room.
        """
        for levels in (self._at_hand, self._levels):
            for number in levels.fullest_first():
                if number not in avoid and self.groups[number].persisted:
                    return self._allocate_in(self.groups[number])
        return None

    def uses(self) -> list[GroupUse]:
        """Return how full the groups are."""
        return [
            GroupUse(g.number, g.persisted.bit_count(), g.busy.bit_count())
            for g in self.groups.values()
        ]

    def _allocate_in(self, group: Group) -> tuple[Position, Reservation | None]:
        block, reserved = _next_block(group), group.reserved
        reservation = None
        if not reserved >> block & 1:
            first = block - block % self.reserve_step
            reservation = Reservation(
                make_position(self.size_class, group.number, first), self.reserve_step
            )
            reserved |= self._run_mask(first)
        self._set(group, group.busy | 1 << block, reserved)
        return make_position(self.size_class, group.number, block), reservation

    def unreserve(self, reservation: Reservation) -> None:
        """Take back a reservation that the file system refused."""
        group = self.groups[group_of_position(reservation.first)]
        refused = self._run_mask(block_of_position(reservation.first)) & ~group.persisted
        self._set(group, group.busy, group.reserved & ~refused)

    def note_reserved(self, position: Position) -> None:
        """Take note that the file system has granted space for one block."""
        group = self.groups[group_of_position(position)]
        self._set(group, group.busy, group.reserved | 1 << block_of_position(position))

    def take_reserved(self, bytes_max: int) -> list[Position]:
        """Make free blocks that hold space busy and spaceless;
        return them, about `bytes_max` in all.

        The emptiest groups give first.

        The caller gives their space back and then calls `release` for each.
        """
        taken: list[Position] = []
        for group in sorted(self.groups.values(), key=lambda g: g.busy.bit_count()):
            idle = group.reserved & ~group.busy
            while idle and len(taken) * self.block_bytes < bytes_max:
                bit = idle & -idle
                idle ^= bit
                self._set(group, group.busy | bit, group.reserved ^ bit)
                taken.append(make_position(self.size_class, group.number, bit.bit_length() - 1))
        return taken

    def reusable_bytes(self) -> int:
        """Return the bytes of reserved blocks that are not busy."""
        return self._reusable_count * self.block_bytes

    def used_bytes(self) -> int:
        """Return the bytes of busy blocks."""
        return self._busy_count * self.block_bytes

    def reserved_bytes(self) -> int:
        """Return the bytes of blocks whose space has been claimed."""
        return self._reserved_count * self.block_bytes

    def release(self, position: Position) -> bool:
        """Make a block that no record names available again; return True if its group ran empty."""
        group = self.groups[group_of_position(position)]
        bit = 1 << block_of_position(position)
        assert group.busy & bit and not group.persisted & bit, position
        self._set(group, group.busy & ~bit, group.reserved)
        return group.busy == 0

    def idle_runs(self, number: int) -> list[tuple[Position, int]]:
        """Return the runs of neighbouring blocks of a group that are not busy: first one, count."""
        idle = ~self.groups[number].busy & (1 << BLOCKS_PER_GROUP) - 1
        runs = []
        while idle:
            first = (idle & -idle).bit_length() - 1
            count = (~(idle >> first) & (idle >> first) + 1).bit_length() - 1
            idle &= ~((1 << count) - 1 << first)
            runs.append((make_position(self.size_class, number, first), count))
        return runs

    def disclaim_idle(self) -> None:
        """Take note that no block that is not busy holds space."""
        for group in self.groups.values():
            self._set(group, group.busy, group.reserved & group.busy)

    def take_empty(self, bytes_max: int) -> list[int]:
        """Remove and return empty groups that hold space, until they hold `bytes_max`;
        but one is kept at hand.

        The caller gives their space back and then calls `finish_retire`.
        """
        taken: list[int] = []
        for number in [n for n in self._levels.empty() if self.groups[n].reserved][1:]:
            if bytes_max <= 0:
                break
            bytes_max -= self.groups[number].reserved.bit_count() * self.block_bytes
            taken.append(number)
        self._retiring.update(taken)
        try:
            for number in taken:
                self._levels.drop(0, number)
                self._at_hand.drop(0, number)
                self._count(self.groups.pop(number), -1)
        except MemoryError:
            self._whole.is_torn = True
            raise
        return taken

    def finish_retire(self, numbers: list[int]) -> None:
        """Allow the numbers to be used again."""
        self._retiring.difference_update(numbers)
        self._lowest_unused = min(self._lowest_unused, min(numbers, default=self._lowest_unused))

    def _run_mask(self, first: int) -> int:
        return (1 << self.reserve_step) - 1 << first

    def _fullest(self) -> Group:
        found = self._levels.fullest()
        if found is not None:
            return self.groups[found]
        number = self._lowest_unused
        while number in self.groups or number in self._retiring:
            number += 1
        self._lowest_unused = number
        group = Group(number)
        self._add(group)
        return group

    def _add(self, group: Group) -> None:
        self.groups[group.number] = group
        self._count(group, 1)
        self._set(group, group.busy, group.reserved)

    def _count(self, group: Group, sign: int) -> None:
        """Count the blocks of a group in (1) or out (-1)."""
        self._busy_count += sign * group.busy.bit_count()
        self._reserved_count += sign * group.reserved.bit_count()
        self._reusable_count += sign * (group.reserved & ~group.busy).bit_count()

    def _set(self, group: Group, busy: int, reserved: int) -> None:
        """Change what is busy and what is claimed of a group."""
        number, level = group.number, group.busy.bit_count()
        try:
            self._levels.drop(level, number)
            self._at_hand.drop(level, number)
            self._count(group, -1)
            group.busy, group.reserved = busy, reserved
            self._count(group, 1)
            level = busy.bit_count()
            self._levels.enter(level, number)
            if reserved & ~busy:
                self._at_hand.enter(level, number)
        except MemoryError:
            self._whole.is_torn = True
            raise


class Allocator:
    """All size classes of one disk."""

    def __init__(self) -> None:
        self.is_torn = False
        """Memory was short in the middle of a change: what is here is not to be used any more."""
        self.classes = [SizeClass(index, self) for index in range(SIZE_CLASS_COUNT)]

    def load(self, stored: GroupId, bitmap: bytes) -> None:
        """Take over a stored bitmap."""
        size_class, number = split_group_id(stored)
        self.classes[size_class].load(number, int.from_bytes(bitmap, "little"))

    def allocate(self, size_class: int) -> tuple[Position, Reservation | None]:
        """Hand out a block of a size class; see `SizeClass.allocate`."""
        return self.classes[size_class].allocate()

    def unreserve(self, reservation: Reservation) -> None:
        """Take back a reservation that the file system refused."""
        self.classes[size_class_of_position(reservation.first)].unreserve(reservation)

    def note_reserved(self, position: Position) -> None:
        """See `SizeClass.note_reserved`."""
        self.classes[size_class_of_position(position)].note_reserved(position)

    def take_reserved(self, bytes_max: int) -> list[Position]:
        """Take free blocks that hold space, the largest first; see `SizeClass.take_reserved`."""
        taken: list[Position] = []
        for size_class in reversed(self.classes):
            if bytes_max > 0:
                found = size_class.take_reserved(bytes_max)
                bytes_max -= len(found) * size_class.block_bytes
                taken += found
        return taken

    def take_surplus(self, kept_bytes: int, each_bytes: int) -> list[Position]:
        """Do the same with all but about `kept_bytes`, and `each_bytes` of each size;
        who holds most gives first.
        """
        held = {blocks: blocks.reusable_bytes() for blocks in self.classes}
        surplus = sum(held.values()) - kept_bytes
        taken: list[Position] = []
        for blocks in sorted(held, key=lambda b: -held[b]):
            bytes_max = min(surplus, held[blocks] - each_bytes)
            if bytes_max > 0:
                found = blocks.take_reserved(bytes_max)
                surplus -= len(found) * blocks.block_bytes
                taken += found
        return taken

    def release(self, position: Position) -> bool:
        """Make a block available again; return True if its group ran empty."""
        return self.classes[size_class_of_position(position)].release(position)

    def persist(self, position: Position, *, is_used: bool) -> tuple[GroupId, bytes]:
        """Set or clear the persisted bit; return the group's bitmap to store in the same batch."""
        size_class = size_class_of_position(position)
        group = self.classes[size_class].groups[group_of_position(position)]
        bit = 1 << block_of_position(position)
        assert bool(group.persisted & bit) != is_used and group.busy & bit, (position, is_used)
        group.persisted ^= bit
        return group_id(size_class, group.number), group.persisted.to_bytes(GROUP_BYTES, "little")

    def claim(self, position: Position) -> None:
        """Mark a free block busy (recovery: an older version comes back)."""
        size_class = self.classes[size_class_of_position(position)]
        number = group_of_position(position)
        if number not in size_class.groups:
            size_class.load(number, 0)
        group = size_class.groups[number]
        bit = 1 << block_of_position(position)
        assert not group.busy & bit, position
        size_class._set(group, group.busy | bit, group.reserved | bit)  # noqa: SLF001 - one unit of two classes

    def is_used(self, position: Position) -> bool:
        """Return whether a record names the block."""
        groups = self.classes[size_class_of_position(position)].groups
        group = groups.get(group_of_position(position))
        return group is not None and bool(group.persisted >> block_of_position(position) & 1)

    def used_bytes(self) -> int:
        """Return the bytes of busy blocks."""
        return sum(c.used_bytes() for c in self.classes)

    def reusable_bytes(self) -> int:
        """Return the bytes of reserved blocks that are not busy."""
        return sum(c.reusable_bytes() for c in self.classes)

    def reserved_bytes(self) -> int:
        """Return the bytes of blocks whose space has been claimed."""
        return sum(c.reserved_bytes() for c in self.classes)


def _next_block(group: Group) -> int:
    """Return the lowest free block, of those whose space has been claimed if there are any."""
    idle = group.reserved & ~group.busy or ~group.busy
    return (idle & -idle).bit_length() - 1


def runs_of(positions: Iterable[Position]) -> Iterator[tuple[Position, int]]:
    """Yield neighbouring blocks of one group as (first, count)."""
    first, count = Position(0), 0
    for position in sorted(positions):
        if count and position == first + count and block_of_position(position):
            count += 1
            continue
        if count:
            yield first, count
        first, count = position, 1
    if count:
        yield first, count
