"""Which threads walk a path for the second time in one system call.

Linux does so once for each call, after ESTALE.  Who finds a directory removed in his second walk,
too, must not be sent back again: the program would hear of it.  Neither the kernel nor /proc says
where one call ends and the next begins, if both are the same call with the same arguments.  So
what a thread asks for after it was sent back is looked at, too:
    - A walk asks for one name in each directory, and for what it needs to judge rights.  Anything
      else is the last thing of its call.
    - Of a name that the kernel keeps it asks twice: whether it still is that, and what it is.
    - What it is told of a removed directory ends it.
    - Calls with two paths may search a directory for each of them.

Where all that is not enough a thread counts as walking: it hears of ENOENT then.

Pure.  The notes are made of each request while there are any such threads.
"""

from typing import Final

from ...runtime.oldest import forget_oldest
from ...schema.ids import InodeId

Place = tuple[InodeId, bytes]
"""A directory and a name in it."""

THREAD_COUNT_MAX: Final = 1024
"""Threads remembered; the oldest go first."""


class _Walk:
    __slots__ = (
        "call",
        "failed",
        "has_ended",
        "keeps_all",
        "may_ask_again",
        "paths_left",
        "searched",
    )

    def __init__(self, call: str, path_count: int, *, keeps_all: bool) -> None:
        self.call = call
        self.paths_left = path_count - 1
        self.keeps_all = keeps_all
        self.searched: list[Place] = []
        """What was looked up for the path that is being walked."""
        self.failed: Place | None = None
        """Of what was told that the directory was removed."""
        self.may_ask_again = False
        """For that: the kernel may have kept it, and lets go of it."""
        self.has_ended = False
        """What was asked for last ends the call."""


class SecondWalks:
    """See module head; of one mount.  A `call` is what /proc says of one, empty: nothing."""

    def __init__(self) -> None:
        self.by_thread: dict[int, _Walk] = {}

    def begin(
        self, thread_id: int, call: str, *, path_count: int = 1, keeps_all: bool = False
    ) -> None:
        """A thread is sent back, in a call with so many paths;
        `keeps_all`: it may have gone by names that the kernel keeps.
        """
        self.by_thread.pop(thread_id, None)
        self.by_thread[thread_id] = _Walk(call, path_count, keeps_all=keeps_all)
        forget_oldest(self.by_thread, THREAD_COUNT_MAX)

    def note_lookup(self, thread_id: int, place: Place) -> None:
        """A thread looks a name up."""
        walk = self.by_thread.get(thread_id)
        if walk is None:
            return
        searched = walk.searched
        is_asked_again = bool(searched) and searched[-1] == place
        if not is_asked_again and any(place[0] == directory for directory, _ in searched):
            walk.paths_left -= 1
            searched.clear()
        if walk.has_ended or walk.paths_left < 0:
            del self.by_thread[thread_id]
        else:
            searched.append(place)

    def note_other(self, thread_id: int, *, only_walks: bool) -> None:
        """A thread asks for something else, that a walk may need or that ends its call."""
        walk = self.by_thread.get(thread_id)
        if walk is None:
            return
        if walk.has_ended:
            del self.by_thread[thread_id]
        walk.has_ended = not only_walks

    def changes(self, thread_id: int, call: str) -> bool:
        """Return whether a thread that changes names has walked for the second time."""
        return self._found(thread_id, call) is not None

    def searches(self, thread_id: int, call: str, place: Place, *, may_keep: bool) -> bool:
        """Return whether a thread walks for the second time that has just searched a directory,
        which was removed, for a name that the kernel may keep.
        """
        walk = self._found(thread_id, call)
        if walk is None:
            return False
        if walk.failed is None:
            is_same = walk.searched.count(place) <= 1
            walk.failed, walk.may_ask_again = place, may_keep or walk.keeps_all
        else:
            is_same = walk.failed == place and walk.may_ask_again
            walk.may_ask_again = False
        if not is_same:
            del self.by_thread[thread_id]
        return is_same

    def _found(self, thread_id: int, call: str) -> _Walk | None:
        walk = self.by_thread.get(thread_id)
        if walk is not None and call and walk.call and call != walk.call:
            del self.by_thread[thread_id]
            return None
        return walk
