"""Entries that are being done.

What goes through copies (memory that may shrink) is done some bytes at a time, whatever an entry's length says: so nobody can
have the daemon fill its own memory.
"""

import errno
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from emberfs.protocol import EntryFlag

from ...schema.status import Status
from ..vfs.batches import Batches, BatchIo
from .checks import WRITE, Entry
from .memory import Memory

_log = logging.getLogger(__name__)

COPIED_BYTES_MAX: Final = 4 << 20
"""Of one batch at a time."""
RELAXED: Final = int(EntryFlag.RELAXED)
_HOLES_ARE_ERRORS: Final = int(EntryFlag.HOLES_ARE_ERRORS)
_EXPECTED: Final = frozenset({Status.BAD_FILE, Status.INVALID_ARGUMENT, Status.QUOTA_EXCEEDED})
"""Errors that only the program needs to know of."""


class Job:
    """One entry, and how far it has come."""

    __slots__ = ("entry", "fault", "handle_id", "io", "is_copied", "memory", "moved")

    def __init__(self, entry: Entry, memory: Memory, handle_id: int) -> None:
        """Of memory that is mapped the window is taken at once, since its program may drop it while this waits."""
        self.entry = entry
        self.memory = memory
        self.handle_id = handle_id
        self.is_copied = not memory.mapped_bytes
        self.moved = 0
        """Bytes, before those of `io`."""
        self.fault = 0
        self.io: BatchIo | None = None
        """What is done now, or was last."""
        if not self.is_copied:
            window = memory.window(entry.memory_offset, entry.length)
            self.io = BatchIo(handle_id, entry.offset, window)

    def result(self) -> int:
        """Return what its completion says."""
        io = self.io
        if self.fault or io is None:
            return -self.fault
        if io.error is not None:
            if io.error.status not in _EXPECTED:
                _log.warning("a batch: %s", io.error)
            return -io.error.errno
        if io.hole_bytes and self.entry.flags & _HOLES_ARE_ERRORS:
            return -errno.ENODATA
        return self.moved + io.count

    def next_copy(self, room: int) -> BatchIo | None:
        """Return the next bytes of what is copied, at most `room`; None: it has ended."""
        io, entry = self.io, self.entry
        if io is not None:
            is_short = io.error is not None or io.count < len(io.buffer)
            if is_short or self.result() < 0 or self.moved + io.count == entry.length:
                return None
            self.moved += io.count
        count = min(room, entry.length - self.moved)
        window = self.memory.window(entry.memory_offset + self.moved, count)
        self.io = BatchIo(self.handle_id, entry.offset + self.moved, window)
        return self.io


async def do_jobs(batches: Batches, jobs: Iterable[Job], *, op: int, is_relaxed: bool) -> None:
    """Do entries of one kind."""
    straight = [job.io for job in jobs if job.io is not None]
    if straight:
        await _move(batches, straight, op, is_relaxed)
    copied = deque(job for job in jobs if job.is_copied)
    while copied:
        some = _next_copies(copied)
        if op == WRITE:
            some = [(job, io) for job, io in some if _has_loaded(job, io)]
        await _move(batches, [io for _, io in some], op, is_relaxed)
        if op != WRITE:
            for job, io in some:
                _store(job, io)


async def _move(batches: Batches, ios: Sequence[BatchIo], op: int, is_relaxed: bool) -> None:
    if op == WRITE:
        await batches.write(ios)
    else:
        await batches.read(ios, is_relaxed=is_relaxed)


def _next_copies(copied: deque[Job]) -> list[tuple[Job, BatchIo]]:
    """Take from the left as many as there is room for; one that is longer stays, for its next bytes."""
    room = COPIED_BYTES_MAX
    some = []
    while copied and room:
        job = copied[0]
        io = None if job.fault else job.next_copy(room)
        if io is None:
            copied.popleft()
            continue
        some.append((job, io))
        room -= len(io.buffer)
        if job.moved + len(io.buffer) < job.entry.length:
            break
        copied.popleft()
    return some


def _has_loaded(job: Job, io: BatchIo) -> bool:
    try:
        job.memory.load(job.entry.memory_offset + job.moved, io.buffer)
    except OSError as error:
        job.fault = error.errno or errno.EFAULT
    return not job.fault


def _store(job: Job, io: BatchIo) -> None:
    try:
        job.memory.store(job.entry.memory_offset + job.moved, io.buffer[: io.count])
    except OSError as error:
        job.fault = error.errno or errno.EFAULT
