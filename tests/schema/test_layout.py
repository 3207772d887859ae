"""Layout arithmetic: extents tile exactly, the shuffle is the specified one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fs.schema.ids import ChainTableId, ChunkId, InodeId
from fs.schema.layout import (
    MAX_FILE_LENGTH_BYTES,
    Layout,
    chain_of_chunk,
    chains_in_use,
    chunk_count,
    extents,
    layout_from_pb,
    layout_to_pb,
    stripe_order,
)
from fs.schema.status import FsError, Status

chunk_sizes = st.sampled_from([2**n for n in range(16, 27)])


@st.composite
def layouts(draw):
    return Layout(
        ChainTableId(draw(st.integers(1, 9))),
        draw(st.integers(1, 9)),
        draw(chunk_sizes),
        draw(st.integers(1, 40)),
        draw(st.integers(0, 1000)),
        draw(st.integers(0, 2**64 - 1)),
    )


@given(chunk_sizes, st.integers(0, 2**40), st.integers(0, 2**28))
def test_extents_tile_the_range(chunk_size, offset, length):
    position = offset
    for extent in extents(chunk_size, offset, length):
        assert extent.file_offset == position
        assert extent.chunk_index * chunk_size + extent.offset == position
        assert 0 < extent.length <= chunk_size - extent.offset
        position += extent.length
    assert position == offset + length


def test_extents_refuse_the_far_end():
    assert sum(e.length for e in extents(2**26, MAX_FILE_LENGTH_BYTES - 5, 5)) == 5
    with pytest.raises(FsError) as caught:
        list(extents(2**26, MAX_FILE_LENGTH_BYTES - 5, 6))
    assert caught.value.status is Status.FILE_TOO_LARGE


@given(st.integers(1, 300), st.integers(0, 2**64 - 1))
def test_stripe_order_is_a_permutation(stripe_size, seed):
    assert sorted(stripe_order(stripe_size, seed)) == list(range(stripe_size))


@pytest.mark.parametrize(
    ("stripe_size", "seed", "expected"),
    [
        (1, 7, (0,)),
        (2, 0, (0, 1)),
        (2, 3, (1, 0)),
        (5, 2**64 - 1, (1, 2, 0, 3, 4)),
        (8, 12345, (3, 4, 6, 2, 5, 0, 7, 1)),
    ],
)
def test_stripe_order_vectors(stripe_size, seed, expected):
    # Files on disk were laid out by these; a change here loses them.
    assert stripe_order(stripe_size, seed) == expected


@given(layouts(), st.integers(0, 2**20), st.integers(1, 50))
def test_chunks_of_one_stripe_lie_on_consecutive_chains(layout, stripe_number, table_length):
    table = list(range(100, 100 + table_length))
    first = stripe_number * layout.stripe_size
    chains = [chain_of_chunk(layout, first + i, table) for i in range(layout.stripe_size)]
    expected = [
        table[(layout.first_chain_index + i) % table_length] for i in range(layout.stripe_size)
    ]
    assert sorted(chains) == sorted(expected)


@given(layouts(), st.integers(1, 64), st.integers(1, 50))
def test_chains_in_use_cover_the_first_slots(layout, dyn_stripe, table_length):
    table = list(range(table_length))
    used = chains_in_use(layout, dyn_stripe, table)
    slots = range(min(dyn_stripe, layout.stripe_size))
    assert set(used) == {chain_of_chunk(layout, i, table) for i in slots}
    assert len(used) == len(set(used))


@given(layouts())
def test_layout_round_trip(layout):
    assert layout_from_pb(layout_to_pb(layout)) == layout


@pytest.mark.parametrize(("length", "expected"), [(0, 0), (1, 1), (65536, 1), (65537, 2)])
def test_chunk_count(length, expected):
    assert chunk_count(65536, length) == expected


@pytest.mark.parametrize("bad", [0, 65535, 65537, 2**27])
def test_layout_check_refuses_chunk_sizes(bad):
    with pytest.raises(FsError):
        Layout(ChainTableId(1), 1, bad, 1, 0, 0).check()


@given(st.integers(1, 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(1, 2**63 - 1))
def test_chunk_ids_sort_like_their_packed_form(inode_id, index, other):
    one, two = ChunkId(InodeId(inode_id), index), ChunkId(InodeId(other), index)
    assert ChunkId.unpack(one.pack()) == one
    assert (one < two) == (one.pack() < two.pack())
