"""Traces: one request followed through all tasks and processes that it makes work.

A trace is born in a client (an operation of a mount, a call of the native client, a batch of a
ring, a command) and named by 128 random bits; each piece of work on it is a span, named by 64 more,
which knows the span that caused it: as in the "Trace Context" of the W3C, whose text form
(`traceparent`) goes in and out.  Between processes it travels in the frames of requests
(fs/rpc/frame.py), inside one with the context of tasks: what a task starts belongs to its trace.

Only sampled requests have a trace.  What the others pay is one look at
`live.count` where a trace might matter:

    span = enter(name) if live.count else None

Invariants:
    - A span that has ended is no one's current span, also of tasks
      that it started and that live on.
    - A span is entered and ended by the same task.
    - Nothing random is drawn for requests that are not traced, so that a simulation
      without traces stays what it was.

Does not do: keeping spans; whoever wants them gives the tracer a `sink`.

Concurrency: one event loop per tracer; `live.count` and the context are right in
threads that tasks wait for, too.
"""

import math
import random
import re
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Final, Self

from ..schema.status import FsError
from .ports import Clock

TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
WIRE_BYTES: Final = TRACE_ID_BYTES + SPAN_ID_BYTES
"""Of a trace in a frame: the trace id, and the id of the span that asks."""

_TRACEPARENT: Final = re.compile(
    "^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$"
)
_SAMPLED: Final = 1
_INVALID_VERSION: Final = "ff"


class SpanKind(Enum):
    """Where a span stands."""

    INTERNAL = "internal"
    CLIENT = "client"
    """It waits for a span of kind SERVER, in general of another process."""
    SERVER = "server"


