# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Reads over several nodes: which version is shown, under which lease and chain version,
and with what space.
"""

import trio
import xxhash

from fs.runtime.quick_semaphore import QuickSemaphore
from fs.schema import services
from fs.schema.ids import TargetId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.read_columns import WantedRead, read_request, read_results
from fs.schema.status import Status
from fs.storage.write_path import run_update

from .cluster import CHAIN, CHUNK, INODE, LEASE_S, content, open_caller, open_cluster
from .faults import block, status_of


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
        monkeypatch.setattr("fs.storage.lone_update._usual", lambda *_args, **_options: None)
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
        limiter = cluster.nodes[1].target.disk.write_limiter = QuickSemaphore(1)
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
