"""Traces inside one process: spans, whose they are, and what of them is told."""

import io
import json
import logging
import random
from itertools import count

import pytest
import trio
import trio.testing

from fs.runtime import tracing
from fs.runtime.log import JsonFormatter, LineFormatter
from fs.runtime.tracing import Remote, SpanKind, Tracer, parse_traceparent
from fs.schema.status import FsError, Status

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Clock:
    def __init__(self):
        self._times = count(1000)

    def wall_ns(self):
        return next(self._times)


def tracer(sample_rate=0.0, seed=1):
    ended = []
    made = Tracer(Clock(), random.Random(seed), sample_rate=sample_rate, sink=ended.append)
    return made, ended


def test_spans_form_a_tree_and_end_in_the_reverse_order():
    made, ended = tracer()
    assert tracing.live.count == 0 and tracing.current() is None
    with made.root("outer") as outer:
        assert tracing.current() is outer and tracing.live.count == 1
        with tracing.enter("inner", SpanKind.CLIENT) as inner:
            tracing.note("bytes", 5)
        assert tracing.current() is outer
    assert tracing.live.count == 0 and tracing.current() is None
    assert ended == [inner, outer]
    assert inner.trace_id == outer.trace_id and len(inner.trace_id) == 16
    assert inner.parent_id == outer.span_id and outer.parent_id == b""
    assert inner.attributes == {"bytes": 5}
    assert outer.began_ns < inner.began_ns < inner.ended_ns < outer.ended_ns


def test_nothing_is_entered_where_nothing_is_traced():
    assert tracing.enter("x") is None
    tracing.note("bytes", 5)
    assert tracing.live.count == 0


def test_errors_name_the_trace_where_it_leaves_the_program():
    made, ended = tracer()
    error = FsError(Status.NOT_FOUND, "/a")
    with pytest.raises(FsError), made.root("outer") as outer, made.join_wire(outer.wire, "served"):
        raise error
    assert [span.error for span in ended] == [str(error)] * 2
    assert error.__notes__ == [f"trace {outer.trace_id.hex()}"]


async def test_tasks_belong_to_the_trace_that_started_them_until_it_ends():
    made, _ = tracer()
    found, go_on = [], trio.Event()

    async def work():
        found.append(tracing.current())
        await go_on.wait()
        found.append(tracing.current())

    async def serve_others():
        tracing.leave()
        found.append(tracing.current())

    async with trio.open_nursery() as nursery:
        with made.root("outer") as outer:
            nursery.start_soon(work)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(serve_others)
            await trio.testing.wait_all_tasks_blocked()
            assert await trio.to_thread.run_sync(tracing.current) is outer
        go_on.set()
    assert found == [outer, None, None]


@pytest.mark.parametrize(
    "text",
    [
        f"00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-03",
        f" 00-{TRACE}-{SPAN}-01\n",
        f"cc-{TRACE}-{SPAN}-01-what-the-future-will-bring",
    ],
)
def test_a_traceparent_is_read(text):
    assert parse_traceparent(text) == Remote(bytes.fromhex(TRACE), bytes.fromhex(SPAN))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        f"00-{TRACE}-{SPAN}-00",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
    ],
)
def test_no_traceparent_or_one_that_is_not_sampled_is_none(text):
    assert parse_traceparent(text) is None


def test_a_traceparent_is_written_as_it_is_read():
    made, _ = tracer()
    with made.root("outer") as outer:
        assert parse_traceparent(outer.traceparent) == Remote(outer.trace_id, outer.span_id)
    with made.join(Remote(outer.trace_id, outer.span_id), "program") as joined:
        assert (joined.trace_id, joined.parent_id) == (outer.trace_id, outer.span_id)


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0])
def test_so_many_are_sampled(rate):
    made, _ = tracer(rate)
    total = 20_000
    found = sum(made.is_due() for _ in range(total))
    assert abs(found - total * rate) <= 5 * (total * rate * (1 - rate)) ** 0.5


def line(formatter):
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(formatter)
    logger = logging.Logger("fs.x")  # noqa: LOG001 - its lines go nowhere else
    logger.addHandler(handler)
    logger.info("text")
    return written.getvalue()


def test_lines_of_the_log_name_the_trace_they_belong_to():
    assert line(LineFormatter()).endswith("fs.x: text\n")
    assert "trace_id" not in line(JsonFormatter())
    made, _ = tracer()
    with made.root("outer") as outer:
        assert line(LineFormatter()).endswith(f"fs.x: text (trace {outer.trace_id.hex()})\n")
        fields = json.loads(line(JsonFormatter()))
    assert fields["trace_id"] == outer.trace_id.hex()
    assert fields["span_id"] == outer.span_id.hex()
