# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Several writes in one request: they are done as if each had come by itself, only cheaper."""

import pytest
import trio
from msgspec.structs import replace

from fs.rpc.api import Identity
from fs.schema import services
from fs.schema.ids import ChunkId, InodeId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import FsError, Status
from fs.storage import lone_update, service, update_group

from .cluster import CHUNK, INODE, content, open_caller, open_cluster
from .faults import block, no_space, status_of

COUNT = 4


def chunk(index):
    return ChunkId(InodeId(INODE), index)


def writes(client, count=COUNT, *, length=100, offset=0, first=0):
    """Return requests, each of a channel of its own, and their bytes."""
    made = []
    for index in range(first, first + count):
        data = bytes([65 + index % 100]) * (length + index)
        request = client.write_request(offset, data, index)
        request.tag.channel_id = 1 + index
        made.append((request, data))
    return made


async def send(client, made, *, method=services.STORAGE_WRITE_GROUP, node_id=None, timeout_s=3.0):
    """Send a group; return what is said of each: status, and version."""
    for request, _ in made:
        request.chain_version = client.cluster.chain.chain_version
    node_id = node_id or client.cluster.chain.serving[0] - 100
    received = await client.channel(node_id).call(
        method,
        pb.UpdateGroupReq(updates=[request for request, _ in made]),
        payload=[data for _, data in made],
        timeout_s=timeout_s,
    )
    outcomes = received.message.outcomes
    return [(Status(one.status), one.reply.update_ver) for one in outcomes]


def contents(cluster, node_id, count=COUNT):
    return [content(cluster, node_id, index) for index in range(count)]


def count_calls(monkeypatch):
    """Count requests of storage processes to each other, by method."""
    calls = []
    for name in ("run_update", "run_group"):
        real = getattr(service, name)

        async def counted(context, request, *args, real=real, name=name, **options):
            calls.append((context.node_id, name))
            return await real(context, request, *args, **options)

        monkeypatch.setattr(service, name, counted)
    begin = lone_update._Lone.begin

    def begin_counted(lone, now_s):
        calls.append((lone._context.node_id, "run_update"))
        begin(lone, now_s)

    monkeypatch.setattr(lone_update._Lone, "begin", begin_counted)
    return calls


def settled(cluster):
    return not any(n.target.unsettled or len(n.target.locks) for n in cluster.nodes.values())


async def test_a_group_is_one_request_to_each_replica(mock_clock, monkeypatch):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        calls = count_calls(monkeypatch)
        made = writes(client)
        assert await send(client, made) == [(Status.OK, 1)] * COUNT
        assert calls == [(1, "run_group"), (2, "run_group"), (3, "run_group")]
        expected = [(1, 0, data) for _, data in made]
        assert [contents(cluster, n) for n in (1, 2, 3)] == [expected] * 3
        again = writes(client, offset=50)
        assert await send(client, again) == [(Status.OK, 2)] * COUNT
        assert contents(cluster, 3)[1] == (2, 0, b"B" * 151)
        assert settled(cluster)
        assert all(not node.target.inflight.count for node in cluster.nodes.values())


async def test_a_group_is_prepared_in_one_batch_and_committed_in_one(mock_clock, monkeypatch):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        asked = []
        for node in cluster.nodes.values():
            engine = node.engine
            for name in ("prepare_writes", "commit_writes", "prepare_write", "commit"):
                real = getattr(engine, name)

                def noted(*args, real=real, name=name, node=node, **options):
                    asked.append((node.node_id, name))
                    return real(*args, **options)

                monkeypatch.setattr(engine, name, noted)
        await send(client, writes(client))
        assert asked == [(1, "prepare_writes"), (2, "prepare_writes"), (1, "commit_writes")]


@pytest.mark.parametrize(("node_id", "status"), [(1, Status.OUTCOME_UNKNOWN), (2, Status.OK)])
async def test_a_client_is_told_of_success_under_a_lease_only(
    mock_clock, monkeypatch, node_id, status
):
    """By then others may serve without the head;
    who is no head tells its predecessor, which has to look for itself.
    """
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        node = cluster.nodes[node_id]
        name = "commit_writes" if node_id == 1 else "prepare_writes"
        real = getattr(node.engine, name)

        def last(*args, **options):
            node.lease.is_valid = lambda: False
            return real(*args, **options)

        monkeypatch.setattr(node.engine, name, last)
        outcomes = await send(client, writes(client))
        assert [outcome for outcome, _ in outcomes] == [status] * COUNT
        assert contents(cluster, 2)[0] == (1, 0, b"A" * 100)


