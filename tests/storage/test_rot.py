# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Bits that flip at rest: in one replica they are found, never served, and repaired;
in all of them it is an error.

`EMBER_ROT_FLIPS=200 python -m pytest tests/storage/test_rot.py` is the long form.
"""

import os
import random

import pytest
import trio

from fs.chunkengine.format import chunk_key as key_of
from fs.chunkengine.format import place_of
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import Status
from fs.storage import scrub

from .cluster import CHUNK, INODE, open_caller, open_cluster

FLIP_COUNT = int(os.environ.get("EMBER_ROT_FLIPS", "20"))
CHUNK_COUNT = 20


def rot(cluster, rng, node_id, index):
    """Flip one bit among the bytes of a chunk's committed version on a node's disk."""
    node = cluster.nodes[node_id]
    key = key_of(TargetId(100 + node_id), ChunkId(InodeId(INODE), index))
    with node.engine._books as ledger:
        record = ledger.record(key)
    file_id, start = place_of(record.position)
    node.disk.flip_bit(file_id, start + rng.randrange(record.length))


async def fill(client, rng):
    values = {}
    for index in range(CHUNK_COUNT):
        values[index] = rng.randbytes(rng.randrange(1, CHUNK))
        await client.write(0, values[index], index)
    return values


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_in_one_replica(mock_clock, monkeypatch):
    monkeypatch.setattr(scrub, "PASS_S_MIN", 5.0)
    rng = random.Random(1)
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        values = await fill(client, rng)
        for count in range(FLIP_COUNT):
            node_id, index = rng.choice([1, 2, 3]), rng.randrange(CHUNK_COUNT)
            target = cluster.nodes[node_id].target
            found_before, repaired_before = target.checksum_error_count, target.repaired_count
            rot(cluster, rng, node_id, index)
            if count % 2:
                assert await client.read(index, node_id=node_id) == values[index]
                await _wait(lambda t=target, b=repaired_before: t.repaired_count > b, 10)
            else:
                await _wait(lambda t=target, b=repaired_before: t.repaired_count > b, 200)
            assert target.checksum_error_count > found_before
            ((status, data),) = await client.read_attempt(
                node_id, [(index, 0, CHUNK)], is_passed_on=True
            )
            assert (status, data) == (Status.OK, values[index])
        assert len(cluster.history) == 1


async def test_in_every_replica(mock_clock):
    rng = random.Random(2)
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        values = await fill(client, rng)
        rotten = rng.sample(range(CHUNK_COUNT), max(2, min(FLIP_COUNT // 10, CHUNK_COUNT)))
        for index in rotten:
            for node_id in cluster.nodes:
                rot(cluster, rng, node_id, index)
        for node_id in cluster.nodes:
            for index, value in values.items():
                ((status, data),) = await client.read_attempt(node_id, [(index, 0, CHUNK)])
                expected = (Status.CHUNK_DAMAGED, b"") if index in rotten else (Status.OK, value)
                assert (status, data) == expected
        for index in rotten:
            await client.write(0, b"n" * CHUNK, index)
            for node_id in cluster.nodes:
                assert await client.read(index, node_id=node_id) == b"n" * CHUNK


async def _wait(condition, timeout_s):
    with trio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110 - polls
            await trio.sleep(0.5)
