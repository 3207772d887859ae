"""The real runtime: the machine's clocks, worker threads, the operating system's randomness.

The network is made by `fs.rpc.transport` and handed in, because this layer is below it.
"""

import _thread
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TypeVar

import trio

from . import readiness
from .pooled_random import PooledRandom
from .ports import BeginBlocking, Network, OnEnd, RunBlocking, Runtime

T = TypeVar("T")

log = logging.getLogger(__name__)

BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")

THREAD_COUNT_MAX: Final = 64
IDLE_S_MAX: Final = 10.0
BIRTH_S_MAX: Final = 5.0
"""A thread that was not heard of for so long since another was begun is taken for dead."""

LACK_PAUSE_S: Final = 0.01
"""A thread without memory to go on tries again after so long."""

SLEPT_S_MIN: Final = 0.1
"""Below this a difference of the two clocks is the time between reading them."""


class RealClock:
    """The machine's clocks.

    trio's clock stands still while the machine is suspended.  It alone would let a machine
    that wakes up believe in a lease that ran out long ago, and serve what others have changed
    since; so the time slept is added.
    """

    def __init__(self) -> None:
        self._ahead_s = _boot_ahead_s()
        self._slept_s = 0.0

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        return time.time_ns()

    def monotonic_s(self) -> float:
        """Seconds on the scale of trio, until the machine sleeps for the first time."""
        # As _boot_ahead_s and readiness.current_time, which would cost calls:
        # some operations ask ten times.
        boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        now_s = perf_counter()
        slept_s = boot_s - now_s - self._ahead_s
        if slept_s > self._slept_s + SLEPT_S_MIN:
            self._slept_s = slept_s
        clock = readiness.RUN_CONTEXT.runner.clock
        if type(clock) is readiness.PLAIN_CLOCK:
            offset_s: float = clock.offset
            return offset_s + now_s + self._slept_s
        return readiness.current_time() + self._slept_s


def _boot_ahead_s() -> float:
    """Return how long the machine has slept since its start;
    too little if interrupted, never too much.
    """
    boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return boot_s - time.clock_gettime(time.CLOCK_MONOTONIC)


class _Job:
    """One call: what a thread does, and the task that waits for it."""

    __slots__ = ("args", "call_soon", "error", "function", "result", "task")

    def __init__(self, function: Callable[..., Any], args: tuple[object, ...]) -> None:
        self.function = function
        self.args = args
        self.task: trio.lowlevel.Task | None = None
        self.call_soon = readiness.call_soon_here()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.function(*self.args)
        except BaseException as error:  # noqa: BLE001 - the waiting task raises it
            self.error = error

    def take_error(self) -> BaseException | None:
        """Return what the function raised, once: its traceback holds the job,
        so together they would live until cycles are looked for.
        """
        error, self.error = self.error, None
        return error

    def report(self) -> None:
        self.call_soon(trio.lowlevel.reschedule, self.task)


class _Begun(_Job):
    """One call that no task waits for."""

    __slots__ = ("on_end",)

    def __init__(self, function: Callable[[], object], on_end: OnEnd) -> None:
        super().__init__(function, ())
        self.on_end = on_end

    def report(self) -> None:
        self.call_soon(self.on_end, self.error)
        self.error = None  # once it is told: see `take_error`


class _Worker:
    """A thread that runs one job after the other, and how it is given the next."""

    __slots__ = ("job", "wake")

    def __init__(self) -> None:
        self.job: _Job | None = None
        """What it is about to do; None: what it waits for, or has begun."""
        self.wake = threading.Lock()
        """Released by whoever gives it a job while it waits."""
        self.wake.acquire()


