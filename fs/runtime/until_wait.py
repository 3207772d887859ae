"""Awaiting something, and being told when it first has to wait: what need not wait then costs no task of its own.

A loop that receives requests can serve each in its own task, and has to give its place to another task only for those
that wait.  Waking or starting a task for every request costs more than many of the requests themselves.
"""

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
