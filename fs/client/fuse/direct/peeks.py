"""Directories that a thread opens only to see whether anything is in them.

`rm -r` opens each directory, reads once and closes it, and then opens it again to list it.  Of what
the first reading brings it looks at one name.  A whole reply, with the attributes of each entry,
costs as much as removing some of them.  So when a thread has done so twice, its next first reading
is expected to be for one name, too.

It is a guess.  Where it is wrong a listing takes a request of the kernel
more, and shows the same.  Pure.
"""

from typing import Final

from ....schema.ids import InodeId

THREAD_COUNT_MAX: Final = 1024
"""Threads remembered; the oldest go first."""
EXPECTED_COUNT: Final = 2
"""Who has looked into so many directories in a row, and listed them then,
is expected to go on so.
"""
PEEK_ENTRY_COUNT: Final = 1
"""What a reply shows to who is expected to look at no more."""


class _Opened:
    __slots__ = ("has_entries", "inode_id", "is_again", "is_peek", "read_count")

    def __init__(self, inode_id: InodeId, *, is_again: bool, is_peek: bool) -> None:
        self.inode_id = inode_id
        self.is_again = is_again
        """The same thread has looked into it before."""
        self.is_peek = is_peek
        """It is expected to be only looked into."""
        self.read_count = 0
        self.has_entries = False

    @property
    def says_nothing(self) -> bool:
        """Nobody lists what he has seen to be empty."""
        return self.is_again or (self.read_count > 0 and not self.has_entries)


class _Thread:
    __slots__ = ("count", "last")

    def __init__(self) -> None:
        self.count = 0
        """Directories in a row that were looked into first."""
        self.last: _Opened | None = None

    def open(self, inode_id: InodeId) -> _Opened:
        last, is_again = self.last, False
        if last is not None and not last.says_nothing:
            is_again = last.inode_id == inode_id and last.read_count == 1
            self.count = self.count + 1 if is_again else 0
        is_peek = not is_again and self.count >= EXPECTED_COUNT
        self.last = _Opened(inode_id, is_again=is_again, is_peek=is_peek)
        return self.last


class Peeks:
    """See module head; of one mount."""

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}
        self._opened: dict[int, _Opened] = {}

    def note_open(self, thread_id: int, inode_id: InodeId, handle_id: int) -> None:
        """A thread has opened a directory."""
        thread = self._threads.get(thread_id)
        if thread is None:
            thread = self._threads[thread_id] = _Thread()
            if len(self._threads) > THREAD_COUNT_MAX:
                del self._threads[next(iter(self._threads))]
        self._opened[handle_id] = thread.open(inode_id)

    def is_peek(self, handle_id: int) -> bool:
        """Return whether the first reading of an open directory is expected to be the only one,
        and to come now.
        """
        opened = self._opened.get(handle_id)
        return opened is not None and opened.is_peek and not opened.read_count

    def note_read(self, handle_id: int, *, has_entries: bool) -> None:
        """An open directory was read, and the reply shows entries or is its end."""
        opened = self._opened.get(handle_id)
        if opened is not None:
            opened.read_count += 1
            opened.has_entries |= has_entries

    def note_closed(self, handle_id: int) -> None:
        """Forget an open directory."""
        self._opened.pop(handle_id, None)
