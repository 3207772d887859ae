# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""One small read by itself: what many would return,
and whatever is unusual is left to the ordinary way.
"""

from dataclasses import replace

import pytest
import trio
import trio.lowlevel

from fs.schema.ids import ChainId
from fs.schema.status import FsError, Status
from fs.storage import read_path, service

from .cluster import CHAIN, open_caller, open_cluster

WORDS = bytes(range(256)) * 80


@pytest.fixture
async def warm(mock_clock):
    """A cluster of two with a chunk; its caller."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, WORDS)
        yield cluster, client


@pytest.fixture
def ordinary(monkeypatch):
    """Count what goes the ordinary way."""
    calls, real = [], read_path.read_packed

    def counted(*arguments, **options):
        calls.append(options)
        return real(*arguments, **options)

    monkeypatch.setattr(service, "read_packed", counted)
    return calls


async def test_one_read_needs_no_batch(warm, ordinary, mock_clock):
    cluster, client = warm
    before = [cluster.nodes[n].target.read_bytes for n in (1, 2)]
    for node_id in (1, 2):
        for offset, length in ((0, 1), (5000, 4096), (len(WORDS) - 7, 7)):
            wanted = [(Status.OK, WORDS[offset : offset + length])]
            assert await client.read_attempt(node_id, [(0, offset, length)]) == wanted
    assert not ordinary
    after = [cluster.nodes[n].target.read_bytes for n in (1, 2)]
    assert [new - old for new, old in zip(after, before, strict=True)] == [4104, 4104]


@pytest.mark.parametrize(
    ("io", "status", "content"),
    [
        ((0, len(WORDS) - 7, 100), Status.OK, WORDS[-7:]),
        ((9, 0, 10), Status.CHUNK_NOT_FOUND, b""),
        ((0, 0, 4097), Status.OK, WORDS[:4097]),
    ],
)
async def test_what_is_short_missing_or_larger_is_left(  # noqa: PLR0917 - fixtures
    warm, ordinary, io, status, content, mock_clock
):
    _, client = warm
    assert await client.read_attempt(1, [io]) == [(status, content)]
    assert len(ordinary) == 1


async def test_a_read_of_nothing_is_refused(warm, mock_clock):
    _, client = warm
    with pytest.raises(FsError, match="a read of 0 bytes"):
        await client.read_attempt(1, [(0, 0, 0)])


async def test_damage_is_read_elsewhere(warm, ordinary, mock_clock):
    cluster, client = warm
    disk = cluster.nodes[2].disk
    for file_id in disk.files:
        disk.flip_bit(file_id, 3000)
    assert await client.read_attempt(2, [(0, 2990, 20)]) == [(Status.OK, WORDS[2990:3010])]
    assert len(ordinary) == 1


async def test_what_waits_for_the_disk_is_tried_once(warm, ordinary, monkeypatch, mock_clock):
    cluster, client = warm
    node = cluster.nodes[2]
    node.disk.is_cached = lambda: False
    monkeypatch.setattr(read_path, "read_at_once", None)
    assert await client.read_attempt(2, [(0, 5, 10)]) == [(Status.OK, WORDS[5:15])]
    assert [options["is_cold"] for options in ordinary] == [True]


async def test_another_version_of_the_chain_is_refused(warm, ordinary, mock_clock):
    cluster, client = warm
    node = cluster.nodes[2]
    chain = replace(cluster.chain, chain_version=cluster.chain.chain_version + 1)
    node.routing.deliver(
        replace(cluster.info, routing_version=10**6, chains={ChainId(CHAIN): chain})
    )
    ((status, _),) = await client.read_attempt(2, [(0, 0, 10)])
    assert status is Status.ROUTING_MISMATCH
    assert len(ordinary) == 1
    node.routing.info = cluster.info


async def test_a_chunk_with_an_update_inside_is_left_unless_that_is_no_matter(
    warm, ordinary, mock_clock
):
    cluster, client = warm
    target = cluster.nodes[1].target
    (state,) = target.disk.engine.list_chunks(target.target_id)
    key = state.chunk_id
    target.unsettled[key] = None
    assert await client.read_attempt(1, [(0, 0, 10)], is_relaxed=True) == [(Status.OK, WORDS[:10])]
    assert not ordinary
    assert await client.read_attempt(1, [(0, 0, 10)]) == [(Status.OK, WORDS[:10])]
    assert len(ordinary) == 1


async def test_nothing_is_served_without_a_lease(warm, monkeypatch, mock_clock):
    cluster, client = warm
    monkeypatch.setattr(cluster.nodes[1].lease, "is_valid", lambda: False)
    with pytest.raises(FsError, match="LEASE_EXPIRED"):
        await client.read_attempt(1, [(0, 0, 10)])
    await trio.lowlevel.checkpoint()
