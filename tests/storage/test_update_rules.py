# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""What an update must be like, and what is left when it may not be done."""

import pytest
import trio
from msgspec.structs import replace

from fs.schema import services
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import Status
from fs.storage.update_notes import CLIENT_ID_BYTES_MAX, REQUEST_ID_BYTES_MAX

from .cluster import CHUNK, INODE, content, open_caller, open_cluster
from .faults import block, no_space, status_of

FORWARDED = {"update_ver": 1}
MALFORMED = {
    "no type": {"type": 0},
    "a type that does not exist": {"type": 99},
    "no file": {"inode_id": 0},
    "a small chunk": {"chunk_size_bytes": 1024},
    "an odd chunk": {"chunk_size_bytes": CHUNK + 1},
    "a huge chunk": {"chunk_size_bytes": 1 << 31},
    "beyond the chunk": {"offset": CHUNK},
    "a truncation that extends": {"type": pb.EXTEND, "truncate_ver": 1},
    "damaged, a part": {"is_damaged": True, "commit_chain_version": 1, "payload": b""},
    "damaged, not committed": {"is_damaged": True, "is_full_replace": True, "payload": b""},
    "forwarded without version": {"update_ver": 0},
    "a whole chunk, not from its start": {"is_full_replace": True, "offset": 1},
    "a whole chunk that is no write": {"is_full_replace": True, "type": pb.TRUNCATE},
    "a whole chunk removed": {"is_full_replace": True, "type": pb.REMOVE},
    "more bytes than it says": {"length": 0},
}
TAGS = {
    "no channel": {"channel_id": 0},
    "a long client id": {"client_id": "c" * (CLIENT_ID_BYTES_MAX + 1)},
    "a long client id of few letters": {"client_id": "\u00e9" * (CLIENT_ID_BYTES_MAX // 2 + 1)},
    "a long request id": {"request_id": b"r" * (REQUEST_ID_BYTES_MAX + 1)},
}


async def forwarded(client, node_id, request, data):
    """Send an update as a predecessor does."""
    request.chain_version = client.cluster.chain.chain_version
    payload = [data] if data else ()
    await client.channel(node_id).call(
        services.STORAGE_UPDATE, request, payload=payload, timeout_s=3.0
    )


async def test_malformed_updates_are_refused_and_change_nothing(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        for name, changes in MALFORMED.items():
            fields = FORWARDED | changes
            data = fields.pop("payload", b"z")
            request = client.write_request(0, b"z")
            for field, value in fields.items():
                setattr(request, field, value)
            status = await status_of(forwarded, client, 2, request, data)
            assert status is Status.RPC_BAD_REQUEST, name
        for name, changes in TAGS.items():
            request = client.write_request(0, b"z")
            for field, value in changes.items():
                setattr(request.tag, field, value)
            assert await status_of(client.attempt, request, b"z") is Status.RPC_BAD_REQUEST, name
        assert [content(cluster, n) for n in (1, 2)] == [None, None]
        assert cluster.states() == {1: "SERVING", 2: "SERVING"}


async def test_a_client_id_may_be_as_long_as_a_note_has_room(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        client.client_id = "c" * CLIENT_ID_BYTES_MAX
        request = client.write_request(0, b"once")
        await client.attempt(request, b"once")
        await cluster.nodes[1].kill()
        await cluster.wait_judged(1)
        assert (await client.attempt(request, b"once")).update_ver == 1
        assert content(cluster, 2) == (1, 0, b"once")


async def test_what_a_damaged_chunk_had_is_needed_unless_all_is_new(mock_clock):
    """No other replica: what would keep bytes is refused, what keeps none is done."""
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        node = cluster.nodes[1]
        for index in range(3):
            await client.write(0, b"A" * 100, index)
            node.engine.put_damaged(
                TargetId(101),
                ChunkId(InodeId(INODE), index),
                version=2,
                chain_version=1,
                length=100,
                checksum=0,
                chunk_size_bytes=CHUNK,
            )
        part = client.write_request(0, b"", kind=pb.TRUNCATE, length=10)
        assert await status_of(client.attempt, part) is Status.CHUNK_DAMAGED
        part = client.write_request(0, b"B" * 99)
        assert await status_of(client.attempt, part, b"B" * 99) is Status.CHUNK_DAMAGED
        part = client.write_request(1, b"B" * 99)
        assert await status_of(client.attempt, part, b"B" * 99) is Status.CHUNK_DAMAGED
        await client.truncate(0, 0)
        await client.write(0, b"B" * 100, 1)
        await client.remove(2)
        assert [content(cluster, 1, index) for index in range(3)] == [
            (3, 0, b""),
            (3, 0, b"B" * 100),
            None,
        ]


async def test_a_repeat_at_the_last_replica_commits_what_is_pending(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"base")
        block(cluster, 1, 2)
        request = client.write_request(0, b"more")
        assert (
            await status_of(client.attempt, request, b"more", timeout_s=1.0) is Status.RPC_TIMEOUT
        )
        assert content(cluster, 1) == (1, 2, b"base")
        await cluster.nodes[2].kill()
        await cluster.wait_judged(2)
        assert (await client.update(request, b"more")).update_ver == 2
        assert content(cluster, 1) == (2, 0, b"more")
        assert not cluster.nodes[1].target.unsettled


@pytest.mark.parametrize("full", [1, 2])
async def test_nobody_asks_the_tail_about_what_was_refused(mock_clock, full):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"small")
        cluster.nodes[full].disk.on_step = no_space
        refused = client.write_request(0, b"B" * 60_000)
        assert await status_of(client.attempt, refused, b"B" * 60_000) is Status.NO_SPACE
        assert not any(node.target.unsettled for node in cluster.nodes.values())


def _keep_free(node, byte_count):
    """Let the process of a node refuse new chunks when less is free."""
    context = node.storage.service._context
    context.section = replace(context.section, reject_create_free_bytes_min=byte_count)


async def test_a_disk_with_little_room_takes_no_new_chunks(mock_clock):
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        await client.write(0, b"old")
        _keep_free(cluster.nodes[1], 1 << 50)
        new = client.write_request(0, b"new", 1)
        assert await status_of(client.attempt, new, b"new") is Status.NO_SPACE
        await client.write(0, b"OLD")
        await client.remove()
        assert content(cluster, 1, 1) is None


async def test_a_full_replica_that_is_brought_up_to_date_leaves_and_comes_back(mock_clock):
    """The chain goes on without it: the writers of the others are not told of its disk."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await cluster.nodes[2].kill()
        await cluster.wait_judged(2)
        await client.write(0, b"missed")
        await cluster.start_node(2)
        _keep_free(cluster.nodes[2], 1 << 50)
        await trio.sleep(10)
        assert cluster.states() == {1: "SERVING", 2: "OFFLINE"}
        await client.write(0, b"MISSED")
        _keep_free(cluster.nodes[2], 0)
        await cluster.wait_all_serving()
        assert content(cluster, 2)[2] == b"MISSED"
