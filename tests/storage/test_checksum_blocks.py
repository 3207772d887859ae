# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Disks of one chain that were formatted with checksum blocks of different sizes:
told, and out of service.
"""

import pytest
import trio

from fs.chunkengine.simulated_disk import SimulatedDisk
from fs.schema.status import FsError, Status
from fs.storage.local_state import Hold

from .cluster import content, open_caller, open_cluster
from .test_update_group import send, writes

LONG_S = 60.0


async def replace_disk(cluster, node_id, block_bytes):
    """Kill a node, and start it with a new disk that is formatted with these blocks."""
    node = cluster.nodes[node_id]
    await node.kill()
    await cluster.wait_judged(node_id)
    node.disk, node.block_bytes = SimulatedDisk(capacity_bytes=1 << 40), block_bytes
    await cluster.start_node(node_id)


def assert_told(node):
    trouble = node.target.trouble
    assert node.target.hold is Hold.UNFIT
    assert "blocks of 4096 bytes" in trouble and "16384" in trouble


@pytest.mark.parametrize("has_chunks", [False, True])
async def test_a_new_disk_of_another_size_is_told_and_holds_nobody_up(mock_clock, has_chunks):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        if has_chunks:
            await client.write(0, b"one" * 10_000)
        await replace_disk(cluster, 2, 4096)
        with trio.fail_after(LONG_S):
            while cluster.nodes[2].target.hold is not Hold.UNFIT:  # noqa: ASYNC110 - polls
                await trio.sleep(0.05)
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        assert_told(cluster.nodes[2])
        version = cluster.chain.chain_version
        with trio.fail_after(1):
            await client.write(0, b"two")
        await trio.sleep(LONG_S)
        assert cluster.chain.chain_version == version  # it does not come and go
        await replace_disk(cluster, 2, 16384)
        await cluster.wait_all_serving()
        assert content(cluster, 2) == content(cluster, 1)


@pytest.mark.parametrize("is_group", [False, True])
async def test_a_new_chain_of_two_sizes_serves_with_one(mock_clock, is_group):
    """Its members serve from the start, without a resync: the first update tells."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await replace_disk(cluster, 2, 16384)
        await cluster.wait_all_serving()
        # as if it had been formatted so when the chain was made
        cluster.nodes[2].engine.checksum_block_bytes = 4096
        if is_group:
            outcomes = await send(client, writes(client))
            assert [status for status, _ in outcomes] == [0] * 4
        else:
            await client.write(0, b"one")
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        assert_told(cluster.nodes[2])


async def test_who_does_not_tell_counts_as_agreeing(mock_clock):
    async with open_cluster(2) as cluster:
        targets, target = cluster.nodes[2].storage.targets, cluster.nodes[2].target
        targets.check_blocks(target, 0)
        targets.check_blocks(target, 16384)
        assert target.hold is Hold.NONE
        with pytest.raises(FsError) as caught:
            targets.check_blocks(target, 65536)
        assert caught.value.status is Status.CHECKSUM_BLOCKS_DIFFER
        assert target.hold is Hold.UNFIT


@pytest.mark.parametrize("block_bytes", [4096, 16384])
async def test_a_copy_comes_back_in_clusters_of_either_size(mock_clock, block_bytes):
    async with (
        open_cluster(3, block_bytes=block_bytes) as cluster,
        open_caller(cluster) as client,
    ):
        for index in range(5):
            await client.write(index * 1000, b"one" * 7000, index)
        await replace_disk(cluster, 2, block_bytes)
        await client.write(5000, b"two" * 3000, 3)
        await cluster.wait_all_serving()
        assert cluster.nodes[2].engine.checksum_block_bytes == block_bytes
        for index in range(5):
            assert len({content(cluster, node_id, index) for node_id in cluster.nodes}) == 1
            assert content(cluster, 2, index) is not None
