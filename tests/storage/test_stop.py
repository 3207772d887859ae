"""A process that stops in order leaves a note that everything is durable;
none where that is not certain.
"""
# ruff: noqa: ARG001 - the clock fixture acts by being asked for

import random

import pytest

from fs.chunkengine.factory import memory_engine
from fs.chunkengine.simulated_disk import SimulatedCrash, SimulatedDisk
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status
from fs.storage.on_disk import FLUSHED_KEY, note_flushed
from tests.storage.cluster import open_cluster

TARGET = TargetId(101)
CHUNK_ID = ChunkId(InodeId(5), 0)


def open_engine(disk):
    return memory_engine(
        disk, cluster_id="c", node_id=1, section=StorageSection(), target_ids=[TARGET]
    )


def written(disk):
    """Return an engine with one chunk that is committed, and not durable."""
    engine = open_engine(disk)
    engine.sync()
    engine.prepare_write(
        TARGET,
        CHUNK_ID,
        version=1,
        offset=0,
        data=b"x" * 5000,
        chunk_size_bytes=65536,
    )
    engine.commit(TARGET, CHUNK_ID, version=1, chain_version=1)
    return engine


def is_whole(engine):
    try:
        return engine.read_whole(TARGET, CHUNK_ID) == b"x" * 5000
    except FsError:
        return False


@pytest.mark.parametrize("seed", range(60))
def test_where_the_note_is_everything_is(seed):
    source = random.Random(seed)
    disk = SimulatedDisk()
    engine = written(disk)
    steps_left = source.randint(0, 12)

    def on_step(*_):
        nonlocal steps_left
        steps_left -= 1
        if steps_left < 0:
            raise SimulatedCrash

    disk.on_step = on_step
    try:
        note_flushed(engine, [TARGET], "me")
        has_ended = True
    except SimulatedCrash:
        has_ended = False
    disk.power_loss(source)
    after = open_engine(disk)
    notes = [n.value for n in after.notes(TARGET) if n.key == FLUSHED_KEY]
    has_chunk = is_whole(after)
    assert notes == [b"me"] or not has_ended
    assert has_chunk or not notes


async def test_the_next_process_tells_until_it_has_a_lease(autojump_clock):
    async with open_cluster(1) as cluster:
        node = cluster.nodes[1]
        await cluster.create_chain()
        assert node.storage.report()[0].flushed_by == ""
        node.lease.until_s = 0.0
        assert node.storage.report()[0].flushed_by == ""
        await node.storage.note_stop()
        await node.kill()
        await cluster.wait_judged(1)
        await cluster.start_node(1)
        assert node.target.flushed_by == "1.1"
        node.lease.until_s = 0.0
        assert node.storage.report()[0].flushed_by == "1.1"
        await cluster.wait_all_serving()
        assert node.lease.is_valid()
        assert node.storage.report()[0].flushed_by == ""


async def test_nothing_is_noted_of_a_disk_that_has_failed_in_this_life(autojump_clock, caplog):
    async with open_cluster(1) as cluster:
        node = cluster.nodes[1]
        await cluster.create_chain()
        (disk,) = node.storage.targets.disks
        disk.is_failed = True
        await node.storage.note_stop()
        disk.take(node.engine)  # opened anew: what was acknowledged before may be gone
        await node.storage.note_stop()
        assert not [n for n in node.engine.notes(TARGET) if n.value == b"1.1"]


async def test_a_flush_that_fails_leaves_no_note(autojump_clock, caplog, monkeypatch):
    async with open_cluster(1) as cluster:
        node = cluster.nodes[1]
        await cluster.create_chain()

        def fail():
            raise FsError(Status.IO_ERROR, "flush")

        monkeypatch.setattr(node.engine, "sync", fail)
        await node.storage.note_stop()
        assert "stop not noted" in caplog.text
        assert not [n for n in node.engine.notes(TARGET) if n.value == b"1.1"]
