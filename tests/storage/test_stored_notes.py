"""Notes of updates that a syncing target stores apart from commits:
off the event loop where other disks are, and in order.
"""

import threading

import pytest
import trio

from fs.runtime.real import real_runtime
from fs.schema.config import DiskSection, StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.storage.answers import store_notes, take_over_updates
from fs.storage.channels import Tag, UpdateResult
from fs.storage.disk import Disk
from fs.storage.target import LocalTarget
from fs.storage.update_notes import note_key, read_note

CHUNK = ChunkId(InodeId(7), 0)


class Engine:
    """Stores notes when it is let."""

    def __init__(self):
        self.may_go = threading.Event()
        self.notes = {}
        self.threads = []

    def put_notes(self, _target_id, notes):
        self.threads.append(threading.current_thread())
        self.may_go.wait(20)
        self.notes |= {note.key: note for note in notes}

    def give_up(self, _reason):
        pass

    def version(self):
        return read_note(self.notes[note_key("client", 1)]).result.update_ver


def made(disk_count):
    section = StorageSection(disks=[DiskSection(path=f"/{n}") for n in range(disk_count)])
    engine = Engine()
    disk = Disk(0, "/0", engine, real_runtime(None), section)
    return engine, LocalTarget(TargetId(1), disk)


def update(sequence):
    result = UpdateResult(sequence, 4096, 5, CHUNK)
    return Tag("client", 1, sequence, b"%016d" % sequence), result


@pytest.mark.parametrize("disk_count", [1, 2])
async def test_a_disk_that_hangs_does_not_stop_the_loop_of_others(disk_count):
    engine, target = made(disk_count)
    if disk_count == 1:
        engine.may_go.set()
        await take_over_updates(target, [update(1)])
        assert engine.threads == [threading.main_thread()], "quicker, and nobody else waits"
        return
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_over_updates, target, [update(1)])
            await trio.sleep(0.05)
            assert engine.threads and threading.main_thread() not in engine.threads
            assert not engine.notes
            engine.may_go.set()
    assert engine.version() == 1


async def test_what_is_known_later_is_stored_last():
    engine, target = made(2)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_over_updates, target, [update(1)])
            await trio.sleep(0.05)
            tag, result = update(2)
            target.channels.record(tag, result, trio.current_time())
            nursery.start_soon(store_notes, target, [(tag, result)])
            await trio.sleep(0.05)
            engine.may_go.set()
    assert engine.version() == 2
    await take_over_updates(target, [update(1)])
    assert engine.version() == 2


async def test_who_goes_away_leaves_no_older_note_in_place_of_a_newer_one():
    """A commit stored the newer one; the batch under way, of older results, replaces it."""
    engine, target = made(2)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_over_updates, target, [update(1)])
            await trio.sleep(0.05)
            tag, result = update(2)
            target.channels.record(tag, result, trio.current_time())
            with trio.CancelScope() as scope:
                scope.cancel()
                threading.Timer(0.05, engine.may_go.set).start()
                await store_notes(target, [(tag, result)])
    assert engine.version() == 2
