"""When and how long a client repeats a failed request.  Pure but for the pause itself.

One `Retry` belongs to one operation of the user.  The registry of statuses says what may be
repeated; this module adds the pauses (growing, jittered) and the end: client.retry_time_s_max after
the last sign that somebody works on it.  What is bounded is silence, and what says that nothing can
be done; a cluster that is slow is waited for, and time in which this process itself was stopped is
nobody's silence.

Does not: choose another peer or refresh routing; the callers do, they know the peers.
"""

from math import inf
from typing import Final

import trio

from ..runtime.ports import Runtime
from ..schema.config import ClientSection
from ..schema.status import FsError, Retry, Status
from .patience import ASK_S, PATIENT_S, SlowPeerError, same_error

INTERNAL_TRIES_MAX: Final = 3
"""A peer that fails on an assertion will most likely do so again: few tries, then tell the user."""

WORKED_ON_S_MAX: Final = 300.0
"""No try begins later, whoever works on it: the largest client.retry_time_s_max.

Services remember for longer than `longest_s` what they have done.
"""

_AT_WORK: Final = {Status.CHANNEL_BUSY, Status.RPC_OVERLOADED}
"""What a peer that works says, besides a `SlowPeerError`."""

_UNREACHED: Final = {Status.RPC_CONNECT_FAILED, Status.RPC_CONNECTION_LOST, Status.RPC_TIMEOUT}
"""Nobody has said anything, unless it is a `SlowPeerError`."""


def longest_s(section: ClientSection) -> float:
    """Return how long an operation may be under way: until its last try begins, and that one."""
    return max(section.retry_time_s_max, WORKED_ON_S_MAX) + max(PATIENT_S, section.call_timeout_s)


class RetryBudget:
    """The pauses and the end of one operation's repetitions."""

    def __init__(
        self,
        section: ClientSection,
        runtime: Runtime,
        began_s: float | None = None,
        *,
        gives_way: bool = False,
    ) -> None:
        """Begin with the operation, or when it has failed for the first time.

        Args:
            section: pauses, and how long it may be tried.
            runtime: its random numbers spread the pauses.
            began_s: when the operation began, in trio time; None: now.
            gives_way: others can be asked in this process's place, and will be: who has met nothing
                but silence for as long as one call may take gives up, with RPC_TIMEOUT.
        """
        self._pause_s = section.retry_pause_s
        self._pause_s_max = section.retry_pause_s_max
        began_s = trio.current_time() if began_s is None else began_s
        self._silence_s_max = section.retry_time_s_max
        self._deadline_s = began_s + section.retry_time_s_max
        self._end_s = began_s + max(WORKED_ON_S_MAX, section.retry_time_s_max)
        self._seen_s = began_s
        """When this was last asked, or the beginning."""
        self._step_s_max = 2 * section.call_timeout_s + ASK_S
        """What a try takes at the most, with the question whether its peer lives, and some more."""
        self._random = runtime.random
        self._internal_tries = 0
        self._unreached_s_max = section.call_timeout_s if gives_way else inf
        self._heard_s = began_s
        """When a peer was last heard of, or the beginning."""
        self.try_count = 1

    def is_spent(self) -> bool:
        """True when the operation has been tried for as long as it may."""
        return trio.current_time() >= self._deadline_s

    def check(self, error: FsError) -> None:
        """Raise an error like `error` if it is final: not retryable, or the time is up."""
        self._forgive()
        if isinstance(error, SlowPeerError) or error.status in _AT_WORK:
            self._deadline_s = min(trio.current_time() + self._silence_s_max, self._end_s)
        if error.status is Status.INTERNAL_ERROR:
            self._internal_tries += 1
            if self._internal_tries >= INTERNAL_TRIES_MAX:
                raise same_error(error)
        if error.retry is Retry.NEVER or self.is_spent():
            raise same_error(error)
        self._check_reached(error)

    def _forgive(self) -> None:
        """Allow for the time in which this process was stopped: it heard nobody, whoever spoke."""
        now_s = trio.current_time()
        stood_s = now_s - self._seen_s - self._step_s_max
        if stood_s > 0.0 and self._deadline_s < self._end_s:
            self._deadline_s = min(self._deadline_s + stood_s, self._end_s)
        self._seen_s = now_s

    def _check_reached(self, error: FsError) -> None:
        now_s = trio.current_time()
        if error.status not in _UNREACHED or isinstance(error, SlowPeerError):
            self._heard_s = now_s
        elif now_s - self._heard_s >= self._unreached_s_max:
            since_s = now_s - self._heard_s
            detail = (
                f"not reached from here for {since_s:.0f} s: {error.status.name}: {error.detail}"
            )
            raise FsError(Status.RPC_TIMEOUT, detail)

    async def pause(self) -> None:
        """Wait before the next try: each pause up to twice the last, at most retry_pause_s_max."""
        self._forgive()
        self.try_count += 1
        await trio.sleep(self._pause_s * self._random.uniform(0.5, 1.0))
        self._forgive()
        self._pause_s = min(self._pause_s * 2, self._pause_s_max)
