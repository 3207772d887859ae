"""The simulated runtime: virtual time, seeded randomness, blocking calls inline.

Meant for `trio.testing.MockClock(autojump_threshold=0)`: time passes only while everybody
waits, and one seed gives one run.
"""

import random
from collections.abc import Callable
from typing import Final, TypeVar

import trio

from .ports import Network, Runtime

T = TypeVar("T")

WALL_EPOCH_NS: Final = 1_700_000_000_000_000_000


class SimulatedClock:
    """trio's (virtual) time, and a wall clock that runs along with it."""

    def __init__(self, wall_epoch_ns: int = WALL_EPOCH_NS) -> None:
        """Let the wall clock show `wall_epoch_ns` at trio time 0."""
        self.wall_offset_ns = wall_epoch_ns
        """Change it to make the wall clock jump."""

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        return self.wall_offset_ns + round(trio.current_time() * 1e9)

    def monotonic_s(self) -> float:
        """Seconds on the (virtual) scale of trio."""
        return trio.current_time()


async def run_inline(function: Callable[..., T], /, *args: object) -> T:
    """Call a blocking function in place, with one checkpoint before it that cannot be cancelled."""
    await trio.lowlevel.cancel_shielded_checkpoint()
    return function(*args)


def simulated_runtime(network: Network, seed: int, wall_epoch_ns: int = WALL_EPOCH_NS) -> Runtime:
    """Return the runtime of one simulated process.

    Args:
        network: the process's endpoint, from `fs.rpc.transport_memory`.
        seed: of this process's randomness; give each process its own.
        wall_epoch_ns: what its wall clock shows at trio time 0.
    """
    return Runtime(
        SimulatedClock(wall_epoch_ns),
        network,
        run_inline,
        random.Random(seed),  # noqa: S311 - reproducible on purpose
    )
