"""A call that a thread of its own makes: `begin`.

No executor: those take nothing any more while the interpreter ends, when what is to be kept may still be saved.
"""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def begin(call: Callable[[], T], done: "Future[T]") -> None:
    """Have a thread make a call; it is made here and now if none can be had.

    Args:
        call: what it returns or raises becomes that of `done`.
        done: is held by the caller before anything begins, so that no interrupt leaves it with a call that it does not know of.
    """
    try:
        Thread(target=_make, args=(call, done), name="emberfs-apart").start()
    except RuntimeError:  # there are too many, or, in later Pythons, the interpreter ends
        _make(call, done)


def _make(call: Callable[[], T], done: "Future[T]") -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - who waits for it raises it
        done.set_exception(error)
        del done  # which knows the error, which knows this call
    else:
        done.set_result(result)
