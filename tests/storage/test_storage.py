# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Whole updates and reads over several nodes: the usual way, faults in the middle, retries."""

from dataclasses import replace

import pytest
import trio
import xxhash

from fs.schema import services
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.read_columns import WantedRead, read_request, read_results
from fs.schema.status import FsError, Status
from fs.storage.disk import Disk
from fs.storage.leftovers import LOOK_INTERVAL_S
from fs.storage.read_versions import committed_version
from fs.storage.storage import FLUSH_INTERVAL_S
from fs.storage.write_path import run_update

from .cluster import CHAIN, CHUNK, INODE, LEASE_S, content, open_caller, open_cluster


async def status_of(function, *arguments, **options):
    with pytest.raises(FsError) as caught:
        await function(*arguments, **options)
    return caught.value.status


def block(cluster, one, two):
    cluster.network.block(f"node-{one}", f"node-{two}")


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


async def test_a_read_completes_no_leftover_after_its_target_left_the_chain(mock_clock):
    """Found by specs/models/craq.pml: a read that waited at the tail until the target was syncing committed there."""
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


async def test_a_replica_with_a_pending_version_asks_the_tail(mock_clock, monkeypatch):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"old")
        cluster.is_frozen = True

        async def commit_silently(context, *arguments, **options):
            reply = await run_update(context, *arguments, **options)
            if context.node_id == 3:
                await trio.sleep_forever()
            return reply

        monkeypatch.setattr("fs.storage.service.run_update", commit_silently)
        request = client.write_request(0, b"new")
        assert await status_of(client.attempt, request, b"new", timeout_s=1.0) is Status.RPC_TIMEOUT
        assert [content(cluster, n)[:2] for n in (1, 2, 3)] == [(1, 2), (1, 2), (2, 0)]
        assert await client.read(node_id=3) == b"new"
        assert await client.read(node_id=1) == b"new"
        assert await client.read_attempt(1, [(0, 0, 9)], is_relaxed=True) == [(Status.OK, b"old")]
        # The new tail must not go back to what the former one had replaced.
        cluster.is_frozen = False
        await cluster.nodes[3].kill()
        await cluster.wait_states({1: "SERVING", 2: "SERVING", 3: "OFFLINE"})
        assert await client.read(node_id=2) == b"new"
        assert await client.read(node_id=1) == b"new"


async def test_a_tail_that_has_not_committed_names_the_old_version(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"old")
        cluster.is_frozen = True
        block(cluster, 2, 3)
        request = client.write_request(0, b"new")
        assert await status_of(client.attempt, request, b"new", timeout_s=1.0) is Status.RPC_TIMEOUT
        assert await client.read(node_id=1) == b"old"
        assert await client.read(node_id=3) == b"old"


async def test_a_reader_is_shown_nothing_that_a_target_above_could_lose(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"old")
        cluster.nodes[1].disk.is_quick = lambda: False
        limiter = cluster.nodes[1].target.disk.write_limiter = trio.CapacityLimiter(1)
        async with limiter:
            request = client.write_request(0, b"new")
            status = await status_of(client.attempt, request, b"new", timeout_s=1.0)
            assert status is Status.RPC_TIMEOUT
            assert await client.read(node_id=3) == b"old"  # the head could die without it
        await client.write(0, b"next")
        assert await client.read(node_id=3) == b"next"


async def test_a_silent_tail_is_asked_no_longer_than_it_is_the_tail(mock_clock):
    async with open_cluster(3, forward_timeout_s=60.0) as cluster, open_caller(cluster) as client:
        await client.write(0, b"old")
        cluster.is_frozen = True
        block(cluster, 2, 3)
        request = client.write_request(0, b"new")
        assert await status_of(client.attempt, request, b"new", timeout_s=1.0) is Status.RPC_TIMEOUT
        block(cluster, 1, 3)
        cluster.cut_off.add(3)
        cluster.is_frozen = False
        began_s = trio.current_time()
        ((status, _),) = await client.read_attempt(1, [(0, 0, 3)])
        assert status is Status.ROUTING_MISMATCH
        assert trio.current_time() - began_s < 3.0
        assert await client.read(node_id=1) == b"new"


async def test_no_lease_no_service(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"x")
        cluster.is_frozen = True
        cluster.cut_off.add(1)
        await trio.sleep(LEASE_S + 0.1)
        request = client.write_request(0, b"y")
        assert await status_of(client.attempt, request, b"y") is Status.LEASE_EXPIRED
        assert await status_of(client.read_attempt, 1, [(0, 0, 1)]) is Status.LEASE_EXPIRED
        assert await client.read_attempt(2, [(0, 0, 1)]) == [(Status.OK, b"x")]


async def test_a_lease_that_runs_out_meanwhile_leaves_the_outcome_open(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"x")
        cluster.is_frozen = True
        block(cluster, 1, 2)
        cluster.cut_off.add(1)
        request = client.write_request(0, b"y")

        async def heal_later():
            await trio.sleep(LEASE_S + 0.5)
            cluster.network.heal()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(heal_later)
            status = await status_of(client.attempt, request, b"y", timeout_s=8.0)
        assert status is Status.OUTCOME_UNKNOWN
        assert content(cluster, 2) == (2, 0, b"y")


