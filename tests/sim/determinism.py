"""One seed, one run: trio with virtual time, seeded scheduling, and processes that can be frozen.

trio draws the order of ready tasks from a private generator.  Here one seeds it, batches that come
out of sets are sorted first, and what is due at one time has a drawn order (`_Deadlines`), so that
a run repeats exactly.  Private names of trio are used only here.

A run is mostly waiting for a time, so that is made cheap: a sleep is an entry among the
deadlines that reschedules its task (`_Timer`), not a cancel scope that throws an exception
into it; a wait that nobody gives a value is answered by nothing (`_wait`); and the loop
asks nobody outside (`_loop`).

A frozen process is one that SIGSTOP has stopped: none of its tasks runs, whatever becomes ready for
them waits, time passes, its kernel still takes connections and bytes.  A task belongs to the
process whose OWNER it has inherited.
"""

import gc
import math
import random
import types
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Any, Final, TypeVar

import trio
from outcome import Error, Value
from trio import _core
from trio._core import _run, _traps
from trio.testing import MockClock

from fs.rpc.memory_stream import Alarm

T = TypeVar("T")

OWNER: ContextVar[str] = ContextVar("owner", default="")
_frozen: Final[dict[str, list[tuple[trio.lowlevel.Task, Any]]]] = {}
_age: Final = attrgetter("_counter")


def _reschedule(runner: _run.Runner, task: trio.lowlevel.Task, next_send: Any) -> None:
    """As trio's, without what only its instruments and a guest loop need."""
    assert task._next_send_fn is None
    task._next_send_fn = task.coro.send
    task._next_send = None if next_send is _run._NO_SEND else next_send
    task._abort_func = task.custom_sleep_data = None
    runner.runq.append(task)


@types.coroutine
def _wait(abort: Any) -> Generator[Any, Any, Any]:
    """As trio.lowlevel.wait_task_rescheduled."""
    outcome = yield abort
    return None if outcome is None else outcome.unwrap()


def freeze(owner: str) -> None:
    """Let no task of a process run until `thaw`."""
    _frozen.setdefault(owner, [])


def thaw(owner: str) -> None:
    """Let a process go on; harmless when it is not frozen."""
    for task, next_send in _frozen.pop(owner, ()):
        _reschedule(task._runner, task, next_send)


def is_frozen(owner: str) -> bool:
    """Return whether a process is frozen."""
    return owner in _frozen


def _reschedule_unless_frozen(
    runner: _run.Runner, task: trio.lowlevel.Task, next_send: Any = _run._NO_SEND
) -> None:
    if _frozen:
        waiting = _frozen.get(task.context.get(OWNER, ""))
        if waiting is not None:
            task._abort_func = None  # it has been woken: no cancellation comes any more
            waiting.append((task, next_send))
            return
    _reschedule(runner, task, next_send)


class _Deadlines:
    """As trio's, but what is due at one time has a seeded order;
    theirs is by addresses in memory.
    """

    __slots__ = ("_active", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, float, Any]] = []
        self._active = 0

    def add(self, at_s: float, who: Any) -> None:
        """Note that something whose registered deadline is now `at_s` is due then."""
        heappush(self._heap, (at_s, _run._r.random(), who))
        self._active += 1

    def remove(self, _at_s: float, _who: Any) -> None:
        """Note that a registered deadline is going to change."""
        self._active -= 1

    def next_deadline(self) -> float:
        """Return the earliest time at which something is due."""
        heap = self._heap
        while heap:
            at_s, _, who = heap[0]
            if at_s == who._registered_deadline:
                return at_s
            heappop(heap)
        return math.inf

    def expire(self, now_s: float) -> None:
        """Let everything happen that is due."""
        heap = self._heap
        while heap and heap[0][0] <= now_s:
            at_s, _, who = heappop(heap)
            if at_s == who._registered_deadline:
                who._cancel(_EXPIRED)
        if len(heap) > self._active * 2 + 1000:
            self._prune()

    def _prune(self) -> None:
        valid = (entry for entry in self._heap if entry[0] == entry[2]._registered_deadline)
        self._heap[:] = {id(entry[2]): entry for entry in valid}.values()
        heapify(self._heap)


