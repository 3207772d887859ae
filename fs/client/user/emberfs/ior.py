"""A ring of entries and completions: the lower level of the batch interface (see specs/batch.md).

    ring = client.ring(entry_count=256)
    ring.prepare(Op.READ, file, offset, iov, 0, 4096, user_data=7)
    ring.submit()
    for user_data, result in ring.wait(1): ...

Invariants:
    - Entries that are prepared and not collected yet never exceed `entry_count`.
    - A ring belongs to one thread at a time, and to the process that made it.
"""

import errno
import mmap
import os
import select
import socket
import struct
import sys
import time
import weakref
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from .closing import OfOneProcess, shown
from .connection import Connection
from .daemon import Daemon
from .iov import SharedIov
from .protocol import (
    COMPLETION,
    COUNT,
    ENTRY,
    Call,
    EntryFlag,
    Op,
    Priority,
    completion_offset,
    entry_offset,
    ring_bytes,
)
from .ring_file import RingFile
from .waiting import QuickEar, readable

_BELL_BYTES: Final = 1024
_TIMEOUT_MS_MAX: Final = 2**32 - 1
_POLL_MS_MAX: Final = 2**31 - 1
"""What poll(2) takes: 24 days."""
_WORD_BYTES: Final = 8
_NO_FLAGS: Final = EntryFlag(0)
_ONE: Final = COUNT.pack(1)


class Result(NamedTuple):
    """What became of an entry."""

    user_data: int
    result: int
    """Bytes moved: fewer than asked for only at the end of the file; or a negative errno."""


