"""Flushes of one disk that several requests share."""

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
        self.error = None
        self.may_end = trio.Event()

    def sync(self):
        self.begun += 1


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
