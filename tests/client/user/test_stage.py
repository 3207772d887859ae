"""What goes through the stage of a lane: pieces lie beside each other,
and one part is filled while another is moved.
"""

import errno
import random
from types import SimpleNamespace

import pytest
from emberfs.batch import Transfer
from emberfs.lanes import STAGE_BYTES, STAGED_TOGETHER_BYTES, Lane, Lanes, Room
from emberfs.plan import Plan
from emberfs.protocol import EntryFlag, Op

SIZE = 2 * STAGE_BYTES + 12_345


def test_pieces_never_lie_on_each_other_and_room_comes_back():
    rng = random.Random(4)
    for size in (1, 7, 64):
        room, taken = Room(size), {}
        for _ in range(3000):
            count = rng.randint(1, size)
            start = room.take(count)
            if start is not None:
                assert 0 <= start <= start + count <= size
                assert all(start + count <= at or at + more <= start for at, more in taken.items())
                taken[start] = count
            elif not taken:
                raise AssertionError(f"no room for {count} of {size} free bytes")
            while taken and rng.random() < 0.5:
                one = rng.choice(list(taken))
                del taken[one]
                room.give_back(one)
        for one in list(taken):
            room.give_back(one)
        assert room.take(size) == 0
        assert Room(size).take(size + 1) is None


class Rings:
    """Rings that are one, which keeps what is handed in, and memory that is one stage."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(STAGE_BYTES))
        self.id, self.entry_count, self.outstanding = 9, 1024, 0
        self.parts, self.submits = [], 0

    def new(self, _):
        return self

    def allocate(self, size):
        assert size == STAGE_BYTES
        return self

    @property
    def free_count(self):
        return self.entry_count - self.outstanding

    def put_columns(self, columns):
        indexes, offsets, places, lengths, *_ = columns
        self.outstanding += len(indexes)
        self.parts.append(list(zip(indexes, offsets, places, lengths, strict=True)))

    def submit(self):
        self.submits += 1


def plan_of(op, buffer) -> Plan:
    file = SimpleNamespace(id=1, path="f")
    return Plan(op, [Transfer(file, 100, buffer)], [buffer], [None], EntryFlag(0))


def move(op, buffer, content: bytearray) -> list[int]:
    """Do a plan against a file, a part at a time, in any order; return the bytes of each part."""
    rng, rings = random.Random(8), Rings()
    lane, plan = Lane(rings, rings), plan_of(op, buffer)
    sizes, under_way = [], []
    while plan.waiting or rings.outstanding:
        lane.start(plan)
        under_way += [part for part in rings.parts if part]
        sizes += [sum(length for *_, length in part) for part in rings.parts if part]
        rings.parts.clear()
        part = under_way.pop(rng.randrange(len(under_way)))
        for _, offset, place, length in part:
            if op is Op.WRITE:
                content[offset : offset + length] = rings.view[place : place + length]
            else:
                rings.view[place : place + length] = content[offset : offset + length]
        rings.outstanding -= len(part)
        lane.note(plan, [(index, length) for index, _, _, length in part])
    assert plan.counts() == [len(buffer)]
    return sizes


def test_what_is_staged_is_moved_a_part_at_a_time():
    data = memoryview((bytes(range(251)) * (SIZE // 251 + 1))[:SIZE])
    content = bytearray(SIZE + 100)
    sizes = move(Op.WRITE, data, content)
    assert content[100:] == data
    assert max(sizes) <= STAGED_TOGETHER_BYTES
    target = bytearray(SIZE)
    assert len(move(Op.READ, memoryview(target), content)) > SIZE // (2 * STAGED_TOGETHER_BYTES)
    assert target == data


def test_two_parts_are_under_way_at_first():
    rings = Rings()
    Lane(rings, rings).start(plan_of(Op.WRITE, memoryview(bytes(SIZE))))
    assert rings.submits == 2
    assert sum(length for part in rings.parts for *_, length in part) > STAGE_BYTES // 2


def test_parts_that_end_together_are_handed_in_again_one_before_the_other_is_emptied():
    rings, target = Rings(), bytearray(SIZE)
    rings.view[:] = bytes([1]) * STAGE_BYTES
    lane, plan = Lane(rings, rings), plan_of(Op.READ, memoryview(target))
    lane.start(plan)
    ended = [piece for part in rings.parts for piece in part]
    rings.parts.clear()
    rings.outstanding, emptied_bytes = 0, []
    submit = rings.submit

    def submit_and_look():
        submit()
        emptied_bytes.append(target.count(1))

    rings.submit = submit_and_look
    lane.note(plan, [(index, length) for index, _, _, length in ended])
    lane.start(plan)
    assert 0 < emptied_bytes[0] <= STAGED_TOGETHER_BYTES < emptied_bytes[-1] == target.count(1)
    taken = [(place, length) for part in rings.parts for _, _, place, length in part]
    assert len(taken) == len(set(taken)) and sum(length for _, length in taken) <= STAGE_BYTES


class Refusing(Rings):
    """A daemon that takes no more memory of this program."""

    is_dropped = False

    @property
    def connection(self):
        return self

    def region_id(self, _):
        raise OSError(errno.ENOSPC, "so many memories are shared already")

    def close(self):
        self.is_dropped = True


def test_a_lane_whose_call_failed_with_bytes_on_its_stage_is_not_taken_again():
    """What nobody will end would have the stage for ever,
    and a later call wait for room for ever.
    """
    rings = Refusing()
    rings.daemon = SimpleNamespace(is_closed=False, connection=lambda: rings)
    lanes = Lanes(rings, rings)
    staged, shared = memoryview(bytearray(10)), memoryview(bytearray(10))
    file, region = SimpleNamespace(id=1, path="f"), SimpleNamespace(block_size=0)
    transfers = [Transfer(file, 0, staged), Transfer(file, 100, shared)]
    lane = lanes.take()
    with pytest.raises(OSError, match="so many"):
        lane.start(Plan(Op.WRITE, transfers, [staged, shared], [None, (region, 0)], EntryFlag(0)))
    assert not rings.outstanding
    lanes.give_back(lane)
    assert lanes.take() is not lane
    assert rings.is_dropped
