# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Updates that ask to be durable: what a power loss leaves of them, and when they say no."""

import random
from functools import partial
from itertools import permutations

import pytest
import trio

from fs.schema.status import FsError, Status
from fs.storage.flusher import WAIT_S_MAX, Flusher

from .cluster import content, open_caller, open_cluster

pytestmark = pytest.mark.thorough


async def attempt(client, offset, data, index=0, **options):
    request = client.write_request(offset, data, index)
    request.is_durable = True
    return await client.attempt(request, data, **options)


async def cut_power(cluster, order, rng):
    """All machines at once; they are missed, and started again, in this order."""
    for node in cluster.nodes.values():
        await node.kill()
        node.disk.power_loss(rng)
    for node_id in order:
        await cluster.wait_judged(node_id)
    for node_id in order:
        await cluster.start_node(node_id)
    await cluster.wait_all_serving()


@pytest.mark.parametrize("node_count", [1, 2, 3])
async def test_a_durable_update_survives_the_loss_of_all_power(mock_clock, node_count):
    async with open_cluster(node_count) as cluster, open_caller(cluster) as client:
        rng = random.Random(5)
        await client.write(0, b"some bytes that no sync has covered", 1)
        expected = b""
        for number, order in enumerate(permutations(cluster.nodes)):
            data = b"%d" % number * 30_000
            reply = await attempt(client, 100 * number, data)
            assert reply.is_durable
            expected = expected[: 100 * number].ljust(100 * number, b"\0") + data
            await cut_power(cluster, order, rng)
            assert {content(cluster, n)[2] for n in cluster.nodes} == {expected}
            assert {content(cluster, n, 1)[2] for n in cluster.nodes} == {
                b"some bytes that no sync has covered"
            }, "a flush covers what was acknowledged before"


