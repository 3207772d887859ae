"""What look-ups of names are for: whether a thread removes or moves next what it looks up now.

The kernel does not say.  It asks before a removal as before anything else, though it needs less of
the answer then: no attributes.  Threads do the same thing many times, or the same two things in
turn.  So what followed the last two look-ups of a kind tells what follows this one.

It is a guess.  Who goes by it must be right also where it is wrong.  Pure.
"""

from typing import Final

from ....schema.ids import InodeId

Place = tuple[InodeId, bytes]

THREAD_COUNT_MAX: Final = 1024
"""Threads remembered; the oldest go first."""
EXPECTED_COUNT: Final = 2
"""What has followed so often is expected: of threads that do three things in turn nothing is."""
_OPEN_COUNT_MAX: Final = 2
"""Both names of a rename are looked up before it."""


class _Thread:
    __slots__ = ("counts", "last", "open")

    def __init__(self, counts: list[int]) -> None:
        self.open: list[Place] = []
        """What was looked up and not removed so far."""
        self.last = True
        """Whether what was looked up before those was removed then."""
        self.counts = counts
        """How often in a row a removal has followed,
        after a look-up for something else and after one for a removal.
        """

    def end_first(self, *, is_removal: bool) -> None:
        self.counts[self.last] = self.counts[self.last] + 1 if is_removal else 0
        self.last = is_removal
        del self.open[0]


class Purposes:
    """See module head; of one mount."""

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}
        self._counts = [0, 0]
        """Of the thread that had its last look-up ended last:
        others may do as it did, such as the next process of a script.
        """

    def is_removal(self, thread_id: int, place: Place) -> bool:
        """Note that a thread looks up what may be there, and return whether to remove or move it,
        as far as one can guess.
        """
        thread = self._threads.get(thread_id)
        if thread is None:
            thread = self._threads[thread_id] = _Thread([*self._counts])
            if len(self._threads) > THREAD_COUNT_MAX:
                del self._threads[next(iter(self._threads))]
        if place in thread.open:
            self._end(thread, place, is_removal=False)
        elif len(thread.open) == _OPEN_COUNT_MAX:
            self._end(thread, thread.open[0], is_removal=False)
        thread.open.append(place)
        return thread.counts[thread.last] >= EXPECTED_COUNT

    def note_removal(self, thread_id: int, *places: Place) -> None:
        """Note that a thread removes names, or moves something from them or to them,
        in the order in which it looked them up.
        """
        thread = self._threads.get(thread_id)
        if thread is not None:
            for place in places:
                if place in thread.open:
                    self._end(thread, place, is_removal=True)

    def _end(self, thread: _Thread, place: Place, *, is_removal: bool) -> None:
        while thread.open[0] != place:
            thread.end_first(is_removal=False)
        thread.end_first(is_removal=is_removal)
        self._counts = thread.counts