class ThreadRunBlocking:
    """Runs blocking functions in worker threads, at most a fixed number at once.

    Not trio's own way into threads: that copies the context, names the thread and takes two turns
    of the event loop for each call, which is more than most calls of a storage process take
    themselves.  A function has nothing to do with trio here.

    Each idle thread waits for a lock of its own, and who worked last is taken
    first.  At a queue for which all of them wait, a job wakes two threads: the one
    that gets it lets the next one look.

    Threads are begun without a wait for their first step, as `threading.Thread.start` would:
    where memory is short a thread may die before it, unheard of, and the event loop would wait
    for ever.  So the job waits for whichever thread comes first, and one that has not come for
    long is not counted any more.

    Concurrency: one event loop at a time, or several; threads end when
    they have been idle for a while.
    """

    def __init__(self, thread_count_max: int = THREAD_COUNT_MAX) -> None:
        self._thread_count_max = thread_count_max
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._waiting: deque[_Job] = deque()
        """Jobs that have no thread yet; none while a thread is idle."""
        self._thread_count = 0
        self._unborn_count = 0
        """Of these, those that have been begun and have not been heard of."""
        self._begun_s = 0.0
        """When the last one was."""

    async def __call__(self, function: Callable[..., T], /, *args: object) -> T:
        """Call `function(*args)` in a thread; cancellation is noticed after it, never during it."""
        job = _Job(function, args)
        job.task = trio.lowlevel.current_task()
        self._give(job)
        await trio.lowlevel.wait_task_rescheduled(_never_abort)
        error = job.take_error()
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        result: T = job.result
        return result

    def begin(self, function: Callable[[], object], on_end: OnEnd) -> None:
        """See `BeginBlocking`."""
        self._give(_Begun(function, on_end))

    def _give(self, job: _Job) -> None:
        """Have a thread run the job: an idle one, else a new one, else the first that has time."""
        with self._lock:
            if self._unborn_count and time.monotonic() - self._begun_s > BIRTH_S_MAX:
                self._thread_count -= self._unborn_count
                self._unborn_count = 0
            if self._is_given(job, self._thread_count_max):
                return
            self._thread_count += 1
            self._unborn_count += 1
            self._begun_s = time.monotonic()
            self._waiting.append(job)
        try:
            _thread.start_new_thread(self._live, ())
        except (RuntimeError, MemoryError):
            # The machine has no more threads, or no memory for one: those
            # that are there have to do.
            with self._lock:
                self._thread_count -= 1
                self._unborn_count -= 1
                if not self._thread_count and job in self._waiting:
                    self._waiting.remove(job)
                    raise

    def _is_given(self, job: _Job, thread_count_max: int) -> bool:
        """Give the job to an idle thread, or leave it to the first that has time if there
        are so many; the caller has the lock.
        """
        if self._idle:
            worker = self._idle.pop()
            worker.job = job
            worker.wake.release()
        elif self._thread_count >= thread_count_max:
            self._waiting.append(job)
        else:
            return False
        return True

    def _live(self) -> None:
        """Work from the first step of a thread to its last."""
        worker = _Worker()
        with self._lock:
            if self._unborn_count:
                self._unborn_count -= 1
            else:  # it had been given up
                self._thread_count += 1
            is_idle = not self._waiting
            if is_idle:  # others had time before it
                self._idle.append(worker)
            else:
                worker.job = self._waiting.popleft()
        if not is_idle or self._is_woken(worker):
            self._work(worker)

    def _work(self, worker: _Worker) -> None:
        while True:
            job, worker.job = worker.job, None
            assert job is not None
            job.run()
            # Before anybody hears of it: the next call needs no further thread.
            try:
                is_idle = self._is_idle(worker)
            except MemoryError:
                is_idle = _insisted(self._is_idle, worker)
            with suppress(trio.RunFinishedError):
                # It waited for a disk until nobody was left to be told.
                try:
                    job.report()
                except MemoryError:
                    _insisted(job.report)
            del job  # nothing of it is kept while idle
            if is_idle and not self._is_woken(worker):
                return

    def _is_idle(self, worker: _Worker) -> bool:
        """Give a thread its next job; without one it is idle from now on."""
        with self._lock:
            is_idle = not self._waiting
            if is_idle:
                self._idle.append(worker)
            else:
                worker.job = self._waiting.popleft()
        return is_idle

    def _is_woken(self, worker: _Worker) -> bool:
        """Wait for a job; False when none has come for so long that the thread ends."""
        if worker.wake.acquire(timeout=IDLE_S_MAX):
            return True
        with self._lock:
            if worker in self._idle:
                self._idle.remove(worker)
                self._thread_count -= 1
                return False
        worker.wake.acquire()  # a job has come at the last moment
        return True


def _insisted(function: Callable[..., T], *args: object) -> T:
    """Call a function again until there is memory for it:
    its thread would die, and who waits for its call would wait for ever.
    """
    while True:
        time.sleep(LACK_PAUSE_S)
        with suppress(MemoryError):
            return function(*args)


def _never_abort(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


def _boot_id() -> str:
    """Return the kernel's own name of this start of it, "" where it does not tell."""
    try:
        return BOOT_ID_PATH.read_text().strip()
    except OSError as error:
        log.warning("%s: %s; a restart of the machine is not noticed", BOOT_ID_PATH, error)
        return ""


def real_runtime(network: Network) -> Runtime:
    """Return the runtime of a real process."""
    threads = ThreadRunBlocking(THREAD_COUNT_MAX)

    def own_threads(count_max: int = 0) -> tuple[RunBlocking, BeginBlocking]:
        own = ThreadRunBlocking(count_max or THREAD_COUNT_MAX)
        return own, own.begin

    return Runtime(
        RealClock(),
        network,
        threads,
        PooledRandom(),  # nonces and session ids must not be foretold from earlier ones
        _boot_id(),
        threads.begin,
        own_threads,
    )
