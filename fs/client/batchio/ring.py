"""One ring: takes entries, has batches of them done, hands in completions.

Neither side reads a position that the other writes: the bell, a stream socket, carries counts in both directions, "so
many more entries" and "so many more completions".  What was written before a count was sent is seen by who has received it,
on every processor; and while nothing happens nobody runs.

Invariants:
    - Entries that are taken and not completed, and completions, never exceed the ring's entry count: a program that announces more
      has broken the ring, which ends its program's connection.
    - An entry is copied before it is looked at.
    - The daemon never waits for a program to listen: counts that the bell has no room for are sent later.
"""

import errno
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio
from emberfs.protocol import (
    COMPLETION,
    COUNT,
    ENTRY,
    EntryFlag,
    Op,
    Priority,
    completion_offset,
    entry_offset,
)

from ...schema.status import Status
from ..vfs.batches import Batches, BatchIo
from .checks import Entry, Share, fault_of, unpack
from .gathering import batch_count
from .memory import MappedMemory, Memory
from .turns import Turns

_log = logging.getLogger(__name__)

_BELL_BYTES: Final = 1024
_NO_WAIT: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_EXPECTED: Final = frozenset({Status.BAD_FILE, Status.INVALID_ARGUMENT, Status.QUOTA_EXCEEDED})
"""Errors that only the program needs to know of."""


class _Kind(NamedTuple):
    """What is done in one call."""

    op: int
    relaxed: int


@dataclass(slots=True)
class _Job:
    """An entry that is being done."""

    entry: Entry
    memory: Memory
    io: BatchIo
    fault: int = 0

    def result(self) -> int:
        """Return what its completion says."""
        error = self.io.error
        if error is not None:
            if error.status not in _EXPECTED:
                _log.warning("a batch: %s", error)
            return -error.errno
        return -self.fault or self.io.count


