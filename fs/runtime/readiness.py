"""Descriptors that become readable, told to plain functions:
a turn of trio's loop only for what a task has to do.

A turn of the loop costs some 75 calls of functions, and two or three system calls to say again that
one waits: more than most of what is received.  So a process may have its loop look after
descriptors by itself (`install`): what becomes readable is told to a plain function, right where
the loop waits (`looking` says how), and the loop goes on waiting unless a task has become runnable,
a time is up, or trio has events of its own.

Where nothing is installed (tests with a clock of their own, the programs of users, another trio
than those of TRIO_VERSIONS) there is no watch, and who would have one waits as trio has it.

Invariants:
    - A function runs on the thread of the event loop, between the steps of tasks: never beside
      one.  There is no current task.
    - Each descriptor has one owner, who closes its watch before the descriptor.
    - A watched descriptor is not given to trio's own `wait_readable` or `wait_writable`.
    - Deadlines are kept: after every look the loop is asked for the next one.

What threads want to be called on the loop (`call_soon_here`) comes the same way: a task that
waits for a thread goes on in the next turn, not in the one after it, as with trio's own queue,
which a task of its own empties.

Relies on how trio's loop and its epoll manager are made (`Runner.io_manager`, `runq`,
`deadlines`), which is not public.

Concurrency: one event loop; a watch belongs to it.
"""

import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import outcome
import trio
from trio._core import _run

from .instruments import PlainInstruments
from .looking import Looking

log = logging.getLogger(__name__)

TRIO_VERSIONS: Final = ("0.35",)
"""Whose loop is known to be as it is said here."""

EVENT_COUNT_MAX: Final = 64
"""Of one look; the kernel passes on round the others."""

OnReady = Callable[[], None]
"""Called when there may be something to read; takes what is there, or stops the watch.

What it raises is a bug: it ends the run.
"""

CallSoon = Callable[..., None]
"""Called by any thread with a function, which does not raise, and its arguments."""


