"""Flushes of one disk that several requests share."""

import errno
import random

import pytest
import trio

from fs.runtime.ports import Runtime
from fs.schema.config import StorageSection
from fs.schema.status import FsError, Status
from fs.storage.disk import Disk
from tests.client.fakes import FakeClock


class Engine:
    """Flushes when a test lets it."""

    def __init__(self):
        self.begun = 0
        self.error = self.lack = None
        self.reason = ""
        self.may_end = trio.Event()

    def sync(self):
        self.begun += 1
        if self.lack is not None:
            raise self.lack

    def give_up(self, reason):
        self.reason = reason


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def disk(engine):
    async def run_blocking(function):
        function()
        await engine.may_end.wait()
        if engine.error is not None:
            raise engine.error

    runtime = Runtime(FakeClock(), None, run_blocking, random.Random(1))
    return Disk(0, "/disk", engine, runtime, StorageSection())


@pytest.fixture
def sync(disk, nursery):
    ended = []

    async def one():
        try:
            await disk.sync()
            ended.append(None)
        except FsError as error:
            ended.append(error.status)

    async def ask():
        nursery.start_soon(one)
        await trio.testing.wait_all_tasks_blocked()

    ask.ended = ended
    return ask


async def let_end(engine):
    ended, engine.may_end = engine.may_end, trio.Event()
    ended.set()
    await trio.testing.wait_all_tasks_blocked()


async def test_who_comes_during_a_flush_shares_the_next_one(engine, sync):
    for _ in range(4):
        await sync()
    assert engine.begun == 1
    await let_end(engine)
    assert (sync.ended, engine.begun) == ([None], 2), "the first flush began too early for the rest"
    await sync()
    await let_end(engine)
    assert (sync.ended, engine.begun) == ([None] * 4, 3)
    await let_end(engine)
    assert sync.ended == [None] * 5


async def test_a_failure_is_told_to_all_who_waited(engine, disk, sync):
    engine.error = FsError(Status.IO_ERROR, "broken")
    await sync()
    await sync()
    await let_end(engine)
    assert sync.ended == [Status.IO_ERROR] * 2
    assert disk.is_failed
    assert engine.begun == 1, "an engine that failed is not asked again"


async def test_another_engine_is_not_taken_for_the_one_that_failed(engine, disk, sync):
    engine.error = FsError(Status.IO_ERROR, "broken")
    await sync()
    await sync()
    newer = Engine()
    disk.on_failure = lambda *_: disk.take(newer)
    await let_end(engine)
    assert sync.ended == [Status.IO_ERROR] * 2
    assert newer.begun == 0, "its flush says nothing of what the former one had"


@pytest.fixture
def begun(disk):
    """Have flushes begun without a task; the functions that end them."""
    ends = []

    def begin(function, on_end):
        def end(error):
            disk.calls._in_place_count -= 1
            on_end(error)

        function()
        disk.calls._in_place_count += 1
        ends.append(end)

    disk.calls.begin, disk.calls.can_begin = begin, True
    return ends


async def test_a_flush_that_is_begun_is_shared_like_others(engine, disk, sync, begun):
    told = []
    assert disk.begin_sync(told.append)
    assert not disk.begin_sync(told.append), "one at a time"
    await sync()
    assert (engine.begun, disk.inside_count) == (1, 1)
    begun[0](None)
    assert told == [None]
    await trio.testing.wait_all_tasks_blocked()
    assert (engine.begun, sync.ended) == (2, []), "the one that was begun before does not count"
    await let_end(engine)
    assert (sync.ended, disk.inside_count) == ([None], 0)
    assert disk.begin_sync(told.append)


async def test_a_failure_of_a_begun_flush_is_told_to_all(engine, disk, sync, begun):
    told = []
    assert disk.begin_sync(told.append)
    await sync()
    begun[0](FsError(Status.IO_ERROR, "broken"))
    await trio.testing.wait_all_tasks_blocked()
    assert [error.status for error in told] == [Status.IO_ERROR]
    assert sync.ended == [Status.IO_ERROR]
    assert disk.is_failed
    assert engine.begun == 1
    assert not disk.begin_sync(told.append)


async def test_a_bug_in_a_begun_flush_is_not_hidden(disk, begun):
    told = []
    assert disk.begin_sync(told.append)
    with pytest.raises(ZeroDivisionError):
        begun[0](ZeroDivisionError())
    assert [error.status for error in told] == [Status.INTERNAL_ERROR]
    assert disk.inside_count == 0


async def test_a_flush_that_finds_no_thread_holds_nobody_up(engine, disk, sync):
    def begin(_function, _on_end):
        raise RuntimeError("can't start new thread")

    disk.calls.begin, disk.calls.can_begin = begin, True
    with pytest.raises(RuntimeError):
        disk.begin_sync(pytest.fail)
    assert disk.inside_count == 0
    await sync()
    await let_end(engine)
    assert (sync.ended, engine.begun) == ([None], 1)


@pytest.mark.parametrize("lack", [MemoryError(), OSError(errno.ENOMEM, "no memory")])
@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_flush_in_which_memory_is_short_ends_the_use_of_its_disk_and_of_nothing_else(
    engine, disk, sync, is_begun, lack
):
    """Raised on the event loop it would end the process;
    and nobody knows how far the flush has come.
    """
    engine.lack, told = lack, []
    if is_begun:

        def begin(function, on_end):
            with pytest.raises(FsError) as failed:
                function()
            on_end(failed.value)

        disk.calls.begin, disk.calls.can_begin = begin, True
        assert disk.begin_sync(told.append)
        assert [error.status for error in told] == [Status.IO_ERROR]
    else:
        await sync()
        assert sync.ended == [Status.IO_ERROR]
    assert disk.is_failed
    assert "nobody knows how far" in engine.reason
