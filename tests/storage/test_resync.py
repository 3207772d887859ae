# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Bringing a returned replica up to date, with and without traffic."""

import random

import pytest
import trio
from msgspec import structs

from fs.schema import services
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import FsError, Status
from fs.storage import resync
from fs.storage.target import ResyncProgress

from .cluster import INODE, content, open_caller, open_cluster
from .test_update_group import send, writes

INDEXES = range(30)


async def fill(client, indexes=INDEXES):
    for index in indexes:
        await client.write(0, b"%06d" % index * 20, index)


def copies(cluster, index):
    return {content(cluster, node_id, index) for node_id in cluster.nodes}


def assert_equal(cluster, indexes=INDEXES):
    for index in indexes:
        assert len(copies(cluster, index)) == 1, (index, copies(cluster, index))


@pytest.mark.slow
async def test_only_what_changed_is_transferred(mock_clock, monkeypatch):
    monkeypatch.setattr(resync, "PAGE_CHUNK_COUNT", 7)
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await fill(client)
        await cluster.nodes[3].kill()
        await cluster.wait_states({1: "SERVING", 2: "SERVING", 3: "OFFLINE"})
        await client.write(5, b"changed", 4)
        await client.remove(11)
        await client.remove(12)
        await client.write(0, b"recreated", 12)
        await client.write(0, b"new", 100)
        await cluster.start_node(3)
        await cluster.wait_all_serving()
        assert_equal(cluster, [*INDEXES, 100])
        assert content(cluster, 3, 11) is None
        progress = cluster.nodes[2].target.progress
        assert (progress.transferred_count, progress.removed_count) == (3, 1)
        assert progress.skipped_count == len(INDEXES) - 3
        # What was transferred is known under its own chain version: a second
        # return finds nothing to do.
        await cluster.nodes[3].kill()
        await cluster.wait_states({1: "SERVING", 2: "SERVING", 3: "OFFLINE"})
        await cluster.start_node(3)
        await cluster.wait_all_serving()
        assert cluster.nodes[2].target.progress.transferred_count == 0


async def test_writes_go_on_during_resync(mock_clock, monkeypatch):
    monkeypatch.setattr(resync, "PAGE_CHUNK_COUNT", 5)
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await fill(client)
        await cluster.nodes[1].kill()
        await cluster.wait_states({2: "SERVING", 3: "SERVING", 1: "OFFLINE"})
        for index in INDEXES:
            await client.write(3, b"second", index)
        expected = {index: content(cluster, 2, index)[2] for index in INDEXES}
        rng = random.Random(5)
        await cluster.start_node(1)
        seen = set()
        with trio.fail_after(60):
            while cluster.states().get(1) != "SERVING":
                seen.add(cluster.states()[1])
                index = rng.choice(INDEXES)
                if rng.random() < 0.2:
                    await client.remove(index)
                    expected[index] = None
                else:
                    await client.write(2, b"third", index)
                    old = expected[index] or b"\0\0"
                    expected[index] = old[:2] + b"third" + old[7:]
        assert "SYNCING" in seen
        await cluster.wait_all_serving()
        assert_equal(cluster)
        for index, data in expected.items():
            found = content(cluster, 1, index)
            assert (found[2] if found else None) == data
        assert not cluster.nodes[3].target.progress.suspect_count


def test_what_a_resync_has_done_is_said_in_words():
    """The log had all its fields, with names of variables."""
    done = ResyncProgress(transferred_count=3, transferred_bytes=9000, skipped_count=7)
    assert done.summary() == "3 chunks transferred (9000 bytes), 0 removed, 7 as they were"
    done.failed_count = 2
    assert done.summary().endswith(" as they were, 2 failed")


async def test_a_syncing_replica_is_not_read(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"x")
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        async with hold_resync(cluster, 1):
            await cluster.start_node(2)
            await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
            ((status, _),) = await client.read_attempt(2, [(0, 0, 1)])
            assert status is Status.NOT_SERVING
            await client.write(0, b"y")
            assert content(cluster, 2) == (2, 0, b"y")
        await cluster.wait_all_serving()


class hold_resync:  # noqa: N801 - used as a function
    """Keep a node's resync from starting: an update under an older chain version is inside."""

    def __init__(self, cluster, node_id):
        self.inflight = cluster.nodes[node_id].target.inflight

    async def __aenter__(self):
        self.inflight.enter(0)

    async def __aexit__(self, *_exc):
        self.inflight.leave(0)


def spoil(cluster, node_id):
    """Damage everything on a node's disk."""
    disk = cluster.nodes[node_id].disk
    for file_id in disk.files:
        for offset in range(0, 1 << 20, 1 << 16):
            disk.flip_bit(file_id, offset)


def state_of(cluster, node_id, index=0):
    return cluster.nodes[node_id].engine.get(
        TargetId(100 + node_id), ChunkId(InodeId(INODE), index)
    )


