# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Targets made and removed while the node runs."""

import pytest
import trio

from fs.schema import services
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.routing import LocalState
from fs.schema.status import FsError, Status
from fs.storage import target_changes

from .cluster import CHUNK, INODE, open_caller, open_cluster

NEW = 250


async def create(client, target_id, disk_index=0, node_id=1):
    request = pb.CreateTargetReq(target_id=target_id, disk_index=disk_index)
    await client.channel(node_id).call(services.STORAGE_CREATE_TARGET, request)


async def remove(client, target_id, node_id=1):
    request = pb.RemoveTargetReq(target_id=target_id)
    await client.channel(node_id).call(services.STORAGE_REMOVE_TARGET, request)


async def status_of(function, *arguments):
    with pytest.raises(FsError) as caught:
        await function(*arguments)
    return caught.value.status


def reported(cluster, node_id=1):
    return {r.target_id: r.local_state for r in cluster.nodes[node_id].storage.report()}


async def test_a_target_is_made_once_and_reported(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await create(client, NEW)
        await create(client, NEW)
        assert reported(cluster) == {101: LocalState.UPTODATE, NEW: LocalState.ONLINE}
        assert await status_of(create, client, NEW + 1, 1) is Status.INVALID_ARGUMENT
        assert await status_of(create, client, 0) is Status.INVALID_ARGUMENT
        # Found by tests/rpc/fuzz.py: whoever listed or removed such a target ended the process.
        for number in (2**63, 2**64 - 1):
            assert await status_of(create, client, number) is Status.INVALID_ARGUMENT
        assert await status_of(create, client, 101, 0, 2) is Status.CONFLICTING_CHANGE
        assert reported(cluster, 2) == {102: LocalState.UPTODATE}


@pytest.mark.parametrize("after", [b"x" * 8, b"x" * 13])
async def test_a_listing_of_a_file_goes_on_after_a_whole_chunk_id_only(mock_clock, after):
    """Found by tests/rpc/fuzz.py: it was an internal error."""
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        request = pb.ListChunksReq(target_id=101, inode_id=INODE, after=after)
        with pytest.raises(FsError) as caught:
            await client.channel(1).call(services.STORAGE_LIST_CHUNKS, request)
        assert caught.value.status is Status.RPC_BAD_REQUEST


async def test_a_member_of_a_chain_is_not_removed(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        assert await status_of(remove, client, 101) is Status.BUSY
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        await cluster.start_node(2)
        assert await status_of(remove, client, 102, 2) is Status.BUSY


async def test_a_removed_target_does_not_come_back_with_the_next_process(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await create(client, NEW)
        cluster.nodes[1].storage.targets.targets[TargetId(NEW)].inflight.enter(1)
        await remove(client, NEW)
        assert NEW not in reported(cluster)  # for the manager it is gone
        await cluster.nodes[1].kill()
        await cluster.start_node(1)
        await trio.sleep(1)
        assert NEW not in reported(cluster)
        await create(client, NEW)
        assert reported(cluster)[NEW] == LocalState.ONLINE


async def test_a_removed_target_loses_its_chunks_in_the_background(mock_clock, monkeypatch):
    monkeypatch.setattr(target_changes, "DROPPED_LOTS", 1)  # one call would look like a hung disk
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        await create(client, NEW)
        engine, target_id = cluster.nodes[1].engine, TargetId(NEW)
        remove_some, ends = engine.remove_target, []

        def noted(*arguments, **options):
            ends.append(remove_some(*arguments, **options))
            return ends[-1]

        monkeypatch.setattr(engine, "remove_target", noted)
        for index in range(300):
            chunk_id = ChunkId(InodeId(INODE), index)
            engine.prepare_write(
                target_id, chunk_id, version=1, chunk_size_bytes=CHUNK, offset=0, data=b"x"
            )
            engine.commit(target_id, chunk_id, version=1, chain_version=1)
        inflight = cluster.nodes[1].storage.targets.targets[target_id].inflight
        inflight.enter(1)
        await remove(client, NEW)
        await remove(client, NEW)
        assert NEW not in reported(cluster)
        # Somebody is still inside: nothing is taken away under him, and
        # the number is not given again.
        await trio.sleep(1)
        assert engine.used_bytes(target_id) > 0
        assert await status_of(create, client, NEW) is Status.BUSY
        inflight.leave(1)
        await trio.sleep(1)
        assert engine.used_bytes(target_id) == 0
        assert ends == [False, False, True]
        await create(client, NEW)
        assert reported(cluster)[NEW] == LocalState.ONLINE
