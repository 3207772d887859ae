"""The write buffer and range merging against a plain model, with pages of every size."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fs.kv import buffer as buffer_module
from fs.kv.api import next_key
from fs.kv.buffer import KEY_OVERHEAD_BYTES, RangeRead, WriteBuffer
from tests.kv.harness import Model

keys = st.binary(min_size=1, max_size=2).filter(lambda key: key < b"\xff")
values = st.binary(max_size=3)
writes = st.one_of(
    st.tuples(st.just("set"), keys, values),
    st.tuples(st.just("clear"), keys),
    st.tuples(st.just("clear_range"), keys, keys),
    st.tuples(st.just("atomic_add"), keys.filter(lambda key: key < b"a"), st.integers(-300, 300)),
    st.tuples(
        st.just("atomic_max"),
        keys.filter(lambda key: key >= b"a"),
        st.binary(min_size=2, max_size=2),
    ),
)


def read_through(buffer: WriteBuffer, base: Model, bounds, *, limit: int, reverse: bool):
    read = RangeRead(buffer, *bounds, limit=limit, reverse=reverse)
    while (page := read.wanted()) is not None:
        low, high, count, backward = page
        read.feed(base.get_range(low, high, limit=count, reverse=backward))
    return read


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(
    st.dictionaries(keys, values, max_size=25),
    st.lists(writes, max_size=12),
    st.tuples(keys, keys),
    st.tuples(st.integers(0, 6), st.booleans(), st.integers(1, 4)),
)
def test_reads_and_commit_equal_the_model(rows, steps, bounds, options):
    limit, reverse, page_rows = options
    base, model, buffer = Model(rows), Model(rows), WriteBuffer()
    for step in steps:
        getattr(buffer, step[0])(*step[1:])
        getattr(model, step[0])(*step[1:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffer_module, "PAGE_ROWS", page_rows)
        read = read_through(buffer, base, bounds, limit=limit, reverse=reverse)
    assert read.rows == model.get_range(*bounds, limit=limit, reverse=reverse)

    begin, end = read.looked_at()
    if limit and len(read.rows) == limit:
        last = read.rows[-1][0]
        assert (begin, end) == ((last, bounds[1]) if reverse else (bounds[0], next_key(last)))
    else:
        assert (begin, end) == bounds

    result = Model(rows)
    mutations = buffer.mutations(bytes(10), base.get)
    for cleared in mutations.ranges:
        result.clear_range(*cleared)
    for key, value in mutations.points:
        if value is None:
            result.clear(key)
        else:
            result.set(key, value)
    assert result.rows == model.rows


@given(st.lists(st.tuples(keys, keys), max_size=10), keys)
def test_cleared_ranges_stay_sorted_and_disjoint(cleared, key):
    buffer = WriteBuffer()
    for begin, end in cleared:
        buffer.clear_range(begin, end)
    flat = [bound for bounds in buffer.cleared for bound in bounds]
    assert flat == sorted(set(flat))
    is_cleared = any(begin <= key < end for begin, end in cleared)
    assert (buffer.written(key) is None) is is_cleared
    assert (buffer.cleared_until(key) is not None) is is_cleared


def test_a_cleared_stretch_is_skipped_without_reading_it():
    buffer = WriteBuffer()
    buffer.clear_range(b"a", b"m")
    for reverse in (False, True):
        read = RangeRead(buffer, b"a", b"m", limit=3, reverse=reverse)
        assert read.wanted() is None
        assert read.rows == []
    assert RangeRead(buffer, b"b", b"z", limit=3, reverse=False).wanted()[:2] == (b"m", b"z")
    assert RangeRead(buffer, b"A", b"m", limit=3, reverse=True).wanted()[:2] == (b"A", b"a")


def test_own_versionstamped_value_cannot_be_read():
    buffer = WriteBuffer()
    buffer.set_versionstamped_value(b"k", b"", b"")
    with pytest.raises(AssertionError):
        buffer.written(b"k")
    buffer.set(b"k", b"known")
    assert buffer.written(b"k") == b"known"


def test_size_counts_reads_and_writes():
    buffer = WriteBuffer()
    buffer.set(b"abc", b"1234")
    buffer.add_read_key(b"xy")
    buffer.add_read_key(b"xy")
    buffer.add_read_range(b"a", b"bc")
    buffer.clear(b"gone")
    keys = 3 * len(b"abc") + 2 * len(b"xy") + len(b"abc") + 4 * len(b"gone")
    assert buffer.size_bytes == keys + len(b"1234") + (3 + 2 + 2 + 4) * KEY_OVERHEAD_BYTES
