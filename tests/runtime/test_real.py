"""The real runtime."""

import _thread
import gc
import threading
import time
import weakref
from contextlib import suppress
from functools import partial

import pytest
import trio

from fs.runtime import readiness
from fs.runtime.real import RealClock, ThreadRunBlocking, real_runtime


async def test_blocking_calls_leave_the_loop_free_and_are_never_abandoned():
    run = ThreadRunBlocking(2)
    ended = []

    def work():
        time.sleep(0.1)
        ended.append(threading.current_thread())
        return 7

    with trio.move_on_after(0.01) as scope:
        assert await run(work) == 7
    assert len(ended) == 1
    assert ended[0] is not threading.main_thread()
    assert scope.cancel_called
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await trio.sleep(0.005)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        assert await run(work) == 7
        nursery.cancel_scope.cancel()
    assert ticks > 3


async def test_exceptions_come_back():
    with pytest.raises(ZeroDivisionError):
        await ThreadRunBlocking()(lambda: 1 // 0)


async def test_what_a_failed_call_was_given_is_let_go_of():
    """It was kept until somebody looked for cycles:
    the error knew its job, and the job the error.
    """

    class Given:
        """May be referred to weakly."""

    def fail(given):
        raise ZeroDivisionError(id(given))

    run, given, errors = ThreadRunBlocking(), Given(), []
    kept = weakref.ref(given)
    gc.disable()
    try:
        with suppress(ZeroDivisionError):
            await run(fail, given)
        run.begin(partial(fail, given), lambda error: errors.append(type(error)))
        del given
        with trio.fail_after(60):
            while kept() is not None or not errors:  # noqa: ASYNC110 - a thread lets go of it
                await trio.sleep(0.01)
    finally:
        gc.enable()
    assert errors == [ZeroDivisionError]


async def test_no_more_threads_than_allowed_and_every_call_gets_its_turn():
    run, inside, most, results = ThreadRunBlocking(3), 0, 0, []
    lock, may_end = threading.Lock(), threading.Event()

    def work(number):
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        may_end.wait(10)
        with lock:
            inside -= 1
        return number

    async def call(number):
        results.append(await run(work, number))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(call, number)
        await trio.sleep(0.05)
        may_end.set()
    assert sorted(results) == list(range(20))
    assert 1 <= most <= 3


async def test_a_thread_is_used_again_and_ends_when_idle(monkeypatch):
    run = ThreadRunBlocking()
    first = await run(threading.get_native_id)
    for _ in range(20):
        assert await run(threading.get_native_id) == first
    monkeypatch.setattr("fs.runtime.real.IDLE_S_MAX", 0.01)
    await run(int)  # the next wait for a job is a short one
    deadline_s = time.monotonic() + 20
    while await trio.Path(f"/proc/self/task/{first}").exists():
        assert time.monotonic() < deadline_s
        await trio.sleep(0.01)
    assert await run(threading.get_native_id) != first


async def test_one_call_wakes_one_thread_of_many_that_are_idle():
    run, together = ThreadRunBlocking(), threading.Barrier(4)
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(run, together.wait, 60)
    used = {await run(threading.current_thread) for _ in range(50)}
    assert len(used) == 1  # the others sleep on


async def test_clock_and_randomness():
    one, two = real_runtime(None), real_runtime(None)
    assert abs(one.clock.wall_ns() - time.time_ns()) < 1e9
    assert one.clock.monotonic_s() <= trio.current_time()
    assert one.random.randbytes(16) != two.random.randbytes(16)
    assert one.boot_id == two.boot_id
    assert len(one.boot_id) == 36


async def test_time_goes_on_while_the_machine_sleeps(monkeypatch, autojump_clock):  # noqa: ARG001
    boot_s = {"slept": 0.0}
    real = time.clock_gettime

    def read(which):
        return real(time.CLOCK_MONOTONIC) + boot_s["slept"] * (which == time.CLOCK_BOOTTIME)

    monkeypatch.setattr(time, "clock_gettime", read)
    clock = RealClock()
    begin_s = clock.monotonic_s()
    assert begin_s == trio.current_time()
    await trio.sleep(5)
    assert clock.monotonic_s() - begin_s == 5
    boot_s["slept"] = 3600.0
    assert clock.monotonic_s() - begin_s == pytest.approx(3605, abs=0.1)
    await trio.sleep(1)
    assert clock.monotonic_s() - begin_s == pytest.approx(3606, abs=0.1)


async def test_what_is_begun_ends_on_the_event_loop():
    run, told, here = ThreadRunBlocking(2), [], threading.get_ident()
    where = []
    done = trio.Event()

    def on_end(error):
        told.append((threading.get_ident(), type(error)))
        if len(told) == 2:
            done.set()

    run.begin(lambda: where.append(threading.get_ident()), on_end)
    run.begin(lambda: 1 // 0, on_end)
    with trio.fail_after(60):
        await done.wait()
    assert sorted(told, key=str) == sorted([(here, type(None)), (here, ZeroDivisionError)], key=str)
    assert where != [here]


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
async def test_a_call_that_finds_no_new_thread_is_left_to_those_that_are_there(monkeypatch, error):
    run, may_end, threads = ThreadRunBlocking(), threading.Event(), []

    def refused(_function, _arguments):
        raise error

    async def first():
        threads.append(await run(lambda: may_end.wait(60) and threading.get_native_id()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        await trio.testing.wait_all_tasks_blocked()
        monkeypatch.setattr(_thread, "start_new_thread", refused)
        nursery.start_soon(first)
        await trio.testing.wait_all_tasks_blocked()
        may_end.set()
    assert len(threads) == 2
    assert threads[0] == threads[1]
    run = ThreadRunBlocking()
    with pytest.raises(type(error)):
        await run(threads.append, "refused")
    monkeypatch.undo()
    await run(threads.append, "begun")
    assert threads[2:] == ["begun"]


async def test_threads_that_die_before_their_first_step_cost_no_call(monkeypatch):
    """As they do where memory is short: the event loop waited for ever for the first of them."""
    run, begin, dying = ThreadRunBlocking(2), _thread.start_new_thread, []

    def is_stillborn(function, arguments):
        if len(dying) < 4:
            dying.append(function)
        else:
            begin(function, arguments)

    monkeypatch.setattr(_thread, "start_new_thread", is_stillborn)
    monkeypatch.setattr("fs.runtime.real.BIRTH_S_MAX", 0.0)
    results = []

    async def call(number):
        results.append(await run(lambda: number))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(6):  # the first ones wait for whichever thread comes
                nursery.start_soon(call, number)
                await trio.testing.wait_all_tasks_blocked()
    assert len(dying) == 4
    assert sorted(results) == list(range(6))
    begin(dying.pop(), ())  # one was only slow
    with trio.fail_after(60):
        assert await run(lambda: 7) == 7


@pytest.mark.parametrize("lacking", ["to tell of the end", "to wait for more"])
async def test_a_thread_without_memory_leaves_nobody_waiting(monkeypatch, lacking):
    """It died with the call done, and who had made it was never told."""
    run, left = ThreadRunBlocking(), [0]

    def fail_twice():
        if left[0]:
            left[0] -= 1
            raise MemoryError

    real = readiness.call_soon_here()

    def call_soon(*arguments):
        fail_twice()
        real(*arguments)

    class Idle(list):
        def append(self, worker):
            fail_twice()
            super().append(worker)

    if lacking == "to tell of the end":
        monkeypatch.setattr(readiness, "call_soon_here", lambda: call_soon)
    else:
        monkeypatch.setattr(run, "_idle", Idle())
    ended, errors = trio.Event(), []

    def on_end(error):
        errors.append(type(error))
        ended.set()

    with trio.fail_after(5):
        assert await run(lambda: 7) == 7
        left[0] = 2
        run.begin(lambda: 1 // 0, on_end)
        await ended.wait()
    assert errors == [ZeroDivisionError]
    assert not left[0]
    used = {await run(threading.get_native_id) for _ in range(3)}
    assert len(used) == 1
    assert run._thread_count == 1
