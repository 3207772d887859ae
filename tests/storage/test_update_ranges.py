# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Several ranges of a chunk in one update: one version, on each replica the same, or nothing."""

import pytest

from fs.schema import services
from fs.schema.ids import ChunkId, InodeId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import FsError, Status
from fs.storage import service

from .cluster import CHUNK, INODE, content, open_caller, open_cluster
from .faults import block, status_of

OLD = bytes(range(200)) * 10
NEW = b"new" * 100
RANGES = [(10, 5), (500, 100), (1990, 50), (3000, 7)]


def data_of(ranges, seed=0):
    return b"".join(bytes([65 + (seed + n) % 26]) * length for n, (_, length) in enumerate(ranges))


def overlaid(old, ranges, data):
    made, at = bytearray(old), 0
    for offset, length in ranges:
        made.extend(bytes(max(0, offset + length - len(made))))
        made[offset : offset + length] = data[at : at + length]
        at += length
    return bytes(made)


def ranged(client, ranges=RANGES, data=None, index=0):
    """Return a request, and its bytes."""
    data = data_of(ranges) if data is None else data
    request = client.write_request(ranges[0][0], data, index)
    request.length = sum(ranges[-1]) - ranges[0][0]
    request.range_offsets.extend(offset for offset, _ in ranges)
    request.range_lengths.extend(length for _, length in ranges)
    return request, data


async def send(client, made, *, node_id=None, method=services.STORAGE_WRITE_RANGES, timeout_s=3.0):
    request, data = made
    request.chain_version = client.cluster.chain.chain_version
    node_id = node_id or client.cluster.chain.serving[0] - 100
    received = await client.channel(node_id).call(
        method, request, payload=[data], timeout_s=timeout_s
    )
    return received.message


async def test_ranges_are_one_version_on_every_replica(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, OLD, 0)
        made = ranged(client)
        reply = await send(client, made)
        assert reply.update_ver == 2
        expected = overlaid(OLD, RANGES, made[1])
        assert [content(cluster, n, 0) for n in (1, 2, 3)] == [(2, 0, expected)] * 3
        assert reply.chunk_length == len(expected) == 3007


async def test_ranges_make_a_chunk_that_is_not_there(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        made = ranged(client)
        made[0].is_durable = True
        assert (await send(client, made)).is_durable
        assert content(cluster, 2, 0) == (1, 0, overlaid(b"", RANGES, made[1]))


async def test_a_repeat_gets_the_first_result_wherever_it_goes(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, OLD, 0)
        made = ranged(client)
        assert (await send(client, made)).update_ver == 2
        assert (await send(client, made)).update_ver == 2
        await cluster.nodes[1].kill()
        await cluster.wait_judged(1)
        assert (await send(client, made)).update_ver == 2
        assert content(cluster, 3, 0) == (2, 0, overlaid(OLD, RANGES, made[1]))


async def test_what_was_pending_when_the_head_died_is_found_by_a_repeat(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, OLD, 0)
        block(cluster, 2, 3)
        made = ranged(client)
        assert await status_of(send, client, made, timeout_s=0.5) is Status.RPC_TIMEOUT
        assert cluster.nodes[2].target.unsettled
        await cluster.nodes[1].kill()
        cluster.network.heal()
        await cluster.wait_judged(1)
        assert (await send(client, made)).update_ver == 2
        expected = overlaid(OLD, RANGES, made[1])
        assert [content(cluster, n, 0) for n in (2, 3)] == [(2, 0, expected)] * 2


async def test_a_successor_of_an_older_release_gets_the_whole_chunk(mock_clock, monkeypatch):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        real, calls = service.run_update, []

        async def old(context, request, *args, **options):
            calls.append((context.node_id, bool(request.range_offsets), request.is_full_replace))
            if context.node_id == 2 and request.range_offsets:
                raise FsError(Status.RPC_UNKNOWN_METHOD, "service 3 method 20")
            return await real(context, request, *args, **options)

        monkeypatch.setattr(service, "run_update", old)
        await client.write(0, OLD, 0)
        expected = OLD
        epoch = cluster.nodes[1].target.epoch
        for number in range(2):
            made = ranged(client, data=data_of(RANGES, number))
            assert (await send(client, made)).update_ver == 2 + number
            expected = overlaid(expected, RANGES, made[1])
        assert calls.count((2, True, False)) == 1
        assert calls.count((2, False, True)) == calls.count((3, False, True)) == 2
        assert cluster.nodes[1].target.epoch == epoch
        assert [content(cluster, n, 0) for n in (1, 2, 3)] == [(3, 0, expected)] * 3


async def test_a_syncing_successor_gets_the_whole_chunk(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, OLD, 0)
        await cluster.nodes[2].kill()
        await cluster.wait_judged(2)
        await client.write(5, b"missed", 0)
        await cluster.start_node(2)
        await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
        made = ranged(client)
        await send(client, made)
        await cluster.wait_all_serving()
        expected = overlaid(overlaid(OLD, [(5, 6)], b"missed"), RANGES, made[1])
        assert content(cluster, 1, 0)[2] == content(cluster, 2, 0)[2] == expected


async def test_a_damaged_copy_at_the_head_is_repaired_for_what_is_between_the_ranges(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, OLD, 0)
        node = cluster.nodes[1]
        ranges = [(0, 5), (10, len(OLD) - 10)]
        made = ranged(client, ranges)
        assert node.engine.mark_damaged(node.target.target_id, ChunkId(InodeId(INODE), 0))
        await send(client, made)
        expected = overlaid(OLD, ranges, made[1])
        assert [content(cluster, n, 0)[2] for n in (1, 2)] == [expected] * 2


def spoil_type(request):
    request.type = pb.TRUNCATE


def spoil_order(request):
    request.range_offsets[0], request.range_offsets[1] = 600, 20


def spoil_overlap(request):
    request.range_offsets[1] = 12


def spoil_columns(request):
    request.range_lengths.append(1)


def spoil_sum(request):
    request.range_lengths[1] += 1


def spoil_end(request):
    request.length += 1


def spoil_start(request):
    request.offset += 1


def spoil_empty(request):
    request.range_lengths[1] = 0


def spoil_size(request):
    request.range_offsets[3] = CHUNK


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_type, spoil_order, spoil_overlap, spoil_columns, spoil_sum, spoil_end, spoil_start,
        spoil_empty, spoil_size,
    ],
)  # fmt: skip
async def test_what_are_no_ranges_is_refused_with_nothing_done(mock_clock, spoil):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, OLD, 0)
        made = ranged(client)
        spoil(made[0])
        assert await status_of(send, client, made) is Status.RPC_BAD_REQUEST
        assert [content(cluster, n, 0) for n in (1, 2)] == [(1, 0, OLD)] * 2


