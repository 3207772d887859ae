# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Whole updates and reads over several nodes: the usual way, faults in the middle, retries."""

from dataclasses import replace

import pytest
import trio

from fs.schema import services
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import FsError, Status
from fs.storage.disk import Disk
from fs.storage.leftovers import LOOK_INTERVAL_S
from fs.storage.read_versions import committed_version
from fs.storage.storage import FLUSH_INTERVAL_S

from .cluster import CHUNK, INODE, content, open_caller, open_cluster
from .faults import block, no_space, status_of


@pytest.mark.parametrize("node_count", [1, 2, 3, 5])
async def test_a_write_reaches_every_replica(mock_clock, node_count):
    async with open_cluster(node_count) as cluster, open_caller(cluster) as client:
        reply = await client.write(0, b"hello")
        assert (reply.update_ver, reply.commit_ver, reply.chunk_length) == (1, 1, 5)
        await client.write(3, b"LOOP")
        for node_id in cluster.nodes:
            assert content(cluster, node_id) == (2, 0, b"helLOOP")
            assert await client.read(node_id=node_id) == b"helLOOP"


async def test_truncate_extend_and_remove_are_replicated(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"0123456789")
        assert (await client.truncate(4)).chunk_length == 4
        assert (await client.truncate(4)).update_ver == 2
        assert (await client.truncate(6, kind=pb.EXTEND)).chunk_length == 6
        assert (await client.truncate(2, kind=pb.EXTEND)).chunk_length == 6
        for node_id in cluster.nodes:
            assert content(cluster, node_id) == (3, 0, b"0123\0\0")
        await client.remove()
        await client.remove()
        assert [content(cluster, n) for n in cluster.nodes] == [None] * 3
        assert await client.read() is None
        assert (await client.write(0, b"again")).update_ver == 1


