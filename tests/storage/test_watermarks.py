"""What rises on a disk while its target serves, and only then."""
# ruff: noqa: ARG001 - the clock fixture acts by being asked for

from dataclasses import replace

import pytest
import trio
from msgspec import structs

from fs.chunkengine.simulated_disk import SimulatedDisk
from fs.schema.proto.mgmtd_pb2 import OlderImagePb
from fs.schema.routing import LocalState
from fs.schema.status import FsError, Status
from fs.storage import watermarks
from fs.storage.watermarks import INTERVAL_S, NONE_YET, load_watermark

from .cluster import open_caller, open_cluster


def told(node):
    """Return what the node's heartbeat says, which its disk must have."""
    (report,) = node.storage.report()
    assert report.watermark == load_watermark(node.engine, node.target.target_id)
    return report.watermark


async def test_a_watermark_rises_while_its_target_serves(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"x")
        first = {n: told(cluster.nodes[n]) for n in (1, 2)}
        assert min(first.values()) > NONE_YET
        await trio.sleep(INTERVAL_S + 1)
        second = {n: told(cluster.nodes[n]) for n in (1, 2)}
        assert all(second[n] > first[n] for n in first)
        await cluster.nodes[2].kill()
        await cluster.wait_judged(2)
        await cluster.start_node(2)
        assert told(cluster.nodes[2]) == second[2]  # what the manager compares
        await cluster.wait_all_serving()
        assert told(cluster.nodes[2]) > second[2]


async def test_it_is_durable_before_it_is_told(mock_clock):
    async with open_cluster(1) as cluster:
        node = cluster.nodes[1]
        await trio.sleep(INTERVAL_S + 1)
        found = told(node)
        await node.kill()
        node.disk.power_loss(cluster.random)
        await cluster.wait_judged(1)
        await cluster.start_node(1)
        assert told(node) == found


async def test_an_emptied_disk_goes_beyond_what_was_told_before_it_counts_as_whole(
    mock_clock, monkeypatch
):
    states = []
    raise_watermarks = watermarks.raise_watermarks

    async def look(disk, targets, clock):
        states.append([t.local_state for t in targets])
        await raise_watermarks(disk, targets, clock)

    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"x")
        node = cluster.nodes[2]
        await node.kill()
        await cluster.wait_judged(2)
        node.disk = SimulatedDisk(capacity_bytes=node.disk.capacity_bytes)
        monkeypatch.setattr("fs.storage.service.raise_watermarks", look)
        await cluster.start_node(2)
        assert told(node) == NONE_YET
        before = 1 << 60  # a clock was far ahead
        images = [OlderImagePb(target_id=102, told_watermark=before)]
        images.append(OlderImagePb(target_id=999, told_watermark=5))  # removed meanwhile
        node.storage.watermarks.hear(images)
        await cluster.wait_all_serving()
        assert states == [[LocalState.ONLINE]]
        assert told(node) > before


async def test_one_that_is_whole_already_goes_beyond_what_was_told_at_once(mock_clock):
    async with open_cluster(1) as cluster:
        node = cluster.nodes[1]
        node.storage.watermarks.hear([OlderImagePb(target_id=101, told_watermark=1 << 60)])
        await trio.sleep(3)
        assert told(node) > 1 << 60


async def test_a_disk_that_takes_none_tells_none(mock_clock, monkeypatch):
    def fail(*_):
        raise FsError(Status.NO_SPACE, "full")

    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        node = cluster.nodes[1]
        before = told(node)
        monkeypatch.setattr(watermarks, "note_watermarks", fail)
        await trio.sleep(2 * INTERVAL_S)
        assert told(node) == before
        await client.write(0, b"x")


async def test_a_full_disk_is_not_written_for_this_alone(mock_clock):
    async with open_cluster(1) as cluster:
        node = cluster.nodes[1]
        before, node.storage._context.section = (
            told(node),
            structs.replace(node.section, reject_create_free_bytes_min=1 << 50),
        )
        await trio.sleep(2 * INTERVAL_S)
        assert told(node) == before


async def test_it_rises_under_a_lease_alone(mock_clock, monkeypatch):
    """Whoever serves on by what managers said that are gone does not make his disk look younger
    than their names.
    """
    async with open_cluster(1) as cluster:
        node = cluster.nodes[1]
        monkeypatch.setattr(node.lease, "is_valid", lambda: False)
        before = told(node)
        await trio.sleep(2 * INTERVAL_S)
        assert told(node) == before
        monkeypatch.undo()
        await trio.sleep(2 * INTERVAL_S)
        assert told(node) > before


async def test_it_does_not_rise_under_chains_of_another_store(mock_clock):
    """The age of names is compared with it before disks are accepted (decision 0147):
    it says when their own store was last there.
    """
    async with open_cluster(1) as cluster:
        node = cluster.nodes[1]
        own = replace(cluster.chain, chain_version=9, birth_ns=5)
        cluster.publish(own)
        await trio.sleep(2)
        cluster.is_frozen = True
        cluster.publish(replace(own, chain_version=10, birth_ns=6))
        before = told(node)
        await trio.sleep(2 * INTERVAL_S)
        assert cluster.local_states[101] is LocalState.UPTODATE  # else it would not rise anyway
        assert told(node) == before
        cluster.publish(replace(own, chain_version=11))
        await trio.sleep(2 * INTERVAL_S)
        assert told(node) > before


async def hang(*_):
    await trio.sleep_forever()


@pytest.mark.parametrize("is_slow", [False, True])
async def test_the_last_one_of_a_process_is_waited_for_briefly(mock_clock, monkeypatch, is_slow):
    async with open_cluster(1) as cluster, trio.open_nursery() as nursery:
        node = cluster.nodes[1]
        before = told(node)
        if is_slow:
            monkeypatch.setattr(node.target.disk, "run", hang)
        began_s = trio.current_time()
        await node.storage.watermarks.raise_last(nursery)
        assert (trio.current_time() - began_s >= watermarks.LAST_S) == is_slow
        assert (told(node) > before) != is_slow
        nursery.cancel_scope.cancel()


async def test_of_two_that_are_written_at_once_the_lower_never_stays(mock_clock, monkeypatch):
    """A process stops while a disk is slow to take what is due:
    the last one must not be overtaken.
    """
    may_write, write = trio.Event(), watermarks.note_watermarks

    async with open_cluster(1) as cluster, trio.open_nursery() as nursery:
        node = cluster.nodes[1]
        disk = node.storage._disks[0]
        run, waits = disk.run, [True]

        async def run_late(function, *arguments):
            if function is write and waits.pop():
                waits.append(False)
                await may_write.wait()
            elif function is write:
                waits.append(False)
            return await run(function, *arguments)

        monkeypatch.setattr(disk, "run", run_late)
        raising = (disk, [node.target], node.storage._context.runtime.clock)
        nursery.start_soon(watermarks.raise_watermarks, *raising)
        await trio.sleep(2)
        nursery.start_soon(watermarks.raise_watermarks, *raising)
        await trio.sleep(2)
        may_write.set()
        await trio.sleep(1)
        told(node)