async def test_more_ranges_than_an_update_takes_are_refused(mock_clock):
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        made = ranged(client, [(2 * n, 1) for n in range(1025)])
        assert await status_of(send, client, made) is Status.RPC_BAD_REQUEST
        assert (await send(client, ranged(client, [(2 * n, 1) for n in range(1024)]))).commit_ver


async def test_bytes_that_changed_on_their_way_are_refused(mock_clock):
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        request, data = ranged(client)
        assert await status_of(send, client, (request, b"x" + data[1:])) is Status.CHECKSUM_MISMATCH
        assert content(cluster, 1, 0) is None


async def test_ranges_are_in_no_group(mock_clock):
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        request, data = ranged(client)
        request.chain_version = cluster.chain.chain_version
        refused = await status_of(
            client.channel(1).call,
            services.STORAGE_WRITE_GROUP,
            pb.UpdateGroupReq(updates=[request]),
            payload=[data],
            timeout_s=3.0,
        )
        assert refused is Status.RPC_BAD_REQUEST
        assert content(cluster, 1, 0) is None


async def test_no_room_below_leaves_nothing_anywhere(mock_clock, monkeypatch):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, OLD, 0)

        def full(*_args, **_options):
            raise FsError(Status.NO_SPACE, "injected")

        with monkeypatch.context() as patch:
            patch.setattr(cluster.nodes[2].engine, "prepare_write", full)
            made = ranged(client)
            assert await status_of(send, client, made) is Status.NO_SPACE
        assert [content(cluster, n, 0) for n in (1, 2)] == [(1, 0, OLD)] * 2
        assert (await send(client, ranged(client))).update_ver == 2


async def test_who_does_not_see_the_ranges_refuses_the_write(mock_clock):
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        request, data = ranged(client, [(0, 1), (2, 1)])
        request.ClearField("range_offsets")  # as an older release reads it
        request.ClearField("range_lengths")
        method = services.STORAGE_WRITE
        refused = await status_of(send, client, (request, data), method=method)
        assert refused is Status.RPC_BAD_REQUEST
        assert content(cluster, 1, 0) is None


@pytest.mark.parametrize("is_pending_below", [False, True])
async def test_a_late_repeat_has_no_effect_after_failovers_there_and_back(
    mock_clock, is_pending_below
):
    """From head 1 to 2 or 3 and back to 1, which had the update pending when it died,
    and has it from resync since.
    """
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, OLD, 0)
        block(cluster, *((2, 3) if is_pending_below else (1, 2)))
        made = ranged(client)
        assert await status_of(send, client, made, timeout_s=0.5) is Status.RPC_TIMEOUT
        await cluster.nodes[1].kill()
        cluster.network.heal()
        await cluster.wait_judged(1)
        assert (await send(client, made)).update_ver == 2
        await cluster.start_node(1)
        await cluster.wait_all_serving()
        expected = overlaid(OLD, RANGES, made[1])
        assert content(cluster, 1, 0) == (2, 0, expected)
        client.channel_id += 1
        await client.write(0, NEW, 0)
        for node_id in (2, 3):
            await cluster.nodes[node_id].kill()
            await cluster.wait_judged(node_id)
        assert cluster.chain.serving == (101,)
        assert (await send(client, made)).update_ver == 2
        assert content(cluster, 1, 0) == (3, 0, NEW + expected[len(NEW) :])