async def test_chain_versions_are_checked_for_each_read(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"abc")
        wanted = [WantedRead(INODE, 0, CHAIN, version, 1, 9) for version in (1, 9, 1)]
        request = read_request([*wanted, WantedRead(INODE, 0, CHAIN + 1, 1, 0, 1)])
        received = await client.channel(2).call(services.STORAGE_BATCH_READ, request)
        statuses = [result.status for result in read_results(received.message, 4)]
        assert statuses == [0, Status.ROUTING_MISMATCH, 0, Status.NOT_SERVING]
        assert bytes(received.payload) == b"bcbc"
        stale = client.write_request(0, b"z")
        stale.chain_version = 9
        assert await status_of(client.attempt, stale, b"z", node_id=1) is Status.ROUTING_MISMATCH
        assert await status_of(client.attempt, client.write_request(0, b"z"), b"z", node_id=2) in {
            Status.NOT_HEAD,
            Status.ROUTING_MISMATCH,
        }


async def test_one_small_read_of_numbers_beyond_their_fields_is_read_as_a_message(
    mock_clock, caplog
):
    """What takes a single row apart sees numbers that a parsed message cuts to 32 bits."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"abc")
        message = read_request([WantedRead(INODE, 7, CHAIN, 1, 0, 3)]).SerializeToString()
        column = pb.BatchReadReq(chunk_indexes=[7]).SerializeToString()
        assert column in message
        beyond = column[:1] + b"\x05\x80\x80\x80\x80\x10"
        changed = message.replace(column, beyond)
        assert pb.BatchReadReq.FromString(changed).chunk_indexes == [0]
        received = await client.channel(2).call(services.STORAGE_BATCH_READ, changed)
        assert bytes(received.payload) == b"abc"
        assert not caplog.records


async def test_peers_that_know_of_no_columns_are_answered(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"abc")
        request = pb.BatchReadReq(want_checksums=True)
        for index, offset in ((0, 1), (9, 0)):
            request.ios.add(
                inode_id=INODE, chunk_index=index, chain_id=CHAIN, chain_version=1,
                offset=offset, length=9,
            )  # fmt: skip
        received = await client.channel(2).call(services.STORAGE_BATCH_READ, request)
        good, hole = received.message.results
        assert (good.status, good.length, good.commit_ver) == (0, 2, 1)
        assert good.checksum == xxhash.xxh3_64_intdigest(bytes(received.payload))
        assert bytes(received.payload) == b"bc"
        assert hole.status == Status.CHUNK_NOT_FOUND
        assert not received.message.lengths


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


def no_space(name):
    if name in {"reserve", "write"}:
        raise FsError(Status.NO_SPACE, "injected")


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
        # The client's first try of the same update, held up by the network until there is room again.
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
        await trio.sleep(1)
        assert not cluster.chain.serving
        await cluster.start_node(1)
        await cluster.start_node(3)
        await cluster.wait_all_serving()
        assert {content(cluster, n) for n in cluster.nodes} == {(2, 0, b"left")}


async def test_each_range_of_a_request_has_its_own_result(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        for index in range(30):
            await client.write(0, b"x", index)
        version = cluster.chain.chain_version
        wanted = pb.RemoveChunksReq()
        for number in range(12):
            wanted.ranges.add(
                inode_id=INODE,
                chain_id=CHAIN if number % 5 else 99,
                chain_version=version,
                first_index=2 * number,
                end_index=2 * number + 2,
            )
        reply = await client.channel(1).call(services.STORAGE_REMOVE_CHUNKS, wanted)
        found = [(r.status == 0, r.removed_count) for r in reply.message.results]
        assert found == [(bool(n % 5), 2 if n % 5 else 0) for n in range(12)]
        left = {s.chunk_id.index for s in cluster.nodes[3].engine.list_chunks(TargetId(103))}
        assert left == {0, 1, 10, 11, 20, 21, *range(24, 30)}


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


async def test_reads_wait_for_buffers_of_replies_that_nobody_takes(mock_clock, monkeypatch):
    monkeypatch.setattr("fs.storage.storage.READ_BUFFER_BYTES_MAX", 2 * CHUNK)
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        await client.write(0, b"x" * CHUNK)
        pool = cluster.nodes[1].storage._context.buffers
        stuck = [await pool.acquire(CHUNK) for _ in range(2)]
        assert await status_of(client.read_attempt, 1, [(0, 0, CHUNK)]) is Status.RPC_TIMEOUT
        pool.release(stuck.pop())
        assert await client.read_attempt(1, [(0, 0, CHUNK)]) == [(Status.OK, b"x" * CHUNK)]
        pool.release(stuck.pop())
        assert pool.used_bytes == 0


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
    """After a power loss it may be committed below: who sought data passed over it, while whoever read had it."""
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
