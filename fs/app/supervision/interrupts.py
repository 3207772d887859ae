"""Interrupts that wait while a process is being started.

Who is interrupted between the start of a process and the line that notes it does not know of it
yet, and could not end it: it would go on by itself, and mount or serve when nobody expects it.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def put_off() -> Iterator[Callable[[], None]]:
    """Have SIGINT and SIGTERM wait until what is yielded is called, which lets them come.

    What is ignored stays so, and what is started then ignores it, too.  In the main thread alone:
    others are not interrupted.  Where an error ends the block before, it ends what they would have.
    """
    came: list[int] = []
    before: dict[int, Any] = {}

    def take_them() -> None:
        while before:
            signal.signal(*before.popitem())
        for number in came:
            signal.raise_signal(number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler not in {signal.SIG_IGN, None}:
                before[number] = handler
                signal.signal(number, lambda number, _frame: came.append(number))
    try:
        yield take_them
    finally:
        while before:
            signal.signal(*before.popitem())