async def test_a_repeat_after_the_loss_of_all_power_is_known(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        request = client.write_request(0, b"once")
        request.is_durable = True
        assert (await client.attempt(request, b"once")).is_durable
        await cut_power(cluster, (2, 3, 1), random.Random(1))
        client.channel_id += 1
        await client.write(0, b"others")
        assert (await client.update(request, b"once")).update_ver == 1
        assert {content(cluster, n)[2] for n in cluster.nodes} == {b"others"}


async def test_only_who_asks_is_told_and_a_repeat_is_not(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        request = client.write_request(0, b"data")
        assert not (await client.attempt(request, b"data")).is_durable
        assert any(node.disk.unsynced_batches for node in cluster.nodes.values())
        request = client.write_request(0, b"more")
        request.is_durable = True
        assert (await client.attempt(request, b"more")).is_durable
        assert not (await client.attempt(request, b"more")).is_durable


async def test_a_target_that_cannot_flush_is_not_taken_for_flushed(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"good")

        def fail(name):
            if name == "meta_sync":
                raise FsError(Status.IO_ERROR, "injected")

        cluster.nodes[2].disk.on_step = fail
        assert not (await attempt(client, 0, b"better")).is_durable
        await cluster.wait_states({1: "SERVING", 3: "SERVING", 2: "OFFLINE"})
        assert content(cluster, 1)[2] == content(cluster, 3)[2] == b"better"
        assert (await attempt(client, 0, b"best")).is_durable


@pytest.mark.parametrize("node_id", [1, 2, 3])
async def test_a_slow_flush_holds_up_nobody_for_long(mock_clock, monkeypatch, node_id):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        monkeypatch.setattr(cluster.nodes[node_id].target.disk, "sync", trio.sleep_forever)
        began_s = trio.current_time()
        assert not (await attempt(client, 0, b"slow", timeout_s=10)).is_durable
        assert trio.current_time() - began_s < WAIT_S_MAX + 0.5
        began_s = trio.current_time()
        await client.write(0, b"quick")
        assert trio.current_time() - began_s < 0.5


async def test_slow_flushes_of_a_chain_do_not_add_up(mock_clock, monkeypatch):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        for node_id, seconds in ((3, 0.9), (2, 1.8), (1, 2.7)):
            monkeypatch.setattr(
                cluster.nodes[node_id].target.disk,
                "sync",
                partial(trio.sleep, seconds * WAIT_S_MAX),
            )
        began_s = trio.current_time()
        assert not (await attempt(client, 0, b"slow", timeout_s=10)).is_durable
        assert trio.current_time() - began_s < WAIT_S_MAX + 0.5


async def test_a_chain_that_changes_meanwhile_has_not_flushed(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"base")
        cluster.network.block("node-2", "node-3")
        async with trio.open_nursery() as nursery:
            replies = []

            async def write():
                replies.append(await attempt(client, 0, b"data", timeout_s=30))

            nursery.start_soon(write)
            await trio.sleep(0.5)
            await cluster.nodes[3].kill()
            cluster.network.heal()
        assert not replies[0].is_durable
        assert (await attempt(client, 0, b"DATA")).is_durable
        assert content(cluster, 1)[2] == content(cluster, 2)[2] == b"DATA"


async def test_a_flush_of_another_engine_counts_for_nobody(mock_clock):
    async with open_cluster(1) as cluster:
        context, disk = cluster.nodes[1].storage._context, cluster.nodes[1].target.disk
        flush = context.flusher.begin(disk)
        assert await flush.wait()
        flush = context.flusher.begin(disk)
        flush.engine = object()  # as if it had been opened anew since
        assert not await flush.wait()


async def test_a_flush_that_cannot_be_begun_has_not_happened_and_the_next_is_begun(
    mock_clock, monkeypatch
):
    async with open_cluster(1) as cluster:
        context, disk = cluster.nodes[1].storage._context, cluster.nodes[1].target.disk
        with monkeypatch.context() as patch:

            def begin_sync(_on_end):
                raise RuntimeError("can't start new thread")

            patch.setattr(disk, "begin_sync", begin_sync)
            assert not await context.flusher.begin(disk).wait()
        assert await context.flusher.begin(disk).wait()


async def test_a_flush_asked_for_in_the_moment_the_flushes_end_holds_nobody_up(mock_clock):
    flusher = Flusher()
    async with open_cluster(1) as cluster:
        async with trio.open_nursery() as closed:
            pass
        flusher._nursery = closed
        flush = flusher.begin(cluster.nodes[1].target.disk)
        assert not await flush.wait()
        assert not flusher._under_way, "the process would wait for it for ever"


async def test_who_comes_during_a_flush_shares_the_next(mock_clock, monkeypatch):
    async with open_cluster(1) as cluster:
        context, disk = cluster.nodes[1].storage._context, cluster.nodes[1].target.disk
        begun, may_end = 0, trio.Semaphore(0)

        async def sync():
            nonlocal begun
            begun += 1
            await may_end.acquire()

        monkeypatch.setattr(disk, "sync", sync)
        first = context.flusher.begin(disk)
        await trio.sleep(1)
        others = [context.flusher.begin(disk) for _ in range(5)]
        may_end.release()
        assert await first.wait()
        await trio.sleep(1)
        assert begun == 2
        assert not any(flush.is_durable for flush in others)
        may_end.release()
        for flush in others:
            assert await flush.wait()
        assert begun == 2


async def test_those_who_gave_a_hanging_flush_up_are_forgotten(mock_clock, monkeypatch):
    async with open_cluster(1) as cluster:
        context, disk = cluster.nodes[1].storage._context, cluster.nodes[1].target.disk
        flusher, may_end, begun = context.flusher, trio.Event(), []

        async def sync():
            begun.append(disk)
            await may_end.wait()

        monkeypatch.setattr(disk, "sync", sync)
        flushes = [flusher.begin(disk) for _ in range(5)]
        for flush in flushes:
            assert not await flush.wait()
        assert not flusher._waiting[disk]
        late = flusher.begin(disk)
        may_end.set()
        assert await late.wait(), "who comes later is not"
        assert len(begun) == 2


async def test_what_was_refused_for_lack_of_space_does_not_come_back(mock_clock, monkeypatch):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        assert (await attempt(client, 0, b"kept")).is_durable
        first, second = cluster.nodes[1], cluster.nodes[2]

        def refuse(*_arguments, **_named):
            first.engine.sync()  # asked for by another update
            raise FsError(Status.NO_SPACE, "injected")

        with monkeypatch.context() as full:
            full.setattr(second.engine, "prepare_write", refuse)
            with pytest.raises(FsError) as caught:
                await client.attempt(client.write_request(0, b"LOST"), b"LOST")
        assert caught.value.status is Status.NO_SPACE
        await cut_power(cluster, (2, 1), random.Random(3))
        assert {content(cluster, n)[2] for n in cluster.nodes} == {b"kept"}


@pytest.mark.parametrize("node_count", [2, 3])
async def test_who_was_told_before_commits_that_are_lost_finds_it_after_the_loss_of_all_power(
    mock_clock, monkeypatch, node_count
):
    async with open_cluster(node_count) as cluster, open_caller(cluster) as client:
        rng, tail = random.Random(9), max(cluster.nodes)
        expected = b""
        for number, order in enumerate(permutations(cluster.nodes)):
            for node_id, node in cluster.nodes.items():
                if node_id != tail:  # which commits in the batch that makes the version
                    monkeypatch.setattr(node.engine, "commit", lambda *_arguments, **_named: None)
            data = b"%d" % number * 20_000
            assert (await attempt(client, 100 * number, data)).is_durable
            expected = expected[: 100 * number].ljust(100 * number, b"\0") + data
            await cut_power(cluster, order, rng)
            assert {content(cluster, n)[2] for n in cluster.nodes} == {expected}
            tail = cluster.info.chain(7).serving[-1] - 100


async def test_who_was_told_of_an_update_is_not_told_that_its_commit_failed(
    mock_clock, monkeypatch
):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:

        def fail(*_arguments, **_named):
            raise FsError(Status.IO_ERROR, "injected")

        monkeypatch.setattr(cluster.nodes[1].engine, "commit", fail)
        assert (await attempt(client, 0, b"data")).is_durable
        await cluster.wait_states({2: "SERVING", 3: "SERVING", 1: "OFFLINE"})
        assert content(cluster, 2)[2] == content(cluster, 3)[2] == b"data"
        assert (await attempt(client, 0, b"DATA")).is_durable
