"""Runs many calls side by side, a bounded number at once,
and raises what the first of them raised, unwrapped.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from ..schema.status import FsError

T = TypeVar("T")


async def each_or_error(
    calls: Sequence[Callable[[], Awaitable[T]]], *, at_once_max: int
) -> list[T | FsError]:
    """Return what each call returned, or the FsError that it raised, in their order.

    Errors come without the calls that they went through: these know the errors, so neither would be
    free before the garbage collector comes.
    """
    results: list[T | FsError | None] = [None] * len(calls)
    waiting = iter(range(len(calls)))

    async def work() -> None:
        for index in waiting:
            try:
                results[index] = await calls[index]()
            except FsError as error:
                results[index] = error.with_traceback(None)

    async with trio.open_nursery() as nursery:
        for _ in range(min(at_once_max, len(calls))):
            nursery.start_soon(work)
    return results  # type: ignore[return-value]  # every one has been set


async def side_by_side(calls: Sequence[Callable[[], Awaitable[T]]], *, at_once_max: int) -> list[T]:
    """Return what each call returned, in their order.

    Raises:
        FsError: that of the first call, by position, that failed; the others
            have been run all the same.
    """
    results: list[T] = []
    for result in await each_or_error(calls, at_once_max=at_once_max):
        if isinstance(result, FsError):
            raise result
        results.append(result)
    return results
