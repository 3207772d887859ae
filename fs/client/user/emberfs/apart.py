"""A call that a thread of its own makes: `begin`.

No executor: those take nothing any more while the interpreter ends, when what is
to be kept may still be saved.
"""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Thread
from typing import TypeVar

T = TypeVar("T")


def begin(call: Callable[[], T], done: "Future[T]") -> None:
    """Have a thread make a call; it is made here and now if none can be had.

    Args:
        call: what it returns or raises becomes that of `done`.
        done: is held by the caller before anything begins, so that no interrupt leaves it with a
            call that it does not know of; it always ends, also where this raises, since the caller
            waits for all that it holds.
    """
    claim = Lock()
    try:
        Thread(target=_make, args=(call, done, claim), name="emberfs-apart").start()
    except RuntimeError:  # there are too many, or, in later Pythons, the interpreter ends
        _make(call, done, claim)
    except BaseException as error:  # an interrupt, or no memory: is there a thread?
        if claim.acquire(blocking=False):
            done.set_exception(error)
            del done
        raise


def _make(call: Callable[[], T], done: "Future[T]", claim: Lock) -> None:
    """Make the call, unless who wanted it has taken it back: who has the claim ends `done`."""
    if not claim.acquire(blocking=False):
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - who waits for it raises it
        done.set_exception(error)
        del done  # which knows the error, which knows this call
    else:
        done.set_result(result)
