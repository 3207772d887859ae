import pytest
from hypothesis import given
from hypothesis import strategies as st

from fs.chunkengine.api import ChunkState
from fs.schema.ids import ChunkId, InodeId
from fs.storage.resync_plan import Item, Need, decide_chunk, merge, window_end


def chunk(  # noqa: PLR0917 - built from a table of values
    index, commit_ver=1, chain_version=2, checksum=7, length=10, pending_ver=0
):
    return ChunkState(
        ChunkId(InodeId(1), index), commit_ver, chain_version, length, checksum, 65536, pending_ver
    )


def test_rules_for_a_chunk_on_both_sides():
    here = chunk(0)
    assert decide_chunk(here, chunk(0)).need is Need.SKIP
    assert decide_chunk(here, chunk(0, chain_version=1)).need is Need.TRANSFER
    assert decide_chunk(here, chunk(0, pending_ver=2)).need is Need.TRANSFER
    assert decide_chunk(chunk(0, pending_ver=2), chunk(0)).need is Need.TRANSFER
    assert decide_chunk(here, chunk(0, commit_ver=2)).need is Need.TRANSFER
    assert decide_chunk(here, chunk(0, checksum=8)).need is Need.TRANSFER
    assert decide_chunk(here, chunk(0, length=9)).need is Need.TRANSFER
    newer = decide_chunk(here, chunk(0, commit_ver=2, chain_version=3))
    assert newer == Item(here.chunk_id, Need.TRANSFER, is_suspect=True)


chunks = st.builds(
    chunk,
    st.integers(0, 12),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 2),
    st.just(10),
    st.sampled_from([0, 0, 3]),
)
listings = st.lists(chunks, unique_by=lambda c: c.chunk_id).map(
    lambda found: sorted(found, key=lambda c: c.chunk_id)
)


@pytest.mark.slow
@given(listings, listings)
def test_merge_decides_every_chunk_once(local, remote):
    items = list(merge(local, remote))
    ids = [item.chunk_id for item in items]
    assert ids == sorted({c.chunk_id for c in [*local, *remote]})
    here = {c.chunk_id: c for c in local}
    there = {c.chunk_id: c for c in remote}
    for item in items:
        mine, other = here.get(item.chunk_id), there.get(item.chunk_id)
        if mine is None:
            assert item.need is Need.REMOVE
        elif other is None:
            assert item.need is Need.TRANSFER
        else:
            assert item == decide_chunk(mine, other)
            if item.need is Need.SKIP:
                assert (mine.commit_ver, mine.checksum) == (other.commit_ver, other.checksum)


@pytest.mark.slow
@given(listings, listings, st.integers(1, 4))
def test_windows_cover_both_listings_once(local, remote, page):
    seen, after = [], b""
    while after is not None:
        pages = [[c for c in side if c.chunk_id.pack() > after][:page] for side in (local, remote)]
        lasts = [p[-1].chunk_id.pack() if len(p) == page else None for p in pages]
        end = window_end(*lasts)
        cut = [[c for c in p if end is None or c.chunk_id.pack() <= end] for p in pages]
        seen += merge(*cut)
        after = end
    assert seen == list(merge(local, remote))
