"""The twin of direct.c: the same in Python, one place after the other.  It says what the function promises."""

from collections.abc import Sequence
from typing import Final

from .reads_twin import ReadNow, fill

Place = tuple[int | ReadNow, int, bytearray | memoryview]
"""A descriptor, for the twin also what stands for it; where to begin; and what is to be filled."""

_OFFSET_MAX: Final = 2**63 - 1


def read_places(places: Sequence[Place], /) -> bool:
    """Fill buffers with what files have at some places, waiting for the disk, which may have all of them to read at once.

    Returns:
        Whether all of them came whole.  If not, each may hold anything; why is not said: reading one in the ordinary way tells.

    Raises:
        TypeError: a place is no such tuple, or its buffer cannot be written to.
        ValueError: a place beyond any file.
    """
    taken = [_taken(*place) for place in places]
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
