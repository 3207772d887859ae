"""A call that a plain thread has an event loop make with memory of the caller's, and that has ended
when an interrupt (Ctrl-C, a signal's handler that raises) goes on in the thread.

A read is cancelled then.  A write is not, and ends as it would have: what of it is on its way
would arrive at storage after its file was closed, beyond the end that the close has found.

Invariant: when `make` has returned or raised, nothing of the call goes on, so memory that the
caller has lent to it is the caller's again.  A second interrupt, while the first is
waited for, is the exception: whoever insists is let go.

What this module does not do: say which calls are to end; one that closes a file had better go on.
"""

import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

import trio

T = TypeVar("T")

LOOK_S = 0.5
"""Between two looks whether the event loop's thread is there at all, or a signal has come in the
moment when a wait began: that ends no wait.
"""


class InterruptibleCall(Generic[T]):
    """See module head; for one use."""

    def __init__(self, function: Callable[[], Awaitable[T]], *, is_cancelled: bool = False) -> None:
        self._is_cancelled = is_cancelled
        self._function: Callable[[], Awaitable[T]] | None = function
        self._scope: trio.CancelScope | None = None
        self._has_ended = False
        self._is_given_up = False
        self._heard: threading.Event | None = None
        """That the call has ended, or will not begin; only where somebody gives it up."""

    def make(self, token: trio.lowlevel.TrioToken, thread: threading.Thread) -> T:
        """Make the call on the loop of a thread, and return or raise what it does."""
        try:
            return trio.from_thread.run(self._run, trio_token=token)
        except BaseException:
            if not self._has_ended:
                heard = self._heard = threading.Event()
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(self._give_up)
                    while not heard.wait(LOOK_S) and thread.is_alive():
                        pass
            raise

    async def _run(self) -> T:
        # Whoever has the answer may close the memory at once: the loop is not to refer to it then.
        function, self._function = self._function, None
        try:
            if function is not None and not self._is_given_up:
                with trio.CancelScope() as self._scope:
                    answer = function()
                    del function
                    return await answer
        finally:
            self._has_ended = True
            if self._heard is not None:
                self._heard.set()
        raise InterruptedError("given up: nobody waits for the answer")

    def _give_up(self) -> None:
        self._is_given_up = True
        if self._scope is not None and not self._has_ended:
            if self._is_cancelled:
                self._scope.cancel()
        elif self._heard is not None:  # it has ended meanwhile, or never will begin
            self._heard.set()
