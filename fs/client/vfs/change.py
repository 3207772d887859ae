"""Changes that are one call of meta: made by a task that waits, or begun, so that none has to.

Both ways ask the same and take the same reply in; what differs is who does it, the task that asked
or whoever receives the reply.

Invariant: a change that was begun happens once, however often meta has to be asked: all tries
have the request id of the first.

Concurrency: one event loop; a reply is taken in without giving others a turn, but for
what `take` leaves to be awaited.
"""

import logging
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, Generic, NamedTuple, TypeVar

from ...runtime.readiness import current_time
from ...schema.method import Method, ReqT, RspT
from ...schema.status import FsError, Retry
from .shared import Shared

T = TypeVar("T")

_log = logging.getLogger(__name__)


def _nothing(_: object = None) -> None:
    pass


class Change(NamedTuple, Generic[ReqT, RspT, T]):
    """What meta is asked for, and what becomes of its reply."""

    method: Method[ReqT, RspT]
    request: ReqT
    take: Callable[[RspT], T | Coroutine[Any, Any, T]]
    """Takes the reply in and returns the result, or what has to be awaited for it."""
    fail: Callable[[], None]
    """Called when a try ended without a reply: it may have been made all the same."""
    withdraw: Callable[[], None] = _nothing
    """Called where meta was not asked and is not going to be."""
    note: Callable[[RspT], None] = _nothing
    """Takes in what of a reply the result does not depend on:
    whoever waits for that may have it already, and nothing else has been done since.
    """
    refuse: Callable[[], None] | None = None
    """Called in place of `fail` where meta has refused the only try:
    it was not made, and is not going to be.
    """


OnMade = Callable[[T | None, Exception | None], None]
"""Called once, with the result or with why there is none; neither waits nor raises."""


async def make(core: Shared, change: Change[ReqT, RspT, T]) -> T:
    """Make a change; raises FsError: what meta says, or what taking its reply in ends with."""
    try:
        reply = await core.call(change.method, change.request)
    except BaseException:
        change.fail()
        raise
    return await _taken(change, reply)


async def _taken(change: Change[ReqT, RspT, T], reply: RspT) -> T:
    try:
        taken = change.take(reply)
    finally:
        change.note(reply)
    return await taken if isinstance(taken, CoroutineType) else taken  # type: ignore[return-value]


def begin(core: Shared, change: Change[ReqT, RspT, T], on_end: OnMade[T]) -> bool:
    """Begin a change without a task; False: nothing is done, `make` has to do it.

    Meta is asked once; where that does not settle it a task goes on, under the same request id.
    """
    begins = core.begins_changes
    if begins is None:
        change.withdraw()
        return False
    began_s = current_time()

    async def go_on(error: FsError) -> T:
        try:
            reply = await begins.call_again(change.method, change.request, error, began_s)
        except BaseException:
            change.fail()
            raise
        return await _taken(change, reply)

    # Quoted: they would be evaluated for every change.
    def ended(reply: "RspT | None", error: "FsError | None") -> None:
        if reply is None:
            assert error is not None
            if error.retry is Retry.NEVER and error.definite and change.refuse is not None:
                change.refuse()
            else:
                change.fail()
            if error.retry is Retry.NEVER:
                on_end(None, error)
            else:
                core.finish_in_task(go_on(error), on_end)
            return
        try:
            taken = change.take(reply)
        except Exception as failure:  # noqa: BLE001 - who answers the kernel judges it
            on_end(None, failure)
        else:
            if isinstance(taken, CoroutineType):
                core.finish_in_task(taken, on_end)
            else:
                on_end(taken, None)  # type: ignore[arg-type]
        try:
            change.note(reply)
        except Exception:  # noqa: BLE001 - an edge: who asked has been answered
            _log.exception("bug in %s, which has been answered", change.method)

    is_begun = begins.begin_change(change.method, change.request, ended)
    if not is_begun:
        change.withdraw()
    return is_begun
