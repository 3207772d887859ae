# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Chunks that a syncing successor gets together: as if each had come by itself, only cheaper."""

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from msgspec import structs

from fs.chunkengine.api import ChunkState
from fs.chunkengine.format import chunk_key, place_of
from fs.rpc.buffer_pool import BufferPool
from fs.schema import services
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.routing import ChainTarget, PublicState
from fs.schema.status import FsError, Status
from fs.storage import rate_limit, resync, resync_groups, service
from fs.storage.local_state import Hold
from fs.storage.resync_groups import grouped
from fs.storage.resync_plan import Item, Need
from fs.storage.update_notes import read_note

from .cluster import CHUNK, INODE, content, open_caller, open_cluster
from .test_resync import hold_resync, state_of
from .test_update_group import count_calls, send, settled, status_of, writes

COUNT = 8


def chunk(index):
    return ChunkId(InodeId(INODE), index)


def listed(index, length=100, pending_ver=0):
    return ChunkState(chunk(index), 1, 1, length, 7, CHUNK, pending_ver)


def item(index, need=Need.TRANSFER, *, is_suspect=False):
    return Item(chunk(index), need, is_suspect)


def sizes(groups):
    return [(len(group.items), group.byte_count) for group in groups]


def test_groups_are_as_large_as_they_may_be():
    mib = 1 << 20
    wanted = [(item(n), listed(n, mib)) for n in range(10)]
    assert sizes(grouped(iter(wanted))) == [(4, 4 * mib), (4, 4 * mib), (2, 2 * mib)]
    assert sizes(grouped(iter(wanted), mib // 2)) == [(1, mib)] * 10
    wanted = [(item(n), listed(n, 1)) for n in range(100)]
    assert sizes(grouped(iter(wanted))) == [(64, 64), (36, 36)]
    wanted = [(item(0), listed(0, 64 * mib)), (item(1), listed(1)), (item(2), listed(2, 64 * mib))]
    assert sizes(grouped(iter(wanted))) == [(1, 64 * mib), (1, 100), (1, 64 * mib)]
    assert sizes(grouped(iter([]))) == []


def test_what_needs_more_than_its_bytes_stays_alone():
    wanted = [
        (item(0), listed(0)),
        (item(1, Need.REMOVE), None),
        (item(2), listed(2, pending_ver=2)),
        (item(3), None),
        (item(4, is_suspect=True), listed(4)),
        (item(5), listed(5)),
    ]
    groups = [[one.chunk_id.index for one in group.items] for group in grouped(iter(wanted))]
    assert sorted(groups) == [[0, 5], [1], [2], [3], [4]]


async def fill(client, text, indexes=range(COUNT)):
    for index in indexes:
        await client.write(0, text * (10 + index), index)


@asynccontextmanager
async def missed(text=b"second"):
    """A cluster whose second node has missed what its chunks hold; it is not yet started again."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await fill(client, b"first")
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        await fill(client, text)
        yield cluster, client


async def come_back(cluster):
    await cluster.start_node(2)
    await cluster.wait_all_serving()
    assert settled(cluster)
    assert all(not node.target.inflight.count for node in cluster.nodes.values())
    buffers = cluster.nodes[1].storage._resync._buffers
    assert (buffers.used_bytes, buffers.idle_bytes) == (0, 0)


def assert_equal(cluster, count=COUNT):
    for index in range(count):
        assert content(cluster, 1, index) == content(cluster, 2, index), index
        ours, theirs = state_of(cluster, 1, index), state_of(cluster, 2, index)
        assert ours is None or ours.chain_version == theirs.chain_version


async def test_chunks_go_in_one_request_and_one_batch(mock_clock, monkeypatch):
    async with missed() as (cluster, _):
        calls, batches = count_calls(monkeypatch), []
        real = type(cluster.nodes[2].engine).prepare_writes

        def noted(engine, target_id, made, **options):
            batches.append(len(made))
            return real(engine, target_id, made, **options)

        monkeypatch.setattr(type(cluster.nodes[2].engine), "prepare_writes", noted)
        await come_back(cluster)
        assert calls == [(2, "run_group")]
        assert batches == [COUNT]
        assert_equal(cluster)
        progress = cluster.nodes[1].target.progress
        assert progress.transferred_count == COUNT
        assert progress.transferred_bytes == sum(6 * (10 + n) for n in range(COUNT))
        assert not progress.failed_count


async def test_each_keeps_the_chain_version_that_it_was_committed_under(mock_clock, monkeypatch):
    async with missed() as (cluster, client):
        async with hold_resync(cluster, 1):
            await cluster.start_node(2)
            await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
            await client.write(0, b"later", 3)
            await client.write(0, b"later", 5)
        await cluster.wait_all_serving()
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        await client.write(0, b"last", 3)
        states = [state_of(cluster, 1, n) for n in range(COUNT)]
        assert len({state.chain_version for state in states}) == 3
        # So that all have to be brought over.
        engine_type = type(cluster.nodes[1].engine)
        monkeypatch.setattr(engine_type, "list_chunks", list_with_other_digests)
        calls = count_calls(monkeypatch)
        await come_back(cluster)
        assert calls == [(2, "run_group")]
        assert_equal(cluster)
        assert [state_of(cluster, 2, n) for n in range(COUNT)] == states


def list_with_other_digests(engine, target_id, *, after=b"", limit=1024):
    """List chunks as if those of no two targets were alike."""
    found = [engine.get(target_id, chunk(index)) for index in range(COUNT)]
    return [
        structs.replace(s, checksum=int(target_id))
        for s in found
        if s and s.chunk_id.pack() > after
    ]


async def test_a_chunk_that_is_being_updated_holds_nobody_else_up(mock_clock):
    async with missed() as (cluster, _):
        target = cluster.nodes[1].target
        async with target.locks.hold(chunk(3)):
            await cluster.start_node(2)
            await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
            await trio.sleep(1.0)
            differ = [n for n in range(COUNT) if content(cluster, 1, n) != content(cluster, 2, n)]
            assert differ == [3]
            assert list(target.locks._held) == [chunk(3)]
        await cluster.wait_all_serving()
        assert_equal(cluster)


async def test_a_chunk_that_has_grown_since_it_was_listed_goes_as_it_is(mock_clock, monkeypatch):
    async with missed() as (cluster, client):
        real = BufferPool.acquire

        async def acquire(pool, length):
            if pool is cluster.nodes[1].storage._resync._buffers:
                await client.write(0, b"grown" * 1000, 2)
            return await real(pool, length)

        monkeypatch.setattr(BufferPool, "acquire", acquire)
        await come_back(cluster)
        assert content(cluster, 2, 2) == (3, 0, b"grown" * 1000)
        assert_equal(cluster)


async def test_a_damaged_chunk_keeps_no_other_from_going(mock_clock):
    async with missed() as (cluster, _):
        node = cluster.nodes[1]
        with node.engine._books as ledger:
            record = ledger.record(chunk_key(TargetId(101), chunk(4)))
        node.disk.flip_bit(*place_of(record.position))
        await come_back(cluster)
        progress = node.target.progress
        assert (progress.damaged_count, progress.failed_count) == (1, 0)
        assert state_of(cluster, 2, 4).is_damaged
        for index in set(range(COUNT)) - {4}:
            assert content(cluster, 1, index) == content(cluster, 2, index)


async def test_a_successor_of_an_older_release_gets_chunks_one_by_one(mock_clock, monkeypatch):
    async with missed() as (cluster, _):
        calls = count_calls(monkeypatch)
        asked = []

        async def unknown(*_args, **_options):
            asked.append(1)
            raise FsError(Status.RPC_UNKNOWN_METHOD, "service 3 method 18")

        monkeypatch.setattr(service, "run_group", unknown)
        monkeypatch.setattr(resync_groups, "GROUP_COUNT_MAX", 2)
        epoch = cluster.nodes[1].target.epoch
        await come_back(cluster)
        assert calls.count((2, "run_update")) == COUNT
        assert len(asked) < COUNT / 2 + 1
        assert cluster.nodes[1].target.epoch == epoch
        context = cluster.nodes[1].storage._context
        assert context.without_replace_groups
        assert not context.without_groups
        assert_equal(cluster)


@pytest.mark.parametrize("is_lost_before", [True, False])
async def test_a_lost_reply_voids_the_request(mock_clock, monkeypatch, is_lost_before):
    async with missed() as (cluster, _):
        real, lost = service.run_group, []

        async def lose(context, request, *args, **options):
            if lost:
                return await real(context, request, *args, **options)
            lost.append(request)
            if not is_lost_before:
                await real(context, request, *args, **options)
            raise FsError(Status.OUTCOME_UNKNOWN, "its reply is lost")

        monkeypatch.setattr(service, "run_group", lose)
        epoch = cluster.nodes[1].target.epoch
        await come_back(cluster)
        assert lost
        assert cluster.nodes[1].target.epoch == epoch + 1
        assert_equal(cluster)


async def test_one_that_the_successor_refuses_goes_by_itself(mock_clock, monkeypatch):
    async with missed() as (cluster, _):
        real, calls = service.run_group, count_calls(monkeypatch)

        async def spoil(context, request, *args, **options):
            reply = await real(context, request, *args, **options)
            reply.outcomes[1].status = Status.CHECKSUM_MISMATCH
            return reply

        monkeypatch.setattr(service, "run_group", spoil)
        await come_back(cluster)
        assert calls.count((2, "run_update")) == 1
        assert cluster.nodes[1].target.progress.transferred_count == COUNT
        assert_equal(cluster)


async def test_a_full_disk_of_the_successor_ends_it(mock_clock):
    async with missed() as (cluster, _):
        node, holds = cluster.nodes[2], []

        def full(*_, **__):
            raise FsError(Status.NO_SPACE, "full")

        async with hold_resync(cluster, 1):
            await cluster.start_node(2)
            await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
            before = [content(cluster, 2, n) for n in range(COUNT)]
            node.engine.prepare_writes = node.engine.prepare_write = full
            put_offline = node.storage.targets.put_offline

            def noted(target, hold, why):
                holds.append(hold)
                put_offline(target, hold, why)

            node.storage.targets.put_offline = noted
        with trio.fail_after(20):
            while Hold.FULL not in holds:  # noqa: ASYNC110 - polls
                await trio.sleep(0.01)
        assert cluster.nodes[1].target.progress.transferred_count == 0
        assert [content(cluster, 2, n) for n in range(COUNT)] == before


def replacements(client, count=4):
    made = writes(client, count)
    for request, _ in made:
        request.update_ver = 9
        request.is_full_replace = True
        request.commit_chain_version = 1
        request.ClearField("tag")
    return made


@pytest.mark.parametrize(
    "spoil",
    [
        lambda made: made.clear(),
        lambda made: setattr(made[1][0], "type", pb.TRUNCATE),
        lambda made: setattr(made[1][0], "is_full_replace", False),
        lambda made: setattr(made[1][0], "commit_chain_version", 0),
        lambda made: setattr(made[1][0], "is_damaged", True),
        lambda made: setattr(made[1][0], "is_durable", True),
        lambda made: setattr(made[1][0], "length", 1),
    ],
)
async def test_what_is_no_group_of_whole_chunks_is_refused(mock_clock, spoil):
    async with missed() as (cluster, client), hold_resync(cluster, 1):
        await cluster.start_node(2)
        await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
        made = replacements(client)
        before = [content(cluster, 2, n) for n in range(COUNT)]
        method = services.STORAGE_REPLACE_GROUP
        spoil(made)
        refused = await status_of(send, client, made, method=method, node_id=2)
        assert refused is Status.RPC_BAD_REQUEST
        assert [content(cluster, 2, n) for n in range(COUNT)] == before


async def test_whole_chunks_are_no_group_of_writes(mock_clock):
    async with missed() as (cluster, client), hold_resync(cluster, 1):
        await cluster.start_node(2)
        await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
        made, method = replacements(client), services.STORAGE_UPDATE_GROUP
        refused = await status_of(send, client, made, method=method, node_id=2)
        assert refused is Status.RPC_BAD_REQUEST


async def test_what_a_group_says_of_clients_is_stored_once_more_after_its_commit(
    mock_clock, monkeypatch
):
    """A batch of the predecessor's older results may have replaced the notes of the commit."""
    async with missed() as (cluster, client), hold_resync(cluster, 1):
        await cluster.start_node(2)
        await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
        engine, target_id = cluster.nodes[2].engine, cluster.nodes[2].target.target_id
        prepare = engine.prepare_writes

        def prepare_and_lose_notes(*args, **options):
            states = prepare(*args, **options)
            engine.forget_notes(target_id, [n.key for n in engine.notes(target_id) if read_note(n)])
            return states

        monkeypatch.setattr(engine, "prepare_writes", prepare_and_lose_notes)
        made = replacements(client)
        for index, (request, _) in enumerate(made):
            request.tag.CopyFrom(client.write_request(0, b"x", index).tag)
            request.tag.channel_id = 1 + index
        answers = await send(client, made, method=services.STORAGE_REPLACE_GROUP, node_id=2)
        assert answers == [(Status.OK, 9)] * len(made)
        left = [note for note in map(read_note, engine.notes(target_id)) if note]
        assert [(n.tag.channel_id, n.result.update_ver) for n in left] == [
            (i, 9) for i in range(1, 5)
        ]


async def test_a_serving_target_takes_no_chunks_of_resync(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await fill(client, b"sound")
        made, method = replacements(client), services.STORAGE_REPLACE_GROUP
        for request, _ in made:
            request.update_ver = 1
        before = [content(cluster, 2, n) for n in range(COUNT)]
        await send(client, made, method=method, node_id=2)
        assert [content(cluster, 2, n) for n in range(COUNT)] == before


async def test_a_voided_copy_of_a_group_has_no_effect(mock_clock):
    async with missed() as (cluster, client), hold_resync(cluster, 1):
        await cluster.start_node(2)
        await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
        target = cluster.nodes[2].target
        target.epoch_seen = (cluster.chain.chain_version, 5)
        before = [content(cluster, 2, n) for n in range(COUNT)]
        made = replacements(client)
        for request, _ in made:
            request.sender_epoch = 4
        late = await send(client, made, method=services.STORAGE_REPLACE_GROUP, node_id=2)
        assert {status for status, _ in late} == {Status.SUPERSEDED_UPDATE}
        assert [content(cluster, 2, n) for n in range(COUNT)] == before


async def test_a_successor_that_is_gone_from_the_routing_ends_the_attempt_alone(
    mock_clock, monkeypatch
):
    """Its target was removed from the cluster while the group waited for memory."""
    async with missed() as (cluster, client):
        real, asked = resync.takes_groups, []

        def gone(context, place):
            asked.append(place)
            if len(asked) == 1:
                raise FsError(Status.TARGET_UNKNOWN, "target 102")
            return real(context, place)

        monkeypatch.setattr(resync, "takes_groups", gone)
        await cluster.start_node(2)
        await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
        await trio.sleep(1.0)
        assert cluster.nodes[1].is_alive
        await client.write(0, b"goes on", 1)
        await cluster.wait_all_serving()
        assert len(asked) > 1
        assert_equal(cluster)


async def test_a_chain_that_loses_its_feeder_ends_the_attempt_alone(mock_clock, monkeypatch):
    """Ours left the chain after a chunk could not be brought over,
    while more wait for their turn.
    """
    async with missed() as (cluster, _client):
        left, real = [], resync.grouped

        async def fail(_self, place, _group, slots):
            if not left:
                left.append(place)
                member = ChainTarget(TargetId(102), PublicState.SERVING)
                version = cluster.chain.chain_version + 1
                cluster.publish(replace(cluster.chain, chain_version=version, targets=(member,)))
                cluster.nodes[1].routing.deliver(cluster.info)
            place.target.progress.failed_count += 1
            slots.release()

        monkeypatch.setattr(resync, "grouped", lambda wanted, _bytes: real(wanted, 1))
        monkeypatch.setattr(resync.Resync, "_bring_in_slot", fail)
        await cluster.start_node(2)
        with trio.fail_after(10):
            while not left:  # noqa: ASYNC110 - polls
                await trio.sleep(0.01)
        await trio.sleep(1)
        assert cluster.nodes[1].is_alive
        assert not cluster.nodes[1].target.progress.is_running


async def grow_before_their_turn(cluster, client, data):
    """Have node 2 come back; its chunks grow when they have been listed,
    and before any of them is brought over.
    """
    resync_work = cluster.nodes[1].storage._resync
    slots = resync_work._slots
    count = slots.value
    for _ in range(count):
        await slots.acquire()
    await cluster.start_node(2)
    await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
    await trio.sleep(1.0)
    await fill(client, data)
    for _ in range(count):
        slots.release()


async def test_chunks_that_have_grown_take_no_more_memory_than_a_group_may(mock_clock, monkeypatch):
    for module in (resync, rate_limit):
        monkeypatch.setattr(module, "GROUP_BYTES_MAX", 1000)
    async with missed() as (cluster, client):
        pool, sizes_asked = cluster.nodes[1].storage._resync._buffers, []
        real = BufferPool.acquire

        async def acquire(buffers, length):
            if buffers is pool:
                sizes_asked.append(length)
            return await real(buffers, length)

        monkeypatch.setattr(BufferPool, "acquire", acquire)
        await grow_before_their_turn(cluster, client, b"grown" * 100)
        await cluster.wait_all_serving()
        assert sizes_asked
        assert max(sizes_asked) <= 1000
        assert_equal(cluster)


async def test_memory_of_a_chunk_that_is_larger_than_a_group_is_of_the_pool(
    mock_clock, monkeypatch
):
    for module in (resync, rate_limit):
        monkeypatch.setattr(module, "GROUP_BYTES_MAX", 10)
    async with missed() as (cluster, _):
        whole, engine = [], cluster.nodes[1].engine
        with monkeypatch.context() as patch:
            patch.setattr(engine, "read_whole", lambda *_, **__: whole.append(1) or b"")
            await come_back(cluster)
        assert not whole
        progress = cluster.nodes[1].target.progress
        assert progress.transferred_count == COUNT
        assert_equal(cluster)


async def test_more_chunks_than_anybody_sends_together_are_refused(mock_clock):
    async with missed() as (cluster, client), hold_resync(cluster, 1):
        await cluster.start_node(2)
        await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
        made = replacements(client, service.GROUP_COUNT_MAX + 1)
        method = services.STORAGE_REPLACE_GROUP
        assert (
            await status_of(send, client, made, method=method, node_id=2) is Status.RPC_BAD_REQUEST
        )
