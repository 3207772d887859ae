"""Serving the metrics of this process to Prometheus, by HTTP, in its text format.

Invariants:
    - What is measured is read on the event loop, in one go, and never by another thread; the text
      is made of the reading by a thread.
    - Nothing is loaded, and no thread is there, until somebody asks; nothing
      waits for a thread at the end.
    - A client that does not speak is given up after CLIENT_TIMEOUT_S, one that speaks for
      ever after CLIENT_TIME_S_MAX.
    - At most CLIENTS_MAX are served at once; of those beyond WAITING_MAX
      that wait no descriptor is kept.

Asks nobody who he is: schema/config.py checks that the address is of this machine only, unless
somebody wanted otherwise.  Documents have a rule of their own (page_rule.py).

Concurrency: trio; one worker thread per request.
"""

import logging
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import trio

from ...runtime.figures import BOUNDS_S, Figures, Histogram, Source
from ...schema import metrics
from ...schema.metric import Kind
from ...schema.status import FsError, Status
from .page_rule import Asked

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from prometheus_client.metrics_core import Metric as Family

log = logging.getLogger(__name__)

Content = tuple[Sequence[tuple[str, str]], bytes]
"""Headers and body of an answer."""

Document = Callable[[], Callable[[], Content]]
"""Called on the event loop, to take what is known;
what it returns is called by another thread, and makes the answer of it.
"""

CLIENT_TIMEOUT_S: Final = 5.0
CLIENT_TIME_S_MAX: Final = 60.0
"""From being accepted, also for who sends a byte now and then."""
CLIENTS_MAX: Final = 4
OWN_ADDRESS: Final = "ember.own_address"
WAITING_MAX: Final = 32
"""Descriptors are what the process serves its cluster with."""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `tcp:HOST:PORT`."""
    host, _, port = address.removeprefix("tcp:").rpartition(":")
    return host.strip("[]"), int(port)


class Exposition:
    """The metrics of one process."""

    def __init__(
        self,
        address: str,
        sources: Sequence[Source],
        documents: Mapping[str, Document] | None = None,
        refusal: Callable[[Asked], str] = lambda _: "",
    ) -> None:
        """Serve nothing yet.

        Args:
            address: `tcp:HOST:PORT`; port 0: a free one.
            sources: asked at every reading; more may be added meanwhile.
            documents: what is served besides, by path; more may be added meanwhile.
            refusal: says why a document is not shown; empty: it is.  Called in a thread.
        """
        self.refusal = refusal
        self._documents = {} if documents is None else documents
        self._address = address
        self._sources = sources
        self._token: trio.lowlevel.TrioToken
        self._server: WSGIServer | None = None
        self._limiter = trio.CapacityLimiter(CLIENTS_MAX)
        self._answered: set[socket.socket] = set()
        """Connections that a thread has, and closes."""

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; reports the bound address.

        Raises:
            FsError: START_FAILED when the address cannot be bound.
        """
        host, port = split_address(self._address)
        self._token = trio.lowlevel.current_trio_token()
        try:
            listeners = await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            detail = f"process.metrics_address {self._address}: {error}"
            raise FsError(Status.START_FAILED, detail) from error
        bound = listeners[0].socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._serve, listeners)
            task_status.started(f"tcp:{shown}:{bound}")

    def read(self) -> Figures:
        """Return what is measured now; on the event loop."""
        figures = Figures()
        for source in self._sources:
            source(figures)
        return figures

    async def _serve(self, stream: trio.SocketStream) -> None:
        """Hand a connection to a thread, which closes it; end it when that takes too long."""
        taken = socket.socket(fileno=stream.socket.detach())
        is_one_too_many = self._limiter.statistics().tasks_waiting >= WAITING_MAX
        try:
            with trio.move_on_after(0 if is_one_too_many else CLIENT_TIME_S_MAX):
                await trio.to_thread.run_sync(
                    self._answer, taken, abandon_on_cancel=True, limiter=self._limiter
                )
        finally:
            if taken in self._answered:
                with suppress(OSError):  # it has just been closed
                    taken.shutdown(socket.SHUT_RDWR)
            else:
                taken.close()

    def _answer(self, taken: socket.socket) -> None:
        """Answer one request; in a thread."""
        self._answered.add(taken)
        try:
            with taken:
                taken.setblocking(True)
                if self._server is None:
                    self._server = _make_server(self)
                self._server.finish_request(taken, taken.getpeername()[:2])
        except OSError as error:
            log.debug("a reader of metrics left: %s", error)
        finally:
            self._answered.discard(taken)

    def has(self, path: str) -> bool:
        """True if there is a document at this path."""
        return path in self._documents

    def content(self, path: str) -> Content | None:
        """Return a document; None: there is none at this path.  In a thread."""
        document = self._documents.get(path)
        if document is None:
            return None
        try:
            make = trio.from_thread.run_sync(document, trio_token=self._token)
        except trio.RunFinishedError:  # as in `collect`
            return None
        return make()

    def collect(self) -> "Iterable[Family]":
        """Return a reading in the library's form; in a thread, called by the library."""
        began_s = time.perf_counter()
        try:
            figures = trio.from_thread.run_sync(self._read_after, began_s, trio_token=self._token)
        except trio.RunFinishedError:  # the process is ending; who asked has nobody to answer to
            return []
        return families(figures)

    def _read_after(self, began_s: float) -> Figures:
        waited_s = time.perf_counter() - began_s
        figures = self.read()
        figures.note(metrics.PROCESS_LOOP_WAIT, waited_s)
        figures.note(metrics.PROCESS_BLOCKS, sys.getallocatedblocks())
        return figures


