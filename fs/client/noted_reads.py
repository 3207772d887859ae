"""When this client has read files, directories and links:
noted here, and told to meta a moment later, many in one call.

No program waits for it, and what is not told yet is lost with the client.

Invariants:
    - Whatever was noted is shown by this client until meta has it, and for as long again as older
      attributes may be kept: the time of access of an inode does not go back here.  Only what
      somebody sets counts more than that.
    - Meta is told which time of access the inode had, as far as this client knew.  So what
      another client has set since stays.
    - While a program of this client sets that time, no read is on its way, and none goes: one that
      came later would undo what is set.
    - At most FOUND_MAX inodes are remembered.  Reads of others are not noted
      where all of them wait for meta.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

import trio

from ..schema import services
from ..schema.ids import InodeId
from ..schema.proto import common_pb2, meta_pb2
from ..schema.status import FsError, Status
from .api import MetaCaller
from .relatime import is_due

_log = logging.getLogger(__name__)

PAUSE_S: Final = 2.0
"""How long a read waits for others."""

MANY: Final = 512
"""So many wait for no more."""

PER_CALL_MAX: Final = 256
FOUND_MAX: Final = 16_384
"""Each takes less than half a KiB."""

LAST_S: Final = 5.0
"""For so long at the most the end of a mount waits for its last reads to be told."""

CLOCKS_APART_NS: Final = 60 * 1_000_000_000
"""Clocks of hosts differ by less.  A time of access that lies further ahead has been set by
somebody, and is over with the next read.
"""

AGAIN_S: Final = 600.0
"""Until a service is asked again that knows nothing of such calls."""


class NotedRead(NamedTuple):
    """The last read of an inode that counted."""

    base_ns: int
    """The time of access that it had before, as far as this client knows;
    what is told of that, or of a later one, may be older than this read.
    """
    stored_ns: int
    """What meta has."""
    atime_ns: int
    """When it was read."""

    def over(self, told_ns: int) -> int:
        """Return the time of access to be shown of an inode of which another one was told."""
        is_older = self.base_ns <= told_ns < self.atime_ns
        return self.atime_ns if is_older or told_ns in (self.base_ns, self.stored_ns) else told_ns


@dataclass(frozen=True, slots=True)
class ReadTimes:
    """What it takes to note reads of one client."""

    wall_ns: Callable[[], int]
    now_s: Callable[[], float]
    shown_s: float
    """For how long attributes may be kept that meta told before it had a read."""
    on_stored: Callable[[InodeId, NotedRead, int], None]
    """Called with a read that meta has, as this client knew it before,
    and the time of access of the inode then.
    """


class NotedReads:
    """See module head."""

    def __init__(
        self,
        meta: MetaCaller,
        caller: Callable[[], common_pb2.CallerPb],
        times: ReadTimes,
        *,
        is_off: bool,
    ) -> None:
        """Note reads of one client, and tell meta by a caller whose client it is;
        `is_off`: none counts.
        """
        self.found: dict[InodeId, NotedRead] = {}
        """Empty mostly, where nothing was read for the first time:
        who shows attributes looks whether it is.
        """
        self._meta, self._caller, self._times = meta, caller, times
        self.is_off = is_off
        """No read counts."""
        self.counts_listings = True
        """Those of directories may count, too."""
        self.lack_count = 0
        """Reads that were not noted for a lack of memory, before the log tells of them."""
        self._is_failing = False
        """Meta has not taken what it was told last."""
        self._is_unknown = False
        """Meta knew nothing of such calls when it was asked last."""
        self._pending: dict[InodeId, None] = {}
        self._sent: dict[InodeId, NotedRead] = {}
        """What is on its way."""
        self._setting: dict[InodeId, int] = {}
        """Inodes whose time of access is being set, and by how many."""
        self._stored: dict[InodeId, float] = {}
        """Until when reads are shown of which meta has the last one, in this order."""
        self._has_found, self._has_many, self._has_come = trio.Event(), trio.Event(), trio.Event()
        self._lock = trio.Lock()

    def note(self, inode_id: InodeId, atime_ns: int, mtime_ns: int, ctime_ns: int) -> None:
        """Note that an inode with these times is being read, if that counts; nobody gets an error
        for a lack of memory here.
        """
        if self.is_off or self._is_unknown:
            return
        try:
            self._note(inode_id, atime_ns, mtime_ns, ctime_ns)
        except MemoryError:
            self._drop(inode_id)
            self.lack_count += 1

    def _note(self, inode_id: InodeId, atime_ns: int, mtime_ns: int, ctime_ns: int) -> None:
        before, now_ns = self.found.get(inode_id), self._times.wall_ns()
        had_ns = atime_ns if before is None else before.over(atime_ns)
        if not is_due(had_ns, mtime_ns, ctime_ns, now_ns):
            return
        if now_ns < had_ns < now_ns + CLOCKS_APART_NS:
            now_ns = had_ns
        if before is None and not self._has_room():
            return
        if before is None or had_ns == atime_ns != before.atime_ns:
            read = NotedRead(atime_ns, atime_ns, now_ns)
        else:
            read = NotedRead(before.base_ns, before.stored_ns, now_ns)
        self.found[inode_id] = read
        self._stored.pop(inode_id, None)
        self._pending[inode_id] = None
        self._has_found.set()
        if len(self._pending) >= MANY:
            self._has_many.set()

    def _has_room(self) -> bool:
        """Make room for one more, if all are not waiting for meta."""
        while len(self.found) >= FOUND_MAX and self._stored:
            self._show_no_longer()
        return len(self.found) < FOUND_MAX

    def shown_ns(self, inode_id: InodeId, told_ns: int) -> int:
        """Return the time of access to be shown of an inode of which one was told."""
        read = self.found.get(inode_id)
        return told_ns if read is None else read.over(told_ns)

    def begin_setting(self, inode_id: InodeId) -> bool:
        """The time of access of an inode is about to be set;
        False: not yet, a read of it is on its way.  `end_setting` is to follow.
        """
        if inode_id in self._sent:
            return False
        self._setting[inode_id] = self._setting.get(inode_id, 0) + 1
        return True

    async def wait_setting(self, inode_id: InodeId) -> None:
        """As `begin_setting`, once it may be."""
        while not self.begin_setting(inode_id):
            await self._has_come.wait()

    def end_setting(self, inode_id: InodeId, *, is_set: bool) -> None:
        """The time of access was set, or could not be."""
        self._setting[inode_id] -= 1
        if not self._setting[inode_id]:
            del self._setting[inode_id]
        if is_set:
            self._drop(inode_id)

    async def run(self) -> None:
        """Tell meta until cancelled; `tell_last` tells the rest."""
        while True:
            try:
                await self._tell_some()
            except MemoryError:
                # What waits still is told later, and no mount ends for a time of access.
                await trio.sleep(PAUSE_S)

    async def _tell_some(self) -> None:
        """Wait for reads, and tell meta of those that have come by then."""
        await self._has_found.wait()
        with trio.move_on_after(PAUSE_S):
            await self._has_many.wait()
        await self.finish()
        now_s = self._times.now_s()
        while self._stored and next(iter(self._stored.values())) <= now_s:
            self._show_no_longer()
        if self.lack_count:
            _log.warning("%d reads were not noted for a lack of memory", self.lack_count)
            self.lack_count = 0
        if self._is_unknown:
            await trio.sleep(AGAIN_S)
            self._is_unknown = False
        elif not self.found:
            self._has_found = trio.Event()

    async def finish(self) -> None:
        """Tell meta of all that waits; what it does not take is forgotten."""
        async with self._lock:
            self._has_many = trio.Event()
            while batch := self._next_batch():
                # Before anybody waits for it: for its end no memory is to be needed.
                next_come = trio.Event()
                self._sent = batch
                for inode_id in batch:
                    del self._pending[inode_id]
                try:
                    await self._tell(batch)
                finally:
                    batch.clear()
                    self._has_come.set()
                    self._has_come = next_come

    def _next_batch(self) -> dict[InodeId, NotedRead]:
        free = (inode_id for inode_id in self._pending if inode_id not in self._setting)
        return {inode_id: self.found[inode_id] for inode_id in islice(free, PER_CALL_MAX)}

    async def tell_last(self) -> None:
        """Do as `finish` when the mount ends, which no time of access keeps from ending soon."""
        try:
            with trio.move_on_after(LAST_S):
                await self.finish()
        except MemoryError as error:
            _log.warning("%d reads are not noted: %r", len(self._pending), error)

    async def _tell(self, batch: dict[InodeId, NotedRead]) -> None:
        try:
            request = meta_pb2.NoteReadsReq(caller=self._caller())
            for inode_id, read in batch.items():
                request.reads.add(
                    inode_id=inode_id, atime_ns=read.atime_ns, atime_seen_ns=read.stored_ns
                )
            reply = await self._meta.call(services.META_NOTE_READS, request)
            until_s = self._times.now_s() + self._times.shown_s
            for (inode_id, read), stored_ns in zip(batch.items(), reply.atimes_ns, strict=False):
                self._note_stored(inode_id, read, stored_ns, until_s)
        except (FsError, MemoryError) as error:
            for inode_id, read in batch.items():
                self._forget(inode_id, read)
            if isinstance(error, FsError) and error.status is Status.RPC_UNKNOWN_METHOD:
                self._is_unknown = True
                self._pending.clear()
                self.found.clear()
                self._stored.clear()
            has_failed, self._is_failing = self._is_failing, True
            if not has_failed:  # once, however often it is tried
                _log.warning("%d reads are not noted: %s", len(batch), error)
        else:
            self._is_failing = False

    def _note_stored(
        self, inode_id: InodeId, sent: NotedRead, stored_ns: int, until_s: float
    ) -> None:
        """Take in what time of access an inode has now;
        another one than was noted, and no older one, somebody has set.
        """
        self._times.on_stored(inode_id, sent, stored_ns)
        read = self.found.get(inode_id)
        if read is None:
            return
        if sent.over(stored_ns) != sent.atime_ns:
            self._drop(inode_id)
            return
        if read == sent:  # else another one was noted meanwhile, and has yet to be told
            self._stored[inode_id] = until_s
        self.found[inode_id] = read._replace(stored_ns=stored_ns)

    def _forget(self, inode_id: InodeId, read: NotedRead) -> None:
        if self.found.get(inode_id) == read:
            self._drop(inode_id)

    def _drop(self, inode_id: InodeId) -> None:
        self.found.pop(inode_id, None)
        self._pending.pop(inode_id, None)
        self._stored.pop(inode_id, None)

    def _show_no_longer(self) -> None:
        self._drop(next(iter(self._stored)))
