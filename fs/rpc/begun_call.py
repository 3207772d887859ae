"""A call that nobody waits for: its end is told to a function, by the task that receives.

For small calls that somebody is in a hurry for: neither a task has to wait nor to be woken, which
saves a turn of the event loop.

Invariants:
    - The function is called once, with what came or why nothing did, and neither waits nor raises.
      Should it raise all the same, say for want of memory, that is told, and hurts neither its
      connection nor the other calls of it.
    - After that nothing of the call is touched any more, whatever the peer still sends.

Concurrency: one event loop; the function may be called in any task of it.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..runtime.ports import Buffer
from ..schema.lacks import lack_among
from .call_under_way import TimeUpError
from .frame import Header
from .framed_stream import SMALL_PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    import trio

log = logging.getLogger(__name__)

OnEnd = Callable[["BegunCall", Exception | None], None]
"""Called with the call, and None if it has its reply, else an FsError or TimeUpError."""


class BegunCall:
    """See module head; for its connection it looks like a `CallUnderWay`."""

    __slots__ = (
        "_on_end",
        "deadline_s",
        "forget",
        "header",
        "message",
        "payload",
        "payload_bytes_max",
        "payload_taken",
    )

    def __init__(
        self, deadline_s: float, on_end: OnEnd, payload_bytes_max: int = SMALL_PAYLOAD_BYTES_MAX
    ) -> None:
        self.deadline_s = deadline_s
        """Trio time."""
        self.header: Header | None = None
        self.message: Buffer = b""
        self.payload: memoryview | None = None
        """Of the reply: while it is told of; what is wanted of it later has to be copied."""
        self.payload_bytes_max = payload_bytes_max
        """A reply that has more is none to this call."""
        self.payload_taken: trio.Event | None = None
        """Never set: the receiving task keeps its stream."""
        self.forget: Callable[[], None] = _nothing
        """Set by the connection: what it does when the call ends before its reply has come."""
        self._on_end: OnEnd | None = on_end

    @property
    def is_answered(self) -> bool:
        """Whether a reply has come."""
        return self.header is not None

    def replied(self, header: Header, message: Buffer) -> None:
        """Here is the reply, its payload came before."""
        self.header, self.message = header, message
        on_end, self._on_end = self._on_end, None  # as `_end`, without a call
        if on_end is not None:
            try:
                on_end(self, None)
            except Exception as failure:  # noqa: BLE001 - the edge of whoever receives for all
                _note(failure)

    def fail(self, error: Exception) -> None:
        """End the call with an error, if nothing else has ended it."""
        if self._on_end is not None:
            self.forget()
            self._end(error)

    def look_at_time(self, now_s: float) -> None:
        """End the call if its time is up."""
        if now_s >= self.deadline_s:
            self.fail(TimeUpError())

    def _end(self, error: Exception | None) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            try:
                on_end(self, error)
            except Exception as failure:  # noqa: BLE001 - the edge of whoever receives for all
                _note(failure)


def _note(failure: Exception) -> None:
    if lack_among(failure) is None:
        log.error("bug at the end of a call", exc_info=failure)
    else:
        log.warning("the end of a call: %r", failure)


def _nothing() -> None:
    """Nothing is to be forgotten before it has been sent."""
