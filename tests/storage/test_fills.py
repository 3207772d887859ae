# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Bytes that metadata has kept so far come to a file's first chunk once,
however often and late they are sent.
"""

import pytest
import trio

from fs.schema import services
from fs.schema.ids import ChunkId, InodeId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import FsError, Status

from .cluster import INODE, content, open_caller, open_cluster
from .faults import block, status_of
from .test_finished_cuts import cut, removal, remove

KEPT = b"kept until now" * 20


def fill(client, truncate_ver, name="driver", data=KEPT):
    request = client.write_request(0, data)
    request.tag.client_id = name
    request.truncate_ver = truncate_ver
    request.is_fill = request.is_durable = True
    return request


async def write(client, offset, data, finished):
    request = client.write_request(offset, data)
    request.truncate_ver = finished
    return await client.update(request, data)


def contents(cluster):
    return {content(cluster, n) for n in cluster.nodes}


async def test_a_late_fill_leaves_what_was_written_since(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        late = fill(client, 5, "slow driver")
        assert (await client.update(fill(client, 5), KEPT)).is_durable
        assert contents(cluster) == {(1, 0, KEPT)}
        await write(client, 0, b"new", 5)
        reply = await client.update(late, KEPT)
        assert not reply.is_durable, "nobody was asked: a sync has to find out"
        assert contents(cluster) == {(2, 0, b"new" + KEPT[3:])}
        # That of an earlier truncation, too; not that of the next one.
        await client.update(fill(client, 4, "slower driver"), KEPT)
        assert contents(cluster) == {(2, 0, b"new" + KEPT[3:])}
        await client.update(fill(client, 6, "next driver"), KEPT)
        assert contents(cluster) == {(3, 0, KEPT)}


async def test_a_fill_leaves_nothing_of_what_the_chunk_held(mock_clock):
    """As of a file that was inline in a backup,
    and went to its chunk and grew there before that was restored.
    """
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await write(client, 0, b"newer" * 100, 5)
        await client.update(fill(client, 6), KEPT)
        assert contents(cluster) == {(2, 0, KEPT)}
        await write(client, len(KEPT) + 5, b"behind a hole", 6)
        assert contents(cluster) == {(3, 0, KEPT + bytes(5) + b"behind a hole")}


@pytest.mark.parametrize("dying", [1, 2, 3])
async def test_a_fill_leaves_nothing_whoever_dies_meanwhile(mock_clock, dying):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await write(client, 0, b"newer" * 100, 5)
        cut_link = {1: (1, 2), 2: (2, 3), 3: (2, 3)}[dying]
        async with trio.open_nursery() as nursery:
            block(cluster, *cut_link)
            nursery.start_soon(client.update, fill(client, 6), KEPT)
            await trio.sleep(0.2)
            await cluster.nodes[dying].kill()
            await cluster.wait_judged(dying)
            cluster.network.unblock(*(f"node-{n}" for n in cut_link))
        assert {content(cluster, n)[2] for n in cluster.nodes if n != dying} == {KEPT}
        await cluster.start_node(dying)
        await cluster.wait_all_serving()
        assert await client.read() == KEPT
        assert {content(cluster, n)[2] for n in cluster.nodes} == {KEPT}


async def test_a_fill_needs_nothing_of_a_damaged_chunk(mock_clock):
    """Bytes that are not kept need not be found anywhere."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await write(client, 0, b"newer" * 10_000, 5)
        for node in cluster.nodes.values():
            for file_id in node.disk.files:
                node.disk.flip_bit(file_id, 20_000)
            node.target.disk.engine.mark_damaged(
                node.target.target_id, ChunkId(InodeId(INODE), 0), version=1
            )
        await client.update(fill(client, 6), KEPT)
        assert contents(cluster) == {(2, 0, KEPT)}


async def test_a_fill_does_not_say_that_its_truncation_is_over(mock_clock):
    """Only who has seen it ended says so: another driver's request
    for the same chunk may be the first to arrive.
    """
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        other = fill(client, 5)
        other.chunk_index = 1
        await client.update(other, KEPT)
        await client.update(fill(client, 5), KEPT)
        assert contents(cluster) == {(1, 0, KEPT)}


async def test_another_head_does_not_take_a_late_fill(mock_clock):
    """The head that has filled is gone, and its successor knows of the fill from nobody
    but its sender.
    """
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        named_before = fill(client, 5, "slow driver")
        named_before.chain_version = cluster.chain.chain_version
        await client.update(fill(client, 5), KEPT)
        await cluster.nodes[1].kill()
        await cluster.wait_judged(1)
        assert cluster.chain.serving[0] == 102
        asked = client.attempt(named_before, KEPT, node_id=2)
        assert await status_of(lambda: asked) is Status.ROUTING_MISMATCH
        # One that was sent under the new version while the truncation was still under way
        # does no harm before a write.
        await client.update(fill(client, 5, "driver in between"), KEPT)
        await write(client, 0, b"new", 5)
        for truncate_ver in (5, 4):
            await client.update(fill(client, truncate_ver, f"late {truncate_ver}"), KEPT)
        assert {content(cluster, n)[2] for n in (2, 3)} == {b"new" + KEPT[3:]}


