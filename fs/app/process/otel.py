"""Spans to a collector of OpenTelemetry.

Needs `emberfs[otel]`; loaded only where trace.otlp_endpoint is set.

The SDK gathers spans and sends them by HTTP in a thread of its own; what a collector does not take
in time is dropped, and the SDK says so in the log.  Nothing here waits on the event loop.
"""

import logging
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from ...rpc.api import Identity
from ...runtime import tracing

_KINDS: Final = {
    tracing.SpanKind.INTERNAL: SpanKind.INTERNAL,
    tracing.SpanKind.CLIENT: SpanKind.CLIENT,
    tracing.SpanKind.SERVER: SpanKind.SERVER,
}


def resource_of(role: str, identity: Identity) -> Resource:
    """Return how a process presents itself to a collector."""
    return Resource(
        {
            "service.namespace": identity.cluster_id,
            "service.name": f"emberfs-{role}",
            "service.instance.id": str(identity.node_id or identity.client_id),
            "service.version": identity.release,
        }
    )


class SpanExport:
    """The sink of a process's tracer."""

    def __init__(self, processor: SpanProcessor, resource: Resource) -> None:
        """Give spans that have ended to `processor`, as those of `resource`."""
        self._processor = processor
        self._resource = resource
        self._scope = InstrumentationScope("emberfs")

    def __call__(self, span: tracing.Span) -> None:
        """Take a span; neither waits nor raises."""
        self._processor.on_end(readable(span, self._resource, self._scope))

    def close(self) -> None:
        """Send what is left; may take seconds: in a thread."""
        self._processor.shutdown()


def readable(
    span: tracing.Span, resource: Resource, scope: InstrumentationScope | None = None
) -> ReadableSpan:
    """Return a span that has ended in the SDK's form."""
    parent = _context(span.trace_id, span.parent_id) if span.parent_id else None
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=parent,
        resource=resource,
        attributes={f"emberfs.{name}": value for name, value in span.attributes.items()},
        kind=_KINDS[span.kind],
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=span.began_ns,
        end_time=span.ended_ns,
        instrumentation_scope=scope,
    )


def _context(trace_id: bytes, span_id: bytes) -> SpanContext:
    return SpanContext(
        int.from_bytes(trace_id),
        int.from_bytes(span_id),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def export_to(endpoint: str, resource: Resource) -> SpanExport:
    """Return what sends spans to a collector by HTTP."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - takes a while
        OTLPSpanExporter,
    )

    # Its requests would be said at level debug, one line each.
    logging.getLogger("urllib3").setLevel(logging.INFO)
    return SpanExport(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)), resource)
