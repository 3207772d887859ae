"""What one native client writes to small files,
so that its own open files of one inode do not get into each other's way.  No I/O.

Metadata takes the bytes of a file inline only while all that have it open for writing are of one
client; whether these agree is that client's to see to.

Invariants:
    - Bytes are sent inline only for a file that nobody else of this client has
      had open for writing meanwhile.
    - Who opens a file for writing while bytes of it may be on their way inline takes it for one
      without chunks, and has their report refused before he writes.
    - Bytes that came with an open are not shown once this client has begun to change the file.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ..runtime.ports import Clock
from ..schema.ids import InodeId
from .inline_report import InlineReport
from .kept_bytes import Keeper, KeptBytes

CHANGED_COUNT_MAX = 65_536
OPENED_BYTES_MAX = 64 << 20
"""Of bytes that came with opens, over all open files."""
OPENED_FILE_BYTES = 1024
"""What a file that keeps any counts for at least:
so long it is kept, too, also where it was never closed and nobody has it any more.
"""


class Opening:
    """An open for writing that is under way."""

    __slots__ = ("_changes", "mark")

    def __init__(self, changes: "OwnChanges", mark: int) -> None:
        self._changes = changes
        self.mark = mark

    def may_be_inline(self, inode_id: InodeId) -> bool:
        """Return whether the file may be inline, or become so, whatever the reply said of it."""
        return self._changes.is_sent_since(inode_id, self.mark)


class Room:
    """Bytes that may come with opens and be kept then, over several calls."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max

    def take(self, bytes_max: int) -> int:
        """Return how many bytes one call may ask for."""
        taken = max(0, min(self._left, bytes_max))
        self._left -= taken
        return taken

    def settle(self, taken: int, lengths: Iterable[int]) -> None:
        """Count those of these files that have come, in place of what was taken for the call."""
        self._left += taken - sum(max(length, OPENED_FILE_BYTES) for length in lengths)


class OwnChanges:
    """See module head; one for each client."""

    def __init__(self, clock: Clock, opened_s: float) -> None:
        """Let bytes that came with an open be shown for so long,
        by a clock that goes on while the machine sleeps.
        """
        self.now_s = clock.monotonic_s
        """What all times here, and of reports, are of."""
        self._opened_s = opened_s
        self._writers: Counter[InodeId] = Counter()
        """Files that are open for writing."""
        self._shared: set[InodeId] = set()
        """Those of them that were open twice at a time, since they were last open at all."""
        self._mark = 0
        self._opening: dict[int, None] = {}
        """Marks of opens that are under way, growing."""
        self._sent: dict[InodeId, int] = {}
        """Bytes were sent inline, and when, in that order;
        forgotten when no open is under way that is older.
        """
        self._unsure: dict[InodeId, InlineReport] = {}
        """Nobody knows what has become of bytes that were sent inline with this report."""
        self._changed: dict[InodeId, float] = {}
        """When files were last changed, in that order;
        forgotten when bytes from before are not shown any more.
        """
        self._forgotten_s = -math.inf
        """What was changed up to then is not known by file."""
        self.opened = KeptBytes()

    @contextmanager
    def opening(self) -> Iterator[Opening]:
        """Go through an open for writing: ask for it, and note in `began` who has it."""
        self._mark += 1
        mark = self._mark
        self._opening[mark] = None
        try:
            yield Opening(self, mark)
        finally:
            del self._opening[mark]
            self._forget_sent()

    def began(self, inode_id: InodeId) -> None:
        """Count one more that has a file open for writing."""
        self._writers[inode_id] += 1
        if self._writers[inode_id] > 1:
            self._shared.add(inode_id)

    def ended(self, inode_id: InodeId) -> None:
        """Inverse of `began`."""
        self._writers[inode_id] -= 1
        if not self._writers[inode_id]:
            del self._writers[inode_id]
            self._shared.discard(inode_id)

    def may_send(self, inode_id: InodeId) -> bool:
        """Return whether bytes of a file may be sent inline
        by the one who has it open for writing.
        """
        return inode_id not in self._shared and inode_id not in self._unsure

    def note_sent(self, inode_id: InodeId, report: InlineReport) -> None:
        """Note that bytes of a file are sent inline from now on,
        with an outcome that nobody knows yet.
        """
        self._unsure[inode_id] = report

    def report_in_doubt(self, inode_id: InodeId) -> InlineReport | None:
        """Return the report that sends, or has sent,
        bytes of a file inline and whose outcome nobody knows yet.
        """
        return self._unsure.get(inode_id)

    def note_told(self, inode_id: InodeId) -> None:
        """Note that it is known what has become of them, or that they will be refused."""
        self._unsure.pop(inode_id, None)
        if self._opening:
            self._mark += 1
            self._sent.pop(inode_id, None)
            self._sent[inode_id] = self._mark

    def is_sent_since(self, inode_id: InodeId, mark: int) -> bool:
        """Return whether bytes of a file may have been sent inline after `mark`,
        or are on their way.
        """
        return inode_id in self._unsure or self._sent.get(inode_id, -1) > mark

    def _forget_sent(self) -> None:
        oldest = next(iter(self._opening), self._mark)
        while self._sent:
            inode_id, mark = next(iter(self._sent.items()))
            if mark > oldest:
                return
            del self._sent[inode_id]

    def note_changed(self, inode_id: InodeId) -> None:
        """Note that a file is changed just now."""
        now_s = self.now_s()
        self._changed.pop(inode_id, None)
        self._changed[inode_id] = now_s
        while True:
            first, changed_s = next(iter(self._changed.items()))
            if changed_s >= now_s - self._opened_s and len(self._changed) <= CHANGED_COUNT_MAX:
                return
            self._forgotten_s = changed_s
            del self._changed[first]

    def note_any_changed(self) -> None:
        """Note that some file may have been changed just now, and nobody knows which."""
        self._forgotten_s = self.now_s()

    def keep_opened(self, file: Keeper, count: int) -> None:
        """Count bytes that came with the open of a file and that it keeps; 0: none any more."""
        if not count:
            self.opened.give_up(file)
            return
        self.opened.keep(file, max(count, OPENED_FILE_BYTES))
        self.opened.shrink_to(OPENED_BYTES_MAX)

    def room(self) -> Room:
        """Return the room for bytes that opens may bring, all of which may be kept;
        none where they must not be shown.
        """
        return Room(OPENED_BYTES_MAX if self._opened_s else 0)

    def is_fresh(self, inode_id: InodeId, asked_s: float) -> bool:
        """Return whether bytes that came with an open asked for at `asked_s` may be shown now."""
        if asked_s <= self._forgotten_s or self.now_s() >= asked_s + self._opened_s:
            return False
        return self._changed.get(inode_id, -math.inf) < asked_s