class _Live:
    """How many spans have begun and not ended, in this interpreter."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


live: Final = _Live()


class Span:
    """One piece of work on a traced request; entered when it is made."""

    __slots__ = (
        "_token",
        "_tracer",
        "attributes",
        "began_ns",
        "ended_ns",
        "error",
        "is_entry",
        "kind",
        "name",
        "parent_id",
        "span_id",
        "trace_id",
    )

    def __init__(
        self, tracer: "Tracer", name: str, kind: SpanKind, trace_id: bytes, parent_id: bytes
    ) -> None:
        """Begin, as the current span of this task.

        Args:
            tracer: whose clock and randomness are used, and who is told of the end.
            name: what is done.
            kind: where it stands.
            trace_id: TRACE_ID_BYTES of them.
            parent_id: SPAN_ID_BYTES of the span that caused it; empty: none, it
                is the first of its trace.
        """
        self._tracer = tracer
        self.name = name
        self.kind = kind
        self.trace_id = trace_id
        self.parent_id = parent_id
        self.span_id = tracer.random.randbytes(SPAN_ID_BYTES)
        self.attributes: dict[str, str | int | float | bool] = {}
        self.error = ""
        """What went wrong; empty: nothing."""
        self.is_entry = False
        """It is the first of its trace that this program knows:
        errors that leave it name the trace.
        """
        self.began_ns = tracer.clock.wall_ns()
        self.ended_ns = 0
        """0: not yet."""
        live.count += 1
        self._token: Token[Span | None] = _current.set(self)

    @property
    def wire(self) -> bytes:
        """As it stands in the frames of the requests that this span sends."""
        return self.trace_id + self.span_id

    @property
    def traceparent(self) -> str:
        """As others who know the W3C's trace context read it."""
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-{_SAMPLED:02x}"

    def child(self, name: str, kind: SpanKind = SpanKind.INTERNAL) -> "Span":
        """Begin a span that this one causes."""
        return Span(self._tracer, name, kind, self.trace_id, self.span_id)

    def note_error(self, error: BaseException) -> None:
        """It has failed, or was given up."""
        self.error = str(error) if isinstance(error, FsError) else type(error).__name__

    def end(self) -> None:
        """It is over; what was the task's current span before is so again."""
        assert not self.ended_ns, self.name
        self.ended_ns = max(self._tracer.clock.wall_ns(), self.began_ns)
        live.count -= 1
        _current.reset(self._token)
        if self._tracer.sink is not None:
            self._tracer.sink(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.note_error(error)
            if self.is_entry:
                error.add_note(f"trace {self.trace_id.hex()}")
        self.end()


_current: Final[ContextVar[Span | None]] = ContextVar("span", default=None)


def current() -> Span | None:
    """Return the span that the running task works for; None: nothing that is traced.

    Ask only while `live.count`.
    """
    span = _current.get()
    return None if span is None or span.ended_ns else span


def enter(name: str, kind: SpanKind = SpanKind.INTERNAL) -> Span | None:
    """Begin a span below the current one; None when there is none.  Ask only while `live.count`."""
    span = current()
    return None if span is None else span.child(name, kind)


def note(name: str, value: str | float | bool) -> None:
    """Say something of the current span, if there is one.  Ask only while `live.count`."""
    span = current()
    if span is not None:
        span.attributes[name] = value


def leave() -> None:
    """This task works for no trace any more: for tasks that a request starts,
    and that serve others.
    """
    _current.set(None)


@dataclass(frozen=True, slots=True)
class Remote:
    """A span of another process, or program, that causes one here."""

    trace_id: bytes
    span_id: bytes


def parse_traceparent(text: str) -> Remote | None:
    """Return the span that a `traceparent` names;
    None for one that is not sampled, or no such text.
    """
    found = _TRACEPARENT.match(text.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == _INVALID_VERSION or (version == "00" and rest) or not int(flags, 16) & _SAMPLED:
        return None
    remote = Remote(bytes.fromhex(trace_id), bytes.fromhex(span_id))
    return remote if any(remote.trace_id) and any(remote.span_id) else None


class Tracer:
    """The traces of one process."""

    def __init__(
        self,
        clock: Clock,
        randomness: random.Random,
        *,
        sample_rate: float = 0.0,
        sink: Callable[[Span], None] | None = None,
    ) -> None:
        """Trace nothing yet.

        Args:
            clock: wall time says when spans began and ended.
            randomness: of ids and of sampling.
            sample_rate: the share of the operations born here that `is_due` picks, 0 to 1.
            sink: is given each span when it has ended; must neither wait nor raise.
        """
        self.clock = clock
        self.random = randomness
        self.sample_rate = self._configured_rate = sample_rate
        self.sink = sink
        self._gap = self._next_gap() if sample_rate else 0

    def adopt(self, sample_rate: float) -> None:
        """Sample the configured share from now on, if another one was configured before;
        else a watch goes on with its own.
        """
        if sample_rate != self._configured_rate:
            self._configured_rate = self.sample_rate = sample_rate
            self._gap = self._next_gap() if sample_rate else 0

    def is_due(self) -> bool:
        """Return whether to trace the operation that begins now.

        Ask only where `sample_rate` is not 0.
        """
        if self._gap:
            self._gap -= 1
            return False
        self._gap = self._next_gap()
        return True

    def _next_gap(self) -> int:
        """Return how many operations to leave out:
        as many as between those that a throw of dice picks.
        """
        if self.sample_rate >= 1:
            return 0
        return int(math.log1p(-self.random.random()) / math.log1p(-self.sample_rate))

    def root(self, name: str, kind: SpanKind = SpanKind.INTERNAL) -> Span:
        """Begin the first span of a new trace."""
        span = Span(self, name, kind, self.random.randbytes(TRACE_ID_BYTES), b"")
        span.is_entry = True
        return span

    def join(self, remote: Remote, name: str, kind: SpanKind = SpanKind.INTERNAL) -> Span:
        """Begin a span of a program that is a part of something that is traced."""
        span = Span(self, name, kind, remote.trace_id, remote.span_id)
        span.is_entry = True
        return span

    def join_wire(self, wire: bytes, name: str) -> Span:
        """Begin a span for a request that came with these WIRE_BYTES."""
        trace_id, parent_id = wire[:TRACE_ID_BYTES], wire[TRACE_ID_BYTES:]
        return Span(self, name, SpanKind.SERVER, trace_id, parent_id)
