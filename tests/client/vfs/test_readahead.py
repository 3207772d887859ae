from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fs.client.vfs.readahead import (
    BLOCK_BYTES_MAX,
    SLACK_BYTES,
    START_BYTES,
    WINDOW_BYTES_MIN,
    Block,
    Readahead,
)

MIB = 1 << 20


def step(ahead, offset, end, length, *, room=1 << 30, window_max=8 * MIB):
    ahead.note_read(offset, end, window_max)
    ranges = ahead.ranges_to_fetch(length, room)
    for start, stop in ranges:
        ahead.add(Block(start, stop, None))
    return ranges


def test_window_grows_on_a_stream_and_is_bounded():
    ahead, windows = Readahead(), []
    for i in range(200):
        step(ahead, i * 131072, (i + 1) * 131072, 1 << 30, window_max=4 * MIB)
        windows.append(ahead.window_bytes)
    assert windows[0] == 0
    assert windows[1] == WINDOW_BYTES_MIN
    assert windows == sorted(windows)
    assert windows[-1] == 4 * MIB
    assert ahead.held_bytes <= 4 * MIB + 2 * SLACK_BYTES + MIB


def test_a_stream_fetches_the_next_large_block_while_others_are_under_way():
    ahead, fetched = Readahead(), []
    for i in range(128):
        fetched += step(ahead, i * MIB, (i + 1) * MIB, 1 << 30, window_max=16 * MIB)
        if i >= 32:
            assert ahead.blocks[-1].end - ahead.next_offset > 16 * MIB - BLOCK_BYTES_MAX
    steady = [stop - start for start, stop in fetched if start >= 32 * MIB]
    assert set(steady) == {BLOCK_BYTES_MAX}


def test_large_reads_are_not_fetched_in_part_ahead_of_themselves():
    ahead = Readahead()
    step(ahead, 0, MIB, 64 * MIB)
    step(ahead, MIB, 2 * MIB, 64 * MIB)
    assert ahead.covering(2 * MIB, 3 * MIB)


def test_who_begins_at_the_start_with_a_large_read_has_all_fetched_soon():
    ahead = Readahead()
    assert step(ahead, 0, MIB, 256 * MIB, window_max=24 * MIB) == [(0, 4 * MIB)]
    assert ahead.covering(0, MIB), "also what he waits for"
    found = [
        step(ahead, n * MIB, (n + 1) * MIB, 256 * MIB, window_max=24 * MIB) for n in range(1, 6)
    ]
    assert found == [
        [],  # the kernel reads ahead by itself, whether the program goes on or not
        [(4 * MIB, 8 * MIB)],
        [(8 * MIB, 16 * MIB)],
        [(16 * MIB, 24 * MIB)],
        [],
    ]


def test_who_goes_on_with_little_after_a_large_read_has_little_fetched():
    ahead = Readahead()
    step(ahead, 0, MIB, 256 * MIB, window_max=24 * MIB)
    for n in range(20):
        step(ahead, MIB + n * 4096, MIB + (n + 1) * 4096, 256 * MIB, window_max=24 * MIB)
    assert ahead.held_bytes <= 8 * MIB


def test_so_does_who_comes_back_to_the_start():
    ahead = Readahead()
    step(ahead, 200 * MIB, 201 * MIB, 256 * MIB)
    assert step(ahead, 0, MIB, 256 * MIB) == [(0, 4 * MIB)]


def test_of_a_short_file_no_more_is_fetched_than_there_is():
    assert step(Readahead(), 0, MIB, 3 * MIB) == [(0, 3 * MIB)]
    assert step(Readahead(), 0, MIB, MIB + 1) == [(0, MIB + 1)]
    assert step(Readahead(), 0, MIB, MIB) == []


def test_a_start_is_fetched_whole_or_as_anything_else():
    """Where there is no room for it, or less is to be read ahead."""
    assert step(Readahead(), 0, MIB, 256 * MIB, room=4 * MIB - 1) == []
    assert step(Readahead(), 0, MIB, 256 * MIB, window_max=MIB) == [(0, 2 * MIB)]
    ahead = Readahead()
    assert step(ahead, 0, MIB, 256 * MIB, window_max=0) == []
    step(ahead, MIB, 2 * MIB, 256 * MIB, window_max=4 * MIB)
    assert step(ahead, 2 * MIB, 3 * MIB, 256 * MIB, window_max=4 * MIB) == [(3 * MIB, 5 * MIB)]


def test_who_begins_elsewhere_or_with_little_is_no_stream_yet():
    """A header, or one piece of many that are read in any order."""
    for offset, count in ((0, START_BYTES - 1), (8 * MIB, 2 * MIB), (4096, START_BYTES)):
        assert step(Readahead(), offset, offset + count, 256 * MIB) == []


def test_a_jump_forgets_everything():
    ahead = Readahead()
    for i in range(8):
        step(ahead, i * 65536, (i + 1) * 65536, 1 << 30)
    assert ahead.blocks
    step(ahead, 500 * MIB, 500 * MIB + 4096, 1 << 30)
    assert not ahead.blocks
    assert ahead.window_bytes == 0


def test_random_reads_fetch_nothing():
    ahead = Readahead()
    for offset in (0, 40 * MIB, 7 * MIB, 99 * MIB):
        assert step(ahead, offset, offset + 4096, 1 << 30) == []


@given(
    st.lists(st.tuples(st.integers(0, 6 * MIB), st.integers(1, MIB)), max_size=40),
    st.integers(1, 6 * MIB),
    st.integers(0, 3 * MIB),
)
def test_blocks_are_contiguous_bounded_and_within_the_file(reads, length, room):
    ahead = Readahead()
    for offset, count in reads:
        end = min(offset + count, length)
        if end <= offset:
            continue
        ranges = step(ahead, offset, end, length, room=room)
        assert sum(b - a for a, b in ranges) <= room
        blocks = list(ahead.blocks)
        assert all(a.end == b.offset for a, b in pairwise(blocks))
        assert all(b.end <= length for b in blocks)
        assert ahead.held_bytes == sum(b.end - b.offset for b in blocks)
        found = ahead.covering(offset, end)
        if found:
            assert found[0].offset <= offset
            assert found[-1].end >= end


def test_faults_of_a_mapping_widen_the_window_from_tensor_to_tensor():
    """A MiB for each fault, the first of a tensor from half a MiB before it."""
    ahead, tensor_bytes = Readahead(), 16 * MIB
    for begin in (64 * MIB, 16 * MIB, 200 * MIB):
        windows = []
        for offset in range(begin - MIB // 2, begin + tensor_bytes, MIB):
            step(ahead, offset, offset + MIB, 1 << 30)
            windows.append(ahead.window_bytes)
        assert windows[:2] == [0, 0] if begin != 64 * MIB else True
        assert windows[-1] == 8 * MIB
        assert windows.index(8 * MIB) <= 9, windows