async def test_a_repeat_is_executed_once(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        request = client.write_request(0, b"one")
        first = await client.attempt(request, b"one")
        assert await client.attempt(request, b"one") == first
        later = client.write_request(0, b"two")
        await client.attempt(later, b"two")
        assert await status_of(client.attempt, request, b"one") is Status.DUPLICATE_UPDATE
        assert content(cluster, 1) == (2, 0, b"two")


async def test_a_repeat_is_known_to_the_next_head(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        request = client.write_request(0, b"one")
        first = await client.attempt(request, b"one")
        await cluster.nodes[1].kill()
        await cluster.wait_states({2: "SERVING", 3: "SERVING", 1: "OFFLINE"})
        again = await client.attempt(request, b"one")
        assert again.update_ver == first.update_ver
        assert content(cluster, 3) == (1, 0, b"one")


async def test_a_leftover_is_completed_before_the_next_update(mock_clock):
    async with (
        open_cluster(2) as cluster,
        open_caller(cluster, "a") as one,
        open_caller(cluster, "b") as two,
    ):
        await one.write(0, b"base")
        block(cluster, 1, 2)
        cluster.is_frozen = True
        request = one.write_request(0, b"lost?")
        assert await status_of(one.attempt, request, b"lost?", timeout_s=1.0) is Status.RPC_TIMEOUT
        assert content(cluster, 1) == (1, 2, b"base")
        cluster.network.heal()
        assert (await two.write(1, b"-")).update_ver == 3
        assert content(cluster, 1) == content(cluster, 2) == (3, 0, b"l-st?")
        # The repeat of the first one must not be executed after the second.
        assert (await one.attempt(request, b"lost?")).update_ver == 2
        assert content(cluster, 2) == (3, 0, b"l-st?")


async def test_a_leftover_that_nobody_asks_for_is_completed_all_the_same(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"base")
        cluster.network.block("node-2", "node-3")
        cluster.is_frozen = True
        requests = []
        for index, data in enumerate((b"lost", b"new")):
            client.channel_id = index + 5
            requests.append(client.write_request(0, data, index))
            found = await status_of(client.attempt, requests[-1], data, timeout_s=1.0)
            assert found in {Status.RPC_TIMEOUT, Status.OUTCOME_UNKNOWN}
        assert [content(cluster, n)[:2] for n in (1, 2, 3)] == [(1, 2), (1, 2), (1, 0)]
        cluster.network.heal()
        await trio.sleep(2 * LOOK_INTERVAL_S + 1)
        for index, data in enumerate((b"lost", b"new")):
            found = [content(cluster, n, index) for n in (1, 2, 3)]
            assert found == [(2 - index, 0, data)] * 3
        assert not any(cluster.nodes[n].target.unsettled for n in (1, 2, 3))
        assert (await client.attempt(requests[0], b"lost")).update_ver == 2


async def test_leftovers_of_who_is_gone_are_completed_at_once_or_it_is_said_that_they_are_not(
    mock_clock,
):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"base")
        cluster.network.block("node-1", "node-2")
        cluster.is_frozen = True
        request = client.write_request(0, b"lost")
        assert await status_of(client.attempt, request, b"lost", timeout_s=1.0) is (
            Status.RPC_TIMEOUT
        )
        leftovers = cluster.nodes[1].storage.leftovers
        with pytest.raises(FsError):
            await leftovers.complete_all()
        assert content(cluster, 1) == (1, 2, b"base")
        cluster.network.heal()
        await leftovers.complete_all()
        assert [content(cluster, n) for n in (1, 2, 3)] == [(2, 0, b"lost")] * 3


async def test_a_read_completes_no_leftover_after_its_target_left_the_chain(mock_clock):
    """Found by specs/models/craq.pml: a read that waited at the tail
    until the target was syncing committed there.
    """
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"base")
        block(cluster, 1, 2)
        cluster.is_frozen = True
        request = client.write_request(0, b"lost")
        assert (
            await status_of(client.attempt, request, b"lost", timeout_s=1.0) is Status.RPC_TIMEOUT
        )
        await trio.sleep(10.0)  # the head has given up
        node = cluster.nodes[1]
        (now,) = node.storage.targets.places()
        assert content(cluster, 1)[:2] == (1, 2)
        former = replace(
            now, chain=replace(now.chain, chain_version=now.chain.chain_version - 1), is_tail=True
        )
        cluster.network.heal()
        context = node.storage._context
        with pytest.raises(FsError) as caught:
            await committed_version(
                context, former, ChunkId(InodeId(INODE), 0), trio.current_time() + 1
            )
        assert caught.value.status is Status.ROUTING_MISMATCH
        assert content(cluster, 1)[:2] == (1, 2)


async def test_a_new_head_completes_what_the_old_one_passed_on(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"base")
        block(cluster, 2, 3)
        cluster.is_frozen = True
        request = client.write_request(0, b"half")
        assert (
            await status_of(client.attempt, request, b"half", timeout_s=1.0) is Status.RPC_TIMEOUT
        )
        assert [content(cluster, n)[:2] for n in (1, 2, 3)] == [(1, 2), (1, 2), (1, 0)]
        await cluster.nodes[1].kill()
        cluster.network.heal()
        cluster.is_frozen = False
        await cluster.wait_states({2: "SERVING", 3: "SERVING", 1: "OFFLINE"})
        reply = await client.update(request, b"half")
        assert reply.update_ver == 2
        assert content(cluster, 2) == content(cluster, 3) == (2, 0, b"half")


@pytest.mark.parametrize("victim", [2, 3])
async def test_a_write_survives_the_removal_of_a_successor(mock_clock, victim):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"base")
        block(cluster, victim - 1, victim)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.write, 0, b"through")
            await trio.sleep(0.5)
            await cluster.nodes[victim].kill()
        left = [n for n in cluster.nodes if n != victim]
        assert [content(cluster, n) for n in left] == [(2, 0, b"through")] * 2
        cluster.network.heal()
        await cluster.start_node(victim)
        await cluster.wait_all_serving()
        assert content(cluster, victim) == (2, 0, b"through")


