import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fs.chunkengine.allocator import Allocator
from fs.chunkengine.format import GroupId, Position, group_of_position

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["allocate", "allocate", "free", "retire", "move", "trim"]),
        st.integers(0, 10**6),
    ),
    max_size=700,
)


class Books:
    """The allocator beside a set of used blocks and the stored bitmaps."""

    def __init__(self) -> None:
        self.allocator = Allocator()
        self.used: set[Position] = set()
        self.stored: dict[GroupId, bytes] = {}
        self.reserved: set[int] = set()

    def allocate(self, size_class: int) -> None:
        position, reservation = self.allocator.allocate(size_class)
        if reservation is not None:
            self.reserved |= set(
                range(reservation.first, reservation.first + reservation.block_count)
            )
        assert position not in self.used
        assert position in self.reserved
        self.used.add(position)
        self.store(position, is_used=True)

    def free(self, pick: int) -> None:
        if self.used:
            position = sorted(self.used)[pick % len(self.used)]
            self.used.remove(position)
            self.store(position, is_used=False)
            self.allocator.release(position)

    def store(self, position: Position, *, is_used: bool) -> None:
        group, bitmap = self.allocator.persist(position, is_used=is_used)
        self.stored[group] = bitmap

    def retire(self, size_class: int) -> None:
        numbers = self.allocator.classes[size_class].take_empty(1 << 40)
        gone = {
            p for p in self.reserved if p >> 40 == size_class and p >> 8 & 0xFFFFFFFF in numbers
        }
        assert not gone & self.used
        self.reserved -= gone
        self.allocator.classes[size_class].finish_retire(numbers)

    def move(self, pick: int) -> None:
        """Allocate as a compaction does: in no new, empty or avoided group."""
        groups = self.allocator.classes[0].groups
        avoid = {n for n in groups if pick >> n & 1}
        found = self.allocator.classes[0].allocate_elsewhere(avoid)
        room = {
            n
            for n, g in groups.items()
            if g.persisted and g.busy.bit_count() < 256 and n not in avoid
        }
        assert (found is None) == (not room)
        if found is not None:
            position, reservation = found
            assert group_of_position(position) in room
            assert position not in self.used
            if reservation is not None:
                first = reservation.first
                self.reserved |= set(range(first, first + reservation.block_count))
            assert position in self.reserved
            self.used.add(position)
            self.store(position, is_used=True)

    def trim(self, pick: int) -> None:
        """Give back the space of all free blocks but for some."""
        kept = (pick % 4) * 64 * self.allocator.classes[0].block_bytes
        taken = self.allocator.take_surplus(kept, 0)
        assert not set(taken) & self.used
        assert self.allocator.reusable_bytes() <= kept
        self.reserved -= set(taken)
        for position in taken:
            self.allocator.release(position)
        assert self.allocator.reusable_bytes() <= kept

    def bits(self, allocator: Allocator) -> set[int]:
        return {
            c.size_class << 40 | number << 8 | b
            for c in allocator.classes
            for number, group in c.groups.items()
            for b in range(256)
            if group.busy >> b & 1
        }


def check_counts(allocator: Allocator) -> None:
    """Compare what is counted with each change to what all groups sum to."""
    for blocks in allocator.classes:
        groups, size = list(blocks.groups.values()), blocks.block_bytes
        assert blocks.used_bytes() == size * sum(g.busy.bit_count() for g in groups)
        assert blocks.reserved_bytes() == size * sum(g.reserved.bit_count() for g in groups)
        reusable = sum((g.reserved & ~g.busy).bit_count() for g in groups)
        assert blocks.reusable_bytes() == size * reusable


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_blocks_are_handed_out_once_and_reload_equals_live(steps) -> None:
    books = Books()
    for kind, pick in steps:
        if kind == "free":
            books.free(pick)
        elif kind == "move":
            books.move(pick)
        elif kind == "trim":
            books.trim(pick)
        elif kind == "retire":
            books.retire(pick % 2 * 4)
        else:
            books.allocate(pick % 2 * 4)
    assert books.bits(books.allocator) == books.used
    check_counts(books.allocator)
    again = Allocator()
    for group, bitmap in books.stored.items():
        again.load(group, bitmap)
    assert books.bits(again) == books.used
    check_counts(again)
    assert again.used_bytes() == books.allocator.used_bytes()


def test_the_fullest_group_is_used_first() -> None:
    allocator = Allocator()
    positions = [allocator.allocate(0)[0] for _ in range(600)]
    for position in positions[:200] + positions[256:300]:
        allocator.release(position)
    # group 0 holds 56, group 1 holds 212, group 2 holds 88
    assert group_of_position(allocator.allocate(0)[0]) == 1
    for _ in range(43):
        assert group_of_position(allocator.allocate(0)[0]) == 1
    assert group_of_position(allocator.allocate(0)[0]) == 2


def test_a_group_being_given_back_is_not_made_again() -> None:
    allocator = Allocator()
    positions = [allocator.allocate(0)[0] for _ in range(512)]
    for position in positions:
        allocator.release(position)
    size_class = allocator.classes[0]
    assert size_class.take_empty(0) == []
    gone = size_class.take_empty(1)
    assert len(gone) == 1
    numbers = {group_of_position(allocator.allocate(0)[0]) for _ in range(300)}
    assert not numbers & set(gone)
    size_class.finish_retire(gone)
    assert set(gone) & {group_of_position(allocator.allocate(0)[0]) for _ in range(300)}


def test_space_is_reserved_once_in_steps() -> None:
    allocator = Allocator()
    runs = [allocator.allocate(4)[1] for _ in range(40)]
    assert [r.block_count for r in runs if r] == [16, 16, 16]
    assert [i for i, r in enumerate(runs) if r] == [0, 16, 32]
    assert allocator.allocate(10)[1].block_count == 1
    assert allocator.reserved_bytes() == (48 << 20) + (64 << 20)
    assert allocator.reusable_bytes() == 8 << 20


def test_misuse_is_caught() -> None:
    allocator = Allocator()
    position, _ = allocator.allocate(0)
    allocator.release(position)
    with pytest.raises(AssertionError):
        allocator.release(position)
    with pytest.raises(AssertionError):
        allocator.persist(position, is_used=True)


def test_idle_runs_are_all_that_is_not_busy():
    allocator = Allocator()
    taken = [allocator.allocate(0)[0] for _ in range(8)]
    for index in (1, 2, 5):
        allocator.release(taken[index])
    first = taken[0]
    assert allocator.classes[0].idle_runs(group_of_position(first)) == [
        (Position(first + 1), 2),
        (Position(first + 5), 1),
        (Position(first + 8), 256 - 8),
    ]


def test_what_is_asked_with_each_removal_walks_no_groups(monkeypatch) -> None:
    """A disk of chunks of 64 KiB has a group for each 16 MiB,
    and whoever asks holds the lock of its books.
    """
    allocator = Allocator()
    positions = [allocator.allocate(0)[0] for _ in range(600)]
    for position in positions[:300]:
        allocator.release(position)
    check_counts(allocator)
    expected = allocator.reusable_bytes(), allocator.used_bytes(), allocator.reserved_bytes()
    for blocks in allocator.classes:
        monkeypatch.setattr(blocks, "groups", None)
    found = allocator.reusable_bytes(), allocator.used_bytes(), allocator.reserved_bytes()
    assert found == expected
