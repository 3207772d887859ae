"""When the kernel has taken in a reply that shows names, and how long it may use them from then on.

The kernel counts from when it takes a name in, entry by entry.  Where the attributes of a file have
changed it drops the file's pages, and waits for their locks first: for as long as a READ of them
takes.  What it does next with the same open directory shows that it is done with the reply.

A look-up of one of the reply's names may wait for that reply (listed_names.py), and hold it up at
the same time.  Both go on when TAKEN_IN_S_MAX is over.  That takes another mount that renames what
was just listed while it is looked up.
"""

import math
from typing import Final

import trio

SLACK_S: Final = 0.25
"""From the use of a name to the request that follows from it."""
TAKEN_IN_S_MAX: Final = 10.0
"""A program may keep a directory open and ask for no more of it:
after so long its last reply counts as taken in.
"""


class ShownNames:
    """Of one reply to one listing."""

    __slots__ = ("_taken_in", "_until_s", "_valid_s", "asked_s", "listed_s")

    def __init__(
        self, now_s: float, valid_s: float, asked_s: float = math.inf, listed_s: float = math.inf
    ) -> None:
        """Begin with a reply that is not taken in yet.

        Args:
            now_s: when it is made.
            valid_s: for so long its names may be used once it is taken in.
            asked_s: when the kernel asked for it; inf: nothing was done since.
            listed_s: when meta was asked for what it tells; inf: nothing was done since.
        """
        self.asked_s, self.listed_s = asked_s, listed_s
        self._valid_s = valid_s + SLACK_S
        self._until_s = now_s + TAKEN_IN_S_MAX + self._valid_s
        self._taken_in = trio.Event()

    def note_taken_in(self, now_s: float) -> None:
        """The kernel is done with the reply, by now at the latest."""
        if not self._taken_in.is_set():
            self._until_s = min(self._until_s, now_s + self._valid_s)
            self._taken_in.set()

    def may_be_used(self, now_s: float) -> bool:
        """Return whether the kernel may still use the names without a look-up."""
        return now_s < self._until_s

    async def wait_taken_in(self, now_s: float) -> None:
        """Return when it is taken in or counts as such, and its time is over, or begins to run."""
        if not self._taken_in.is_set():
            with trio.move_on_after(self._until_s - now_s):
                await self._taken_in.wait()
            return
        await trio.sleep(max(self._until_s - now_s, 0.0))