async def test_updates_go_to_the_head_and_carry_sound_bytes(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        request = client.write_request(0, b"z")
        request.chain_version = cluster.chain.chain_version
        assert await status_of(client.attempt, request, b"z", node_id=2) is Status.NOT_HEAD
        assert await status_of(client.attempt, request, b"Z") is Status.CHECKSUM_MISMATCH
        request.update_ver = 7
        assert await status_of(client.attempt, request, b"z") is Status.RPC_BAD_REQUEST
        beyond = client.write_request(CHUNK - 1, b"zz")
        assert await status_of(client.attempt, beyond, b"zz") is Status.RPC_BAD_REQUEST
        for length in (0, 2):
            other = client.write_request(0, b"z")
            other.length = length
            assert await status_of(client.attempt, other, b"z") is Status.RPC_BAD_REQUEST
        assert (
            await status_of(client.attempt, client.write_request(0, b""), b"")
            is Status.RPC_BAD_REQUEST
        )
        assert [content(cluster, n) for n in (1, 2)] == [None, None]


@pytest.mark.parametrize("full", [1, 2, 3])
async def test_no_space_is_definite_and_wedges_nothing(mock_clock, full):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"small")
        cluster.nodes[full].disk.on_step = no_space
        for _ in range(2):
            request = client.write_request(0, b"B" * 60_000)
            status = await status_of(client.attempt, request, b"B" * 60_000)
            assert status is Status.NO_SPACE
            assert {content(cluster, n) for n in cluster.nodes} == {(1, 0, b"small")}
        await client.remove()
        cluster.nodes[full].disk.on_step = None
        await client.write(0, b"back")
        assert {content(cluster, n) for n in cluster.nodes} == {(1, 0, b"back")}


@pytest.mark.parametrize("full", [1, 3])
async def test_no_late_copy_makes_happen_what_was_refused(mock_clock, full):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"small")
        cluster.nodes[full].disk.on_step = no_space
        refused = client.write_request(0, b"B" * 60_000)
        assert await status_of(client.attempt, refused, b"B" * 60_000) is Status.NO_SPACE
        cluster.nodes[full].disk.on_step = None
        # The client's first try of the same update, held up by the
        # network until there is room again.
        assert await status_of(client.attempt, refused, b"B" * 60_000) is Status.NO_SPACE
        assert {content(cluster, n) for n in cluster.nodes} == {(1, 0, b"small")}


async def test_a_damaged_copy_is_never_served_and_healed_by_a_write(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"A" * 1000)
        disk = cluster.nodes[2].disk
        for file_id in disk.files:
            disk.flip_bit(file_id, 10)
        ((status, data),) = await client.read_attempt(2, [(0, 0, 1000)], is_passed_on=True)
        assert (status, data) == (Status.CHECKSUM_MISMATCH, b"")
        assert cluster.nodes[2].target.checksum_error_count == 1
        assert await client.read(node_id=1) == b"A" * 1000
        await client.write(1, b"B")
        assert (
            len(cluster.history) == 1
        )  # the predecessor sent the whole chunk, and nobody had to leave
        assert {content(cluster, n) for n in cluster.nodes} == {(2, 0, b"AB" + b"A" * 998)}


async def test_a_failed_disk_leaves_the_chain(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"good")

        def fail(_name):
            raise FsError(Status.IO_ERROR, "injected")

        cluster.nodes[2].disk.on_step = fail
        await client.write(0, b"better")
        await cluster.wait_states({1: "SERVING", 3: "SERVING", 2: "OFFLINE"})
        assert content(cluster, 1) == content(cluster, 3) == (2, 0, b"better")


async def test_a_diverged_successor_is_taken_out_and_resynced(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"right")
        engine, target_id = cluster.nodes[2].engine, TargetId(102)
        chunk_id = ChunkId(InodeId(INODE), 0)
        engine.prepare_write(
            target_id,
            chunk_id,
            version=1,
            chunk_size_bytes=CHUNK,
            offset=0,
            data=b"wrong",
            is_full_replace=True,
        )
        engine.commit(target_id, chunk_id, version=1, chain_version=1)
        await client.write(0, b"R")
        await cluster.wait_all_serving()
        assert {content(cluster, n) for n in cluster.nodes} == {(2, 0, b"Right")}
        assert any(len(chain.serving) < 3 for chain in cluster.history)


