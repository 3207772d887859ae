"""What calls of a kernel leave behind."""

import gc
import tracemalloc
from collections.abc import Callable

WARM_COUNT = 20
CALL_COUNT = 200
EACH_BYTES_MAX = 16
"""Of the interpreter's own bookkeeping; an object that is not given back is larger."""


def assert_nothing_stays(once: Callable[[], None]) -> None:
    """Call a function often; its memory must be given back."""
    for _ in range(WARM_COUNT):
        once()
    gc.collect()  # what tests before have left would be counted when it ends
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(CALL_COUNT):
            once()
        gc.collect()  # what goes in circles is given back, too
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < CALL_COUNT * EACH_BYTES_MAX