async def test_a_late_fill_does_not_bring_back_what_a_later_truncation_has_removed(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.update(fill(client, 5), KEPT)
        await cluster.nodes[1].kill()
        await cluster.wait_judged(1)
        late = fill(client, 5, "slow driver")
        wanted = removal(cluster, truncate_ver=6, first_index=0)
        assert await remove(client, wanted, head=2) == 1
        await client.update(late, KEPT)
        assert {content(cluster, n) for n in (2, 3)} == {None}


async def test_a_late_fill_meets_a_later_truncation_in_the_middle(mock_clock):
    """The removal has looked which chunks there are, and not ended yet."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"old", 1)
        held = cluster.nodes[1].target.locks.hold(ChunkId(InodeId(INODE), 1))
        async with trio.open_nursery() as nursery, held:
            nursery.start_soon(remove, client, removal(cluster, truncate_ver=6, first_index=0))
            await trio.sleep(0.5)
            await client.update(fill(client, 5), KEPT)
        assert contents(cluster) == {None}


async def test_a_late_fill_leaves_what_a_later_truncation_has_cut(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.update(fill(client, 5), KEPT)
        await cluster.nodes[1].kill()
        await cluster.wait_judged(1)
        await client.update(cut(client, 4, 6))
        await client.update(fill(client, 5, "slow driver"), KEPT)
        assert content(cluster, 2)[2] == KEPT[:4]


async def test_repeats_of_a_fill_get_its_result(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        request = fill(client, 5)
        first = await client.update(request, KEPT)
        await write(client, 4, b"new", 5)
        again = await client.update(request, KEPT)
        assert again.update_ver == first.update_ver == 1
        assert again.chunk_checksum == first.chunk_checksum
        assert contents(cluster) == {(2, 0, KEPT[:4] + b"new" + KEPT[7:])}


async def test_a_fill_follows_its_chain_through_a_change(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        async with trio.open_nursery() as nursery:
            block(cluster, 1, 2)
            nursery.start_soon(client.update, fill(client, 5), KEPT)
            await trio.sleep(0.2)
            await cluster.nodes[2].kill()
            await cluster.wait_judged(2)
        cluster.network.unblock("node-1", "node-2")
        await write(client, 0, b"new", 5)
        await client.update(fill(client, 5, "slow driver"), KEPT)
        await cluster.start_node(2)
        await cluster.wait_all_serving()
        assert {content(cluster, n)[2] for n in cluster.nodes} == {b"new" + KEPT[3:]}


async def test_a_fill_that_finds_no_space_may_come_again(mock_clock):
    async with open_cluster(2, capacity_bytes=1 << 20) as cluster, open_caller(cluster) as client:
        data = bytes(range(256)) * 256
        index = 1
        while True:
            try:
                await client.write(0, data, index)
            except FsError as error:
                assert error.status is Status.NO_SPACE  # noqa: PT017 - it ends the loop
                break
            index += 1
        request = fill(client, 5, data=data)
        assert await status_of(client.update, request, data) is Status.NO_SPACE
        assert contents(cluster) == {None}
        assert await remove(client, removal(cluster, truncate_ver=0, first_index=1)) == index - 1
        await client.update(fill(client, 5, data=data), data)
        assert contents(cluster) == {(1, 0, data)}


async def test_only_a_write_of_a_client_by_itself_is_a_fill(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        wrong = [fill(client, 0), *(fill(client, 5) for _ in range(4))]
        wrong[1].type = pb.TRUNCATE
        wrong[2].update_ver = 1
        wrong[4].offset = 1
        wrong[3].range_offsets.extend((0, 20))
        wrong[3].range_lengths.extend((10, len(KEPT) - 20))
        for request in wrong:
            assert await status_of(client.attempt, request, KEPT) is Status.RPC_BAD_REQUEST
        inner = fill(client, 5)
        inner.update_ver = 1
        inner.chain_version = cluster.chain.chain_version
        call = client.channel(2).call(services.STORAGE_UPDATE, inner, payload=[KEPT])
        assert await status_of(lambda: call) is Status.RPC_BAD_REQUEST
        group = pb.UpdateGroupReq(updates=[fill(client, 5)])
        group.updates[0].chain_version = cluster.chain.chain_version
        group.updates[0].is_durable = False
        call = client.channel(1).call(services.STORAGE_WRITE_GROUP, group, payload=[KEPT])
        assert await status_of(lambda: call) is Status.RPC_BAD_REQUEST
        assert contents(cluster) == {None}
