"""Virtual time for tests that wait for other processes:
it stands still while an answer is under way.

trio's own autojump clock jumps as soon as every task waits, also when one waits for a server.  So
the first engine that waits for one takes over: from then on one task makes the clock of the test
jump, which looks at all such engines.
"""

from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

import trio
import trio.testing

from fs.kv.foundationdb import FoundationDbEngine

POLL_S = 0.001
"""Real seconds between two looks at whether the answer has come."""


_engines: WeakKeyDictionary[trio.testing.MockClock, list[FoundationDbEngine]] = WeakKeyDictionary()
"""Whose answers a clock waits for."""


async def open_stepped(
    nursery: trio.Nursery, open_engine: Callable[[], Awaitable[FoundationDbEngine]]
) -> FoundationDbEngine:
    """Open an engine for whose answers virtual time is to wait, if there is any."""
    clock = trio.lowlevel.current_clock()
    if not isinstance(clock, trio.testing.MockClock):
        return await open_engine()
    clock.autojump_threshold = float("inf")
    engine = await open_engine()
    engines = _engines.setdefault(clock, [])
    engines.append(engine)
    if len(engines) == 1:
        nursery.start_soon(_step, clock, engines)
    return engine


async def _step(clock: trio.testing.MockClock, engines: list[FoundationDbEngine]) -> None:
    try:
        await step_clock(lambda: any(engine.waiting_count for engine in engines))
    finally:
        del _engines[clock]  # who opens another one in another nursery begins anew


async def step_clock(is_waiting: Callable[[], bool]) -> None:
    """Jump to the next deadline whenever every task waits for time;
    run beside the test, under a MockClock.
    """
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    cushion_s = 0.0
    while True:
        await trio.testing.wait_all_tasks_blocked(cushion_s)
        left_s = trio.lowlevel.current_statistics().seconds_to_next_deadline
        cushion_s = 0.0
        if is_waiting() or left_s == float("inf"):
            cushion_s = POLL_S
        elif left_s > 0:
            clock.jump(left_s)


async def wait_quiet(is_waiting: Callable[[], bool]) -> None:
    """Wait until every task waits for something else than an answer."""
    await trio.testing.wait_all_tasks_blocked()
    while is_waiting():
        await trio.testing.wait_all_tasks_blocked(POLL_S)
