"""One seed, one run: trio with virtual time, seeded scheduling, and processes that can be frozen.

trio draws the order of ready tasks from a private generator; seeding it (as trio's own Hypothesis plugin does) and
sorting batches that come out of sets makes a run repeat exactly.  Private names of trio are used only here.

A frozen process is one that SIGSTOP has stopped: none of its tasks runs, whatever becomes ready for them waits, time
passes, its kernel still takes connections and bytes.  A task belongs to the process whose OWNER it has inherited.
"""

import gc
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import trio
from trio._core import _io_epoll, _run
from trio.testing import MockClock

T = TypeVar("T")

OWNER: ContextVar[str] = ContextVar("owner", default="")
_frozen: Final[dict[str, list[tuple[trio.lowlevel.Task, Any]]]] = {}
_reschedule: Final = _run.Runner.reschedule


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


def _jump(clock: MockClock) -> None:
    """As MockClock's, without asking for the statistics of everything."""
    deadline = _run.GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline()
    if clock._virtual_base < deadline < float("inf"):
        clock._virtual_base = deadline


STEPS: Final = [0]
"""Batches of tasks that were run: the events of the simulation."""


_get_events: Final = _io_epoll.EpollIOManager.get_events


def _no_events(manager: _io_epoll.EpollIOManager, timeout: float) -> Any:
    """Nothing comes from outside, but for trio's own wake-up when it ends."""
    STEPS[0] += 1
    runner = _run.GLOBAL_RUN_CONTEXT.runner
    if runner.runq or runner.deadlines._active:
        return []
    return _get_events(manager, timeout)


@contextmanager
def _patched() -> Iterator[None]:
    """Replace what costs time (real clock, epoll) or decides what runs."""
    patches: list[tuple[Any, str, Any]] = [
        (_run.Runner, "reschedule", _reschedule_unless_frozen),
        (_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        (MockClock, "current_time", lambda clock: clock._virtual_base),
        (MockClock, "_autojump", _jump),
        (_io_epoll.EpollIOManager, "get_events", _no_events),
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
    # A collection in the middle of a run would finalise generators at a point that differs between runs.
    gc.collect()
    gc.disable()
    try:
        with _patched():
            return trio.run(main, clock=MockClock(autojump_threshold=0))
    finally:
        gc.enable()
