"""The real runtime: the machine's clocks, worker threads, the operating system's randomness.

The network is made by `fs.rpc.transport` and handed in, because this layer is below it.
"""

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

import trio

from .ports import Network, Runtime

T = TypeVar("T")

THREAD_COUNT_MAX: Final = 64


SLEPT_S_MIN: Final = 0.1
"""Below this a difference of the two clocks is the time between reading them."""


class RealClock:
    """The machine's clocks.

    trio's clock stands still while the machine is suspended.  It alone would let a machine that wakes up believe in
    a lease that ran out long ago, and serve what others have changed since; so the time slept is added.
    """

    def __init__(self) -> None:
        self._ahead_s = _boot_ahead_s()
        self._slept_s = 0.0

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        return time.time_ns()

    def monotonic_s(self) -> float:
        """Seconds on the scale of trio, until the machine sleeps for the first time."""
        slept_s = _boot_ahead_s() - self._ahead_s
        if slept_s > self._slept_s + SLEPT_S_MIN:
            self._slept_s = slept_s
        return trio.current_time() + self._slept_s


def _boot_ahead_s() -> float:
    """Return how long the machine has slept since its start; too little if interrupted, never too much."""
    boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return boot_s - time.clock_gettime(time.CLOCK_MONOTONIC)


class ThreadRunBlocking:
    """Runs blocking functions in worker threads, at most a fixed number at once."""

    def __init__(self, thread_count_max: int = THREAD_COUNT_MAX) -> None:
        self._limiter = trio.CapacityLimiter(thread_count_max)

    async def __call__(self, function: Callable[..., T], /, *args: object) -> T:
        """Call `function(*args)` in a thread; cancellation is noticed after it, never during it."""
        with trio.CancelScope(shield=True):
            return await trio.to_thread.run_sync(
                function, *args, abandon_on_cancel=False, limiter=self._limiter
            )
        raise AssertionError("nothing cancels the shielding scope itself")


def real_runtime(network: Network, *, thread_count_max: int = THREAD_COUNT_MAX) -> Runtime:
    """Return the runtime of a real process."""
    seed = int.from_bytes(random.SystemRandom().randbytes(16))
    return Runtime(
        RealClock(),
        network,
        ThreadRunBlocking(thread_count_max),
        random.Random(seed),  # noqa: S311 - ids and jitter; nothing here is a secret
    )