_EXPIRED: Final = _run.CancelReason(source="deadline")

STEPS: Final = [0]
"""Batches of tasks that were run: the events of the simulation."""


def _loop(
    runner: _run.Runner, main: Any, args: Any, _signals: bool = False
) -> Generator[float, Any, None]:
    """Stand in for trio's event loop: the same rules,
    but time jumps at once and nothing comes from outside.

    It yields, as trio's, to wait for the outside, but only when nothing
    else is left: when trio ends.
    """
    context, clock, order = _run.GLOBAL_RUN_CONTEXT, runner.clock, _run._r
    runner.deadlines = deadlines = _Deadlines()
    try:
        clock.start_clock()
        runner.init_task = runner.spawn_impl(
            runner.init, (main, args), None, "<init>", system_task=True
        )
        while runner.tasks:
            if not runner.runq and (until_s := deadlines.next_deadline()) < math.inf:
                clock._virtual_base = max(clock._virtual_base, until_s)
            elif not runner.runq:
                runner.io_manager.process_events((yield 1.0))
            if deadlines._heap and deadlines._heap[0][0] <= clock._virtual_base:
                deadlines.expire(clock._virtual_base)
            batch = list(runner.runq)
            runner.runq.clear()
            if len(batch) > 1:
                batch.sort(key=_age)
                order.shuffle(batch)
            STEPS[0] += 1
            while batch:
                context.task = task = batch.pop()
                _step(runner, task)
    finally:
        runner.close()
        context.__dict__.clear()


def _step(runner: _run.Runner, task: trio.lowlevel.Task) -> None:
    """Let one task run until it waits or ends."""
    go_on, outcome = task._next_send_fn, task._next_send
    task._next_send_fn = task._next_send = None
    try:
        wish = task.context.run(go_on, outcome)
    except StopIteration as stop:
        runner.task_exited(task, Value(stop.value))
        return
    except BaseException as error:  # noqa: BLE001 - its nursery's, as everything that ends a task
        runner.task_exited(task, Error(error))
        return
    task._schedule_points += 1
    if wish is _traps.CancelShieldedCheckpoint:
        runner.reschedule(task, Value(None))
        return
    assert callable(wish), f"a task of a simulation waits for {wish!r}"
    task._cancel_points += 1
    task._abort_func = wish
    if runner.ki_pending and task is runner.main_task:
        task._attempt_delivery_of_pending_ki()
    if task._cancel_status.effectively_cancelled:
        task._attempt_delivery_of_any_pending_cancel()


class _Timer:
    """Reschedules a task once, at some time or before; sits among trio's deadlines."""

    __slots__ = ("_registered_deadline", "_task")

    def __init__(self, task: trio.lowlevel.Task, at_s: float) -> None:
        self._task: trio.lowlevel.Task | None = task
        self._registered_deadline = math.inf
        self.move(at_s)

    def move(self, at_s: float) -> None:
        """Let it be another time; harmless when it is over."""
        if self._task is None:
            return
        deadlines = self._task._runner.deadlines
        if self._registered_deadline < math.inf:
            deadlines.remove(self._registered_deadline, self)
        if at_s < math.inf:
            deadlines.add(at_s, self)
        self._registered_deadline = at_s

    def wake(self, _reason: object = None) -> None:
        """Reschedule the task now; harmless when it is over."""
        self.move(math.inf)
        if self._task is not None:
            task, self._task = self._task, None
            task._runner.reschedule(task)

    _cancel = wake  # so trio calls it when the time has come

    def abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        """Do what a cancellation of the sleep has to."""
        self.move(math.inf)
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


