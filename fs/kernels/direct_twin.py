"""The twin of direct.c: the same in Python, one place after the other.

It says what the function promises.
"""

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Final

from .reads_twin import ReadNow, fill

Place = tuple[int | ReadNow, int, bytearray | memoryview]
"""A descriptor, for the twin also what stands for it; where to begin; and what is to be filled."""

_OFFSET_MAX: Final = 2**63 - 1


class _Line:
    """One reader at a time, in the order in which they came;
    who has no memory to wait takes no place, and to leave takes none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: deque[threading.Lock] = deque()
        """What each waits for, the first one's let go of."""

    def __enter__(self) -> None:
        turn = threading.Lock()
        turn.acquire()
        with self._lock:
            self._turns.append(turn)
            if self._turns[0] is turn:
                turn.release()
        turn.acquire()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._turns.popleft()
            if self._turns:
                self._turns[0].release()


def new_line(bytes_max: int, /) -> Any:
    """Return a line for those who read from one disk, for `read_places`;
    in the child of a fork it is of no use.

    The disk has places of `bytes_max` bytes to read at most, or one larger one, in the order in
    which readers came: it begins with those of who is next while it still has some of who is in
    front, so it never waits for them to take turns.

    Raises:
        ValueError: that is less than 1.
    """
    if not 1 <= bytes_max <= _OFFSET_MAX:
        raise ValueError("no bytes")
    return _Line()


def read_places(places: Sequence[Place], line: Any = None, /) -> bool:
    """Fill buffers with what files have at some places, waiting for the disk,
    which may have all of them to read at once.

    Args:
        places: what is to be read.
        line: in which they wait for those in front; None: for nobody.

    Returns:
        Whether all of them came whole.  If not, each may hold anything; why is not said: reading
        one in the ordinary way tells.

    Raises:
        TypeError: a place is no such tuple, or its buffer cannot be written to; or it is no line.
        ValueError: a place beyond any file.
    """
    if not isinstance(line, _Line | None):
        raise TypeError("no line")
    taken = [_taken(*place) for place in places]
    with line or nullcontext():
        try:
            return all(
                not target or fill(source, target, offset) == len(target)
                for source, offset, target in taken
            )
        except OSError:
            return False


def _taken(
    source: int | ReadNow, offset: int, buffer: bytearray | memoryview
) -> tuple[int | ReadNow, int, memoryview]:
    target = memoryview(buffer).cast("B")
    if target.readonly:
        raise TypeError("what is read into can be written to")
    if not 0 <= offset <= _OFFSET_MAX - len(target):
        raise ValueError("a place beyond any file")
    return source, offset, target