async def test_the_last_serving_one_is_the_truth(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"base")
        for node_id in (2, 3):
            await cluster.nodes[node_id].kill()
            await cluster.wait_judged(node_id)
        await client.write(0, b"left")
        await cluster.nodes[1].kill()
        await cluster.wait_judged(1)
        assert cluster.states() == {1: "LASTSRV", 2: "OFFLINE", 3: "OFFLINE"}
        await cluster.start_node(2)
        await trio.sleep(1)
        assert not cluster.chain.serving
        await cluster.start_node(1)
        await cluster.start_node(3)
        await cluster.wait_all_serving()
        assert {content(cluster, n) for n in cluster.nodes} == {(2, 0, b"left")}


async def test_who_left_together_with_the_last_one_serves_what_was_acknowledged(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"base")
        block(cluster, 1, 2)
        cluster.is_frozen = True
        request = client.write_request(0, b"left")
        assert (
            await status_of(client.attempt, request, b"left", timeout_s=1.0) is Status.RPC_TIMEOUT
        )
        for node in cluster.nodes.values():
            await node.kill()
        cluster.is_frozen = False
        cluster.network.heal()
        await trio.sleep(0.5)
        assert cluster.states() == {1: "LASTSRV", 2: "OFFLINE", 3: "OFFLINE"}
        await cluster.start_node(2)
        await cluster.wait_states({1: "OFFLINE", 2: "SERVING", 3: "OFFLINE"})
        await cluster.start_node(1)
        await cluster.start_node(3)
        await cluster.wait_all_serving()
        assert {content(cluster, n) for n in cluster.nodes} == {(1, 0, b"base")}
        await client.attempt(request, b"left")
        assert {content(cluster, n) for n in cluster.nodes} == {(2, 0, b"left")}


async def test_everything_is_flushed_before_long(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"x")
        assert all(node.disk.unsynced_batches for node in cluster.nodes.values())
        await trio.sleep(FLUSH_INTERVAL_S + 1)
        assert not any(node.disk.unsynced_batches for node in cluster.nodes.values())


async def test_a_disk_that_hangs_keeps_no_other_from_being_flushed(mock_clock):
    asked = []

    async def sync():
        asked.append(trio.current_time())
        await trio.sleep_forever()

    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        node = cluster.nodes[1]
        context = node.storage._context
        hangs = Disk(1, "/hangs", node.engine, context.runtime, context.section)
        hangs.sync = sync
        node.storage._disks.append(hangs)
        await trio.sleep(FLUSH_INTERVAL_S + 1)
        assert len(asked) == 1
        await client.write(0, b"x")
        assert node.disk.unsynced_batches
        await trio.sleep(FLUSH_INTERVAL_S + 1)
        assert not node.disk.unsynced_batches
        assert len(asked) == 1
        node.storage._disks.remove(hangs)


async def test_offline_on_request(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        request = pb.OfflineTargetReq(target_id=102)
        await client.channel(2).call(services.STORAGE_OFFLINE_TARGET, request)
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        last = pb.OfflineTargetReq(target_id=101)
        call = client.channel(1).call
        assert await status_of(call, services.STORAGE_OFFLINE_TARGET, last) is Status.BUSY
        await trio.sleep(3)
        assert cluster.states() == {1: "SERVING", 2: "OFFLINE"}


async def test_a_voided_copy_has_no_effect(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        version = cluster.chain.chain_version
        late = client.write_request(0, b"late")
        late.chain_version, late.update_ver, late.sender_epoch = version, 2, 1
        cluster.nodes[2].target.admit_epoch(version, 2)
        with pytest.raises(FsError) as caught:
            await client.channel(2).call(services.STORAGE_UPDATE, late, payload=[b"late"])
        assert caught.value.status is Status.SUPERSEDED_UPDATE
        assert content(cluster, 2) == (1, 0, b"one")
