"""Opens for reading that are done with the look-up of the name.

open(2) has the kernel ask twice: what a name leads to, and then to open that.  Meta was asked
twice, too, for the same attributes.  Of a file that the kernel does not know yet meta is asked for
both at once, and the answer to the open is kept until the kernel asks for it.

Why that is close-to-open.  An open may be as old as the moment at which open(2) began: whoever
closed before that was seen.  The look-up is a part of that call.  So it has to be certain that the
open that follows is of the same call, and not, say, of `/proc/self/fd/3` after an `open("f/x")`
that looked f up and failed.  It is:
    - When the look-up comes, the thread is in open(2) or openat(2), with flags that lead to nothing
      but an open for reading.
    - The kernel has been told of the inode by this one look-up and by nothing else, since it knew
      nothing of it.  So nobody holds the file in any way, and whoever comes by its name looks it up
      once more: then meta is asked.  A call that fails leaves nothing behind that could be opened.
    - When the open comes, its thread is in open(2) again: who has kept a handle for
      open_by_handle_at(2) needs no name.

Whom it is worth while is a guess, by thread; what is true of an open is not.  Does not ask meta.
"""

from typing import Final, NamedTuple, Protocol

from ....runtime.oldest import forget_oldest
from ....schema.ids import InodeId
from ....schema.proto import meta_pb2
from ...vfs.creating import FMODE_EXEC
from ...vfs.looking_up import Moment
from ...vfs.ports import Caller
from ..system_calls import OTHERWISE, SystemCalls

KEPT_COUNT_MAX: Final = 64
"""Answers kept, each with the bytes of an inline file; the oldest go first."""
THREAD_COUNT_MAX: Final = 1024
"""Threads remembered; those go first that have opened nothing for the longest time."""
OPENS_WEIGHT: Final = 3
"""An open counts for as many look-ups: asking the kernel for the call costs less than asking meta
once more.
"""
EXPECTED_WEIGHT: Final = 2 * OPENS_WEIGHT
"""Whose opens outweigh his other look-ups by so much is expected to open."""
WEIGHT_MAX: Final = 4 * OPENS_WEIGHT
"""So soon somebody is found to open no more."""


class Calls(Protocol):
    """See SystemCalls."""

    def is_opening(self, thread_id: int) -> bool:
        """See SystemCalls."""

    def close(self) -> None:
        """See SystemCalls."""


class Answer(NamedTuple):
    """What meta said of an open."""

    reply: meta_pb2.InodeRsp
    asked: Moment
    caller: Caller
    told_at: int
    """See `LookingUp.told_once_at`, once the kernel was handed what was looked up."""


class OpensAhead:
    """See module head; of one mount."""

    def __init__(self) -> None:
        self.calls: Calls = SystemCalls()
        self.weight_expected = EXPECTED_WEIGHT
        self._weights: dict[int, int] = {}
        """By thread, opens of files that were new to the kernel, against other look-ups of such."""
        self._last: dict[int, InodeId] = {}
        """By thread, the new file that it looked up and has not opened yet."""
        self._kept: dict[int, Answer] = {}

    def is_expected(self, thread_id: int) -> bool:
        """Return whether a thread, which looks something up, is about to open for reading what it
        finds; if it is not worth while to look it counts as not.
        """
        if not thread_id or self._weights.get(thread_id, 0) < self.weight_expected:
            return False
        return self.calls.is_opening(thread_id)

    def note_found(self, thread_id: int, inode_id: InodeId) -> None:
        """A thread has looked up a file that is new to the kernel."""
        if self._last.pop(thread_id, None) is not None:
            self.note_vain(thread_id)
        self._last[thread_id] = inode_id
        forget_oldest(self._last, THREAD_COUNT_MAX)

    def note_vain(self, thread_id: int) -> None:
        """A thread did not open what it looked up, or the kernel knew the file."""
        if thread_id in self._weights:
            self._weights[thread_id] = max(self._weights[thread_id] - 1, 0)

    def keep(self, thread_id: int, answer: Answer) -> None:
        """Keep what meta said of an open, which the kernel has not asked for yet."""
        self._kept[thread_id] = answer
        forget_oldest(self._kept, KEPT_COUNT_MAX)

    def take(self, thread_id: int, inode_id: InodeId, flags: int, caller: Caller) -> Answer | None:
        """Return what meta has said of an open that a thread asks for now; None: it has to be
        asked.
        """
        is_to_read = not flags & (OTHERWISE | FMODE_EXEC)
        if self._last.pop(thread_id, None) == inode_id and is_to_read:
            weight = self._weights.pop(thread_id, 0) + OPENS_WEIGHT
            self._weights[thread_id] = min(weight, WEIGHT_MAX)
            forget_oldest(self._weights, THREAD_COUNT_MAX)
        answer = self._kept.pop(thread_id, None)
        if (
            answer is None
            or not is_to_read
            or answer.reply.inode.inode_id != inode_id
            or answer.caller != caller
            or not self.calls.is_opening(thread_id)
        ):
            return None
        return answer

    def close(self) -> None:
        """Look at no thread any more."""
        self.calls.close()