def families(figures: Figures) -> "list[Family]":
    """Return a reading in the library's form, in the order of the documentation."""
    from prometheus_client import core  # noqa: PLC0415 - loaded when somebody asks for metrics

    found: list[Family] = []
    for metric in metrics.METRICS:
        if metric.kind is Kind.HISTOGRAM and metric in figures.histograms:
            histogram = core.HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in figures.histograms[metric].items():
                histogram.add_metric(labels, buckets=_buckets(value), sum_value=value.sum_s)
            found.append(histogram)
        elif metric in figures.numbers:
            make = (
                core.CounterMetricFamily if metric.kind is Kind.COUNTER else core.GaugeMetricFamily
            )
            family = make(metric.name, metric.help, labels=metric.labels)
            for labels, number in figures.numbers[metric].items():
                family.add_metric(labels, number)
            found.append(family)
    return found


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    ends = [*map(repr, BOUNDS_S), "+Inf"]
    return list(zip(ends, map(float, accumulate(histogram.counts)), strict=True))


def _make_server(exposition: Exposition) -> "WSGIServer":
    """Return what answers a connection; it listens nowhere itself.

    Takes some 50 ms the first time.
    """
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer  # noqa: PLC0415 - as above

    from prometheus_client import (  # noqa: PLC0415 - as above
        CollectorRegistry,
        ProcessCollector,
        make_wsgi_app,
    )

    class Handler(WSGIRequestHandler):
        timeout = CLIENT_TIMEOUT_S

        def get_environ(self) -> "WSGIEnvironment":
            return super().get_environ() | {OWN_ADDRESS: self.connection.getsockname()[0]}

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of the standard library
            log.debug(format, *args)

    registry = CollectorRegistry()
    registry.register(exposition)
    ProcessCollector(registry=registry)
    server = WSGIServer(("", 0), Handler, bind_and_activate=False)
    server.socket.close()  # connections come from elsewhere
    server.server_name, server.server_port = "", 0
    server.setup_environ()
    server.set_app(_app(exposition, make_wsgi_app(registry)))
    return server


def _app(exposition: Exposition, of_metrics: "WSGIApplication") -> "WSGIApplication":
    """Return what answers requests: documents at their paths, metrics at all others."""

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if exposition.has(path):
            asked = Asked(
                environ["REMOTE_ADDR"], environ[OWN_ADDRESS], environ.get("HTTP_HOST", "")
            )
            if why := exposition.refusal(asked):
                start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
                return [f"{why}\n".encode()]
        found = exposition.content(path)
        if found is None:
            return of_metrics(environ, start_response)
        headers, body = found
        start_response("200 OK", [*headers, ("Content-Length", str(len(body)))])
        return [body]

    return answer
