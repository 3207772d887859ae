"""Garbage collection: everything that a removal leaves for later.

Four kinds of work, each found by a range read and safe to be done twice or by several services:
    1. removed trees are emptied, a batch of names per transaction;
    2. inodes without names are deleted when their delay is over and nobody has them open, then
       their chunks are removed, then the record of it;
    3. truncations that a dead service left unfinished are finished;
    4. remembered outcomes older than idempotency_expiry_s are forgotten,
       whatever the wall clocks say.

What is large (specs/decisions/0224) has a lane of its own for the first two kinds.  The lanes are
worked on beside each other, so that who frees much space does not wait for a million small files
that were removed before, nor these for him.

When the first two kinds wait:
    - An administrator may hold them up for a time (fs/admin/gc_pause.py);
      it begins with the next batch.
    - They wait while users ask this service for something, since on a small machine they would take
      the time that is the users'.  They wait no longer than half of gc_delay_s beyond their time,
      and not where the disks are nearly full.  There files do not wait for gc_delay_s either.

A record that is damaged, or contradicts another, is named in the log and put off: the others do not
wait for it.  Putting off frees nothing, and goes on for as long as there is something that has to
wait.  So where the disk of the store is full, it does not take the room that is left for what frees
some.  There each service remembers by itself what it passes over.

Concurrency: one task for each lane, and one for the rest; tests call `step`.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from ..kv.api import KeyValue, KvEngine, Transaction, prefix_end
from ..kv.transact import snapshot_read
from ..runtime.figures import Figures
from ..runtime.tracing import Tracer
from ..schema import metrics
from ..schema.config import MetaSection
from ..schema.proto.record_pb2 import GcRecordPb
from ..schema.status import FsError, Status
from . import records
from .content_driver import ContentDriver, file_ref
from .context import CLOCK_ERROR_S_MAX, OpContext
from .damage import decoded, number, outcome_record
from .event_log import EventLog
from .events import gc_event
from .idempotency import stamp
from .ops.retire import (
    DAMAGED_RETRY_S,
    PATIENCE_S_MAX,
    empty_tree,
    forget,
    postpone,
    pull_in,
    put_off,
    retire,
)
from .outcome_ticks import LONG_AGO, OutcomeTicks, is_over
from .ports import ChunkPort
from .shapes import has_shape

log = logging.getLogger(__name__)

RETIRE_COUNT_MAX: Final = 64
"""Inodes per transaction: it takes some 3 ms, for which requests wait."""

EMPTY_COUNT_MAX: Final = 64
"""Names of a removed directory per transaction."""

CHUNK_RETRY_S: Final = 10.0
"""A file whose chunks cannot be removed now waits this long."""

TRUNCATION_AGE_S_MIN: Final = 10.0
"""A younger truncation is left to whoever began it."""

FORGET_COUNT: Final = 512
"""Remembered outcomes looked at per transaction."""

FORGET_PAGES_MAX: Final = 16
"""So many transactions per step, as long as most of what they find is old:
no more is kept than twice what must be.
"""

BUSY_PER_S: Final = 20.0
"""With so many requests a second users count as being there;
mounts that do nothing ask once in several seconds.
"""

FREE_FRACTION_MIN: Final = 0.1
"""With less free space nothing waits for users to be gone,
and removed files no longer than FULL_DELAY_S.
"""

FULL_DELAY_S: Final = 5.0
"""Readers on other mounts keep a removed file for so long where the disks are nearly full,
and for gc_delay_s elsewhere.
"""

HASTEN_PAGES_MAX: Final = 16
"""So many batches of files that are not due are looked at in each interval."""

SPACE_AGE_S_MAX: Final = 10.0
"""Of what storage says about it."""

WAITING_COUNT: Final = 512
"""Removals that are counted at once, for which requests wait some 2 ms."""

WAITING_PAGES_MAX: Final = 8
"""So often in each interval, round and round."""

KINDS: Final = {records.GC_DIRECTORY: "directory", records.GC_FILE: "file"}


@dataclass(frozen=True, slots=True)
class Due:
    """Work of one kind that was due at the last look."""

    count: int = 0
    """At most gc_batch_count."""
    lag_s: float = 0.0
    """For how long the oldest had been due."""


@dataclass(slots=True)
class Waiting:
    """How much of one kind waits in one lane."""

    count: int = 0
    byte_count: int = 0
    """What it takes, as far as its records say."""


class WaitingCount:
    """A count of all that waits to be collected, taken page by page, again and again."""

    def __init__(self) -> None:
        self.known = self._nothing()
        """What the last whole round has found, by prefix, and whether it is large."""
        self._found = self._nothing()
        self._prefixes = list(KINDS)
        self._begin = self._prefixes[0]

    @staticmethod
    def _nothing() -> dict[tuple[bytes, bool], Waiting]:
        return {(prefix, is_large): Waiting() for prefix in KINDS for is_large in (False, True)}

    def next_range(self) -> tuple[bytes, bytes]:
        """Return where to look next."""
        return self._begin, prefix_end(self._prefixes[0])

    def take(self, pairs: Sequence[KeyValue]) -> bool:
        """Add the first records that were found there, WAITING_COUNT at most;
        return whether that was the end of a round.
        """
        prefix = self._prefixes[0]
        for key, value in pairs:
            if records.is_gc_key(key):
                waiting = self._found[prefix, records.is_gc_large(key)]
                waiting.count += 1
                waiting.byte_count += _byte_count(key, value)
        if len(pairs) == WAITING_COUNT:
            self._begin = pairs[-1][0] + b"\x00"
            return False
        del self._prefixes[0]
        is_end = not self._prefixes
        if is_end:
            self.known, self._found = self._found, self._nothing()
            self._prefixes = list(KINDS)
        self._begin = self._prefixes[0]
        return is_end


class Lane:
    """How far the collector has come with what is large, or with all that is not."""

    def __init__(self, asked_count: int, *, is_large: bool) -> None:
        self.is_large = is_large
        self.asked = asked_count, -math.inf
        """How many requests there had been when that was looked at last, and when that was."""
        self.files_from = self.begin(records.GC_FILE)
        """Where files are looked for next: of those before,
        only ones whose time was set by a slower clock may be left.
        """
        self.hastened_to = self.files_from
        """Up to where files that are not due have been looked at;
        from there on there may be more.
        """
        self.due = {prefix: Due() for prefix in KINDS}
        """What the last look found, by prefix."""

    def begin(self, prefix: bytes) -> bytes:
        """Return where its records of one kind begin."""
        return records.gc_lane(prefix, is_large=self.is_large)[0]

    def end(self, prefix: bytes) -> bytes:
        """Return behind which key none of its records of one kind is."""
        return records.gc_lane(prefix, is_large=self.is_large)[1]

    def key(self, prefix: bytes, due_ns: int) -> bytes:
        """Return before which key its records are that are due before then."""
        return records.gc_key(prefix, records.gc_turn(due_ns, is_large=self.is_large), 0)


class GarbageCollector:
    """The collector of one service."""

    def __init__(
        self,
        engine: KvEngine,
        config: MetaSection,
        *,
        chunks: ChunkPort,
        driver: ContentDriver,
        ticks: OutcomeTicks,
        make_context: Callable[[], OpContext],
        asked_count: Callable[[], int],
        events: EventLog,
    ) -> None:
        self._engine = engine
        self._config = config
        self._chunks = chunks
        self._driver = driver
        self._ticks = ticks
        self._make_context = make_context
        self._asked_count = asked_count
        self._is_space_low: bool | None = None
        """None: nobody knows."""
        self._space_until_s = -math.inf
        self._looking_at_space = trio.Lock()
        self._events = events
        self.tracer: Tracer | None = None
        """Begins traces of removals; None: nobody does."""
        self.lanes = [Lane(asked_count(), is_large=is_large) for is_large in (True, False)]
        self._waiting = WaitingCount()
        self._emptied_to: dict[bytes, bytes] = {}
        """By the key of its record, the last name that was taken out of a removed directory."""
        self._passed_over: dict[bytes, float] = {}
        """By the key of a record that could not be put off on a full store, until when at least,
        on trio's clock; then until all others that are due have had their turn.
        """
        self._truncations_from = records.TRUNCATION
        self._forget_cursor = records.IDEMPOTENCY
        self.done_count = 0
        self._was_paused = False

    def adopt(self, section: MetaSection) -> None:
        """Go on with other settings."""
        self._config = section

    async def run(self) -> None:
        """Collect until cancelled; while there is much to do, and nobody asks for anything,
        without pauses.
        """
        async with trio.open_nursery() as nursery:
            for lane in self.lanes:
                nursery.start_soon(self._run_lane, lane)
            while True:
                try:
                    await self._tend()
                except FsError as error:
                    log.warning("garbage collection: %s", error)
                await trio.sleep(self._config.gc_interval_s)

    async def _run_lane(self, lane: Lane) -> None:
        while True:
            has_more = False
            try:
                await self._begin(lane)
                has_more = await self._collect_for(lane, self._config.gc_interval_s)
            except FsError as error:
                log.warning("garbage collection: %s", error)
            if not has_more:
                await trio.sleep(self._config.gc_interval_s)

    async def _collect_for(self, lane: Lane, time_s: float) -> bool:
        """Do batch after batch for that long; return whether there is more to do at once."""
        end_s = trio.current_time() + time_s
        while trio.current_time() < end_s:
            patience_s = await self._patience_s() if self._is_asked(lane) else 0.0
            done = await self._collect(lane, patience_s)
            # Below what was emptied there may be directories: a deep tree is a round for each.
            if sum(done) < self._config.gc_batch_count and not done[0]:
                return False
            await trio.lowlevel.checkpoint()
        return True

    def _is_asked(self, lane: Lane) -> bool:
        """Return whether users have asked for something since the last look for this lane."""
        (count, since_s), now_s = lane.asked, trio.current_time()
        lane.asked = self._asked_count(), now_s
        return lane.asked[0] - count > BUSY_PER_S * (now_s - since_s)

    async def _patience_s(self) -> float:
        """Return for how long what is due may wait for users to be gone."""
        await self._look_at_space()
        waits = self._is_space_low is False
        return min(PATIENCE_S_MAX, self._config.gc_delay_s / 2) if waits else 0.0

    async def _look_at_space(self) -> None:
        """Find out whether the disks are nearly full, unless that has just been done."""
        async with self._looking_at_space:  # else who comes second would not wait for what is told
            await self._ask_for_space()

    async def _ask_for_space(self) -> None:
        now_s = trio.current_time()
        if now_s < self._space_until_s:
            return
        self._space_until_s = now_s + SPACE_AGE_S_MAX
        try:
            capacity_bytes, free_bytes = await self._chunks.space()
        except FsError as error:
            log.info("how much space is free is not known: %s", error)
            self._is_space_low = None
        else:
            is_low = free_bytes <= FREE_FRACTION_MIN * capacity_bytes
            self._is_space_low = is_low if capacity_bytes else None

    def say(self, figures: Figures) -> None:
        """Say how far behind the collector is."""
        figures.note(metrics.GC_DONE, self.done_count)
        for lane in self.lanes:
            for prefix, kind in KINDS.items():
                label = f"large {kind}" if lane.is_large else kind
                figures.note(metrics.GC_FOUND, lane.due[prefix].count, label)
                figures.note(metrics.GC_LAG, lane.due[prefix].lag_s, label)
                waiting = self._waiting.known[prefix, lane.is_large]
                figures.note(metrics.GC_WAITING, waiting.count, label)
                if prefix == records.GC_FILE:
                    figures.note(metrics.GC_WAITING_BYTES, waiting.byte_count, label)

    async def step(self) -> int:
        """Do one batch of each kind of work; return how many things were done.

        Raises:
            FsError: the key-value layer or the storage stays away; the work is still there.
        """
        await self._tend()
        done_count = 0
        for lane in self.lanes:
            await self._begin(lane)
            done_count += sum(await self._collect(lane, 0.0))
        return done_count

    async def _tend(self) -> None:
        """Do what is to be done from time to time, whatever has been removed."""
        try:
            await self._ticks.look()
        except FsError as error:
            if error.status is not Status.METADATA_DAMAGED:
                raise
            log.warning("no outcome is forgotten: %s", error)
        await self._finish_truncations()
        await self._forget_outcomes()
        await self._count_waiting()

    async def _begin(self, lane: Lane) -> None:
        """Look for what is due from the beginning again, and for what waits too long."""
        lane.files_from = lane.begin(records.GC_FILE)
        for key in [key for key in self._emptied_to if records.is_gc_large(key) == lane.is_large]:
            del self._emptied_to[key]
        await self._pull_in(lane, records.GC_DIRECTORY, 0.0)
        await self._pull_in(lane, records.GC_FILE, self._config.gc_delay_s)
        await self._hasten(lane)

    async def _collect(self, lane: Lane, patience_s: float) -> tuple[int, int]:
        """Do one batch of what has been due for that long; return how many things were done,
        in removed directories, and others.
        """
        done = (
            await self._empty_trees(lane, patience_s),
            await self._delete_inodes(lane, patience_s),
        )
        self.done_count += sum(done)
        return done

    async def _due_now(
        self, lane: Lane, prefix: bytes, begin: bytes, patience_s: float
    ) -> list[bytes]:
        """As `_due`, for that long; nothing while an administrator holds it up.

        Where nothing is due nobody is asked.
        """
        latest_ns = self._make_context().now_ns - int(patience_s * 1e9)
        keys: list[bytes] = []
        while len(keys) < self._config.gc_batch_count:
            found = await self._due(lane, prefix, begin)
            early = [key for key in found if records.gc_due_ns(key) <= latest_ns]
            keys += [key for key in early if key not in self._passed_over]
            if len(early) < self._config.gc_batch_count:
                if prefix == records.GC_FILE:
                    self._begin_turns(lane)
                break
            begin = early[-1] + b"\x00"
        return [] if keys and await self._is_paused() else keys

    def _begin_turns(self, lane: Lane) -> None:
        """All of a lane that is due has been looked at: what was passed over for long enough
        is tried again.
        """
        now_s = trio.current_time()
        self._passed_over = {
            key: until_s
            for key, until_s in self._passed_over.items()
            if until_s > now_s or records.is_gc_large(key) != lane.is_large
        }

    async def _is_paused(self) -> bool:
        """Tell whether an administrator holds up what cannot be taken back:
        emptying trees, deleting inodes and chunks.
        """
        value = await snapshot_read(
            self._engine, lambda tr: tr.get(records.GC_PAUSE_KEY, snapshot=True)
        )
        why = ""
        try:
            is_paused = self._make_context().now_ns < number(records.GC_PAUSE_KEY, value)
        except FsError as error:  # somebody has held it up, for who knows how long
            is_paused, why = True, f": {error}"
        if is_paused != self._was_paused:
            self._was_paused = is_paused
            log.warning("garbage collection %s%s", "is held up" if is_paused else "goes on", why)
        return is_paused

    async def _range(self, begin: bytes, end: bytes, limit: int) -> list[KeyValue]:
        return await snapshot_read(
            self._engine, lambda tr: tr.get_range(begin, end, limit=limit, snapshot=True)
        )

    async def _due(self, lane: Lane, prefix: bytes, begin: bytes) -> list[bytes]:
        """Return the keys of work of one kind that is due, from `begin` on."""
        now_ns = self._make_context().now_ns
        end = max(begin, lane.key(prefix, now_ns + 1))
        keys = self._keys(await self._range(begin, end, self._config.gc_batch_count))
        lag_s = max(0.0, (now_ns - records.gc_due_ns(keys[0])) / 1e9) if keys else 0.0
        lane.due[prefix] = Due(len(keys), lag_s)
        return keys

    @staticmethod
    def _keys(pairs: Sequence[KeyValue]) -> list[bytes]:
        """Return the keys of GC records; what cannot be one is named."""
        keys = [key for key, _ in pairs]
        for key in keys:
            if not records.is_gc_key(key):
                log.warning("%r cannot be the key of a removal: `ember fsck --repair`", key)
        return [key for key in keys if records.is_gc_key(key)]

    async def _pull_in(self, lane: Lane, prefix: bytes, delay_s: float) -> None:
        """Let work that a wrong clock put off for long wait `delay_s` from now."""
        now_ns = self._make_context().now_ns
        longest_s = max(delay_s, CHUNK_RETRY_S) + CLOCK_ERROR_S_MAX
        begin = lane.key(prefix, now_ns + int(longest_s * 1e9))
        pairs = await self._range(begin, lane.end(prefix), self._config.gc_batch_count)
        keys, due_ns = self._keys(pairs), now_ns + int(delay_s * 1e9)
        if keys:
            log.warning("%d removals were put off by a clock that was ahead", len(keys))
            await self._driver.transact(lambda tr: pull_in(tr, keys, due_ns))

    async def _later(
        self,
        keys: Sequence[bytes],
        wait_s: float,
        move: Callable[[Transaction, Sequence[bytes], int], Awaitable[None]],
    ) -> None:
        """Have records be due after a while; where the store has no room for that,
        pass over them for as long.
        """
        due_ns = self._make_context().now_ns + int(wait_s * 1e9)
        try:
            await self._driver.transact(lambda tr: move(tr, keys, due_ns))
        except FsError as error:
            if error.status is not Status.NO_SPACE:
                raise
            log.debug("%d removals are passed over: %s", len(keys), error)
            self._passed_over.update(dict.fromkeys(keys, trio.current_time() + wait_s))

    async def _hasten(self, lane: Lane) -> None:
        """Where the disks are nearly full, have files go FULL_DELAY_S after their removal:
        who makes room must soon have it.
        """
        if self._is_space_low is False and trio.current_time() < self._space_until_s:
            return
        delay_ns = int(self._config.gc_delay_s * 1e9)
        now_ns = self._make_context().now_ns
        end = lane.key(records.GC_FILE, now_ns + delay_ns - int(FULL_DELAY_S * 1e9))
        begin = max(lane.hastened_to, lane.key(records.GC_FILE, now_ns + 1))
        for _ in range(HASTEN_PAGES_MAX):
            pairs = (
                await self._range(begin, end, self._config.gc_batch_count) if begin < end else []
            )
            if not pairs:
                break
            await self._look_at_space()
            if not self._is_space_low or await self._is_paused():
                break
            keys = [
                key
                for key, value in pairs
                if _waits_for(delay_ns, key, value) and key not in self._passed_over
            ]
            for start in range(0, len(keys), RETIRE_COUNT_MAX):
                await self._delete_some(keys[start : start + RETIRE_COUNT_MAX])
            self.done_count += len(keys)
            begin = lane.hastened_to = pairs[-1][0] + b"\x00"
        else:
            return
        lane.hastened_to = lane.begin(records.GC_FILE)

    async def _empty_trees(self, lane: Lane, patience_s: float = 0.0) -> int:
        done_count = 0
        begin = lane.begin(records.GC_DIRECTORY)
        for key in await self._due_now(lane, records.GC_DIRECTORY, begin, patience_s):
            done_count += await self._empty_tree(key)
        return done_count

    async def _empty_tree(self, key: bytes) -> int:
        ctx = self._make_context()
        after = self._emptied_to.pop(key, b"")
        try:
            emptied = await self._driver.transact(
                lambda tr: empty_tree(tr, ctx, key, EMPTY_COUNT_MAX, after)
            )
        except FsError as error:
            if error.status is not Status.METADATA_DAMAGED:
                raise
            log.warning("a removed directory stays for now: %s", error)
        else:
            if emptied.after:
                self._emptied_to[key] = emptied.after
            return emptied.gone_count
        await self._later([key], DAMAGED_RETRY_S, put_off)
        return 0

    async def _delete_inodes(self, lane: Lane, patience_s: float) -> int:
        keys = await self._due_now(lane, records.GC_FILE, lane.files_from, patience_s)
        for start in range(0, len(keys), RETIRE_COUNT_MAX):
            some = keys[start : start + RETIRE_COUNT_MAX]
            if self.tracer is not None and self.tracer.sample_rate and self.tracer.is_due():
                with self.tracer.root("remove files") as span:
                    span.attributes["files"] = len(some)
                    await self._delete_some(some)
            else:
                await self._delete_some(some)
            # A search from the beginning would pass over all that was collected, batch after batch.
            lane.files_from = some[-1] + b"\x00"
        return len(keys)

    async def _delete_some(self, keys: Sequence[bytes]) -> None:
        retired = await self._driver.transact(lambda tr: retire(tr, keys))
        for record in retired.without_chunks:
            self._events.note(gc_event(record))
        if retired.opened:
            await self._later(retired.opened, self._config.session_scan_interval_s, postpone)
        if retired.damaged:
            for _, error in retired.damaged:
                log.warning("a removed inode stays for now: %s", error)
            await self._later([key for key, _ in retired.damaged], DAMAGED_RETRY_S, put_off)
        if not retired.gone:
            return
        done = [key for key, _ in retired.gone]
        await self._engine.sync()  # a power loss must not bring back a file whose chunks are gone
        try:
            await self._remove_chunks([record for _, record in retired.gone])
        except FsError as error:
            log.warning("chunks of %d removed files stay for now: %s", len(done), error)
            await self._later(done, CHUNK_RETRY_S, postpone)
            return
        await self._driver.transact(lambda tr: forget(tr, done))
        for _, record in retired.gone:
            self._events.note(gc_event(record))

    async def _remove_chunks(self, gone: Sequence[GcRecordPb]) -> None:
        await self._chunks.remove_files([file_ref(r.inode_id, r.file) for r in gone])

    async def _count_waiting(self) -> None:
        """Count some more of what waits to be collected, whether it is due or not."""
        for _ in range(WAITING_PAGES_MAX):
            begin, end = self._waiting.next_range()
            if self._waiting.take(await self._range(begin, end, WAITING_COUNT)):
                return
            await trio.lowlevel.checkpoint()

    async def _finish_truncations(self) -> None:
        """Look at the next marks, round and round: some may not be done with for long."""
        limit, end = self._config.gc_batch_count, prefix_end(records.TRUNCATION)
        now_ns = self._make_context().now_ns
        old_ns, ahead_ns = int(TRUNCATION_AGE_S_MIN * 1e9), int(CLOCK_ERROR_S_MAX * 1e9)
        pairs = await self._range(self._truncations_from, end, limit)
        self._truncations_from = (
            pairs[-1][0] + b"\x00" if len(pairs) == limit else records.TRUNCATION
        )
        for key, value in pairs:
            if not has_shape(key, value):
                log.warning("%r cannot be the mark of a truncation: `ember fsck --repair`", key)
            elif not now_ns - old_ns < records.unpack_u64(value) < now_ns + ahead_ns:
                inode_id = records.truncation_inode(key)
                log.info("finishing the truncation of inode %#x", inode_id)
                await self._finish_truncation(inode_id)

    async def _finish_truncation(self, inode_id: int) -> None:
        try:
            await self._driver.finish_truncation(inode_id)
        except FsError as error:
            # One file on a dead chain must not hold up the others.
            log.warning("truncation of inode %#x stays unfinished: %s", inode_id, error)

    async def _forget_outcomes(self) -> None:
        """Look at the next remembered outcomes, round and round, on while most of them are old."""
        for _ in range(FORGET_PAGES_MAX):
            seen_count, old_count = await self._forget_some()
            if seen_count < FORGET_COUNT or 2 * old_count < seen_count:
                return

    async def _forget_some(self) -> tuple[int, int]:
        end = prefix_end(records.IDEMPOTENCY)
        pairs = await self._range(self._forget_cursor, end, FORGET_COUNT)
        self._forget_cursor = (
            pairs[-1][0] + b"\x00" if len(pairs) == FORGET_COUNT else records.IDEMPOTENCY
        )
        tick = self._ticks.known()
        if not tick:
            return 0, 0
        found = {key: _tick_of(key, value) for key, value in pairs}
        unknown = [key for key, made in found.items() if made == 0]
        expiry_s = self._config.idempotency_expiry_s
        old = [key for key, made in found.items() if made != 0 and is_over(made, tick, expiry_s)]
        if unknown:  # of a release before there were ticks, or of a service that did not know
            await self._driver.transact(lambda tr: stamp(tr, unknown, tick))
        if old:
            await self._driver.transact(lambda tr: forget(tr, old))
        return len(pairs), len(old) + len(unknown)


def _byte_count(key: bytes, value: bytes) -> int:
    """Return what a removed file takes; 0 where its record does not say."""
    try:
        record = decoded(GcRecordPb, key, value)
    except FsError as error:
        log.debug("it is judged when it is due: %s", error)
        return 0
    return max(record.byte_count, record.file.length)


def _waits_for(delay_ns: int, key: bytes, value: bytes) -> bool:
    """Return whether a removal waits for its time to come, and for nothing else."""
    if not records.is_gc_key(key):
        return False
    try:
        record = decoded(GcRecordPb, key, value)
    except FsError as error:
        log.info("it is judged when it is due: %s", error)
        return False
    return not record.HasField("file") and record.removed_ns == records.gc_due_ns(key) - delay_ns


def _tick_of(key: bytes, value: bytes) -> int:
    """Return when an outcome was remembered; before all times if it cannot be read:
    it is of no use to anybody.
    """
    try:
        return outcome_record(key, value).tick
    except FsError as error:
        log.warning("forgotten: %s", error)
        return LONG_AGO
