"""Awaiting something, and being told when it first has to wait:
what need not wait then costs no task of its own.

A loop that receives requests can serve each in its own task, and has to give its place to
another task only for those that wait.  Waking or starting a task for every request costs more
than many of the requests themselves.

What hardly ever waits may be begun outside of any task (`begin_without_task`).  Where it does wait,
it says so before (`in_task`), and a task goes on with it.
"""

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any, Final, TypeVar

import trio

T = TypeVar("T")

_WANTS_TASK: Final = object()
_ASKED_IN_VAIN: Final = "must be called from async context"
"""What trio says to whoever asks outside of any task for the present one."""


class NoTaskError(RuntimeError):
    """What was begun outside of any task has waited, or would have, without a word before."""


@coroutine
def until_wait(work: Coroutine[Any, Any, T], on_wait: Callable[[], None]) -> Generator[Any, Any, T]:
    """Await `work` in the present task; right before it waits for the first time call `on_wait`.

    Args:
        work: not begun yet.
        on_wait: does not raise; runs at most once, never when `work` ends without waiting.
    """
    try:
        trap = work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    on_wait()
    return (yield from _rest(work, trap))


def _rest(work: Coroutine[Any, Any, T], trap: object) -> Generator[Any, Any, T]:
    """Go on with `work`, which waits, in the present task."""
    while True:
        try:
            answer = yield trap
        except BaseException as error:  # noqa: BLE001 - it is the work's to handle
            resume = partial(work.throw, error)
        else:
            resume = partial(work.send, answer)
        try:
            trap = resume()
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


@coroutine
def in_task() -> Generator[Any, Any, None]:
    """Return in a task: to be awaited right before what waits, by what may be begun without one."""
    if not trio.lowlevel.in_trio_task():
        yield _WANTS_TASK


def begin_without_task(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Run `work`, not begun yet, outside of any task until it wants one;
    return what is left, for a task to await.

    Raises:
        StopIteration: it has ended, with its result as the value.
        NoTaskError: it has waited, or would have, without a word before; it has ended then.
        Exception: what it has ended with.
    """
    try:
        trap = work.send(None)
    except RuntimeError as error:
        if str(error) == _ASKED_IN_VAIN:
            raise NoTaskError(f"{work}: {error}") from error
        raise
    if trap is _WANTS_TASK:
        return _go_on(work)
    work.close()
    raise NoTaskError(f"{work} waits outside of any task")


async def _go_on(work: Coroutine[Any, Any, T]) -> T:
    return await _resumed(work)


@coroutine
def _resumed(work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    try:
        trap = work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    return (yield from _rest(work, trap))
