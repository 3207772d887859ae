"""The calls of a disk that hangs are given up, those of one that is only slow are not."""

import gc
import threading
import weakref
from contextlib import suppress
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from fs.chunkengine.books import Books, StuckError
from fs.rpc.buffer_pool import BufferPool
from fs.runtime.real import real_runtime
from fs.schema.config import StorageSection
from fs.schema.status import FsError, Status
from fs.storage import disk_calls
from fs.storage.disk import Disk
from fs.storage.disk_calls import DiskCalls, watched

HANG_S = 0.4


class Engine:
    """Calls that come back when they are told to."""

    def __init__(self):
        self.may_end = threading.Event()
        self.begun = threading.Semaphore(0)
        self.reason = ""

    def wait(self, result=None):
        self.begun.release()
        self.may_end.wait()
        return result

    def give_up(self, reason):
        self.reason = reason


@pytest.fixture
def engine():
    made = Engine()
    yield made
    made.may_end.set()


@pytest.fixture
def runtime():
    return real_runtime(None)


@pytest.fixture
def calls(runtime, monkeypatch):
    monkeypatch.setattr(disk_calls, "LOOK_INTERVAL_S", 0.05)
    return DiskCalls(runtime, "/nowhere", HANG_S)


async def test_a_begun_read_is_told_of_once_and_waited_for_at_the_end(runtime, engine, calls):
    disk = Disk(0, "/nowhere", engine, runtime, StorageSection(read_concurrency=1), calls=calls)
    ended = trio.Event(), []

    def on_end(result, error):
        ended[1].append((result, error))
        ended[0].set()

    assert disk.begin_read(10, lambda: engine.wait("read"), on_end)
    assert not disk.begin_read(10, engine.wait, None)  # one at a time
    settled = []
    async with trio.open_nursery() as nursery:

        async def settle():
            await calls.settle()
            settled.append(list(ended[1]))

        nursery.start_soon(settle)
        await trio.testing.wait_all_tasks_blocked()
        assert (disk.inside_count, settled) == (1, [])
        engine.may_end.set()
    assert ended[1] == [("read", None)]
    assert settled == [[("read", None)]]
    assert (disk.inside_count, disk.read_limiter.value) == (0, 1)
    await calls.settle()


async def test_a_begun_read_of_a_disk_that_hangs_is_told_so(runtime, engine, calls):
    section = StorageSection(disk_hang_s=HANG_S)
    disk = Disk(0, "/nowhere", engine, runtime, section, calls=calls)
    failures, ended = [], []
    disk.on_failure = lambda _disk, error: failures.append(error.status)
    async with watched([calls], runtime):
        assert disk.begin_read(10, engine.wait, lambda *told: ended.append(told))
        with trio.fail_after(60):
            await calls.settle()
    ((result, error),) = ended
    assert (result, error.status, failures) == (None, Status.IO_ERROR, [Status.IO_ERROR])
    assert not disk.begin_read(10, engine.wait, None)
    assert disk.read_limiter.value == section.read_concurrency


async def test_whoever_waits_for_a_disk_that_hangs_is_told(calls, runtime, engine):
    told = []
    disk = Disk(0, "/nowhere", engine, runtime, StorageSection(disk_hang_s=HANG_S), calls=calls)
    disk.on_failure = lambda _disk, error: told.append(error.status)
    async with watched([calls], runtime):
        with trio.fail_after(20), pytest.raises(FsError, match="does not answer"):
            await disk.run(engine.wait)
        assert told == [Status.IO_ERROR] and "does not answer" in engine.reason
        assert (disk.is_failed, disk.inside_count) == (True, 1), "its thread is still there"
        with pytest.raises(FsError, match="does not answer"):
            await disk.run(pytest.fail)
        with pytest.raises(FsError, match="does not answer"):
            disk.run_inline(pytest.fail)
        engine.may_end.set()
        with trio.fail_after(20):
            while disk.inside_count:  # noqa: ASYNC110 - polls
                await trio.sleep(0.01)
        disk.take(newer := Engine())
        newer.may_end.set()
        assert await disk.run(newer.wait, 5) == 5
        assert disk.run_inline(lambda: 7) == 7


async def test_what_begins_without_a_task_is_told_too(calls, runtime, engine):
    ended = trio.Event()
    told = []

    def on_end(error):
        told.append(error.status)
        ended.set()

    async with watched([calls], runtime):
        calls.begin(engine.wait, on_end)
        with trio.fail_after(20):
            await ended.wait()
        engine.may_end.set()
        await trio.sleep(0.2)
    assert told == [Status.IO_ERROR], "once"


async def test_what_comes_when_nobody_waits_any_more_is_undone(calls, runtime, engine):
    undone = trio.Event()
    token = trio.lowlevel.current_trio_token()
    async with watched([calls], runtime):
        with pytest.raises(FsError):
            await calls.run(
                engine.wait,
                "opened",
                undo=lambda what: token.run_sync_soon(undone.set) if what == "opened" else None,
            )
        assert not undone.is_set()
        engine.may_end.set()
        with trio.fail_after(20):
            await undone.wait()


async def test_other_disks_have_threads_of_their_own(runtime, calls, engine, monkeypatch):
    monkeypatch.setattr("fs.runtime.real.THREAD_COUNT_MAX", 2)
    other = DiskCalls(runtime, "/elsewhere", HANG_S)
    async with watched([calls, other], runtime), trio.open_nursery() as nursery:

        async def hang():
            with pytest.raises(FsError):
                await calls.run(engine.wait)

        for _ in range(80):  # more than there are threads
            nursery.start_soon(hang)
        await trio.to_thread.run_sync(engine.begun.acquire)
        with trio.fail_after(20):
            assert await other.run(lambda: 3) == 3
    assert calls.lost_count == 80


