# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Requests of a truncation that arrive after it has finished."""

import trio

from fs.schema import services
from fs.schema.ids import ChunkId, InodeId
from fs.schema.proto import storage_pb2 as pb
from fs.storage.finished_cuts import BEHIND, FinishedCuts

from .cluster import CHAIN, INODE, content, open_caller, open_cluster


def removal(cluster, truncate_ver, first_index=1):
    request = pb.RemoveChunksReq(chunk_count_max=100)
    request.ranges.add(
        inode_id=INODE,
        chain_id=CHAIN,
        chain_version=cluster.chain.chain_version,
        first_index=first_index,
        truncate_ver=truncate_ver,
    )
    return request


async def remove(client, request, head=1):
    reply = await client.channel(head).call(services.STORAGE_REMOVE_CHUNKS, request)
    (result,) = reply.message.results
    assert not result.status, result
    return result.removed_count


def cut(client, length, truncate_ver, name="other"):
    request = client.write_request(0, b"", 0, pb.TRUNCATE, length)
    request.tag.client_id = name
    request.truncate_ver = truncate_ver
    return request


def test_numbers_only_grow():
    cuts = FinishedCuts(count_max=2)
    assert not cuts.is_finished(1, BEHIND, 0)
    cuts.note(1, BEHIND, 3)
    cuts.note(1, BEHIND, 2)
    assert [cuts.is_finished(1, BEHIND, v) for v in (0, 2, 3, 4)] == [False, True, True, False]
    assert not cuts.is_finished(1, 0, 3)
    cuts.note(2, BEHIND, 1)
    cuts.note(1, BEHIND, 4)
    cuts.note(3, BEHIND, 1)
    assert len(cuts) == 2
    assert cuts.is_finished(1, BEHIND, 4)
    assert not cuts.is_finished(2, BEHIND, 1)


async def test_a_late_removal_leaves_what_was_written_since(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        for index in range(3):
            await client.write(0, b"old", index)
        late = removal(cluster, truncate_ver=5)
        assert await remove(client, removal(cluster, truncate_ver=5)) == 2
        await client.write(0, b"new", 1)
        assert await remove(client, late) == 0
        assert await client.read(1) == b"new"
        # The next truncation of the file, and a removal of the whole file, do remove.
        assert await remove(client, removal(cluster, truncate_ver=6)) == 1
        assert await remove(client, removal(cluster, truncate_ver=0, first_index=0)) == 1


async def test_a_head_learns_from_a_write_which_truncation_is_over(mock_clock):
    """The chain may have another head than the one that cut; a late driver knows its version."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        for truncate_ver, kept in ((5, 2), (4, 2), (6, 0)):
            for index in range(2):
                request = client.write_request(0, b"new", index)
                request.truncate_ver = 5
                await client.update(request, b"new")
            late_cut = cut(client, 1, truncate_ver, f"late driver {truncate_ver}")
            await client.update(late_cut)
            assert await remove(client, removal(cluster, truncate_ver)) == (0 if kept else 1)
            assert content(cluster, 2)[2] == (b"new" if kept else b"n")


async def test_a_removal_under_way_stops_at_what_is_written_after_the_truncation(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"kept", 1)
        held = cluster.nodes[1].target.locks.hold(ChunkId(InodeId(INODE), 1))
        async with trio.open_nursery() as nursery, held:
            nursery.start_soon(remove, client, removal(cluster, truncate_ver=5))
            await trio.sleep(0.5)
            request = client.write_request(0, b"new", 2)
            request.truncate_ver = 5
            await client.update(request, b"new")
        assert [await client.read(index) for index in (1, 2)] == [b"kept", b"new"]


async def test_an_unfinished_removal_goes_on(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        for index in range(5):
            await client.write(0, b"old", index)
        first = removal(cluster, truncate_ver=5)
        first.chunk_count_max = 2
        assert [await remove(client, first) for _ in range(4)] == [2, 2, 0, 0]
        await client.write(0, b"new", 1)
        assert await remove(client, first) == 0


async def test_a_late_cut_leaves_what_was_written_since(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"0123456789")
        late = cut(client, 4, 7, "first driver")
        assert (await client.update(cut(client, 4, 7))).chunk_length == 4
        await client.write(4, b"new")
        await client.update(late)
        assert content(cluster, 1) == content(cluster, 2) == (3, 0, b"0123new")


async def test_a_cut_of_what_is_short_enough_counts_as_done(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.update(cut(client, 8, 7))
        assert content(cluster, 1) is None
        await client.write(0, b"0123456789")
        await client.update(cut(client, 8, 7, "late"))
        assert content(cluster, 1)[2] == b"0123456789"
        await client.update(cut(client, 20, 8))
        assert content(cluster, 1)[2] == b"0123456789"
