# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Lengths, space and the next chunk with bytes, as storage tells them."""

import pytest

from fs.schema import services
from fs.schema.ids import ChunkId, InodeId
from fs.schema.proto import storage_pb2 as pb

from .cluster import CHAIN, CHUNK, INODE, open_caller, open_cluster


async def test_ranges_lengths_space_and_durability(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        for index in range(20):
            await client.write(0, b"x" * (index + 1), index)
        version = cluster.chain.chain_version
        query = pb.QueryLastChunkReq()
        query.queries.add(inode_id=INODE, chain_id=CHAIN, chain_version=version)
        query.queries.add(inode_id=INODE + 1, chain_id=CHAIN, chain_version=version)
        found = (await client.channel(1).call(services.STORAGE_QUERY_LAST_CHUNK, query)).message
        assert (found.results[0].chunk_index, found.results[0].chunk_length) == (19, 20)
        assert (found.results[0].chunk_count, found.results[0].used_bytes) == (20, 210)
        assert not found.results[1].has_chunk
        wanted = pb.RemoveChunksReq(chunk_count_max=6)
        wanted.ranges.add(inode_id=INODE, chain_id=CHAIN, chain_version=version, first_index=5)
        counts = []
        while True:
            reply = await client.channel(1).call(services.STORAGE_REMOVE_CHUNKS, wanted)
            (result,) = reply.message.results
            assert result.status == 0
            counts.append(result.removed_count)
            if not result.has_more:
                break
        assert counts == [6, 6, 3]
        for node_id in cluster.nodes:
            request = pb.ListChunksReq(target_id=100 + node_id, chunk_count_max=3)
            listed = []
            while True:
                page = await client.channel(node_id).call(services.STORAGE_LIST_CHUNKS, request)
                listed += [chunk.chunk_index for chunk in page.message.chunks]
                if not page.message.has_more:
                    break
                last = page.message.chunks[-1]
                request.after = ChunkId(last.inode_id, last.chunk_index).pack()
            assert listed == [0, 1, 2, 3, 4]
            sync = pb.SyncChainsReq(chains=[pb.ChainRefPb(chain_id=CHAIN, chain_version=version)])
            await client.channel(node_id).call(services.STORAGE_SYNC_CHAINS, sync)
            assert not cluster.nodes[node_id].disk.unsynced_batches
            space = await client.channel(node_id).call(
                services.STORAGE_SPACE_INFO, pb.SpaceInfoReq()
            )
            (disk,) = space.message.disks
            assert disk.capacity_bytes >= disk.free_bytes > 0
            assert list(disk.target_ids) == [100 + node_id]


async def test_a_long_file_is_not_counted_to_its_end(mock_clock, monkeypatch):
    monkeypatch.setattr("fs.storage.queries.PAGE_CHUNK_COUNT", 4)
    monkeypatch.setattr("fs.storage.queries.COUNTED_MAX", 8)
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        for index in range(20):
            await client.write(0, b"x" * 100, index)
        await client.write(0, b"x" * 7, 40)
        request = pb.QueryLastChunkReq()
        version = cluster.chain.chain_version
        for is_length_only in (False, True):
            request.queries.add(
                inode_id=INODE,
                chain_id=CHAIN,
                chain_version=version,
                is_length_only=is_length_only,
            )
        full, short = (
            await client.channel(1).call(services.STORAGE_QUERY_LAST_CHUNK, request)
        ).message.results
        assert (full.chunk_index, full.chunk_length) == (40, 7)
        assert (full.chunk_count, full.used_bytes) == (41, 4100)
        assert (short.chunk_index, short.chunk_length) == (40, 7)
        assert (short.chunk_count, short.used_bytes) == (0, 0)


@pytest.mark.parametrize("page_count", [1, 3, 64])
async def test_the_next_chunk_with_bytes_is_told_when_asked_for(
    mock_clock, monkeypatch, page_count
):
    monkeypatch.setattr("fs.storage.queries.NEXT_PAGE_CHUNK_COUNT", page_count)
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        for index in (1, 5, 6, 7, 8, 40, 41):
            await client.write(0, b"x" * 9, index)
        for index in (5, 6, 7, 41):
            await client.truncate(0, index)
        for first_index, expected in ((0, 1), (1, 1), (2, 8), (6, 8), (9, 40), (40, 40), (41, 0)):
            request = pb.QueryLastChunkReq()
            for is_next_wanted in (True, False):
                request.queries.add(
                    inode_id=INODE,
                    chain_id=CHAIN,
                    chain_version=cluster.chain.chain_version,
                    is_length_only=True,
                    is_next_wanted=is_next_wanted,
                    first_index=first_index,
                )
            reply = await client.channel(1).call(services.STORAGE_QUERY_LAST_CHUNK, request)
            asked, not_asked = reply.message.results
            assert (asked.chunk_index, asked.next_index) == (40, expected)
            assert not not_asked.next_index


async def test_behind_very_many_empty_chunks_it_is_told_how_far_was_looked(mock_clock, monkeypatch):
    monkeypatch.setattr("fs.storage.queries.NEXT_PAGE_CHUNK_COUNT", 2)
    monkeypatch.setattr("fs.storage.queries.COUNTED_MAX", 6)
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        for index in range(10):
            await client.write(0, b"x", index)
            if index < 9:
                await client.truncate(0, index)
        request = pb.QueryLastChunkReq()
        version = cluster.chain.chain_version
        for first_index in (0, 6):
            request.queries.add(
                inode_id=INODE,
                chain_id=CHAIN,
                chain_version=version,
                is_next_wanted=True,
                first_index=first_index,
            )
        reply = await client.channel(1).call(services.STORAGE_QUERY_LAST_CHUNK, request)
        assert [r.next_index for r in reply.message.results] == [6, 9]


async def test_a_chunk_in_doubt_may_hold_the_next_bytes(mock_clock):
    """After a power loss it may be committed below:
    who sought data passed over it, while whoever read had it.
    """
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        await client.write(0, b"x", 300)
        target = cluster.nodes[1].target
        for index in (200, 400):
            target.disk.engine.prepare_write(
                target.target_id,
                ChunkId(InodeId(INODE), index),
                version=1,
                chunk_size_bytes=CHUNK,
                offset=0,
                data=b"y",
            )
        request = pb.QueryLastChunkReq()
        version = cluster.chain.chain_version
        for first_index in (100, 201, 301, 401):
            request.queries.add(
                inode_id=INODE,
                chain_id=CHAIN,
                chain_version=version,
                is_length_only=True,
                is_next_wanted=True,
                first_index=first_index,
            )
        reply = await client.channel(1).call(services.STORAGE_QUERY_LAST_CHUNK, request)
        assert [r.next_index for r in reply.message.results] == [200, 300, 400, 0]
