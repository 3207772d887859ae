"""Spans in OpenTelemetry's form, by its own SDK:
as its exporters see them, and as a collector gets them.
"""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fs.rpc.api import Identity
from tests.sim.traced import CLIENT, traced_write

pytest.importorskip("opentelemetry.sdk", reason="needs OpenTelemetry's SDK: emberfs[otel]")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="as above")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from fs.app.process.otel import SpanExport, export_to, resource_of

pytestmark = pytest.mark.slow

IDENTITY = Identity("test", 3, client_id="c", release="1.0")


@pytest.fixture(scope="module")
def exported():
    """What the SDK's exporter in memory was given of one write, by process."""
    kept = InMemorySpanExporter()
    sinks = {}

    def on_end(process, span):
        if process not in sinks:
            role = process.partition("-")[0]
            resource = resource_of(role, Identity("test", client_id=process))
            sinks[process] = SpanExport(SimpleSpanProcessor(kept), resource)
        sinks[process](span)

    told = traced_write(on_end)
    spans = kept.get_finished_spans()
    assert len(spans) == len(told)
    return spans


def service(span):
    return span.resource.attributes["service.instance.id"]


def test_one_write_is_one_tree_through_client_meta_head_middle_and_tail(exported):
    by_id = {span.context.span_id: span for span in exported}
    (root,) = [span for span in exported if span.parent is None]
    assert (service(root), root.name) == (CLIENT, "EmberFs.write_file")
    assert {span.context.trace_id for span in exported} == {root.context.trace_id}
    assert all(span.parent.span_id in by_id for span in exported if span is not root)
    updates = [s for s in exported if s.kind is SpanKind.SERVER and "position" in str(s.attributes)]
    places = {s.attributes["emberfs.position"]: s for s in updates}
    assert set(places) == {"head", "middle", "tail"}
    asked = by_id[places["tail"].parent.span_id]
    assert asked.kind is SpanKind.CLIENT
    assert by_id[asked.parent.span_id] is places["middle"]
    asked = by_id[places["middle"].parent.span_id]
    assert by_id[asked.parent.span_id] is places["head"]
    assert len({service(s) for s in updates}) == 3
    (made,) = [s for s in exported if s.kind is SpanKind.SERVER and s.name == "Meta.Create"]
    assert service(made) == "meta-1"
    assert made.resource.attributes["service.name"] == "emberfs-meta"
    assert sum(span.name == "disk flush" for span in exported) == 3
    assert all(span.end_time >= span.start_time for span in exported)
    assert all(span.status.status_code is StatusCode.UNSET for span in exported)


class Collector(BaseHTTPRequestHandler):
    """Takes one request of OTLP by HTTP."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_arguments):
        pass


def test_a_collector_gets_them_by_http():
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        server.received = []
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
            sink = export_to(endpoint, resource_of("mountd", IDENTITY))
            told = traced_write(lambda process, span: sink(span) if process == CLIENT else None)
            sink.close()
        finally:
            server.shutdown()
            serving.join()
    assert {path for path, _ in server.received} == {"/v1/traces"}
    spans = [
        span
        for _, request in server.received
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    wanted = [t.span for t in told if t.process == CLIENT]
    assert [span.span_id for span in spans] == [span.span_id for span in wanted]
    assert {span.trace_id for span in spans} == {wanted[0].trace_id}
    (resource,) = {
        r.resource.SerializeToString() for _, q in server.received for r in q.resource_spans
    }
    assert b"emberfs-mountd" in resource
