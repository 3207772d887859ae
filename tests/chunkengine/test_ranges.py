import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fs.chunkengine.api import ChunkWrite, CommitsAtOnce
from fs.chunkengine.checksum import packed_checksums
from fs.chunkengine.engine import DiskEngine
from fs.chunkengine.factory import memory_engine
from fs.chunkengine.ranges import RANGE_COUNT_MAX, Range, fault_of, plan_ranges, ranged_content
from fs.chunkengine.simulated_disk import SimulatedDisk
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status
from tests.examples import many

from .workload import ranges_within

BLOCK = 64
SIZE = 1 << 16
A = TargetId(1), ChunkId(InodeId(7), 0)


def content(length: int, seed: int) -> bytes:
    return bytes((seed + 7 * i) % 251 for i in range(length))


def overlaid(old: bytes, ranges: Sequence[Range], data: bytes) -> bytes:
    made, at = bytearray(old), 0
    for offset, length in ranges:
        made.extend(bytes(max(0, offset + length - len(made))))
        made[offset : offset + length] = data[at : at + length]
        at += length
    return bytes(made)


@st.composite
def ranges_of(draw) -> list[Range]:
    steps = st.tuples(st.one_of(st.just(0), st.integers(0, 200)), st.integers(1, 150))
    ranges, end = [], 0
    for gap, length in draw(st.lists(steps, min_size=1, max_size=12)):
        ranges.append((end + gap, length))
        end += gap + length
    return ranges


@settings(max_examples=many(500), deadline=None)
@given(st.integers(0, 900), ranges_of())
def test_ranges_make_the_same_content_and_checksums_as_a_whole_write(
    old_length: int, ranges: list[Range]
) -> None:
    old = content(old_length, 1)
    data = content(sum(length for _, length in ranges), 90)
    expected = overlaid(old, ranges, data)
    plan = plan_ranges(old_length, ranges, BLOCK)
    parts, checksums = ranged_content(
        plan,
        ranges,
        old_checksums=packed_checksums([old], BLOCK),
        old=memoryview(bytearray(old)),
        data=data,
    )
    assert b"".join(parts) == expected
    assert plan.new_length == len(expected)
    assert checksums == packed_checksums([expected], BLOCK)


def test_checksums_of_blocks_that_no_range_touches_are_kept_as_they_are() -> None:
    old = content(10 * BLOCK, 1)
    plan = plan_ranges(len(old), [(0, 1), (5 * BLOCK, BLOCK)], BLOCK)
    kept = bytes(range(80))  # not those of the content: it would be seen if they were made anew
    _, checksums = ranged_content(
        plan,
        [(0, 1), (5 * BLOCK, BLOCK)],
        old_checksums=kept,
        old=memoryview(bytearray(old)),
        data=bytes(1 + BLOCK),
    )
    assert checksums[8:40] == kept[8:40] and checksums[48:] == kept[48:]
    assert checksums[:8] != kept[:8] and checksums[40:48] != kept[40:48]


@pytest.mark.parametrize(
    ("ranges", "byte_count"),
    [
        ([], 0),
        ([(0, 10), (5, 10)], 20),
        ([(20, 10), (0, 10)], 20),
        ([(0, 10), (20, 0)], 10),
        ([(-1, 10)], 10),
        ([(0, 10), (20, 10)], 21),
        ([(0, 10), (SIZE - 9, 10)], 20),
        ([(2 * i, 1) for i in range(RANGE_COUNT_MAX + 1)], RANGE_COUNT_MAX + 1),
    ],
)
def test_ranges_that_are_none_are_refused_with_nothing_done(
    ranges: list[Range], byte_count: int
) -> None:
    assert fault_of(ranges, byte_count, SIZE)
    engine = engine_on(SimulatedDisk())
    if ranges:
        with pytest.raises(FsError) as caught:
            put(engine, 1, ranges, bytes(byte_count))
        assert caught.value.status is Status.INVALID_ARGUMENT
        assert engine.get(*A) is None


def engine_on(disk: SimulatedDisk, **settings: int) -> DiskEngine:
    section = StorageSection(checksum_block_bytes=4096, **settings)
    return memory_engine(disk, cluster_id="c", node_id=1, section=section)


def put(engine: DiskEngine, version: int, ranges: Sequence[Range], data: bytes) -> None:
    engine.prepare_write(
        *A,
        version=version,
        chunk_size_bytes=SIZE,
        offset=ranges[0][0],
        data=data,
        ranges=ranges,
        commits=CommitsAtOnce(1, lambda _: None),
    )


def test_ranges_of_chunks_old_and_new_are_one_version_each() -> None:
    engine = engine_on(SimulatedDisk())
    first, second = [(100, 50), (9000, 3000)], [(0, 4096), (8192, 4096), (20_000, 1)]
    data = content(3050, 5), content(8193, 6)
    put(engine, 1, first, data[0])
    made = overlaid(b"", first, data[0])
    assert engine.read_whole(*A) == made
    put(engine, 2, second, data[1])
    assert engine.read_whole(*A) == overlaid(made, second, data[1])
    state = engine.get(*A)
    assert state is not None and (state.commit_ver, state.length) == (2, 20_001)
    engine.close()


def test_a_group_may_hold_a_write_of_ranges() -> None:
    engine = engine_on(SimulatedDisk())
    ranges = [(10, 5), (30, 5)]
    other = ChunkId(InodeId(7), 1)
    engine.prepare_writes(
        A[0],
        [
            ChunkWrite(A[1], 1, SIZE, 10, b"abcdefghij", ranges=ranges),
            ChunkWrite(other, 1, SIZE, 0, b"plain"),
        ],
        commits=CommitsAtOnce(1, lambda _: None),
    )
    assert engine.read_whole(*A) == overlaid(b"", ranges, b"abcdefghij")
    assert engine.read_whole(A[0], other) == b"plain"


def test_a_damaged_version_gives_nothing_to_what_is_between_ranges() -> None:
    engine = engine_on(SimulatedDisk())
    put(engine, 1, [(0, 100)], bytes(100))
    assert engine.mark_damaged(*A)
    for ranges in ([(0, 10), (20, 80)], [(1, 99), (200, 1)]):
        with pytest.raises(FsError) as caught:
            put(engine, 2, ranges, bytes(sum(length for _, length in ranges)))
        assert caught.value.status is Status.CHECKSUM_MISMATCH
    put(engine, 2, [(0, 100), (200, 1)], b"x" * 101)  # covers all that was there
    assert engine.read_whole(*A) == b"x" * 100 + bytes(100) + b"x"


def test_a_disk_without_room_keeps_the_old_version() -> None:
    disk = SimulatedDisk()
    engine = engine_on(disk)
    put(engine, 1, [(0, 100)], bytes(100))
    disk.capacity_bytes = 0
    fill = iter(range(2, 10_000))
    with pytest.raises(FsError) as caught:
        any(put(engine, version, [(0, 10), (60_000, 10)], bytes(20)) for version in fill)
    assert caught.value.status is Status.NO_SPACE
    state = engine.get(*A)
    assert state is not None
    assert len(engine.read_whole(*A)) == state.length


def test_the_workloads_ranges_are_sound() -> None:
    rng = random.Random(4)
    for _ in range(200):
        ranges = ranges_within(rng, SIZE)
        assert not fault_of(ranges, sum(length for _, length in ranges), SIZE)
