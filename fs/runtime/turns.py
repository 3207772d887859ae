"""Whose large read is at the disk: one after the other in the order in which they came,
as each of them keeps the disk at work by itself.

Were all of them read at once, everybody would have his bytes at the same time, and nobody
would ask the disk for anything while they are copied: readers that wait for each other's
disk go in step, and it rests for half of the time.  In turn the first one has his bytes
while the disk reads for the next.

Who is called up needs the interpreter for that; where an event loop has it mostly, `new_line`
(fs/kernels/direct_twin.py) does without.

Invariant: who has a turn waits for nothing but the disk, so turns come round; those of a disk that
hangs are given up with its other calls (fs/storage/disk_calls.py). Concurrency: thread-safe; who
has no turn yet waits in his thread. Decision: specs/decisions/0164-large-reads-in-turn.md.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """See module head."""

    def __init__(self, bytes_max: int) -> None:
        """Let so many bytes be read at the same time; what is more than that is read by itself."""
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._under_way = 0
        self._waiting: deque[tuple[int, threading.Lock]] = deque()
        """How many bytes, and what is let go of when it is their turn; who is next first."""

    @contextmanager
    def of(self, byte_count: int) -> Iterator[None]:
        """Wait for a turn to read so many bytes, at least one;
        it lasts until the body has ended.
        """
        called = self._begin(byte_count)
        if called is not None:
            called.acquire()
        try:
            yield
        finally:
            self._end(byte_count)

    def _begin(self, byte_count: int) -> "threading.Lock | None":
        """Take a turn, or a place behind those who wait:
        return what can be acquired when it is called up.
        """
        with self._lock:
            if not self._waiting and self._has_room(byte_count):
                self._under_way += byte_count
                return None
            called = threading.Lock()
            called.acquire()
            self._waiting.append((byte_count, called))
            return called

    def _end(self, byte_count: int) -> None:
        with self._lock:
            self._under_way -= byte_count
            while self._waiting and self._has_room(self._waiting[0][0]):
                next_count, called = self._waiting.popleft()
                self._under_way += next_count
                called.release()

    def _has_room(self, byte_count: int) -> bool:
        return not self._under_way or self._under_way + byte_count <= self._bytes_max
