"""What serving one request needs: who serves it, how far it has come, and what its end is called.

Part of fs/rpc/server_connection.py, which runs requests.  No I/O here but for the log.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio
from google.protobuf.message import DecodeError

from ..runtime.tracing import Span
from ..schema.lacks import lack_among, lacking
from ..schema.method import Method
from ..schema.status import FsError, Status
from .api import Admit, Begin, Handler, Packed, Quick
from .buffer_pool import Lease
from .frame import Header
from .observer import MethodObserver

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Binding:
    """A method and who serves it."""

    method: Method[Any, Any]
    handler: Handler
    admit: Admit | None = None
    observed: MethodObserver | None = None
    is_plain: bool = False
    """The handler is a plain function: it returns its result,
    or what has to be awaited for that.
    """
    is_tried: bool = False
    """The handler is a coroutine function that hardly ever waits, and may be called again:
    it is begun outside of any task.
    """
    quick: Quick | None = None
    packed: Packed | None = None
    begin: Begin | None = None


class Work:
    """One request under way."""

    __slots__ = (
        "answer",
        "began_s",
        "binding",
        "deadline_s",
        "has_waited",
        "header",
        "is_begun",
        "is_over",
        "is_run",
        "is_told",
        "lease",
        "lent_bytes",
        "result",
        "sent_bytes",
        "span",
        "would_block",
    )

    def __init__(
        self, binding: Binding, header: Header, lease: Lease | None, began_s: float
    ) -> None:
        self.binding = binding
        self.header = header
        self.lease = lease
        self.began_s = began_s
        """Trio time."""
        self.deadline_s = began_s + (header.timeout_ms / 1000 or math.inf)
        """Trio time."""
        self.span: Span | None = None
        self.result: Any = None
        """What the method returned, or an FsError to answer with; None: it was given up."""
        self.sent_bytes = 0
        self.lent_bytes = 0
        """Of the payload of its result, if the caller reads it where it is."""
        self.would_block = False
        """Its quick form has found out that it has to wait."""
        self.answer: Callable[[Any], None] | None = None
        """What the method may answer by later; see `Call.answer`."""
        self.has_waited = False
        self.is_begun = False
        """The method was called."""
        self.is_run = False
        """The method has ended: no time limit concerns it any more."""
        self.is_told = False
        """The caller has its reply, though the method may not have ended."""
        self.is_over = False
        """Nothing is held for it any more."""

    def __str__(self) -> str:
        return f"{self.binding.method} request {self.header.request_id}"

    def given_up(self) -> FsError | None:
        """Return what to answer to a request whose method was cancelled;
        None: its caller wants no answer.
        """
        if trio.current_time() < self.deadline_s:
            return None
        detail = f"{self.binding.method} took over {self.header.timeout_ms} ms"
        return FsError(Status.RPC_TIMEOUT, detail)

    def failed(self, error: Exception, on_bug: Callable[[Exception], None]) -> FsError:
        """Return what to answer after an error of its method:
        one that is no operating error, and no lack, is a bug.
        """
        if isinstance(error, FsError):
            return error
        method = self.binding.method
        lack = lack_among(error)
        if lack is not None:
            log.warning("%s: %s: %s", self, type(lack).__name__, lack)
            return lacking(str(method), lack)
        if isinstance(error, DecodeError):
            return FsError(Status.RPC_BAD_REQUEST, f"{method}: {error}")
        operating = _only_operating(error)
        if operating is not None:
            return operating
        on_bug(error)
        return FsError(Status.INTERNAL_ERROR, f"{method}: {type(error).__name__}")


class Turn:
    """A task's turns at receiving and serving:
    each ends with the first request that has to wait, whose task it then is.

    All its requests share one cancel scope, because opening and closing one costs some 5 us of
    processor time.  Nobody ends it before a request has waited, nor once that one's method has
    ended: then it is answered.  A scope that was ended is the last one of its task.
    """

    __slots__ = ("scope", "work")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.work: Work | None = None
        """The request under way."""


def _only_operating(error: BaseException) -> FsError | None:
    """Return an operating error of a group that holds nothing else, as nurseries raise it."""
    if isinstance(error, FsError):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    found = [_only_operating(inner) for inner in error.exceptions]
    return found[0] if all(found) else None
