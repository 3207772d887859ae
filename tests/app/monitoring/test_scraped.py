"""What two readings of a process say of the time between them."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fs.app.monitoring.mount_stat import HEAD, cells
from fs.app.monitoring.scraped import Reading, Span, parse, quantile
from fs.app.monitoring.top import FILE_WIDTH, row_of, rows_between, table_of
from fs.app.process.exposition import families
from fs.runtime.figures import BOUNDS_S, Figures, Histogram
from fs.schema import metrics


def reading(at_s, numbers=(), histograms=()):
    """Return what a process shows that noted these,
    by way of the text that Prometheus would get.
    """
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415

    figures = Figures()
    for metric, value, *labels in numbers:
        figures.note(metric, value, *labels)
    for metric, durations, *labels in histograms:
        histogram = Histogram()
        for duration in durations:
            histogram.note(duration)
        figures.note_histogram(metric, histogram, *labels)

    class Source:
        def collect(self):
            return families(figures)

    registry = CollectorRegistry()
    registry.register(Source())
    return parse(generate_latest(registry).decode(), at_s)


def test_rates_means_and_quantiles_are_of_the_time_between():
    name = metrics.SERVER_DURATION
    before = reading(
        10.0,
        [(metrics.SERVER_SENT, 100, "Meta.Open")],
        [(name, [5.0] * 50, "Meta.Open"), (name, [0.2], "Meta.List")],
    )
    after = reading(
        12.0,
        [(metrics.SERVER_SENT, 1100, "Meta.Open"), (metrics.SERVER_SENT, 10, "Meta.Close")],
        [
            (name, [5.0] * 50 + [0.001] * 98 + [0.3] * 2, "Meta.Open"),
            (name, [0.2], "Meta.List"),
            (name, [10.0] * 9, "Mgmtd.GetRoutingInfo"),
        ],  # waits on purpose
    )
    row = row_of("meta-1", Span(before, after))
    assert row.requests_per_s == 50
    assert row.sent_per_s == 505
    assert row.mean_s == pytest.approx((0.098 + 0.6) / 100)
    assert row.p99_s == 0.5
    assert row.busiest == "Open"
    assert Span(before, after).quantile_s(name.name, 0.5, method="Meta.Open") == 0.001
    assert Span(before, after).quantile_s(name.name, 0.5, method="Meta.List") == 0.0


def test_a_table_has_a_line_for_each_process():
    before = {name: reading(0.0) for name in ("kv", "storage-1")}
    after = {name: reading(1.0) for name in ("kv", "storage-1", "mount-1")}
    console = Console(width=FILE_WIDTH, file=io.StringIO())
    console.print(table_of(rows_between(before, after)))
    lines = console.file.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["process", "kv", "storage-1"]


def test_a_process_that_began_anew_counts_from_its_start():
    before = reading(
        1.0, [(metrics.KV_COMMITS, 1000, "meta")], [(metrics.CLIENT_DURATION, [9.0] * 9, "x")]
    )
    after = reading(3.0, [(metrics.KV_COMMITS, 4, "meta")], [(metrics.CLIENT_DURATION, [0.1], "x")])
    span = Span(before, after)
    assert span.rate("ember_kv_transactions_total") == 2
    assert span.quantile_s("ember_rpc_client_call_duration_seconds", 0.99) == 0.1
    assert span.mean_s("ember_rpc_client_call_duration_seconds") == pytest.approx(0.1)


def test_a_line_of_a_mount():
    before = reading(0.0, [(metrics.MOUNT_READ, 0), (metrics.MOUNT_WRITTEN, 0)])
    after = reading(
        1.0,
        [
            (metrics.MOUNT_READ, 3 << 20),
            (metrics.MOUNT_WRITTEN, 1 << 10),
            (metrics.MOUNT_DIRTY, 5),
            (metrics.MOUNT_ERRORS, 2, "lookup", "ENOENT"),
        ],
        [
            (metrics.MOUNT_DURATION, [0.01] * 3, "lookup"),
            (metrics.MOUNT_DURATION, [0.01], "create"),
            (metrics.MOUNT_DURATION, [0.01], "open"),
        ],
    )
    line = dict(zip(HEAD, cells(Span(before, after)), strict=True))
    assert line == {
        "ops/s": "5",
        "mean": "10.0ms",
        "p99": "10.0ms",
        "read/s": "3.0 MiB",
        "written/s": "1.0 KiB",
        "dirty": "5 B",
        "lookup": "3",
        "open": "2",
        "read": "0",
        "write": "0",
        "err/s": "2.0",
    }


@given(st.lists(st.floats(0.0, 50.0), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_an_upper_bound_by_one_bucket(durations, share):
    buckets = {end: float(sum(d <= end for d in durations)) for end in (*BOUNDS_S, float("inf"))}
    found = quantile(buckets, share)
    assert sum(d <= found for d in durations) >= share * len(durations) - 1e-9
    smaller = [end for end in BOUNDS_S if end < found]
    if smaller:
        assert sum(d <= smaller[-1] for d in durations) < share * len(durations)


def test_nothing_is_no_time():
    assert quantile({}, 0.5) == quantile({0.1: 0.0, float("inf"): 0.0}, 0.5) == 0.0
    assert Span(Reading(0.0, {}), Reading(0.0, {})).rate("x") == 0.0
