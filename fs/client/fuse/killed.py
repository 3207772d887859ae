"""Requests whose caller was killed: given up, so that the process can end.

A process that waits in the kernel for the answer to a FUSE request cannot die before it comes,
and pyfuse3 has no hook for the kernel's interrupts.  So requests that take long are watched:
when the thread that waits has SIGKILL pending (the kernel puts it there for every fatal
signal), its request ends with EINTR.

Only for requests without effect: half of another kind could leave an open file or a session behind.
Reads need none of this: the kernel lets a killed process leave those.

Concurrency: one task runs `run`; handlers enter and leave on the same event loop.
"""

import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

_log = logging.getLogger(__name__)

AGE_S_MIN = 1.0
"""Younger requests are not looked at: most never get this old."""

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What asks a program to end, and may end one of its calls.

Timers, children that ended, and the like have to wait.
"""


def _bit(number: int) -> int:
    return 1 << number - 1


_SIGKILL_BIT: Final = _bit(signal.SIGKILL)
_ENDING_BITS: Final = sum(_bit(number) for number in _ENDING)


def _pending(thread_id: int) -> int:
    """Return what a thread would act on as soon as it leaves the kernel, as in /proc;
    0 when it is gone.
    """
    try:
        text = Path(f"/proc/{thread_id}/status").read_text(encoding="ascii", errors="replace")
    except OSError as error:
        _log.debug("signals of thread %d: %s", thread_id, error)
        return 0
    pending = blocked = 0
    for line in text.splitlines():
        if line.startswith(("SigPnd:", "ShdPnd:")):
            pending |= int(line.split()[1], 16)
        elif line.startswith("SigBlk:"):
            blocked = int(line.split()[1], 16)
    return pending & ~blocked


def is_killed(thread_id: int) -> bool:
    """Return whether a thread is to die as soon as it leaves the kernel; False when it is gone."""
    return bool(_pending(thread_id) & _SIGKILL_BIT)


def is_told_to_end(thread_id: int) -> bool:
    """Return whether a thread is to die, or has a signal waiting that asks programs to end;
    False when it is gone.
    """
    return bool(_pending(thread_id) & (_SIGKILL_BIT | _ENDING_BITS))


class KilledCallers:
    """See module head."""

    def __init__(
        self, now_s: Callable[[], float], is_killed: Callable[[int], bool] = is_killed
    ) -> None:
        self._now_s = now_s
        self._is_killed = is_killed
        self._waiting: dict[trio.CancelScope, tuple[int, float]] = {}

    def enter(self, scope: trio.CancelScope, thread_id: int) -> None:
        """Watch a request that runs inside `scope` on behalf of a thread."""
        self._waiting[scope] = (thread_id, self._now_s())

    def leave(self, scope: trio.CancelScope) -> None:
        """The request is done."""
        del self._waiting[scope]

    async def run(self) -> None:
        """Look once a second, until cancelled."""
        while True:
            await trio.sleep(AGE_S_MIN)
            old_before_s = self._now_s() - AGE_S_MIN
            for scope, (thread_id, began_s) in list(self._waiting.items()):
                if began_s <= old_before_s and self._is_killed(thread_id):
                    scope.cancel()
