"""The real runtime."""

import threading
import time

import pytest
import trio

from fs.runtime.real import ThreadRunBlocking, real_runtime


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
