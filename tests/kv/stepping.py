"""Virtual time for tests that wait for other processes: it stands still while an answer is under way.

trio's own autojump clock jumps as soon as every task waits, also when one waits for a server.
"""

from collections.abc import Callable

import trio
import trio.testing

POLL_S = 0.001
"""Real seconds between two looks at whether the answer has come."""


async def step_clock(is_waiting: Callable[[], bool]) -> None:
    """Jump to the next deadline whenever every task waits for time; run beside the test, under a MockClock."""
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


def is_mocked() -> bool:
    return isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock)