async def _sleep_until(at_s: float) -> None:
    """As trio.sleep_until."""
    if at_s <= trio.current_time():
        await trio.lowlevel.checkpoint()
    else:
        await trio.lowlevel.wait_task_rescheduled(_Timer(_run.GLOBAL_RUN_CONTEXT.task, at_s).abort)


async def _sleep(seconds: float) -> None:
    """As trio.sleep."""
    if seconds <= 0:
        await trio.lowlevel.checkpoint()
    else:
        at_s = trio.current_time() + seconds
        await trio.lowlevel.wait_task_rescheduled(_Timer(_run.GLOBAL_RUN_CONTEXT.task, at_s).abort)


def _go_on(_raise_cancel: Any) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


async def sleep_shielded(seconds: float) -> None:
    """Sleep; a cancellation is delivered afterwards only."""
    task = _run.GLOBAL_RUN_CONTEXT.task
    _Timer(task, trio.current_time() + seconds)
    await trio.lowlevel.wait_task_rescheduled(_go_on)


class CheapAlarm(Alarm):
    """As `fs.rpc.memory_stream.Alarm`."""

    __slots__ = ("_timer",)

    def __init__(self) -> None:
        self._timer: _Timer | None = None

    async def wait(self, until_s: float) -> None:
        self._timer = timer = _Timer(_run.GLOBAL_RUN_CONTEXT.task, until_s)
        try:
            await trio.lowlevel.wait_task_rescheduled(timer.abort)
        finally:
            self._timer = None

    def move(self, until_s: float) -> None:
        if self._timer is not None:
            self._timer.move(until_s)

    def ring(self) -> None:
        if self._timer is not None:
            self._timer.wake()


class _Registering:
    """Stands in for a context manager of trio's cancel scopes, which is a generator:
    it is entered for each of them.
    """

    __slots__ = ("_scope",)

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        scope = self._scope
        old = scope._registered_deadline
        is_over = scope._cancel_status is None or scope._cancel_called
        new = math.inf if is_over else scope._deadline
        if old != new:
            scope._registered_deadline = new
            deadlines = _run.GLOBAL_RUN_CONTEXT.runner.deadlines
            if old < math.inf:
                deadlines.remove(old, scope)
            if new < math.inf:
                deadlines.add(new, scope)


def _registering(scope: trio.CancelScope) -> _Registering:
    return _Registering(scope)  # a function, for it becomes a method


@contextmanager
def _patched(now: Callable[[], float]) -> Iterator[None]:
    """Replace what costs time or decides what runs."""
    patches: list[tuple[Any, str, Any]] = [
        (_run.Runner, "reschedule", _reschedule_unless_frozen),
        (_run, "unrolled_run", _loop),
        (trio.CancelScope, "_might_change_registered_deadline", _registering),
        (_core, "wait_task_rescheduled", _wait),
        (_run, "wait_task_rescheduled", _wait),
        (trio.lowlevel, "wait_task_rescheduled", _wait),
        (trio, "sleep", _sleep),
        (trio, "sleep_until", _sleep_until),
        (trio, "current_time", now),
        (_run, "current_time", now),
    ]
    saved = [(place, name, getattr(place, name)) for place, name, _ in patches]
    for place, name, value in patches:
        setattr(place, name, value)
    try:
        yield
    finally:
        for place, name, value in saved:
            setattr(place, name, value)
        _frozen.clear()


def run_deterministic(main: Callable[[], Awaitable[T]], seed: int) -> T:
    """Run an async function in virtual time; the same seed gives the same run, in any process."""
    _run._r = random.Random(seed)
    STEPS[0] = 0
    # A collection in the middle of a run would finalise generators at a
    # point that differs between runs.
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        clock = MockClock()
        with _patched(lambda: clock._virtual_base):
            return trio.run(main, clock=clock)
    finally:
        if was_enabled:
            gc.enable()