class Ior(OfOneProcess):
    """See module head; made by `Rings.new`."""

    def __init__(
        self,
        connection: Connection,
        daemon: Daemon,
        entry_count: int,
        *,
        depth: int = 0,
        timeout_s: float = 0.0,
        priority: Priority = Priority.NORMAL,
    ) -> None:
        """Register a ring.

        Args:
            connection: to the mount daemon.
            daemon: of which the files and memory are that entries may name.
            entry_count: entries that may be under way at once, 1..65536.
            depth: what the daemon does at once; n > 0: exactly n entries; 0:
                what is there; -n: at most n.
            timeout_s: with a negative depth: how long fewer than n may wait for more.
            priority: among all rings of the mount.

        Raises:
            OSError: the daemon refuses.
        """
        self.entry_count = entry_count
        self.connection = connection
        self._daemon = daemon
        self._pid = os.getpid()
        answer = connection.call(
            Call.NEW_RING,
            entry_count,
            depth=depth,
            timeout_ms=round(min(max(0, timeout_s * 1000), _TIMEOUT_MS_MAX)),
            priority=priority,
        )
        self._id = answer.id
        memory_fd, bell_fd = answer.fds
        self._bell = socket.socket(fileno=bell_fd)
        weakref.finalize(self, self._bell.close).atexit = False  # as of a connection
        self._ear = QuickEar(self._bell)
        try:
            self._memory = mmap.mmap(memory_fd, ring_bytes(entry_count))
        finally:
            os.close(memory_fd)
        self._words = memoryview(self._memory).cast("Q")
        self._prepared = self._submitted = self._collected = 0
        self._heard: list[tuple[int, int]] = []
        self._heard_count = 0
        self._has_ended = False
        self._poll: select.poll | None = None

    @property
    def outstanding(self) -> int:
        """Entries that were submitted and not collected."""
        return self._submitted - self._collected

    @property
    def free_count(self) -> int:
        """Entries that can be prepared now."""
        return self.entry_count - (self._prepared - self._collected)

    @property
    def is_closed(self) -> bool:
        """Whether `close` or `abandon` was called."""
        return self._memory.closed

    def __repr__(self) -> str:
        prepared = self._prepared - self._submitted
        what = f"of {self.entry_count} entries: {prepared} prepared, {self.outstanding} under way"
        return shown(self, what, is_closed=self.is_closed)

    def fileno(self) -> int:
        """Return what becomes readable when there are completions, for event loops."""
        return self._bell.fileno()

    def prepare(  # noqa: PLR0917 - what, where from, where to
        self,
        op: Op,
        file: RingFile,
        offset: int,
        iov: SharedIov,
        iov_offset: int,
        length: int,
        *,
        user_data: int = 0,
        flags: EntryFlag = _NO_FLAGS,
    ) -> None:
        """Put an entry into the ring; the daemon learns of it by `submit`.

        Raises:
            BlockingIOError: the ring is full: wait first.
            OSError: EBADF: it was closed, or is of the process that this one was forked from;
                ENOTCONN: it is full, and the mount daemon has gone.
            TypeError: file or memory of another client, whose ids mean others here.
            ValueError: a number that no entry has.
        """
        if not file.daemon is iov.daemon is self._daemon:
            raise TypeError(f"{file.path!r}, or the memory, is of another client than the ring")
        try:
            self.put(user_data, offset, iov_offset, length, file.id, iov.id, op, flags)
        except struct.error as error:
            said = (
                f"{op!r} of {length!r} bytes at {offset!r}, memory at {iov_offset!r}, user data "
                f"{user_data!r}"
            )
            raise ValueError(f"no entry for {file.path!r}: {said}: {error}") from None

    def put(self, *fields: int) -> None:
        """Do what `prepare` does, with ids: the fields of `ENTRY` in their order."""
        if self._prepared - self._collected >= self.entry_count:
            raise self._full("the ring has no room")
        place = entry_offset(self._prepared, self.entry_count)
        try:
            ENTRY.pack_into(self._memory, place, *fields)
        except TypeError as error:
            self._refuse_if_closed(error)
            raise
        self._prepared += 1

    def move_one(self, *fields: int) -> int:
        """Hand in a single entry, wait for it, and return its result;
        for a ring on which nothing is under way.

        Args:
            fields: as for `put`.

        Raises:
            OSError: ENOTCONN: the mount daemon has gone.
        """
        # As `put`, `submit` and `collect`, without a call for each step.
        entry_count, number = self.entry_count, self._prepared
        try:
            ENTRY.pack_into(self._memory, number % entry_count * ENTRY.size, *fields)
            self._prepared = number + 1
            self._bell.send(_ONE, socket.MSG_NOSIGNAL)
            self._submitted += 1
            heard = self._ear.receive(_BELL_BYTES)
            if not heard:
                raise self._gone()
            number = self._heard_count
            self._heard_count = self._collected = number + 1
            place = entry_count * ENTRY.size + number % entry_count * COMPLETION.size
            result: int = COMPLETION.unpack_from(self._memory, place)[1]
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._gone() from error
        except (TypeError, ValueError) as error:
            self._refuse_if_closed(error)
            raise
        return result

    def put_columns(self, columns: Sequence["array[int]"]) -> None:
        """Put many entries into the ring: a column of 64-bit numbers
        for each eight bytes of `ENTRY`.

        Two fields of 32 bits are one number, the first in its lower half.  Columns that are left
        out at the end keep what older entries had there: nobody reads those.

        Raises:
            BlockingIOError: they do not all fit: wait first.
        """
        count = len(columns[0])
        if count > self.free_count:
            raise self._full("the ring has not so much room")
        step = ENTRY.size // _WORD_BYTES
        if sys.byteorder == "big":
            for column in columns:
                column.byteswap()
        done, place = 0, self._prepared % self.entry_count
        while done < count:
            run = min(count - done, self.entry_count - place)
            for word, column in enumerate(columns):
                rows = slice(place * step + word, (place + run) * step, step)
                try:
                    self._words[rows] = memoryview(column)[done : done + run]
                except ValueError as error:
                    self._refuse_if_closed(error)
                    raise
            done, place = done + run, 0
        self._prepared += count

    def submit(self) -> int:
        """Hand all prepared entries in; return how many.

        Raises:
            OSError: ENOTCONN: the mount daemon has gone.
        """
        count = self._prepared - self._submitted
        if count:
            if self._memory.closed:
                raise self._closed()
            try:
                self._bell.send(COUNT.pack(count), socket.MSG_NOSIGNAL)
            except (BrokenPipeError, ConnectionResetError) as error:
                raise self._gone() from error
            self._submitted += count
        return count

    def wait(
        self,
        min_results: int = 1,
        *,
        max_results: int | None = None,
        timeout_s: float | None = None,
    ) -> list[Result]:
        """Return completions, in the order in which they came;
        fewer than wanted if then the daemon goes.

        Args:
            min_results: wait for so many.
            max_results: return no more; the others keep.
            timeout_s: then return what there is; None: wait for ever.

        Raises:
            ValueError: more are waited for than are under way.
            OSError: ENOTCONN: the mount daemon has gone; what was under way may be done or
                not.  EBADF: as of `prepare`.
        """
        if self._memory.closed:
            raise self._closed()
        found = self.collect(min_results, max_results=max_results, timeout_s=timeout_s)
        return list(map(Result._make, found))

    def collect(
        self,
        min_results: int = 1,
        *,
        max_results: int | None = None,
        timeout_s: float | None = None,
    ) -> list[tuple[int, int]]:
        """Do what `wait` does, with plain tuples, which cost less."""
        most = self.entry_count if max_results is None else max_results
        wanted = min(min_results, most)
        if wanted > self.outstanding:
            raise ValueError(self._too_many(wanted))
        due_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            if len(self._heard) >= wanted or due_s is not None:
                self._listen(block=False)
            while len(self._heard) < wanted:
                if due_s is not None and not self._is_readable(due_s):
                    break
                self._listen(block=True)
        except OSError:
            if not self._heard:  # what has come is not lost by what comes after
                raise
        return self._take(most)

    def _too_many(self, wanted: int) -> str:
        waiting = self._prepared - self._submitted
        what = f"{wanted} results wanted of {self.outstanding} under way"
        return f"{what}; {waiting} are prepared: submit() hands them in" if waiting else what

    async def wait_async(self, min_results: int = 1) -> list[Result]:
        """Do what `wait` does in a coroutine of asyncio or trio;
        where fewer are under way, wait for those.
        """
        return list(map(Result._make, await self.collect_async(min_results)))

    async def collect_async(self, min_results: int = 1) -> list[tuple[int, int]]:
        """Do what `collect` does in a coroutine of asyncio or trio."""
        wanted = min(min_results, self.outstanding)
        self._listen(block=False)
        while len(self._heard) < wanted:
            await readable(self._bell.fileno())
            self._listen(block=False)
        return self._take(self.entry_count)

    def _is_readable(self, due_s: float) -> bool:
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._bell, select.POLLIN)
        left_ms = max(0.0, due_s - time.monotonic()) * 1000
        return bool(self._poll.poll(min(left_ms, _POLL_MS_MAX)))

    def _listen(self, *, block: bool) -> None:
        try:
            heard = self._bell.recv(_BELL_BYTES, 0 if block else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionResetError as error:
            raise self._gone() from error
        if not heard:
            raise self._gone()
        count = sum(count for (count,) in COUNT.iter_unpack(heard))
        while count:  # one run, or two around the end of the memory
            run = min(count, self.entry_count - self._heard_count % self.entry_count)
            place = completion_offset(self._heard_count, self.entry_count)
            try:
                found = self._memory[place : place + run * COMPLETION.size]
            except ValueError as error:
                self._refuse_if_closed(error)
                raise
            self._heard += COMPLETION.iter_unpack(found)
            self._heard_count += run
            count -= run

    def _take(self, most: int) -> list[tuple[int, int]]:
        found, self._heard = self._heard[:most], self._heard[most:]
        self._collected += len(found)
        return found

    def close(self) -> None:
        """Give the ring up; reads that are under way reach no memory any more.

        Twice is harmless.
        """
        if self._bell.fileno() < 0:
            return
        try:
            if os.getpid() == self._pid:
                self.connection.call(Call.DROP_RING, self._id)
        except OSError as error:
            # It may have ended with the connection, or before.
            if error.errno not in (errno.ENOTCONN, errno.EINVAL):
                raise
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close this process's copy without a word; twice is harmless."""
        self._bell.close()
        self._words.release()
        self._memory.close()

    def _refuse_if_closed(self, error: Exception) -> None:
        """Say why the memory could not be reached, if it is because it was closed,
        maybe by another thread.
        """
        if self._memory.closed:
            raise self._closed() from error

    def _closed(self) -> OSError:
        if os.getpid() == self._pid:
            what = "this ring is closed"
        else:
            what = "this ring is of the process that this one was forked from: make another"
        return OSError(errno.EBADF, what, self.connection.path)

    def _full(self, what: str) -> OSError:
        """Say so, but not where nothing that could be waited for would make room."""
        if self._has_ended:
            return self._gone()
        said = f"{what}: wait() makes some: {self.outstanding} of {self.entry_count} are under way"
        return BlockingIOError(errno.EAGAIN, said, self.connection.path)

    def _gone(self) -> OSError:
        self._has_ended = True
        what = (
            "the mount daemon has ended this ring: files are to be opened again, once the mount "
            "is served"
        )
        return OSError(errno.ENOTCONN, what, self.connection.path)


class Rings:
    """The rings of one client."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._rings: weakref.WeakSet[Ior] = weakref.WeakSet()

    def new(
        self,
        entry_count: int,
        *,
        depth: int = 0,
        timeout_s: float = 0.0,
        priority: Priority = Priority.NORMAL,
    ) -> Ior:
        """Return a new ring; see `Ior`."""
        ring = self.daemon.ask(
            lambda connection: Ior(
                connection,
                self.daemon,
                entry_count,
                depth=depth,
                timeout_s=timeout_s,
                priority=priority,
            )
        )
        with self.daemon.lock:
            self._rings.add(ring)
        return ring

    def abandon(self) -> None:
        """Close this process's copies of them all without a word."""
        for ring in list(self._rings):
            ring.abandon()
