"""One seed, one run: trio with virtual time and seeded scheduling.

trio draws the order of ready tasks from a private generator; seeding it (as trio's own Hypothesis plugin does) and
sorting batches that come out of sets makes a run repeat exactly.  These two private names are used
only here.
"""

import gc
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from trio._core import _run
from trio.testing import MockClock

T = TypeVar("T")


def run_deterministic(main: Callable[[], Awaitable[T]], seed: int) -> T:
    """Run an async function in virtual time; the same seed gives the same run, in any process."""
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True
    _run._r = random.Random(seed)
    # A collection in the middle of a run would finalise generators at a point that differs between runs.
    gc.collect()
    gc.disable()
    try:
        return trio.run(main, clock=MockClock(autojump_threshold=0))
    finally:
        gc.enable()
