"""The blocking calls of one disk: counted while they are under way,
and given up when the disk does not answer any more.

A thread that waits for a disk cannot be stopped.  What can be done is to wait for it no
longer: whoever does is told IO_ERROR, the disk goes out of service, and what the thread does
if it ever returns has no effect.

When it hangs: fs/runtime/disk_hang.py.

Invariants:
    - A call that was given up counts as inside until its thread has ended: nobody
      opens the disk anew before that.
    - What a lost thread may still write into, or read, is not used for anything else
      (`on_hang`, before anybody is woken).

Concurrency: one event loop; threads of its own, so that calls of other disks never wait behind
those of this one. Decision: specs/decisions/0107-disks-that-hang.md.
"""

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import trio

from ..runtime.disk_hang import LOOK_INTERVAL_S, HangJudge
from ..runtime.ports import OnEnd, Runtime
from ..schema.status import FsError, Status

T = TypeVar("T")


class _Call:
    """One call under way."""

    __slots__ = ("began_s", "error", "function", "on_end", "result", "task", "thread_id", "undo")

    def __init__(self, function: Callable[[], Any], began_s: float) -> None:
        self.function = function
        self.began_s = began_s
        self.thread_id = 0
        """The kernel's, of the thread that makes it; 0: none does yet."""
        self.on_end: OnEnd | None = None
        self.task: trio.lowlevel.Task | None = None
        """Waits for it; None: `on_end` is told, if it is there."""
        self.undo: Callable[[Any], object] | None = None
        """Told the result, in a thread, if nobody waits for it any more."""
        self.result: Any = None
        self.error: BaseException | None = None

    def work(self) -> None:
        self.thread_id = threading.get_native_id()
        self.result = self.function()

    def end(self, error: BaseException | None) -> None:
        """Tell who waits."""
        if self.task is not None:
            self.error = error
            trio.lowlevel.reschedule(self.task)
        elif self.on_end is not None:
            self.on_end(error)


class DiskCalls:
    """The calls of one disk."""

    def __init__(self, runtime: Runtime, path: str, hang_s: float) -> None:
        """Take the runtime whose threads make the calls, the disk's directory,
        and when it hangs (seconds; 0: never).
        """
        self.judge = HangJudge(path, hang_s)
        self.on_hang: list[Callable[[FsError], None]] = []
        """Told, in this order, before those who wait."""
        self.lost_count = 0
        """Calls given up whose threads have not ended."""
        self._run_blocking, self._begin = runtime.run_blocking, runtime.begin_blocking
        if runtime.own_threads is not None:
            self._run_blocking, self._begin = runtime.own_threads()
        self.can_begin = self._begin is not None
        """`begin` may be called."""
        self._under_way: dict[_Call, None] = {}
        """Oldest first."""
        self._in_place_count = 0
        self._one_has_ended: trio.Event | None = None
        """There only while somebody waits for that."""

    @property
    def inside_count(self) -> int:
        """Calls whose threads have not ended."""
        return len(self._under_way) + self.lost_count + self._in_place_count

    async def run(
        self, function: Callable[..., T], *args: object, undo: Callable[[T], object] | None = None
    ) -> T:
        """Call `function(*args)` in a thread and return its result;
        cancellation is noticed after it.

        Args:
            function: may wait for the disk.
            args: of it.
            undo: given the result, in a thread, if it comes when nobody waits for it any more.

        Raises:
            FsError: IO_ERROR when the disk hangs; the function may go on for
                ever, or come to its end later.
        """
        if self._begin is None:
            self._in_place_count += 1
            try:
                return await self._run_blocking(function, *args)
            finally:
                self._in_place_count -= 1
        call = _Call(partial(function, *args) if args else function, self.judge.now_s)
        call.undo = undo
        call.task = trio.lowlevel.current_task()
        self._start(call)
        await trio.lowlevel.wait_task_rescheduled(_never_abort)
        error, call.error = call.error, None  # its traceback holds the call
        if error is not None:
            try:
                raise error
            finally:
                del error  # and this frame
        result: T = call.result
        return result

    def begin(self, function: Callable[[], object], on_end: OnEnd) -> None:
        """As `run`, without a task: `on_end` is told what `run` would have raised."""
        call = _Call(function, self.judge.now_s)
        call.on_end = on_end
        self._start(call)

    def _start(self, call: _Call) -> None:
        self._under_way[call] = None
        assert self._begin is not None
        try:
            self._begin(call.work, partial(self._ended, call))
        except BaseException:  # no thread to be had
            del self._under_way[call]
            raise

    def _ended(self, call: _Call, error: BaseException | None) -> None:
        if call in self._under_way:
            del self._under_way[call]
            if self._one_has_ended is not None:
                self._tell_of_end()
            call.end(error)
            return
        self.lost_count -= 1
        if error is None and call.undo is not None:
            self._start(_Call(partial(call.undo, call.result), self.judge.now_s))

    async def settle(self) -> None:
        """Wait until no call is under way, but for those that were given up:
        also for those that were begun.
        """
        while self._under_way:
            if self._one_has_ended is None:  # else another one waits for it, too
                self._one_has_ended = trio.Event()
            await self._one_has_ended.wait()

    def _tell_of_end(self) -> None:
        if self._one_has_ended is not None:
            self._one_has_ended.set()
            self._one_has_ended = None

    # ---------------------------------------------------------------- the watch

    def look(self, elapsed_s: float) -> None:
        """Judge the disk; `elapsed_s` since the last time."""
        self.judge.pass_time(elapsed_s)
        oldest = next(iter(self._under_way), None)
        if oldest is None:
            return
        if age_s := self.judge.hung_s(oldest.began_s, oldest.thread_id):
            self._give_up(age_s)

    def _give_up(self, age_s: float) -> None:
        lost, self._under_way = self._under_way, {}
        self._tell_of_end()
        self.lost_count += len(lost)
        detail = (
            f"{self.judge.path} does not answer: {len(lost)} calls under way, for {age_s:.0f} s"
        )
        error = FsError(Status.IO_ERROR, detail)
        for act in self.on_hang:
            act(error)
        for call in lost:
            call.end(FsError(Status.IO_ERROR, detail))


@asynccontextmanager
async def watched(disks: Sequence[DiskCalls], runtime: Runtime) -> AsyncIterator[None]:
    """Look after the calls of some disks until the body has ended, also while it ends."""
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope(shield=True)
        nursery.start_soon(_watch, disks, runtime, scope)
        try:
            yield
        finally:
            scope.cancel()


async def _watch(disks: Sequence[DiskCalls], runtime: Runtime, scope: trio.CancelScope) -> None:
    with scope:
        looked_s = runtime.clock.monotonic_s()
        while True:
            await trio.sleep(LOOK_INTERVAL_S)
            now_s = runtime.clock.monotonic_s()
            for disk in disks:
                disk.look(now_s - looked_s)
            looked_s = now_s


def _never_abort(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
