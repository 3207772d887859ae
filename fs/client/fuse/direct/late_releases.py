"""RELEASEs that are left until nothing else is to be done:
nobody waits for one, and a program asks on after a close.

The kernel sends RELEASE beside what the program goes on with, and promises no order: a file may
count as open here a moment longer.  So what a program asks next goes first, and the RELEASE is
done while metadata works on that.

Invariants:
    - Only look-ups, attributes and creations overtake a RELEASE (`AHEAD`).  Before anything else is
      begun the RELEASE is done, so that what is removed, emptied or changed next finds the file
      closed.  It is done, too, before a look-up that is taken for one of what is removed.
    - None that frees a lock is left: who closes, and locks again at once, comes after it.
    - One is done at the latest before the event loop sleeps, and before the mount ends.

Does not: choose what is received, or know what a RELEASE does.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from .device import Request
from .protocol import Opcode

AHEAD: Final = frozenset(map(int, (Opcode.LOOKUP, Opcode.GETATTR, Opcode.CREATE, Opcode.RELEASE)))
COUNT_MAX: Final = 32
"""Left at most; with more the first one is done."""
PASSED_MAX: Final = 64
"""So many requests overtake what is left, at most:
where many threads look up names the loop may not sleep for long.
"""

Leave = Callable[[Callable[[], None]], None]


class LateReleases:
    """Of one mount."""

    def __init__(self, do: Callable[[Request], None]) -> None:
        """Have `do`, which neither waits nor raises, do each."""
        self._do = do
        self.left: deque[Request] = deque()
        """To be read only."""
        self._passed_count = 0
        self._is_loop_told = False
        self.leave: Leave | None = None
        """Has a function called when nothing else is to be done;
        None: each RELEASE is done when it comes.
        """

    def take(self, request: Request) -> None:
        """Leave a RELEASE for later."""
        if self.leave is None:
            self._do(request)
            return
        if not self.left:
            self._passed_count = 0
        if not self._is_loop_told:
            self.leave(self._do_before_sleep)
            self._is_loop_told = True
        self.left.append(request)
        if len(self.left) > COUNT_MAX:
            self._do(self.left.popleft())

    def lets_pass(self, request: Request) -> bool:
        """Return whether one more request may overtake what is left."""
        self._passed_count += 1
        return request.opcode in AHEAD and self._passed_count <= PASSED_MAX

    def take_back(self) -> list[Request]:
        """Return what was left, in its order, to be done before anything else."""
        taken = list(self.left)
        self.left.clear()
        return taken

    def do_all(self) -> None:
        """Do what was left."""
        left = self.left
        while left:
            self._do(left.popleft())

    def _do_before_sleep(self) -> None:
        self._is_loop_told = False
        self.do_all()

    def abandon(self) -> None:
        """Leave none any more, and do none: there is nobody to answer."""
        self.leave = None
        self.left.clear()
