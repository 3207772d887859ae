"""A LOOKUP, or an OPEN for reading, that no task waits for: whoever receives meta's reply answers the kernel.

Most operations begin with one or two of these.  A task that waits for the reply, and one that takes its place as leader, cost two
turns of the event loop and as much again as all the rest of the mount's part.

It leaves nothing behind that would have to be undone, and is tried once.  What another try may cure is then done in the usual way, by a task.
"""

from ....rpc.api import UnderWay
from ....schema.status import FsError, Status
from .device import Request


class BegunRequest:
    """See module head; for those who give requests up it looks like a cancel scope."""

    __slots__ = ("began_s", "call", "is_abandoned", "request")

    def __init__(self, request: Request, began_s: float) -> None:
        self.request = request
        self.began_s = began_s
        """Trio time."""
        self.call: UnderWay | None = None
        self.is_abandoned = False
        """Nobody wants an answer any more."""

    def cancel(self) -> None:
        """End it now, if it has not ended."""
        if self.call is not None:
            self.call.fail(FsError(Status.RPC_TIMEOUT, "a request was given up"))

    def abandon(self) -> None:
        """End it without an answer: there is no kernel any more."""
        self.is_abandoned = True
        self.cancel()