async def test_a_group_is_no_slow_call_of_a_disk(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await send(client, writes(client))
        for node in cluster.nodes.values():
            assert node.target.disk.pace._weight == COUNT


async def test_a_repeat_gets_the_first_results_whether_together_or_alone(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        made = writes(client)
        await send(client, made)
        assert await send(client, made[1:]) == [(Status.OK, 1)] * (COUNT - 1)
        for request, data in made:
            assert (await client.attempt(request, data)).update_ver == 1
        await cluster.nodes[1].kill()
        await cluster.wait_judged(1)
        assert await send(client, made) == [(Status.OK, 1)] * COUNT
        new, old = writes(client, 2, first=COUNT), made[:2]
        mixed = [old[0], new[0], old[1], new[1]]
        assert await send(client, mixed) == [(Status.OK, 1)] * 4
        assert [content(cluster, n, i)[0] for n in (2, 3) for i in range(COUNT + 2)] == [1] * 12


async def test_each_fails_for_itself(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"old", 3)
        made = writes(client)
        made[1][0].payload_checksum ^= 1
        made[2][0].chunk_size_bytes = 1024
        made[3][0].chunk_size_bytes = CHUNK * 2
        assert await send(client, made) == [
            (Status.OK, 1),
            (Status.CHECKSUM_MISMATCH, 0),
            (Status.RPC_BAD_REQUEST, 0),
            (Status.INVALID_ARGUMENT, 0),
        ]
        for node_id in (1, 2):
            assert contents(cluster, node_id) == [(1, 0, made[0][1]), None, None, (1, 0, b"old")]
        # a final refusal is remembered for a copy that comes late
        made[3][0].chunk_size_bytes = CHUNK
        late = status_of(client.attempt, made[3][0], made[3][1])
        assert await late is Status.INVALID_ARGUMENT
        assert settled(cluster)


async def test_two_writes_of_one_chunk_follow_each_other(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        made = [*writes(client, 2), *writes(client, 1, offset=10)]
        made[2][0].tag.channel_id = 9
        assert await send(client, made) == [(Status.OK, 1), (Status.OK, 1), (Status.OK, 2)]
        assert content(cluster, 2, 0) == (2, 0, b"A" * 110)
        assert settled(cluster)


async def test_a_chunk_that_is_being_updated_holds_nobody_else_up(mock_clock, nursery):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        target = cluster.nodes[1].target
        made, outcomes = writes(client), []

        async def sent():
            outcomes.extend(await send(client, made, timeout_s=30.0))

        async with target.locks.hold(chunk(2)):
            nursery.start_soon(sent)
            await trio.sleep(1.0)
            assert contents(cluster, 2) == [
                (1, 0, d) if n != 2 else None for n, (_, d) in enumerate(made)
            ]
            assert not outcomes
        await trio.sleep(1.0)
        assert outcomes == [(Status.OK, 1)] * COUNT
        assert settled(cluster)


@pytest.mark.parametrize("full", [1, 2, 3])
async def test_without_space_nobody_has_any_of_it(mock_clock, full):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"small")
        cluster.nodes[full].disk.on_step = no_space
        made = writes(client, length=60_000)
        assert await send(client, made) == [(Status.NO_SPACE, 0)] * COUNT
        for node_id in cluster.nodes:
            assert contents(cluster, node_id) == [(1, 0, b"small"), None, None, None]
        assert settled(cluster)


async def test_what_is_left_over_is_completed_first(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        block(cluster, 1, 2)
        first = writes(client)
        assert await status_of(send, client, first, timeout_s=1.0) is Status.RPC_TIMEOUT
        assert contents(cluster, 1) == [None] * COUNT or all(
            one is None or one[1] for one in contents(cluster, 1)
        )
        await cluster.nodes[2].kill()
        await cluster.wait_judged(2)
        second = writes(client, offset=1000)
        for request, _ in second:
            request.tag.channel_id += 100
        for _ in range(100):
            outcomes = await send(client, second)
            if {status for status, _ in outcomes} == {Status.OK}:
                break
            await trio.sleep(0.1)
        for index, (_, data) in enumerate(first):
            found = content(cluster, 1, index)
            assert found[:2] == (2, 0)
            assert found[2] == data.ljust(1000, b"\0") + second[index][1]
        assert [request.update_ver for request, _ in first] == [0] * COUNT
        assert settled(cluster)


async def test_a_lost_reply_of_the_successor_is_asked_for_again(mock_clock, monkeypatch):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        real, lost = service.run_group, []

        async def lose(context, request, *args, **options):
            reply = await real(context, request, *args, **options)
            if context.node_id == 2 and not lost:
                lost.append(True)
                raise FsError(Status.OUTCOME_UNKNOWN, "its reply is lost")
            return reply

        monkeypatch.setattr(service, "run_group", lose)
        epoch = cluster.nodes[1].target.epoch
        made = writes(client)
        assert await send(client, made) == [(Status.OK, 1)] * COUNT
        assert lost
        assert cluster.nodes[1].target.epoch == epoch + 1
        for node_id in cluster.nodes:
            assert contents(cluster, node_id) == [(1, 0, data) for _, data in made]
        assert settled(cluster)


async def test_one_unknown_outcome_of_several_voids_what_is_still_under_way(
    mock_clock, monkeypatch
):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        real = service.run_group

        async def spoil(context, request, *args, **options):
            reply = await real(context, request, *args, **options)
            if context.node_id == 2:
                reply.outcomes[1].status = Status.OUTCOME_UNKNOWN
            return reply

        monkeypatch.setattr(service, "run_group", spoil)
        epoch = cluster.nodes[1].target.epoch
        assert await send(client, writes(client)) == [(Status.OK, 1)] * COUNT
        assert cluster.nodes[1].target.epoch == epoch + 1


async def test_a_successor_that_contradicts_leaves_the_chain(mock_clock, monkeypatch):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"base", 1)
        engine = cluster.nodes[2].engine
        real = engine.prepare_writes

        def other(target_id, group, **options):
            spoilt = [replace(w, data=b"?" * 101) if w.chunk_id.index == 1 else w for w in group]
            return real(target_id, spoilt, **options)

        monkeypatch.setattr(engine, "prepare_writes", other)
        assert await send(client, writes(client), timeout_s=30.0) == [
            (Status.OK, 2 if index == 1 else 1) for index in range(COUNT)
        ]
        assert len(cluster.history) > 1
        monkeypatch.undo()
        await cluster.wait_all_serving()
        assert contents(cluster, 1) == contents(cluster, 2)


async def test_a_successor_of_an_older_release_gets_updates_one_by_one(mock_clock, monkeypatch):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        calls, real = count_calls(monkeypatch), service.run_group

        async def unknown(context, request, *args, **options):
            if context.node_id == 2:
                raise FsError(Status.RPC_UNKNOWN_METHOD, "service 3 method 17")
            return await real(context, request, *args, **options)

        monkeypatch.setattr(service, "run_group", unknown)
        epoch = cluster.nodes[1].target.epoch
        for _ in range(2):
            assert {s for s, _ in await send(client, writes(client))} == {Status.OK}
        assert calls.count((2, "run_update")) == 2 * COUNT
        assert cluster.nodes[1].storage._context.without_groups
        assert cluster.nodes[1].target.epoch == epoch
        assert contents(cluster, 1) == contents(cluster, 2)


@pytest.mark.parametrize("are_together_here", [True, False])
async def test_few_chunks_of_a_group_are_in_memory_as_a_whole(
    mock_clock, monkeypatch, are_together_here
):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        real, inside, counts = service.run_update, [], []

        async def slow(context, request, *args, **options):
            inside.append(request)
            counts.append(len(inside))
            await trio.sleep(0.1)
            inside.remove(request)
            return await real(context, request, *args, **options)

        monkeypatch.setattr(service, "run_update", slow)
        monkeypatch.setattr(update_group, "WHOLE_BYTES_MAX", 2 * CHUNK)
        context = cluster.nodes[1].storage._context
        node = context.routing.info.nodes[2]
        context.without_groups.add((node.node_id, node.incarnation))
        if not are_together_here:
            monkeypatch.setattr(update_group, "_plain", lambda *_: [])
        made = [*writes(client, 8), *writes(client, 8, offset=10)]
        for number, (request, _) in enumerate(made):
            request.tag.channel_id = 1 + number
        assert {status for status, _ in await send(client, made)} == {Status.OK}
        assert max(counts) == 2
        assert contents(cluster, 1, 8) == contents(cluster, 2, 8)
        assert settled(cluster)


async def test_a_voided_copy_of_a_group_has_no_effect(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        made = writes(client)
        for request, _ in made:
            request.update_ver, request.sender_epoch = 1, 1
        cluster.nodes[2].target.admit_epoch(cluster.chain.chain_version, 2)
        late = await send(client, made, method=services.STORAGE_UPDATE_GROUP, node_id=2)
        assert late == [(Status.SUPERSEDED_UPDATE, 0)] * COUNT
        assert contents(cluster, 2) == [None] * COUNT
        assert settled(cluster)


async def test_a_group_that_came_late_is_told_the_chain_version(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        made = writes(client)
        call = send(client, made, node_id=2)
        with pytest.raises(FsError) as caught:
            await client.channel(1).call(
                services.STORAGE_WRITE_GROUP,
                pb.UpdateGroupReq(updates=[request for request, _ in made]),
                payload=[data for _, data in made],
            )
        assert caught.value.status is Status.ROUTING_MISMATCH
        assert await call == [(Status.NOT_HEAD, 0)] * COUNT


async def test_a_syncing_successor_gets_whole_chunks(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        for index in range(COUNT):
            await client.write(0, b"base" * 1000, index)
        await cluster.nodes[2].kill()
        await cluster.wait_judged(2)
        for index in range(COUNT):
            await client.write(0, b"more", index)
        await cluster.start_node(2)
        with trio.fail_after(60):
            while cluster.states()[2] != "SERVING":
                made = writes(client, offset=8)
                for request, _ in made:
                    request.tag.channel_id += 100
                try:
                    await send(client, made)
                except FsError as error:
                    assert error.status in {Status.ROUTING_MISMATCH, Status.RPC_TIMEOUT}  # noqa: PT017
                await trio.sleep(0.01)
        await cluster.wait_all_serving()
        assert contents(cluster, 1) == contents(cluster, 2)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda made: made.clear(),
        lambda made: made[1][0].ClearField("type"),
        lambda made: setattr(made[1][0], "type", pb.TRUNCATE),
        lambda made: setattr(made[1][0], "chain_id", 8),
        lambda made: setattr(made[1][0], "sender_epoch", 3),
        lambda made: setattr(made[1][0], "is_durable", True),
        lambda made: setattr(made[1][0], "is_damaged", True),
        lambda made: setattr(made[1][0], "is_full_replace", True),
        lambda made: setattr(made[1][0], "commit_chain_version", 1),
        lambda made: setattr(made[1][0], "length", 1),
        lambda made: setattr(made[3][0], "length", 5000),
    ],
)
async def test_what_is_no_group_of_plain_writes_is_refused(mock_clock, spoil):
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        made = writes(client)
        spoil(made)
        assert await status_of(send, client, made) is Status.RPC_BAD_REQUEST
        assert contents(cluster, 1) == [None] * COUNT
        assert settled(cluster)


async def test_a_group_is_bounded(mock_clock):
    """What it costs to tell its members apart grows with the square of their number."""
    count = service.GROUP_COUNT_MAX
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        made = writes(client, count + 1)
        assert await status_of(send, client, made) is Status.RPC_BAD_REQUEST
        assert contents(cluster, 1) == [None] * COUNT
        found = await send(client, made[:count], timeout_s=60.0)
        assert found == [(Status.OK, 1)] * count


async def test_a_user_speaks_for_no_other_client_in_any_of_a_group(mock_clock):
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        admit = cluster.nodes[1].storage.service.admit
        group = pb.UpdateGroupReq(updates=[request for request, _ in writes(client)])
        peer = Identity("", client_id=client.client_id)
        admit(None, peer, group)
        group.updates[2].tag.client_id = "another"
        with pytest.raises(FsError, match="RPC_NOT_ALLOWED"):
            admit(None, peer, group)


@pytest.mark.parametrize("held_on", [1, 2])
async def test_those_that_wait_for_others_end_with_the_time_of_the_group(mock_clock, held_on):
    """On the head they wait for a lock, on its successor they have been passed on, too."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        target = cluster.nodes[held_on].target
        made = writes(client)
        async with target.locks.hold(chunk(1)), target.locks.hold(chunk(2)):
            assert await status_of(send, client, made, timeout_s=1.0) is Status.RPC_TIMEOUT
            await trio.sleep(1.0)
            assert not any(node.target.inflight.count for node in cluster.nodes.values())
            for index in (0, 3):
                assert (await client.attempt(*made[index])).update_ver == 1
        assert await send(client, made) == [(Status.OK, 1)] * COUNT
        assert contents(cluster, 1) == contents(cluster, 2)
        assert settled(cluster)
