"""Large writes: neighbours go together."""

import errno
import itertools
import mmap
import random

import pytest
from emberfs.batch import Transfer
from emberfs.memory import Region
from emberfs.plan import JOINED_BYTES_MAX, STAGED_BYTES_MAX, Plan
from emberfs.protocol import EntryFlag, Op
from emberfs.ring import RingClient

from tests.client.user.serving import NEEDS_MOUNT

KIB = 1 << 10
MIB = 1 << 20


class File:
    path = "some file"


def planned(op, pieces, *, is_shared=True, block_size=0):
    """Return the plan of (file, offset in it, offset in memory, length)."""
    end = max(place + length for *_, place, length in pieces)
    memory = mmap.mmap(-1, end)
    region = Region(memory, -1, block_size)
    view = memoryview(memory)
    transfers = [
        Transfer(file, offset, view[place : place + length])
        for file, offset, place, length in pieces
    ]
    places = [(region, place) if is_shared else None for _, _, place, _ in pieces]
    return Plan(op, transfers, [t.buffer for t in transfers], places, EntryFlag(0))


def ranges(plan):
    return [
        (plan.transfers[piece.transfer].offset + piece.start, piece.region_offset, piece.length)
        for piece in plan.pieces
    ]


def test_writes_that_follow_each_other_are_one_entry():
    one, other = File(), File()
    row = [(one, at * MIB, at * MIB, MIB) for at in range(40)]
    whole = [(at, at, JOINED_BYTES_MAX) for at in (0, JOINED_BYTES_MAX)]
    rest = (2 * JOINED_BYTES_MAX, 2 * JOINED_BYTES_MAX, 8 * MIB)
    assert ranges(planned(Op.WRITE, row)) == [*whole, rest]
    assert len(planned(Op.READ, row).pieces) == 40
    assert len(planned(Op.WRITE, row, block_size=MIB).pieces) == 40
    for apart in (
        [(one, 0, 0, KIB), (other, KIB, KIB, KIB)],
        [(one, 0, 0, KIB), (one, KIB + 1, KIB, KIB)],
        [(one, 0, 0, KIB), (one, KIB, KIB + 1, KIB)],
        [(one, KIB, 0, KIB), (one, 0, KIB, KIB)],
    ):
        assert len(planned(Op.WRITE, apart).pieces) == 2


def test_what_failed_together_fails_for_itself():
    file = File()
    row = [(file, at * KIB, at * KIB, KIB) for at in range(3)]
    plan = planned(Op.WRITE, row)
    assert list(plan.waiting) == [0]
    plan.waiting.clear()
    plan.note([(0, KIB + 5)])
    assert list(plan.waiting) == [0]
    plan.waiting.clear()
    plan.note([(0, -errno.EIO)])
    alone = list(plan.waiting)
    assert [plan.pieces[index][:3] for index in alone] == [(0, 0, KIB), (1, 0, KIB), (2, 0, KIB)]
    plan.waiting.clear()
    plan.note([(alone[2], KIB), (alone[0], KIB), (alone[1], -errno.ENOSPC)])
    assert not plan.waiting
    with pytest.raises(OSError, match="some file") as failed:
        plan.counts()
    assert failed.value.errno == errno.ENOSPC
    fine = planned(Op.WRITE, row)
    fine.note([(0, -errno.EIO)])
    fine.note([(index, KIB) for index in (1, 2, 3)])
    assert fine.counts() == [KIB] * 3


def test_what_is_staged_is_cut_where_chunks_end():
    size = 2 * STAGED_BYTES_MAX
    plan = planned(Op.WRITE, [(File(), 100, 0, size)], is_shared=False)
    lengths = [piece.length for piece in plan.pieces]
    assert lengths == [STAGED_BYTES_MAX - 100, STAGED_BYTES_MAX, 100]


def mounted(test):
    for mark in NEEDS_MOUNT:
        test = mark(test)
    return test


@mounted
def test_every_byte_arrives_joined_or_not(mount_point):
    rng = random.Random(1)
    path = str(mount_point / "joined")
    content = rng.randbytes(3 * MIB + 77)
    with RingClient(mount_point) as client:
        iov = client.allocate(len(content))
        iov.view[:] = content
        cuts = sorted({0, len(content), *(rng.randrange(len(content)) for _ in range(50))})
        pieces = list(itertools.pairwise(cuts))
        for view, seed in ((iov.view, 1), (memoryview(bytearray(content)), 2)):
            with client.open(path, "w") as file:
                transfers = [Transfer(file, a, view[a:b]) for a, b in pieces]
                if seed == 2:
                    rng.shuffle(transfers)
                client.write(transfers)
            with open(path, "rb") as written:
                assert written.read() == content
