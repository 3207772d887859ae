"""A request that no task waits for: whoever receives the reply to what it has asked
for answers the kernel.

Most operations begin with one or two of these.  A task that waits for the reply, and
another one that takes its place as leader, cost two turns of the event loop, and as much
again as all the rest of the mount's part.

Two kinds:
    - Without effect: a LOOKUP, or an OPEN for reading.  It leaves nothing behind that would have to
      be undone, and is tried once.  What another try may cure a task does then, in the usual way.
    - With effect (`WITH_EFFECT`).  These see to it themselves that what they have begun comes to
      its end.  Nobody gives them up.
"""

import math
from typing import Final

from ....rpc.api import UnderWay
from ....schema.status import FsError, Status
from .device import Request
from .protocol import Opcode

WITH_EFFECT: Final = frozenset(
    {
        Opcode.CREATE,
        Opcode.MKDIR,
        Opcode.SYMLINK,
        Opcode.UNLINK,
        Opcode.RMDIR,
        Opcode.RENAME,
        Opcode.RENAME2,
        Opcode.SETATTR,
        Opcode.SETXATTR,
        Opcode.FLUSH,
        Opcode.FSYNC,
    }
)


class NoWay:
    """Of what is begun and goes on whatever becomes of its request: nothing ends it early."""

    deadline_s = math.inf
    is_answered = False

    def fail(self, _error: FsError) -> None:
        """Leave it alone."""


NO_WAY: Final = NoWay()


class BegunRequest:
    """See module head; for those who give requests up it looks like a cancel scope."""

    __slots__ = ("began_s", "call", "is_abandoned", "may_be_given_up", "request")

    def __init__(self, request: Request, began_s: float) -> None:
        self.request = request
        self.began_s = began_s
        """Trio time."""
        self.call: UnderWay | None = None
        self.is_abandoned = False
        """Nobody wants an answer any more."""
        self.may_be_given_up = False
        """Its caller got a signal, or is gone: `Interrupts` knows of it.  Of most it need not."""

    @property
    def has_effect(self) -> bool:
        """Whether it comes to its end by itself, and must not be done anew."""
        return self.request.opcode in WITH_EFFECT

    def cancel(self) -> None:
        """End it now, if it has not ended."""
        if self.call is not None:
            # not as a timeout: it says nothing of the service
            self.call.fail(FsError(Status.RPC_CANCELLED, "a request was given up"))

    def abandon(self) -> None:
        """End it without an answer: there is no kernel any more."""
        self.is_abandoned = True
        self.cancel()
