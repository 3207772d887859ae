"""The real runtime."""

import threading
import time

import pytest
import trio

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


async def test_clock_and_randomness():
    one, two = real_runtime(None), real_runtime(None)
    assert abs(one.clock.wall_ns() - time.time_ns()) < 1e9
    assert one.clock.monotonic_s() <= trio.current_time()
    assert one.random.randbytes(16) != two.random.randbytes(16)


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