async def test_the_end_waits_for_calls_that_go_on_but_not_for_ever(calls, runtime, engine):
    with trio.fail_after(20):
        async with watched([calls], runtime), trio.open_nursery() as nursery:

            async def hang():
                with pytest.raises(FsError):
                    await calls.run(engine.wait)

            nursery.start_soon(hang)
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert calls.lost_count == 1


@pytest.mark.thorough
async def test_a_call_that_computes_is_left_in_peace(calls, runtime, engine):
    """On a machine whose cores were all busy a disk in memory was given up:
    a call that computed took 10 s.
    """
    may_wait = threading.Event()

    def compute_and_wait():
        while not may_wait.is_set():
            pass
        engine.wait()

    with trio.fail_after(60):
        async with watched([calls], runtime), trio.open_nursery() as nursery:

            async def call():
                with pytest.raises(FsError, match="does not answer"):
                    await calls.run(compute_and_wait)

            nursery.start_soon(call)
            while calls.judge.now_s < 1.5 * HANG_S:  # noqa: ASYNC110 - polls
                await trio.sleep(0.01)
            assert not calls.lost_count
            may_wait.set()
    assert calls.lost_count == 1


def looked(calls, seconds, completed=lambda _second: 0):
    """Let seconds pass, a look each; return the second in which it was given up,
    0 if it was not.
    """
    for second in range(1, seconds + 1):
        calls.judge._count_completed = lambda second=second: completed(second)
        calls.look(1.0)
        if calls.lost_count:
            return second
    return 0


@pytest.fixture
def waiting(runtime):
    """Calls of a disk that hangs after 10 s, one of which has just begun."""
    made = DiskCalls(runtime, "/nowhere", 10.0)
    made._begin = lambda _function, _on_end: None
    made.begin(lambda: None, lambda _error: None)
    return made


def test_a_silent_device_is_given_up_in_time(waiting):
    assert looked(waiting, 100) == 10


def test_a_busy_device_is_left_in_peace_but_not_for_ever(waiting):
    assert looked(waiting, 200, lambda second: second) == 120


def test_a_device_that_falls_silent_later_is_given_up_then(waiting):
    assert 39 <= looked(waiting, 200, lambda second: min(second, 30)) <= 41


def test_a_limit_of_zero_is_none(waiting):
    waiting.judge.hang_s = 0.0
    assert looked(waiting, 1000) == 0


def test_time_in_which_we_were_stopped_does_not_count(waiting):
    waiting.look(3600.0)
    assert waiting.lost_count == 0


def test_a_buffer_that_a_lost_thread_may_have_is_not_used_again():
    pool = BufferPool(1 << 20)
    old = pool.acquire_now(4096)
    piece = old.view[:10]
    pool.disown()
    pool.release(old)
    assert (pool.used_bytes, pool.idle_bytes) == (0, 0)
    new = pool.acquire_now(4096)
    piece[:] = b"late write"
    assert bytes(new.view[:10]) == bytes(10)
    pool.release(new)
    assert pool.idle_bytes == 4096


def test_the_event_loop_waits_once_for_books_that_a_lost_thread_holds(monkeypatch):
    monkeypatch.setattr("fs.chunkengine.books.STUCK_S", 0.2)
    sound = SimpleNamespace(is_doubtful=False, allocator=SimpleNamespace(is_torn=False))
    books = Books(sound, "disk")
    held, may_end = threading.Event(), threading.Event()

    def hold():
        with books:
            held.set()
            may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    for _ in range(100):
        with pytest.raises(StuckError), books:
            pass
    may_end.set()
    thread.join()
    for _ in range(2):
        with books:
            pass
    books.give_up("it hangs")
    with pytest.raises(FsError, match="it hangs"), books:
        pass


async def test_what_a_call_returns_is_not_kept(calls):
    class Result:
        pass

    gc.disable()
    try:
        found = weakref.ref(await calls.run(Result))
        with trio.fail_after(10):
            while found() is not None:  # noqa: ASYNC110 - the thread lets go of it, too
                await trio.sleep(0.01)
    finally:
        gc.enable()


async def test_what_a_failed_call_was_given_is_not_kept(calls):
    class Buffer:
        """Of the memory that it stands for only so much is left."""

    def fail(buffer):
        raise FsError(Status.IO_ERROR, str(id(buffer)))

    buffer = Buffer()
    given = weakref.ref(buffer)
    gc.disable()
    try:
        with suppress(FsError):
            await calls.run(fail, buffer)
        del buffer
        with trio.fail_after(60):
            while given() is not None:  # noqa: ASYNC110 - a thread lets go of it
                await trio.sleep(0.01)
    finally:
        gc.enable()


async def test_all_who_wait_for_the_last_call_learn_of_its_end(engine, calls, nursery):
    ended, settled = trio.Event(), []

    async def settle():
        await calls.settle()
        settled.append(calls.inside_count)

    calls.begin(engine.wait, lambda _error: ended.set())
    for _ in range(3):
        nursery.start_soon(settle)
        await trio.testing.wait_all_tasks_blocked()
    engine.may_end.set()
    await ended.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert settled == [0, 0, 0]
    nursery.cancel_scope.cancel()
