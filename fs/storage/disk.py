"""One disk of a storage process, as requests see it:
its engine, its limits, its pace, and whether it has failed.

Invariants:
    - An engine that failed is never asked again; the disk stays failed
      until `take` gives it another one.
    - Of a disk that hangs (disk_calls.py) nobody asks anything.
    - A process with several disks writes to none of them on its event loop: one that
      hangs would hold up the others.

Concurrency: one event loop; only `Disk.run` and what stands on it wait, for the engine's
blocking calls.  What to do when a disk fails is for others (`on_failure`): see
failed_disks.py and `Targets`.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import trio

from ..chunkengine.api import ChunkEngine
from ..chunkengine.books import StuckError
from ..chunkengine.disk_use import SpaceInfo
from ..runtime import tracing
from ..runtime.ports import Runtime
from ..runtime.quick_semaphore import QuickSemaphore
from ..schema.config import StorageSection
from ..schema.lacks import is_lack, lacking
from ..schema.status import FsError, Status
from .disk_calls import DiskCalls
from .disk_pace import DiskPace

log = logging.getLogger(__name__)

T = TypeVar("T")

AT_ONCE_BYTES_MAX: Final = 64 << 10
"""Of a write on the event loop; copying them takes some 20 us."""

AT_ONCE_FLUSH_S_MAX: Final = 0.05
"""A disk that has been flushing for longer than that may let writes wait as well."""

AT_ONCE_S_MAX: Final = 0.02
"""Who takes longer than that on the event loop leaves it alone for AT_ONCE_PAUSE_S."""

AT_ONCE_PAUSE_S: Final = 1.0

_IN_DOUBT: Final = "something was lacking for a flush: nobody knows how far it has come"


class Disk:
    """One disk: its engine, and how much may be asked of it at once.

    `engine` is another one after `take`: an operation that kept the former one
    across a wait is refused by it.
    """

    def __init__(
        self,
        index: int,
        path: str,
        engine: ChunkEngine,
        runtime: Runtime,
        section: StorageSection,
        *,
        calls: DiskCalls | None = None,
    ) -> None:
        """Take an open engine; `calls`, if given, are watched by somebody."""
        self.index = index
        self.path = path
        self.engine = engine
        self.is_failed = False
        self.calls = calls or DiskCalls(runtime, path, section.disk_hang_s)
        self.calls.on_hang.append(self._hang)
        self._why_hung = ""
        """Why the engine that is here is not asked any more; empty: it is."""
        self.writes_on_loop = len(section.disks) < 2  # noqa: PLR2004 - alone
        """A write that is quick as a rule may be made on the event loop:
        nobody else would wait with it.
        """
        self._taken_count = 0
        self.free_bytes = 0
        self.capacity_bytes = 0
        self.allocated_bytes = 0
        self.used_bytes = 0
        self._section = section
        self.read_limiter = QuickSemaphore(section.read_concurrency)
        self.write_limiter = QuickSemaphore(section.write_concurrency)
        self.watermarking = trio.Lock()
        """Held by who writes watermarks: threads may overtake each other,
        and a lower number never follows a higher one.
        """
        self.pace = DiskPace()
        self.flush_pace = DiskPace(call_count_min=1)
        self._unflushed_bytes = 0
        self._flushes_begun = 0
        self._flushes_ended = 0
        self._flush_done: trio.Event | None = None
        self._flush_began_s = 0.0
        self._at_once_from_s = 0.0
        self._clock = runtime.clock
        self.on_failure: Callable[[Disk, FsError], None] = lambda _disk, _error: None
        self.on_pace_change: Callable[[Disk, DiskPace], None] = lambda _disk, _pace: None

    def adopt(self, section: StorageSection) -> None:
        """Go on with other limits; calls that wait or are under way still count by the old ones."""
        if section.read_concurrency != self._section.read_concurrency:
            self.read_limiter = QuickSemaphore(section.read_concurrency)
        if section.write_concurrency != self._section.write_concurrency:
            self.write_limiter = QuickSemaphore(section.write_concurrency)
        self._section = section
        self.calls.judge.hang_s = section.disk_hang_s

    @property
    def inside_count(self) -> int:
        """Engine calls off the event loop, now."""
        return self.calls.inside_count

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call an engine method off the event loop; an IO_ERROR takes the disk out of service.

        Raises:
            FsError: as the method; OUT_OF_RESOURCES also for a lack, which nobody who asks in the
                background has to tell from other errors.
        """
        taken_count = self._taken_count
        self._check_answers()
        try:
            return await self.calls.run(function, *arguments)
        except FsError as error:
            self._judge(error, taken_count)
            raise
        except (MemoryError, OSError, RuntimeError) as error:
            if not is_lack(error):
                raise
            raise lacking(self.path, error) from error

    async def run_quick(self, function: Callable[..., T]) -> T:
        """Call an engine method that is quick as a rule, but writes; errors as in `run`."""
        return self.run_inline(function) if self.writes_on_loop else await self.run(function)

    def _check_answers(self) -> None:
        if self._why_hung:
            raise FsError(Status.IO_ERROR, self._why_hung)

    def _hang(self, error: FsError) -> None:
        """Ask the engine nothing more; those inside it are being told."""
        self._why_hung = error.detail
        self.engine.give_up(error.detail)
        self._fail(error)

    def _judge(self, error: FsError, taken_count: int) -> None:
        """Take the disk out of service after an IO_ERROR of an engine
        that was not exchanged since `taken_count`.
        """
        if error.status is Status.IO_ERROR and taken_count == self._taken_count:
            self._fail(error)

    @property
    def has_failed(self) -> bool:
        """Since this process was started; what was acknowledged before that may not be durable."""
        return self.is_failed or self._taken_count > 0

    def take(self, engine: ChunkEngine) -> None:
        """Serve with another engine, opened in place of one that failed; nobody is inside."""
        assert self.is_failed, self.path
        self.engine = engine
        self._taken_count += 1
        self.is_failed, self._why_hung = False, ""

    async def run_timed(
        self, byte_count: int, function: Callable[..., T], *arguments: object, part_count: int = 1
    ) -> T:
        """As `run`; the call reads or writes about so many bytes, in so many parts,
        and counts for the disk's pace.
        """
        span = tracing.enter("disk access") if tracing.live.count else None
        began_s = self._clock.monotonic_s()
        try:
            return await self.run(function, *arguments)
        finally:
            self.pace.note(self._clock.monotonic_s() - began_s, byte_count, part_count)
            self._end_span(span, byte_count)

    def begin_read(
        self,
        byte_count: int,
        function: Callable[[], T],
        on_end: Callable[[T | None, BaseException | None], None],
    ) -> bool:
        """Begin what `run_timed` does, `storage.read_concurrency` at a time, without a task;
        False: it would have to wait, and nothing is done.

        Args:
            byte_count: about so many are read.
            function: of the engine.
            on_end: told on the event loop what it has returned, or raised.
        """
        limiter, taken_count = self.read_limiter, self._taken_count
        if not self.calls.can_begin or self._why_hung or tracing.live.count:
            return False
        if not limiter.take_now():
            return False
        began_s, results = self._clock.monotonic_s(), list[T]()

        def ended(error: BaseException | None) -> None:
            try:
                limiter.give_back()
                self.pace.note(self._clock.monotonic_s() - began_s, byte_count)
                if isinstance(error, FsError):
                    self._judge(error, taken_count)
            except Exception as failure:  # noqa: BLE001 - told to who waits: no task would end with it, but the event loop
                error = failure
            if error is None:
                on_end(results[0], None)
            else:
                on_end(None, error)

        try:
            self.calls.begin(lambda: results.append(function()), ended)
        except (RuntimeError, MemoryError) as error:  # no thread: who waits for one is told
            log.debug("%s: a read that cannot be begun: %s", self.path, error)
            limiter.give_back()
            return False
        return True

    def _end_span(self, span: tracing.Span | None, byte_count: int) -> None:
        if span is not None:
            span.attributes.update(disk=self.index, bytes=byte_count)
            span.end()

    async def write_timed(
        self, byte_count: int, function: Callable[..., T], *, part_count: int = 1
    ) -> T:
        """As `run_timed`, `storage.write_concurrency` at a time;
        a free place costs no turn of the event loop.
        """
        limiter = self.write_limiter
        if not limiter.take_now():
            await limiter.take()
        try:
            return await self.run_timed(byte_count, function, part_count=part_count)
        finally:
            limiter.give_back()

    def may_write_at_once(self, byte_count: int) -> bool:
        """Return whether a write that only goes to memory of the kernel may be made
        on the event loop.

        Such a write hardly ever waits: for a log that the file system is writing just now, or when
        far too much is unwritten. So nobody makes one while the disk looks as if it hung, nor for a
        while after one that took long.
        """
        if byte_count > AT_ONCE_BYTES_MAX or not self.writes_on_loop:
            return False
        now_s = self._clock.monotonic_s()
        is_stuck = (
            self._flush_done is not None and now_s - self._flush_began_s > AT_ONCE_FLUSH_S_MAX
        )
        return now_s >= self._at_once_from_s and not is_stuck

    def write_at_once(self, byte_count: int, function: Callable[..., T]) -> T:
        """As `write_timed`, right here; for what `may_write_at_once`
        and the engine say takes no time.
        """
        span = tracing.enter("disk access") if tracing.live.count else None
        began_s = self._clock.monotonic_s()
        try:
            return self.run_inline(function)
        finally:
            took_s = self._clock.monotonic_s() - began_s
            self.pace.note(took_s, byte_count)
            self._end_span(span, byte_count)
            if took_s > AT_ONCE_S_MAX:
                self._at_once_from_s = began_s + AT_ONCE_PAUSE_S

    async def sync(self) -> None:
        """Make everything acknowledged durable; those who come while a flush
        is under way share the next one.

        Raises:
            FsError: IO_ERROR, also when another engine took the disk over meanwhile: what the
                former one had may be gone.
        """
        wanted, engine = self._flushes_begun + 1, self.engine
        while self._flushes_ended < wanted:
            if self.is_failed or self.engine is not engine:
                raise FsError(Status.IO_ERROR, f"{self.path} failed before it was flushed")
            if self._flush_done is None:
                await self._flush(engine)
            else:
                await self._flush_done.wait()

    async def _flush(self, engine: ChunkEngine) -> None:
        """One flush; counts for the disk's pace."""
        done = self._begin_flush()
        byte_count, self._unflushed_bytes = self._unflushed_bytes, 0
        span = tracing.enter("disk flush") if tracing.live.count else None
        is_flushed = False
        try:
            await self.run(partial(_sync, engine))
            is_flushed = True
        finally:
            self._end_span(span, byte_count)
            self._end_flush(done, byte_count, is_flushed=is_flushed)

    def begin_sync(self, on_end: Callable[[FsError | None], None]) -> bool:
        """Begin what `sync` does where nobody flushes just now, without a task;
        else return False, with nothing done.

        Args:
            on_end: told on the event loop what `sync` would have raised.
        """
        engine = self.engine
        if (
            not self.calls.can_begin
            or self._flush_done is not None
            or self.is_failed
            or tracing.live.count
        ):
            return False
        done, taken_count = self._begin_flush(), self._taken_count
        byte_count, self._unflushed_bytes = self._unflushed_bytes, 0

        def ended(error: BaseException | None) -> None:
            failure = error if isinstance(error, FsError) else None
            if failure is not None:
                self._judge(failure, taken_count)
            self._end_flush(done, byte_count, is_flushed=error is None)
            if error is not None and failure is None:
                if not is_lack(error):
                    on_end(FsError(Status.INTERNAL_ERROR, f"{self.path}: {error!r}"))
                    raise error
                failure = lacking(self.path, error)  # before it began: see `_sync`
            on_end(failure)

        try:
            self.calls.begin(partial(_sync, engine), ended)
        except BaseException:  # no thread: those who wait for this flush begin another one
            self._end_flush(done, byte_count, is_flushed=False)
            raise
        return True

    def _begin_flush(self) -> trio.Event:
        done = self._flush_done = trio.Event()
        self._flushes_begun += 1
        self._flush_began_s = self._clock.monotonic_s()
        return done

    def _end_flush(self, done: trio.Event, byte_count: int, *, is_flushed: bool) -> None:
        """One flush at a time: the one that ends is the last that has begun."""
        self._flush_done = None
        done.set()
        if not is_flushed:
            return
        self._flushes_ended = self._flushes_begun
        self.flush_pace.note(self._clock.monotonic_s() - self._flush_began_s, byte_count)
        if self.flush_pace.end_window():
            self.on_pace_change(self, self.flush_pace)

    @property
    def is_slow(self) -> bool:
        """Far slower than usual, for some time."""
        return self.pace.is_slow or self.flush_pace.is_slow

    def judge_pace(self) -> None:
        """Judge reads and writes since the last time."""
        if self.pace.end_window():
            self.on_pace_change(self, self.pace)

    def note_written(self, byte_count: int) -> None:
        """So much will have to be flushed."""
        self._unflushed_bytes += byte_count

    def run_inline(self, function: Callable[..., T], *arguments: object) -> T:
        """Call an engine method that takes microseconds, right here; errors as in `run`."""
        if self._why_hung:
            self._check_answers()
        try:
            return function(*arguments)
        except FsError as error:
            if error.status is Status.IO_ERROR and not isinstance(error, StuckError):
                self._fail(error)
            raise

    async def measure(self) -> None:
        """Read the disk's space anew, and let others who are short of it have what
        is only kept at hand.
        """
        space = await self.run(_made_way, self.engine)
        self.free_bytes, self.capacity_bytes = space.free_bytes, space.capacity_bytes
        self.allocated_bytes, self.used_bytes = space.allocated_bytes, space.used_bytes

    def _fail(self, error: FsError) -> None:
        if not self.is_failed:
            self.is_failed = True
            self.on_failure(self, error)


def _sync(engine: ChunkEngine) -> None:
    """Flush; where something is lacking nobody knows how far that has come,
    so the engine is not used on: IO_ERROR.
    """
    try:
        engine.sync()
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_lack(error):
            raise
        engine.give_up(_IN_DOUBT)  # first: to say why takes memory
        raise FsError(Status.IO_ERROR, f"{_IN_DOUBT}: {error!r}") from error


def _made_way(engine: ChunkEngine) -> SpaceInfo:
    engine.make_way()
    return engine.space()