class _Poller:
    """In the place of trio's epoll manager: that one's own methods, but for the wait itself."""

    def __init__(self, runner: Any, manager: Any) -> None:
        self._runner = runner
        self._deadlines = runner.deadlines
        self._ahead_s: float = runner.clock.offset
        """Of trio's clock, before that of the machine."""
        self.looking = Looking(manager._epoll.poll, EVENT_COUNT_MAX)  # noqa: SLF001 - see module head
        self._wait = self.looking.wait
        self.epoll: select.epoll = manager._epoll  # noqa: SLF001 - see module head
        self.watched: dict[int, Watch] = {}
        self.process_events = manager.process_events
        self.force_wakeup = manager.force_wakeup
        self.statistics = manager.statistics
        self._close_manager = manager.close
        self._left: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        """What threads want to be called."""
        self._lock = threading.Lock()
        self._is_closed = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.wait_readable = manager.wait_readable
        self.wait_writable = manager.wait_writable
        self.notify_closing = manager.notify_closing
        Watch(self, self._bell, self._call_left).begin()

    def get_events(self, timeout: float) -> list[tuple[int, int]]:
        """Wait for events; return those that are trio's, once it has something to do."""
        events = self._wait(timeout)
        watched, runq, deadlines = self.watched, self._runner.runq, self._deadlines
        while events:
            others = []
            for event in events:
                watch = watched.get(event[0])
                if watch is None:
                    others.append(event)
                    continue
                try:
                    if event[1] == select.EPOLLIN:
                        watch.on_ready()
                    else:
                        watch.ready(event[1])
                except BaseException as error:  # noqa: BLE001 - trio ends the run with it
                    watch.stop()
                    trio.lowlevel.current_trio_token().run_sync_soon(_raise, error)
            if others or runq:
                return others
            heap = deadlines._heap  # noqa: SLF001 - see module head; what is out of date there only wakes us early
            left_s = heap[0][0] - self._ahead_s - perf_counter() if heap else timeout
            if left_s <= 0:
                return others
            events = self._wait(min(left_s, timeout))
        return events

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Have a function called on the event loop; any thread may.

        Raises trio.RunFinishedError.
        """
        with self._lock:
            if self._is_closed:
                raise trio.RunFinishedError("the event loop has ended")
            self._left.append((function, args))
            os.eventfd_write(self._bell, 1)

    def _call_left(self) -> None:
        os.eventfd_read(self._bell)
        for _ in range(len(self._left)):
            function, args = self._left.popleft()
            try:
                function(*args)
            except BaseException as error:  # noqa: BLE001 - trio ends the run with it
                trio.lowlevel.current_trio_token().run_sync_soon(_raise, error)

    def close(self) -> None:
        """Close what the loop has open."""
        with self._lock:
            self._is_closed = True
            os.close(self._bell)
        self._close_manager()


def _raise(error: BaseException) -> None:
    raise error


_poller: Final = trio.lowlevel.RunVar[_Poller | None]("poller", None)


def install() -> bool:
    """Have the running event loop look after watched descriptors;
    False: it is not one of those we know.
    """
    if _poller.get() is not None:
        return True
    runner = _run.GLOBAL_RUN_CONTEXT.runner
    manager = runner.io_manager
    if not _IS_KNOWN or not hasattr(manager, "_epoll") or not _has_plain_clock(runner):
        log.info("trio %s: descriptors are waited for in its own way", trio.__version__)
        return False
    poller = _Poller(runner, manager)
    runner.io_manager = poller  # type: ignore[assignment]
    runner.instruments = PlainInstruments(runner.instruments.data)  # type: ignore[assignment]
    _poller.set(poller)
    return True


def look_before_sleep(limit_s: float) -> None:
    """Have the running event loop look for so long before it sleeps,
    where that is worth it (`looking`); it does not where nothing is installed.
    """
    poller = _poller.get()
    if poller is not None:
        poller.looking.limit_s = limit_s


def leave() -> Callable[[Callable[[], None]], None] | None:
    """Return what has a function called once nothing has come for a moment,
    before the loop sleeps (`Looking.leave`); None: this event loop has no such thing.
    """
    poller = _poller.get()
    return None if poller is None else poller.looking.leave


def _has_plain_clock(runner: Any) -> bool:
    return isinstance(runner.clock, _run.SystemClock) and not runner.is_guest


def _known_time() -> float:
    """Return trio's time, in seconds, with one call where its clock
    is the plain one instead of four.
    """
    clock = _run.GLOBAL_RUN_CONTEXT.runner.clock
    if type(clock) is _run.SystemClock:
        return clock.offset + perf_counter()
    return clock.current_time()


_IS_KNOWN: Final = trio.__version__.rpartition(".")[0] in TRIO_VERSIONS
RUN_CONTEXT: Final[Any] = _run.GLOBAL_RUN_CONTEXT
PLAIN_CLOCK: Final = _run.SystemClock if _IS_KNOWN else None
"""Type of the clock (`RUN_CONTEXT.runner.clock`) whose time is `offset` more than `perf_counter`,
for who asks more often than even `current_time`.
"""
current_time: Final = _known_time if _IS_KNOWN else trio.current_time
"""For what is asked with every small call."""


def watch(fd: int, on_ready: OnReady) -> "Watch | None":
    """Return a watch over a descriptor, not begun; None: this event loop has none."""
    poller = _poller.get()
    return None if poller is None else Watch(poller, fd, on_ready)


def call_soon_here() -> CallSoon:
    """Return what has a function called on this event loop, between the steps of tasks,
    for threads to use.
    """
    poller = _poller.get()
    return trio.lowlevel.current_trio_token().run_sync_soon if poller is None else poller.call_soon


class Watch:
    """One descriptor; see module head."""

    __slots__ = ("_fd", "_flags", "_poller", "_writer", "on_ready")

    def __init__(self, poller: _Poller, fd: int, on_ready: OnReady) -> None:
        self._poller = poller
        self._fd = fd
        self.on_ready = on_ready
        self._flags = 0
        """What the kernel tells us of."""
        self._writer: trio.lowlevel.Task | None = None

    def begin(self) -> None:
        """Tell `on_ready` from now on, again and again for as long as there
        is something to read.
        """
        if not self._flags & select.EPOLLIN:
            self._tell(self._flags | select.EPOLLIN)

    def stop(self) -> None:
        """Tell nothing until it is begun again."""
        self._tell(self._flags & ~select.EPOLLIN)

    async def wait_writable(self) -> None:
        """Wait until the descriptor may be written to; one task at a time."""
        assert self._writer is None, "two tasks wait to write to one descriptor"
        self._writer = trio.lowlevel.current_task()
        self._tell(self._flags | select.EPOLLOUT)

        def abort(_: object) -> trio.lowlevel.Abort:
            self._end_writer()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def close(self, error: Exception) -> None:
        """Watch no more; who waits to write gets `error`.  The descriptor is still open."""
        self._tell(0)
        if self._writer is not None:
            trio.lowlevel.reschedule(self._end_writer(), outcome.Error(error))

    def _end_writer(self) -> trio.lowlevel.Task:
        task, self._writer = self._writer, None
        assert task is not None
        self._tell(self._flags & ~select.EPOLLOUT)
        return task

    def ready(self, events: int) -> None:
        """The kernel tells of something, maybe of the end."""
        if events & ~select.EPOLLIN and self._writer is not None:
            trio.lowlevel.reschedule(self._end_writer())
        if events & ~select.EPOLLOUT and self._flags & select.EPOLLIN:
            self.on_ready()

    def _tell(self, flags: int) -> None:
        """Say to the kernel what it shall tell; one that has nothing
        to tell does not know the descriptor: it would tell of its end.
        """
        known, self._flags = self._flags, flags
        if flags == known:
            return
        epoll = self._poller.epoll
        if not known:
            self._poller.watched[self._fd] = self
            try:
                epoll.register(self._fd, flags)
            except FileExistsError:
                # Trio leaves what it has waited for, such as to be connected, without events.
                epoll.modify(self._fd, flags)
        elif flags:
            epoll.modify(self._fd, flags)
        else:
            del self._poller.watched[self._fd]
            if not epoll.closed:  # the loop has not ended
                epoll.unregister(self._fd)