class Ring:
    """See module head."""

    def __init__(
        self,
        memory: MappedMemory,
        bell: socket.socket,
        *,
        entry_count: int,
        depth: int,
        timeout_s: float,
        priority: Priority,
        files: Mapping[int, Share],
        memories: Mapping[int, Memory],
        batches: Batches,
        turns: Turns,
    ) -> None:
        """Take over `memory` and `bell`; look at `files` and `memories`, which the program changes."""
        self._memory = memory
        self._view = memory.view
        self._bell = bell
        self._entry_count = entry_count
        self._depth = depth
        self._timeout_s = timeout_s
        self._priority = priority
        self._files = files
        self._memories = memories
        self._batches = batches
        self._turns = turns
        self._taken = self._completed = 0
        self._pending = 0
        self._due_s = 0.0
        self._unsaid = 0
        self._has_unsaid = trio.Event()
        self.breach = ""

    async def run(self) -> None:
        """Serve until the program closes the bell, or breaks the ring: then `breach` says how."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._say_later)
                while await self._listen():
                    self._start(nursery)
                nursery.cancel_scope.cancel()
        finally:
            trio.lowlevel.notify_closing(self._bell)
            self._bell.close()
            self._memory.close()

    # -- entries ----------------------------------------------------------------------------------

    async def _listen(self) -> bool:
        """Wait for entries, or until those that wait are due; return False at the end."""
        if self._pending and self._depth < 0:
            with trio.move_on_at(self._due_s):
                await trio.lowlevel.wait_readable(self._bell)
        else:
            await trio.lowlevel.wait_readable(self._bell)
        try:
            heard = self._bell.recv(_BELL_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        if not heard:
            return False
        if len(heard) % COUNT.size:
            self.breach = "half a count on a ring's bell"
            return False
        count = sum(counts[0] for counts in COUNT.iter_unpack(heard))
        if self._taken - self._completed + self._pending + count > self._entry_count:
            self.breach = f"{count} more entries on a ring of {self._entry_count}"
            return False
        if not self._pending:
            self._due_s = trio.current_time() + self._timeout_s
        self._pending += count
        return True

    def _start(self, nursery: trio.Nursery) -> None:
        while True:
            is_overdue = trio.current_time() >= self._due_s
            count = batch_count(self._pending, self._depth, is_overdue=is_overdue)
            if count == 0:
                return
            entries = unpack(self._copied(count))
            self._taken += count
            self._pending -= count
            self._due_s = trio.current_time() + self._timeout_s
            nursery.start_soon(self._do, entries)

    def _copied(self, count: int) -> bytes:
        first = self._taken % self._entry_count
        start = entry_offset(first, self._entry_count)
        until_end = min(count, self._entry_count - first)
        copied = bytes(self._view[start : start + until_end * ENTRY.size])
        return copied + bytes(self._view[: (count - until_end) * ENTRY.size])

    # -- batches ----------------------------------------------------------------------------------

    async def _do(self, entries: Sequence[Entry]) -> None:
        refused: list[tuple[int, int]] = []
        kinds: dict[_Kind, list[_Job]] = {}
        for entry in entries:
            fault = fault_of(entry, self._files, self._memories)
            if fault or entry.length == 0:
                refused.append((entry.user_data, -fault))
            else:
                kind = _Kind(entry.op, entry.flags & EntryFlag.RELAXED)
                kinds.setdefault(kind, []).append(self._job(entry))
        if refused:
            self._complete(refused)
        if not kinds:
            return
        async with self._turns.turn(self._priority):
            if len(kinds) == 1:
                await self._do_alike(*kinds.popitem())
                return
            async with trio.open_nursery() as nursery:
                for kind, jobs in kinds.items():
                    nursery.start_soon(self._do_alike, kind, jobs)

    def _job(self, entry: Entry) -> "_Job":
        memory = self._memories[entry.memory_id]
        handle_id = self._files[entry.file_id].handle_id
        window = memory.window(entry.memory_offset, entry.length)
        return _Job(entry, memory, BatchIo(handle_id, entry.offset, window))

    async def _do_alike(self, kind: "_Kind", jobs: "Sequence[_Job]") -> None:
        """An edge of the process: a bug that one batch meets must not end the mount of all others."""
        try:
            if kind.op == Op.WRITE:
                await self._write(jobs)
            else:
                await self._read(jobs, is_relaxed=bool(kind.relaxed))
        except Exception:  # noqa: BLE001 - logged, and told to the program
            _log.exception("bug in a batch of %d entries", len(jobs))
            for job in jobs:
                job.fault = errno.EIO
        self._complete([(job.entry.user_data, job.result()) for job in jobs])

    async def _read(self, jobs: "Sequence[_Job]", *, is_relaxed: bool) -> None:
        await self._batches.read([job.io for job in jobs], is_relaxed=is_relaxed)
        for job in jobs:
            io = job.io
            if io.hole_bytes and job.entry.flags & EntryFlag.HOLES_ARE_ERRORS:
                job.fault = errno.ENODATA
            try:
                job.memory.store(job.entry.memory_offset, io.buffer[: io.count])
            except OSError as error:
                job.fault = error.errno or errno.EFAULT

    async def _write(self, jobs: "Sequence[_Job]") -> None:
        for job in jobs:
            try:
                job.memory.load(job.entry.memory_offset, job.io.buffer)
            except OSError as error:
                job.fault = error.errno or errno.EFAULT
        await self._batches.write([job.io for job in jobs if not job.fault])

    # -- completions ------------------------------------------------------------------------------

    def _complete(self, results: Sequence[tuple[int, int]]) -> None:
        for user_data, result in results:
            place = completion_offset(self._completed, self._entry_count)
            COMPLETION.pack_into(self._view, place, user_data, result)
            self._completed += 1
        self._unsaid += len(results)
        self._say()
        if self._unsaid:
            self._has_unsaid.set()

    def _say(self) -> None:
        try:
            if self._unsaid:
                self._bell.send(COUNT.pack(self._unsaid), _NO_WAIT)
            self._unsaid = 0
        except BlockingIOError:
            return  # `_say_later` goes on
        except (BrokenPipeError, ConnectionResetError):
            self._unsaid = 0  # nobody listens; `_listen` sees the end

    async def _say_later(self) -> None:
        while True:
            await self._has_unsaid.wait()
            self._has_unsaid = trio.Event()
            while self._unsaid:
                await trio.lowlevel.wait_writable(self._bell)
                self._say()
