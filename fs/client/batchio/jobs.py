"""Entries that are being done.

What goes through copies (memory that may shrink) is done some bytes at a time, whatever an entry's
length says: so nobody can have the daemon fill its own memory.
"""

import errno
import logging
import struct
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

from emberfs.protocol import COMPLETION, EntryFlag

from ...schema.status import Status
from ..vfs.batches import NO_FILE, Batches, BatchIo
from .checks import WRITE, Group, Row
from .huge_pages import begin_exchange
from .memory import Memory

_log = logging.getLogger(__name__)

COPIED_BYTES_MAX: Final = 4 << 20
"""Of one batch at a time."""
RELAXED: Final = int(EntryFlag.RELAXED)
_HOLES_ARE_ERRORS: Final = int(EntryFlag.HOLES_ARE_ERRORS)
_EXPECTED: Final = frozenset({Status.BAD_FILE, Status.INVALID_ARGUMENT, Status.QUOTA_EXCEEDED})
"""Errors that only the program needs to know of."""


class Work:
    """Entries of one kind, done together: those of mapped memory by one request each,
    others by jobs.
    """

    def __init__(self, op: int, *, is_relaxed: bool) -> None:
        self.op = op
        self.is_relaxed = is_relaxed
        self._straight: list[tuple[Group[Memory], list[BatchIo]]] = []
        self._jobs: list[Job] = []
        self._worn: list[memoryview] = []
        """Pages to be exchanged for huge ones."""

    def add(self, group: Group[Memory]) -> None:
        """Take entries in, before anything is waited for.

        Of memory that is mapped the windows are taken at once, since its program
        may drop it while they wait.
        """
        memory, handle_id = group.memory, group.handle_id
        if not memory.mapped_bytes:
            self._jobs += [Job(group, row) for row in group.rows]
            return
        window = memory.window
        ios = [
            BatchIo(NO_FILE, offset, window(place, length), 0, handle_id)
            for _, offset, place, length in group.rows
        ]
        self._straight.append((group, ios))
        if self.op == WRITE:
            self._worn += memory.note_written([row[2:] for row in group.rows])

    async def do(self, batches: Batches) -> None:
        """Do them all."""
        straight = [io for _, ios in self._straight for io in ios]
        if straight:
            await _move(batches, straight, self.op, self.is_relaxed)
        if self._worn:  # now that storage does not hold them
            begin_exchange(self._worn)
            self._worn = []
        copied = deque(self._jobs)
        while copied:
            some = _next_copies(copied)
            if self.op == WRITE:
                some = [(job, io) for job, io in some if _has_loaded(job, io)]
            await _move(batches, [io for _, io in some], self.op, self.is_relaxed)
            if self.op != WRITE:
                for job, io in some:
                    _store(job, io)

    def results(self) -> bytes:
        """Return the completions of all, packed."""
        found = []
        for group, ios in self._straight:
            flags = group.flags
            for row, io in zip(group.rows, ios, strict=True):
                is_plain = io.error is None and not io.hole_bytes
                found.append((row[0], io.count if is_plain else result_of(io, flags)))
        return packed(found + [(job.user_data, job.result()) for job in self._jobs])

    def failures(self, error_number: int) -> bytes:
        """Return completions that say of all that they failed."""
        rows = [row for group, _ in self._straight for row in group.rows]
        user_data = [row[0] for row in rows] + [job.user_data for job in self._jobs]
        return packed([(one, -error_number) for one in user_data])


class Job:
    """One entry that goes through copies, and how far it has come."""

    __slots__ = (
        "_flags",
        "_handle_id",
        "_offset",
        "fault",
        "io",
        "length",
        "memory",
        "moved",
        "place",
        "user_data",
    )

    def __init__(self, group: Group[Memory], row: Row) -> None:
        self.user_data, self._offset, self.place, self.length = row
        self._flags = group.flags
        self._handle_id = group.handle_id
        self.memory = group.memory
        self.moved = 0
        """Bytes, before those of `io`."""
        self.fault = 0
        self.io: BatchIo | None = None
        """What is done now, or was last."""

    def result(self) -> int:
        """Return what its completion says."""
        if self.fault or self.io is None:
            return -self.fault
        result = result_of(self.io, self._flags)
        return result if result < 0 else self.moved + result

    def next_copy(self, room: int) -> BatchIo | None:
        """Return the next bytes, at most `room`; None: it has ended."""
        io = self.io
        if io is not None:
            is_short = io.error is not None or io.count < len(io.buffer)
            if is_short or self.result() < 0 or self.moved + io.count == self.length:
                return None
            self.moved += io.count
        count = min(room, self.length - self.moved)
        window = self.memory.window(self.place + self.moved, count)
        self.io = BatchIo(NO_FILE, self._offset + self.moved, window, 0, self._handle_id)
        return self.io


def result_of(io: BatchIo, flags: int) -> int:
    """Return what the completion of an entry says."""
    if io.error is not None:
        if io.error.status not in _EXPECTED:
            _log.warning("a batch: %s", io.error)
        return -io.error.errno
    if io.hole_bytes and flags & _HOLES_ARE_ERRORS:
        return -errno.ENODATA
    return io.count


def packed(results: Sequence[tuple[int, int]]) -> bytes:
    """Return completions, each with its user data and result, as they lie in a ring."""
    return _completions(len(results)).pack(*chain.from_iterable(results))


@lru_cache(maxsize=256)
def _completions(count: int) -> struct.Struct:
    """Return so many completions as one record: packed at once they take a third of the time."""
    return struct.Struct("<" + COMPLETION.format.removeprefix("<") * count)


async def _move(batches: Batches, ios: Sequence[BatchIo], op: int, is_relaxed: bool) -> None:
    if op == WRITE:
        await batches.write(ios)
    else:
        await batches.read(ios, is_relaxed=is_relaxed)


def _next_copies(copied: deque[Job]) -> list[tuple[Job, BatchIo]]:
    """Take from the left as many as there is room for;
    one that is longer stays, for its next bytes.
    """
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
        if job.moved + len(io.buffer) < job.length:
            break
        copied.popleft()
    return some


def _has_loaded(job: Job, io: BatchIo) -> bool:
    try:
        job.memory.load(job.place + job.moved, io.buffer)
    except OSError as error:
        job.fault = error.errno or errno.EFAULT
    return not job.fault


def _store(job: Job, io: BatchIo) -> None:
    try:
        job.memory.store(job.place + job.moved, io.buffer[: io.count])
    except OSError as error:
        job.fault = error.errno or errno.EFAULT
