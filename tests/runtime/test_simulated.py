"""The simulated runtime."""

import threading

import trio

from fs.runtime.simulated import simulated_runtime


async def test_virtual_time_runs_both_clocks(autojump_clock):
    assert autojump_clock.autojump_threshold == 0
    runtime = simulated_runtime(None, 5, wall_epoch_ns=10**18)
    begin = runtime.clock.monotonic_s()
    await trio.sleep(3600)
    assert runtime.clock.monotonic_s() - begin == 3600
    assert runtime.clock.wall_ns() == 10**18 + round(trio.current_time() * 1e9)
    runtime.clock.wall_offset_ns -= 10**9
    assert runtime.clock.wall_ns() < 10**18 + trio.current_time() * 1e9


async def test_blocking_calls_run_in_place_and_randomness_repeats():
    runtime = simulated_runtime(None, 5)
    assert await runtime.run_blocking(threading.get_ident) == threading.get_ident()
    assert runtime.random.random() == simulated_runtime(None, 5).random.random()
    with trio.move_on_after(0) as scope:
        assert await runtime.run_blocking(lambda: 3) == 3
    assert not scope.cancelled_caught
