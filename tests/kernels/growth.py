"""What calls of a kernel leave behind."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Final

WARM_COUNT = 20
CALL_COUNT = 200
EACH_BYTES_MAX = 16
"""Of the interpreter's own bookkeeping; an object that is not given back is larger."""


ROUNDS: Final = 4
"""A leak shows in each of them; what another thread of the process keeps meanwhile does not."""


def assert_nothing_stays(once: Callable[[], None]) -> None:
    """Call a function often; its memory must be given back."""
    for _ in range(WARM_COUNT):
        once()
    gc.collect()  # what tests before have left would be counted when it ends
    tracemalloc.start()
    try:
        assert any(_grown(once) < CALL_COUNT * EACH_BYTES_MAX for _ in range(ROUNDS))
    finally:
        tracemalloc.stop()


def _grown(once: Callable[[], None]) -> int:
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(CALL_COUNT):
        once()
    gc.collect()  # what goes in circles is given back, too
    return tracemalloc.get_traced_memory()[0] - before
