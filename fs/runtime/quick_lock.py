"""A lock that is taken at once where it is free.

trio's own gives a turn of the event loop away each time, which costs more than most of
what is done under a lock here.

Invariants:
    - At most one holder; who waits gets it first come, first served.

Concurrency: trio, one event loop.  Whoever holds it in a loop that awaits
nothing else keeps all others out.
"""

import trio


class QuickLock:
    """For `async with`; a task cannot take it twice.

    What goes on without a task has `take_now` and `give_back`.
    """

    __slots__ = ("_holder", "_waiting")

    def __init__(self) -> None:
        self._holder: object = None
        """The task inside, or this lock itself for what has none; None: it is free."""
        self._waiting: trio.lowlevel.ParkingLot | None = None

    def locked(self) -> bool:
        """Return whether anybody holds it."""
        return self._holder is not None

    def take_now(self) -> bool:
        """Take it for what is no task, if it is free; `give_back` is to follow, anywhere."""
        if self._holder is not None:
            return False
        self._holder = self
        return True

    def give_back(self) -> None:
        """Let the next one in."""
        self._holder = self._waiting.unpark()[0] if self._waiting else None

    async def __aenter__(self) -> None:
        task = trio.lowlevel.current_task()
        if self._holder is None:
            self._holder = task
            return
        if self._holder is task:
            raise RuntimeError("a task takes a lock that it holds")
        if self._waiting is None:
            self._waiting = trio.lowlevel.ParkingLot()
        await self._waiting.park()  # whoever gives it back makes us its holder

    async def __aexit__(self, *_error: object) -> None:
        self.give_back()
