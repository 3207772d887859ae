"""What a process measures of its remote calls, those it serves and those it makes.

A `Server` and a `ChannelPool` that are given an observer keep one `MethodObserver` per method;
one that has none pays a comparison per call.  A call that is observed costs about two function
calls and a search in 18 numbers.

Whoever waits on purpose (WAITING) is measured, but never slow.

Concurrency: event loop only.
"""

import logging
import math
from bisect import bisect_left
from collections import defaultdict
from typing import Any, Final

from ..runtime.figures import BOUNDS_S, Figures, Histogram
from ..runtime.readiness import current_time
from ..schema import metrics, services
from ..schema.method import Method
from ..schema.status import FsError

log = logging.getLogger(__name__)

WAITING: Final = frozenset(
    str(method) for method in (services.MGMTD_GET_ROUTING_INFO, services.META_FIND_LOCK_CONFLICT)
)
"""Methods whose caller says how long they may wait for something to happen."""

SLOW_LINE_INTERVAL_S: Final = 1.0
"""Between two lines of the log about slow requests of one method:
a disk that stalls makes thousands slow at once.
"""

CANCELLED: Final = "CANCELLED"


class MethodObserver:
    """One method, on one side."""

    __slots__ = (
        "_line_due_s", "_untold_count", "duration", "errors", "in_flight", "name",
        "received_bytes", "sent_bytes", "slow_count", "slow_s",
    )  # fmt: skip

    def __init__(self, name: str, slow_s: float = math.inf) -> None:
        self.name = name
        self.slow_s = slow_s
        self.duration = Histogram()
        self.errors: dict[str, int] = {}
        self.in_flight = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.slow_count = 0
        self._line_due_s = 0.0
        self._untold_count = 0

    def begin(self) -> float:
        """A call begins; returns the time to be given to `end`."""
        self.in_flight += 1
        return current_time()

    def end(self, began_s: float, received_bytes: int, sent_bytes: int) -> float:
        """A call has ended; returns how long it took, in seconds."""
        took_s = current_time() - began_s
        self.in_flight -= 1
        duration = self.duration  # as `Histogram.note`, without a call
        duration.counts[bisect_left(BOUNDS_S, took_s)] += 1
        duration.sum_s += took_s
        self.received_bytes += received_bytes
        self.sent_bytes += sent_bytes
        return took_s

    def note_error(self, error: FsError | None) -> None:
        """A call failed; None: it was cancelled."""
        name = CANCELLED if error is None else error.status.name
        self.errors[name] = self.errors.get(name, 0) + 1

    def note_slow(self, took_s: float, request_id: int, peer: str, error: FsError | None) -> None:
        """A request took longer than `slow_s`: count it,
        and log it unless another one was logged just now.
        """
        self.slow_count += 1
        now_s = current_time()
        if now_s < self._line_due_s:
            self._untold_count += 1
            return
        self._line_due_s = now_s + SLOW_LINE_INTERVAL_S
        log.warning(
            "slow request: %s %d from %s took %.3f s: %s%s",
            self.name,
            request_id,
            peer,
            took_s,
            "OK" if error is None else error,
            f" ({self._untold_count} more of this method since the last such line)"
            if self._untold_count
            else "",
        )
        self._untold_count = 0


class RpcObserver:
    """All methods of one process, on both sides."""

    def __init__(self, slow_request_s: float = 0.0) -> None:
        """Measure nothing yet.

        Args:
            slow_request_s: requests that are served for longer are logged; 0: none is.
        """
        self._slow_s = slow_request_s or math.inf
        self._served: dict[str, MethodObserver] = {}
        self._called: dict[int, MethodObserver] = {}
        self.user_bytes: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        """Received and sent, by uid, of clients that proved a user's token."""

    def adopt(self, slow_request_s: float) -> None:
        """Count and log as slow what takes longer than this from now on; 0: nothing."""
        self._slow_s = slow_request_s or math.inf
        for name, one in self._served.items():
            one.slow_s = math.inf if name in WAITING else self._slow_s

    def served(self, method: Method[Any, Any]) -> MethodObserver:
        """Return what measures a method that this process serves."""
        name = str(method)
        found = self._served.get(name)
        if found is None:
            slow_s = math.inf if name in WAITING else self._slow_s
            found = self._served[name] = MethodObserver(name, slow_s)
        return found

    def called(self, method: Method[Any, Any]) -> MethodObserver:
        """Return what measures a method that this process calls."""
        key = method.service_number << 16 | method.number
        found = self._called.get(key)
        if found is None:
            found = self._called[key] = MethodObserver(str(method))
        return found

    def say(self, figures: Figures) -> None:
        """Say everything, of methods that were called at least once."""
        for one in self._served.values():
            if one.in_flight or one.duration.count or one.errors:
                figures.note_histogram(metrics.SERVER_DURATION, one.duration, one.name)
                figures.note(metrics.SERVER_IN_FLIGHT, one.in_flight, one.name)
                figures.note(metrics.SERVER_RECEIVED, one.received_bytes, one.name)
                figures.note(metrics.SERVER_SENT, one.sent_bytes, one.name)
                for status, count in one.errors.items():
                    figures.note(metrics.SERVER_ERRORS, count, one.name, status)
                if one.slow_count:
                    figures.note(metrics.SERVER_SLOW, one.slow_count, one.name)
        for one in self._called.values():
            figures.note_histogram(metrics.CLIENT_DURATION, one.duration, one.name)
            figures.note(metrics.CLIENT_IN_FLIGHT, one.in_flight, one.name)
            figures.note(metrics.CLIENT_SENT, one.sent_bytes, one.name)
            figures.note(metrics.CLIENT_RECEIVED, one.received_bytes, one.name)
            for status, count in one.errors.items():
                figures.note(metrics.CLIENT_ERRORS, count, one.name, status)
        for uid, (received, sent) in self.user_bytes.items():
            figures.note(metrics.SERVER_USER_RECEIVED, received, uid)
            figures.note(metrics.SERVER_USER_SENT, sent, uid)
