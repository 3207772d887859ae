"""Bytes that are sent or received out of several buffers one after the other."""

from collections.abc import Sequence

from ..runtime.ports import Buffer


def skip_bytes(buffers: Sequence[Buffer], count: int) -> list[Buffer]:
    """Return what remains of `buffers` after their first `count` bytes, without copying."""
    rest: list[Buffer] = []
    for buffer in buffers:
        size = len(buffer)
        if count >= size:
            count -= size
        elif count:
            rest.append(memoryview(buffer)[count:])
            count = 0
        else:
            rest.append(buffer)
    return rest
