"""One ring: takes entries, has batches of them done, hands in completions.

Neither side reads a position that the other writes: the bell, a stream socket, carries
counts in both directions, "so many more entries" and "so many more completions".  What was
written before a count was sent is seen by who has received it, on every processor; and
while nothing happens nobody runs.

Invariants:
    - Entries that are taken and not completed, and completions, never exceed the ring's entry
      count: a program that announces more has broken the ring, which ends its program's connection.
    - An entry is copied before it is looked at.
    - The daemon never waits for a program to listen: counts that the bell
      has no room for are sent later.
"""

import errno
import logging
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import outcome
import trio
from emberfs.protocol import (
    COMPLETION,
    COUNT,
    ENTRY,
    Op,
    Priority,
    completion_offset,
)

from ...rpc.api import UnderWay
from ...runtime import readiness
from ...schema.lacks import lack_among
from ...schema.status import FsError, Status
from ..vfs.batches import Batches
from .by_rows import Others, RowWork, plain_reads
from .checks import Share, sort_out
from .descriptors import SPACE, received
from .gathering import batch_count
from .jobs import RELAXED, Work, packed
from .memory import MappedMemory, Memory
from .turns import Turns

_log = logging.getLogger(__name__)

_OPERATIONS: Final = {Op.READ: "ring_read", Op.WRITE: "ring_write"}
_BELL_BYTES: Final = 1024
_BEGUN_BYTES_MAX: Final = 4 * ENTRY.size
"""Of entries: more are rarely small enough together."""
_ROUND_BYTES: Final = 1024 * ENTRY.size
"""Of entries: sorting out so many, if they are not plain, and asking for them takes some 20 ms,
in which nobody else is served.
"""
_NO_WAIT: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_NO_WAIT_CLOEXEC: Final = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC


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
        uid: int,
        pid: int,
        end_bell: Callable[[socket.socket, Sequence[int]], None],
    ) -> None:
        """Take over `memory` and `bell`; look at `files` and `memories`, which the program changes.

        `end_bell` closes the bell, and descriptors that a program has sent.
        """
        self._memory = memory
        self._view = memory.view
        self._bell = bell
        self._entry_count = entry_count
        self._completions_at = completion_offset(0, entry_count)
        self._depth = depth
        self._timeout_s = timeout_s
        self._priority = priority
        self._files = files
        self._memories = memories
        self._batches = batches
        self._turns = turns
        self._uid = uid
        self._pid = pid
        self._end_bell = end_bell
        self._taken = self._completed = 0
        self._pending = 0
        self._due_s = 0.0
        self._unsaid = 0
        self._has_unsaid = trio.Event()
        self._resting = trio.lowlevel.ParkingLot()
        """One task at most: that has done a batch and will listen when another one has
        to do the next.
        """
        self._begun: set[UnderWay] = set()
        """Batches that no task waits for."""
        self._nursery: trio.Nursery | None = None
        """Until the end."""
        self._watch: readiness.Watch | None = None
        self._listener: trio.lowlevel.Task | None = None
        """Waits for what the watch tells."""
        self._foreign: Sequence[int] = ()
        self.breach = ""

    async def run(self) -> None:
        """Serve until the program closes the bell, or breaks the ring: then `breach` says how."""
        self._watch = readiness.watch(self._bell.fileno(), self._rung)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._say_later)
                await self._serve(nursery)
        finally:
            self._nursery = None
            for begun in list(self._begun):
                begun.fail(FsError(Status.BAD_FILE, "the ring has ended"))
            self._batches.open_count -= self._taken - self._completed
            if self._watch is not None:
                self._watch.close(trio.ClosedResourceError("the ring has ended"))
            trio.lowlevel.notify_closing(self._bell)
            self._end_bell(self._bell, self._foreign)
            self._memory.close()

    # -- entries ----------------------------------------------------------------------------------

    async def _listen(self) -> list[bytes] | None:
        """Wait for entries, or until those that wait are due;
        return the batches that take a task, None at the end.
        """
        heard: list[bytes] | None = []
        while heard == []:
            if not self._is_timed:
                heard = await self._next()
                continue
            with trio.move_on_at(self._due_s) as scope:
                heard = await self._next()
            if scope.cancelled_caught:
                heard = self._take_rung()
        return heard

    @property
    def _is_timed(self) -> bool:
        """Entries wait for more, but not for ever."""
        return self._pending > 0 > self._depth

    async def _next(self) -> list[bytes] | None:
        """Wait for the bell; return as `_listen`, or an empty list."""
        if self._watch is None:
            await trio.lowlevel.wait_readable(self._bell)
            return self._take_rung()
        self._listener = trio.lowlevel.current_task()
        self._watch.begin()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._listener = None
            return trio.lowlevel.Abort.SUCCEEDED

        return await trio.lowlevel.wait_task_rescheduled(abort)  # type: ignore[no-any-return]

    def _rung(self) -> None:
        """The bell has rung: begin what needs no task, wake who listens for the rest."""
        task = self._listener
        if task is None:
            assert self._watch is not None
            self._watch.stop()
            return
        heard: outcome.Outcome[list[bytes] | None]
        try:
            batches = self._take_rung()
        except BaseException as error:  # noqa: BLE001 - raised by the task that listens
            heard = outcome.Error(error)
        else:
            if batches == [] and not (self._depth and self._is_timed):
                return
            heard = outcome.Value(batches)
        self._listener = None
        trio.lowlevel.reschedule(task, heard)

    def _take_rung(self) -> list[bytes] | None:
        """Hear what has rung, and begin batches that need no task;
        return the others, None at the end.
        """
        if not self._hear():
            return None
        if not self._depth:  # what is there is one batch
            if not self._pending:
                return []
            copied = self._take_batch(self._pending)
            return [] if self._begin(copied) else [copied]
        return [one for one in self._take_batches() if not self._begin(one)]

    def _hear(self) -> bool:
        """Count the entries that were announced; return False at the end."""
        try:
            heard, beside, _, _ = self._bell.recvmsg(_BELL_BYTES, SPACE, _NO_WAIT_CLOEXEC)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        if not heard:
            return False
        self._batches.wake_count += 1
        if beside or len(heard) % COUNT.size:
            self.breach = "something else than counts on a ring's bell"
            self._foreign = received(beside)
            return False
        count = 0
        for (counted,) in COUNT.iter_unpack(heard):
            count += counted
        if self._taken - self._completed + self._pending + count > self._entry_count:
            self.breach = f"{count} more entries on a ring of {self._entry_count}"
            return False
        if self._depth < 0 and not self._pending:
            self._due_s = trio.current_time() + self._timeout_s
        self._pending += count
        return True

    async def _serve(self, nursery: trio.Nursery) -> None:
        """Listen until a batch is there, and do it;
        another task listens from then on, so that none of its turns delays this one.
        """
        while (batches := await self._listen()) is not None:
            if not self._resting.unpark():
                nursery.start_soon(self._serve, nursery)
            for copied in batches[1:]:
                nursery.start_soon(self._do, copied)
            await self._do(batches[0])
            if self._resting:
                return
            await self._resting.park()  # cheaper than a task for each batch
        nursery.cancel_scope.cancel()

    def _take_batches(self) -> list[bytes]:
        """Return the entries of each batch that is to be done now, as they were in the ring,
        where not all there is makes one.
        """
        batches: list[bytes] = []
        has_due = self._depth < 0
        while self._pending:
            is_overdue = has_due and trio.current_time() >= self._due_s
            count = batch_count(self._pending, self._depth, is_overdue=is_overdue)
            if count == 0:
                break
            batches.append(self._take_batch(count))
            if has_due:
                self._due_s = trio.current_time() + self._timeout_s
        return batches

    def _take_batch(self, count: int) -> bytes:
        """Return the entries of the next batch, as they were in the ring."""
        first = self._taken % self._entry_count
        start = first * ENTRY.size
        until_end = min(count, self._entry_count - first)
        copied = bytes(self._view[start : start + until_end * ENTRY.size])
        if until_end < count:
            copied += bytes(self._view[: (count - until_end) * ENTRY.size])
        self._taken += count
        self._batches.batch_count += 1
        self._batches.entry_count += count
        self._batches.open_count += count
        self._pending -= count
        return copied

    # -- batches ----------------------------------------------------------------------------------

    def _begin(self, copied: bytes) -> bool:
        """Begin a batch of a few small reads; False: nothing is done, it takes a task."""
        batches = self._batches
        if len(copied) > _BEGUN_BYTES_MAX or batches.tracer.sample_rate or batches.profile.is_on:
            return False
        work = plain_reads(copied, self._files, self._memories)
        if work is None or not self._turns.begin_now(self._uid):
            return False
        begun: UnderWay | None = None

        # Quoted: it would be evaluated for every call.
        def end(others: "Others | None") -> None:
            nursery = self._nursery
            try:
                if nursery is None:
                    return
                if others is not None:
                    work.others = others
                    self._complete(_results_of(work))  # first: somebody waits for it
                elif not nursery.cancel_scope.cancel_called:
                    nursery.start_soon(self._do_in_turn, [work])
            except Exception:  # noqa: BLE001 - an edge, as `_do_alike`; its program would wait for ever
                _log.exception("the ring of process %d ends", self._pid)
                if nursery is not None:
                    nursery.cancel_scope.cancel()
            finally:
                self._turns.end(self._uid)
                if begun is not None:
                    self._begun.discard(begun)

        try:
            begun = batches.begin_table(work.table, work.handles, end, is_relaxed=work.is_relaxed)
        except Exception:  # noqa: BLE001 - an edge, as `_do_alike`, whose way comes next
            _log.exception("bug in beginning a batch of %d entries", len(copied) // ENTRY.size)
        if begun is None:
            self._turns.end(self._uid)
            return False
        self._begun.add(begun)
        return True

    async def _do(self, copied: bytes) -> None:
        """Do one batch; it begins a trace if it is sampled."""
        tracer = self._batches.tracer
        if not (tracer.sample_rate and tracer.is_due()):
            await self._do_entries(copied)
            return
        with tracer.root("batch") as span:
            span.attributes.update(entries=len(copied) // ENTRY.size, uid=self._uid)
            await self._do_entries(copied)

    async def _do_entries(self, copied: bytes) -> None:
        if len(copied) > _ROUND_BYTES:
            await self._do_in_rounds(copied)
            return
        works = self._sorted(copied)
        if works:
            await self._do_in_turn(works)

    async def _do_in_rounds(self, copied: bytes) -> None:
        """Do a large batch; between its rounds the daemon turns to others,
        whose requests would all wait else.
        """
        turns, uid = self._turns, self._uid
        if not turns.begin_now(uid):
            await turns.begin(self._priority, uid)
        try:
            async with trio.open_nursery() as nursery:
                kept: dict[tuple[int, int], Work] = {}
                for start in range(0, len(copied), _ROUND_BYTES):
                    for work in self._sorted(copied[start : start + _ROUND_BYTES], kept):
                        nursery.start_soon(self._do_alike, work)
                    await trio.lowlevel.checkpoint()
                for work in kept.values():
                    nursery.start_soon(self._do_alike, work)
        finally:
            turns.end(uid)

    def _sorted(
        self, copied: bytes, kept: dict[tuple[int, int], Work] | None = None
    ) -> "list[Work | RowWork]":
        """Return what entries ask for; those that ask for nothing are completed.

        With `kept` what is for all rounds together is added there instead: writes keep their order,
        and copies share what memory one batch may take.
        """
        plain = plain_reads(copied, self._files, self._memories)
        if plain is not None:
            return [plain]
        groups, ended = sort_out(copied, self._files, self._memories)
        if ended:
            self._complete(packed(ended))
        kinds: dict[tuple[int, int], Work] = {}
        for group in groups:
            is_write = group.op == Op.WRITE
            key = group.op, 0 if is_write else group.flags & RELAXED
            into = kinds
            if kept is not None and (is_write or not group.memory.mapped_bytes):
                into = kept
            work = into.get(key)
            if work is None:
                work = into[key] = Work(group.op, is_relaxed=bool(key[1]))
            work.add(group)
        return list(kinds.values())

    async def _do_in_turn(self, works: Sequence[Work | RowWork]) -> None:
        turns, uid = self._turns, self._uid
        if not turns.begin_now(uid):
            await turns.begin(self._priority, uid)
        try:
            if len(works) == 1:
                await self._do_alike(works[0])
                return
            async with trio.open_nursery() as nursery:
                for work in works:
                    nursery.start_soon(self._do_alike, work)
        finally:
            turns.end(uid)

    async def _do_alike(self, work: Work | RowWork) -> None:
        """An edge of the process: a bug that one batch meets must not end
        the mount of all others.
        """
        profile = self._batches.profile
        began_s = trio.current_time() if profile.is_on else math.inf
        try:
            await work.do(self._batches)
        except Exception as error:  # noqa: BLE001 - logged, and told to the program
            results = _failures_of(work, error)
        else:
            results = _results_of(work)
        if profile.is_on and began_s < math.inf:
            moved = sum(result for _, result in COMPLETION.iter_unpack(results) if result > 0)
            took_s = trio.current_time() - began_s
            calls = len(results) // COMPLETION.size
            profile.note(self._pid, _OPERATIONS[Op(work.op)], 0, moved, took_s, calls=calls)
        self._complete(results)

    # -- completions ------------------------------------------------------------------------------

    def _complete(self, results: bytes) -> None:
        rest = results
        while rest:  # twice where they go over the ring's end
            first = self._completed % self._entry_count
            some = rest[: (self._entry_count - first) * COMPLETION.size]
            place = self._completions_at + first * COMPLETION.size
            self._view[place : place + len(some)] = some
            self._completed += len(some) // COMPLETION.size
            rest = rest[len(some) :]
        count = len(results) // COMPLETION.size
        self._batches.open_count -= count
        self._unsaid += count
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
                if self._watch is None:
                    await trio.lowlevel.wait_writable(self._bell)
                else:  # trio would take the descriptor from it
                    await self._watch.wait_writable()
                self._say()


def _results_of(work: Work | RowWork) -> bytes:
    """As `_do_alike`, an edge."""
    try:
        return work.results()
    except Exception as error:  # noqa: BLE001 - logged, and told to the program
        results = _failures_of(work, error)
    return results


def _failures_of(work: Work | RowWork, error: Exception) -> bytes:
    """Return what a program is told of a batch that met a bug, EIO,
    or something that this process cannot have now, ENOMEM; and log it.
    """
    lack = lack_among(error)
    results = work.failures(errno.EIO if lack is None else errno.ENOMEM)
    count = len(results) // COMPLETION.size
    if lack is None:
        _log.error("bug in a batch of %d entries", count, exc_info=error)
    else:
        _log.warning("a batch of %d entries: this mount lacks something: %r", count, lack)
    return results
