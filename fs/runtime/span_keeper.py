"""Spans kept in the process for a while, for somebody who watches: `ember admin trace`.

Invariants:
    - At whom nobody looks keeps nothing, and samples as it is configured.
    - A watch ends by itself: with the first span that ends after its time.  What it
      sampled is sampled as before again.
    - What is kept is bounded; the oldest goes first.

Concurrency: one event loop.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from .tracing import Span, Tracer

SPANS_MAX: Final = 8192
"""Some 5 MiB."""

WATCH_S_MAX: Final = 600.0
RATE_MIN: Final = 1e-6
"""A smaller one, or what is none, is taken for 0."""


class SpanKeeper:
    """The spans of one tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._kept: deque[tuple[int, Span]] = deque(maxlen=SPANS_MAX)
        self._number = 0
        self._until_s = -math.inf
        self._usual_sink: Callable[[Span], None] | None = None
        self._usual_rate = self._watched_rate = 0.0

    @property
    def is_on(self) -> bool:
        """True while spans are kept."""
        return self._until_s > -math.inf

    def watch(self, for_s: float, sample_rate: float) -> None:
        """Keep the spans that end within `for_s` from now, WATCH_S_MAX at most;
        a watch under way goes on until then.

        Args:
            for_s: seconds; 0: end a watch.
            sample_rate: so many of the operations born here are traced meanwhile, if that
                is more than is configured.
        """
        if not self.is_on and for_s > 0:
            self._kept.clear()
        self._stop()
        if not for_s > 0:  # nor is a NaN
            return
        tracer = self._tracer
        self._usual_sink, self._usual_rate = tracer.sink, tracer.sample_rate
        wanted = sample_rate if RATE_MIN <= sample_rate <= 1 else 0.0
        self._watched_rate = max(wanted, tracer.sample_rate)
        tracer.sink, tracer.sample_rate = self._take, self._watched_rate
        self._until_s = tracer.clock.monotonic_s() + min(for_s, WATCH_S_MAX)

    def _stop(self) -> None:
        if not self.is_on:
            return
        self._until_s = -math.inf
        self._tracer.sink = self._usual_sink
        if self._tracer.sample_rate == self._watched_rate:  # else somebody has set it since
            self._tracer.sample_rate = self._usual_rate

    def _take(self, span: Span) -> None:
        if self._usual_sink is not None:
            self._usual_sink(span)
        if self._tracer.clock.monotonic_s() > self._until_s:
            self._stop()
            return
        self._number += 1
        self._kept.append((self._number, span))

    def since(self, number: int) -> Iterator[tuple[int, Span]]:
        """Yield the spans that are kept, in the order in which they ended, each with its number,
        from the one after `number` on.
        """
        return ((own, span) for own, span in self._kept if own > number)

    def told(self, after: int, bytes_max: int) -> bytes:
        """Return what is kept beyond the number `after` as JSON:
        as many rows as fit, and whether there are more.
        """
        rows: list[str] = []
        size, has_more = len(_ENVELOPE) + len(str(True)), False
        for number, span in self.since(after):
            row = json.dumps(_row(number, span), separators=(",", ":"))
            size += len(row) + 1
            if size > bytes_max:
                has_more = True
                break
            rows.append(row)
        return (_ENVELOPE % (json.dumps(has_more), ",".join(rows))).encode()


_ENVELOPE: Final = '{"has_more":%s,"spans":[%s]}'


def _row(number: int, span: Span) -> dict[str, Any]:
    return {
        "number": number,
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent_id": span.parent_id.hex(),
        "name": span.name,
        "kind": span.kind.value,
        "began_ns": span.began_ns,
        "ended_ns": span.ended_ns,
        "error": span.error,
        "attributes": span.attributes,
    }