async def test_a_chunk_that_nobody_has_is_handed_over_as_damaged(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"A" * 100)
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        await client.write(0, b"B" * 100)
        spoil(cluster, 1)
        await client.write(0, b"sound", 1)
        await cluster.start_node(2)
        await cluster.wait_all_serving()
        assert cluster.nodes[1].target.progress.damaged_count == 1
        theirs, ours = state_of(cluster, 2), state_of(cluster, 1)
        assert theirs.is_damaged
        assert (theirs.commit_ver, theirs.checksum) == (ours.commit_ver, ours.checksum)
        # Never the old bytes, never zeros; a write that keeps some of them cannot be done either.
        for node_id in (1, 2):
            with pytest.raises(FsError, match="CHUNK_DAMAGED"):
                await client.read(node_id=node_id)
            assert await client.read(1, node_id=node_id) == b"sound"
        await trio.sleep(5)
        with pytest.raises(FsError, match="CHUNK_DAMAGED"):
            await client.write(1, b"x")
        assert cluster.states() == {1: "SERVING", 2: "SERVING"}
        await client.write(0, b"C" * 100)
        assert_equal(cluster, [0, 1])
        assert not state_of(cluster, 2).is_damaged


async def test_a_damaged_chunk_can_be_removed(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        await client.write(0, b"B" * 100)
        spoil(cluster, 1)
        await cluster.start_node(2)
        await cluster.wait_all_serving()
        await client.remove()
        assert await client.read() is None
        assert copies(cluster, 0) == {None}


async def test_the_last_good_copy_may_be_on_the_one_that_is_resynced(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"A" * 100)
        await client.write(0, b"old", 1)
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        spoil(cluster, 1)
        await client.write(0, b"new", 1)
        with pytest.raises(FsError, match="CHUNK_DAMAGED"):
            await client.read(0)
        await cluster.start_node(2)
        await cluster.wait_all_serving()
        await trio.sleep(40)
        assert_equal(cluster, [0, 1])
        assert await client.read(0, node_id=1) == b"A" * 100
        assert cluster.nodes[1].target.repaired_count == 1


async def test_a_good_copy_outside_of_the_chains_service_is_good_enough(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"A" * 100)
        await client.channel(3).call(
            services.STORAGE_OFFLINE_TARGET, pb.OfflineTargetReq(target_id=103)
        )
        await cluster.wait_states({1: "SERVING", 2: "SERVING", 3: "OFFLINE"})
        spoil(cluster, 1)
        spoil(cluster, 2)
        with pytest.raises(FsError, match="CHUNK_DAMAGED"):
            await client.read(0)
        await trio.sleep(3)
        assert [await client.read(0, node_id=n) for n in (1, 2)] == [b"A" * 100] * 2


async def test_a_damaged_leftover_is_completed_from_another_replica(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"A" * 100)
        cluster.is_frozen = True
        cluster.network.block("node-2", "node-3")
        request = client.write_request(0, b"B" * 100)
        with pytest.raises(FsError, match="RPC_TIMEOUT"):
            await client.attempt(request, b"B" * 100, timeout_s=1.0)
        await trio.sleep(6)  # whoever was inside has given up
        assert state_of(cluster, 1).pending_ver == state_of(cluster, 2).pending_ver == 2
        spoil(cluster, 1)
        cluster.network.heal()
        client.channel_id = 2
        await client.write(0, b"C" * 50)
        assert copies(cluster, 0) == {(3, 0, b"C" * 50 + b"B" * 50)}
        assert (await client.update(request, b"B" * 100)).update_ver == 2


async def test_a_leftover_that_nobody_has_is_dropped_when_the_successor_lacks_it(mock_clock):
    """It cannot have been committed: what was before it is the truth, and whole."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"A" * 100)
        cluster.is_frozen = True
        cluster.network.block("node-1", "node-2")
        request = client.write_request(0, b"B" * 100)
        with pytest.raises(FsError, match="RPC_TIMEOUT"):
            await client.attempt(request, b"B" * 100, timeout_s=1.0)
        spoil(cluster, 1)
        cluster.network.reset("node-1", "node-2")
        cluster.network.heal()
        cluster.is_frozen = False
        client.channel_id = 2
        await client.write(0, b"C" * 50)
        await cluster.wait_all_serving()
        assert copies(cluster, 0) == {(2, 0, b"C" * 50 + b"A" * 50)}
        assert cluster.nodes[2].target.epoch_seen[1] > 1, "what was sent before is void"


async def test_a_leftover_that_everybody_has_and_nobody_writable_part_nothing_for_ever(mock_clock):
    """It may have been shown: from now on it is known to be lost, until it is written anew."""
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"A" * 100)
        cluster.is_frozen = True
        cluster.network.block("node-2", "node-3")
        request = client.write_request(0, b"B" * 100)
        with pytest.raises(FsError, match="RPC_TIMEOUT"):
            await client.attempt(request, b"B" * 100, timeout_s=1.0)
        spoil(cluster, 1)
        spoil(cluster, 2)
        await cluster.nodes[3].kill()
        cluster.is_frozen = False
        await cluster.wait_states({1: "SERVING", 2: "SERVING", 3: "OFFLINE"})
        cluster.network.heal()
        await cluster.start_node(3)
        await cluster.wait_all_serving()
        client.channel_id = 2
        with pytest.raises(FsError, match="CHUNK_DAMAGED"):
            await client.write(0, b"C" * 50)
        await client.write(0, b"D" * 100)
        assert copies(cluster, 0) == {(3, 0, b"D" * 100)}


async def test_leftovers_are_settled_by_resync(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await fill(client, range(3))
        cluster.is_frozen = True
        cluster.network.block("node-2", "node-3")
        request = client.write_request(0, b"open", 1)
        with pytest.raises(FsError, match="RPC_TIMEOUT"):
            await client.attempt(request, b"open", timeout_s=1.0)
        await cluster.nodes[3].kill()
        cluster.is_frozen = False
        cluster.network.heal()
        await cluster.start_node(3)
        await cluster.wait_all_serving()
        assert content(cluster, 2, 1) == content(cluster, 3, 1)
        assert content(cluster, 3, 1)[:2] == (2, 0)
        assert (await client.update(request, b"open")).update_ver == 2
        assert_equal(cluster, range(3))


async def test_removals_wait_for_no_bytes_of_others(mock_clock):
    """They have none, and waited for their turn behind large chunks all the same,
    and for one of their places.
    """
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await fill(client, range(12))
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        for index in range(11):
            await client.write(0, b"x" * 10_000, index)
        await client.remove(11)
        feeder = cluster.nodes[1]
        feeder.storage.adopt(structs.replace(feeder.section, resync_bytes_per_s_max=100))
        await cluster.start_node(2)
        await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
        await trio.sleep(5.0)
        assert content(cluster, 2, 11) is None
        assert cluster.states()[2] == "SYNCING"
        feeder.storage.adopt(feeder.section)
        await cluster.wait_all_serving()
        assert_equal(cluster, range(12))


async def test_no_attempt_waits_for_turns_of_one_whose_chain_version_is_over(mock_clock):
    """The turns of one that was over held up the next attempt,
    for as long as its chunks would have taken.
    """
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await fill(client, range(6))
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        for index in range(6):
            await client.write(0, b"x" * 10_000, index)
        feeder = cluster.nodes[1]
        feeder.storage.adopt(structs.replace(feeder.section, resync_bytes_per_s_max=100))
        for _ in range(3):
            await cluster.start_node(2)
            await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
            await trio.sleep(5.0)
            assert feeder.target.progress.is_running
            assert feeder.target.progress.chain_version == cluster.chain.chain_version
            await cluster.nodes[2].kill()
            await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        feeder.storage.adopt(feeder.section)
        await cluster.start_node(2)
        await cluster.wait_all_serving()
        assert_equal(cluster, range(6))


async def test_updates_do_not_wait_for_the_rate_limit(mock_clock):
    """A chunk whose turn is held back by the limit is free until then, alone and in a group."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await fill(client, range(6))
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        await fill(client, range(6))
        feeder = cluster.nodes[1]
        feeder.storage.adopt(structs.replace(feeder.section, resync_bytes_per_s_max=1))
        await cluster.start_node(2)
        await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
        await trio.sleep(1.0)
        began_s = trio.current_time()
        made = writes(client, 6)
        assert await send(client, made, timeout_s=30.0) == [(Status.OK, 3)] * 6
        assert trio.current_time() - began_s < 1.0
        assert cluster.states()[2] == "SYNCING"
        feeder.storage.adopt(feeder.section)


async def test_progress_counts_all_bytes_of_transfers_side_by_side(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        await fill(client)
        await cluster.start_node(2)
        await cluster.wait_all_serving()
        progress = cluster.nodes[1].target.progress
        assert progress.transferred_count == len(INDEXES)
        assert progress.transferred_bytes == 120 * len(INDEXES)


async def test_what_is_gone_by_its_turn_takes_none_of_the_rate(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await fill(client)
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        for index in INDEXES:
            await client.write(0, b"x" * 10_000, index)
        feeder = cluster.nodes[1]
        feeder.storage.adopt(structs.replace(feeder.section, resync_bytes_per_s_max=10_000))
        await cluster.start_node(2)
        await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
        for index in INDEXES:
            await client.remove(index)
        began_s = trio.current_time()
        await cluster.wait_all_serving()
        assert trio.current_time() - began_s < 10
