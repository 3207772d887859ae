"""One call under way, from the side of its caller:
it ends by its reply, by its time limit, or by whoever gives it up.

A cancel scope costs some 5 us of processor time, and a small call opened up to three.  So
none is open while a call waits for its reply, which is most of the time: then the connection
looks after time limits.  Whatever else it may have to wait for (to be connected, room to
send, a payload) runs in `within`.

Invariants:
    - What first ends a call counts; a call that has its reply is not ended any
      more, but while its payload comes.

Concurrency: one event loop; one task waits.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import trio

from ..runtime.ports import Buffer
from .frame import Header

T = TypeVar("T")

Fill = Callable[[Header, Buffer], None]
"""Called with the header and the message of a reply without error."""


class TimeUpError(Exception):
    """The time limit of a call."""


class CallUnderWay:
    """See module head."""

    __slots__ = (
        "_error",
        "_has_ended",
        "_scope",
        "_task",
        "buffers",
        "deadline_s",
        "fill",
        "header",
        "message",
        "payload",
        "payload_taken",
        "reply",
    )

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        """Trio time."""
        self.header: Header | None = None
        self.message: Buffer = b""
        self.payload: memoryview | None = None
        """Of the reply, if it is small and came with it; else the calling task receives it."""
        self.payload_taken: trio.Event | None = None
        """Set by the calling task when it has no more business with the stream."""
        self.fill: Fill | None = None
        """Whoever has the reply may put its payload where it belongs,
        as far as it need not wait for it, until this call has ended.
        """
        self.reply: Any = None
        """Once `fill` has decoded it."""
        self.buffers: Sequence[memoryview] = ()
        """Then: where the rest of the payload goes."""
        self._error: Exception | None = None
        self._has_ended = False
        self._scope: trio.CancelScope | None = None
        self._task: trio.lowlevel.Task | None = None

    @property
    def is_answered(self) -> bool:
        """Whether a reply has come."""
        return self.header is not None

    async def within(self, work: Awaitable[T]) -> T:
        """Await `work` for as long as the call may last.

        Raises:
            TimeUpError: the time is up.
            FsError: what it was given up with.
        """
        if self._error is not None:
            raise self._take_error()
        with trio.CancelScope(deadline=self.deadline_s) as scope:
            self._scope = scope
            try:
                result = await work
                if self.header is not None or not scope.cancel_called:
                    # else it came too late: nobody would look at the time of this call any more
                    return result
            finally:
                self._scope = None
        raise self._take_error()

    async def wait(self) -> None:
        """Wait for the end; raises as `within`."""
        if self._error is None and not self._has_ended:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self._error is not None:
            raise self._take_error()

    def _take_error(self) -> Exception:
        """Return what is to be raised, and keep it no longer:
        it will know the frames that it passes, and these this call and its payload.
        """
        error, self._error = self._error, None
        return error or TimeUpError()

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def replied(self, header: Header, message: Buffer) -> None:
        """Here is the reply."""
        self.header, self.message = header, message
        self._end()

    def fail(self, error: Exception) -> None:
        """End the call with an error, if nothing else has ended it."""
        if self._scope is not None:
            self._error = self._error or error
            self._scope.cancel()
        elif not self._has_ended:
            self._error = error
            self._end()

    def look_at_time(self, now_s: float) -> None:
        """End the call if its time is up while it waits for its reply."""
        if now_s >= self.deadline_s and self._scope is None:
            self.fail(TimeUpError())

    def _end(self) -> None:
        self._has_ended = True
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None
