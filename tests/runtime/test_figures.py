"""Histograms and readings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fs.runtime.figures import BOUNDS_S, Figures, Histogram
from fs.schema import metrics
from fs.schema.metric import Kind
from fs.schema.metrics import METRICS


@given(st.lists(st.floats(0.0, 1000.0)))
def test_a_histogram_counts_everything_in_its_bucket(durations):
    histogram = Histogram()
    for duration in durations:
        histogram.note(duration)
    assert histogram.count == len(durations)
    assert histogram.sum_s == pytest.approx(sum(durations))
    for index, end in enumerate(BOUNDS_S):
        assert sum(histogram.counts[: index + 1]) == sum(d <= end for d in durations)


def test_a_reading_does_not_change_any_more():
    figures, histogram = Figures(), Histogram()
    figures.note_histogram(metrics.CLIENT_DURATION, histogram, "Core.Echo")
    histogram.note(1.0)
    assert figures.histograms[metrics.CLIENT_DURATION]["Core.Echo",].count == 0


def test_values_of_several_parts_add_up():
    figures = Figures()
    figures.note(metrics.KV_COMMITS, 1, "meta")
    figures.note(metrics.KV_COMMITS, 2, "mgmtd")
    figures.note(metrics.KV_COMMITS, 3, "meta")
    assert figures.numbers[metrics.KV_COMMITS] == {("meta",): 4, ("mgmtd",): 2}


def test_names_follow_the_practice_of_prometheus():
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("ember_")
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert metric.help.endswith("."), metric.name
        if metric.kind is Kind.HISTOGRAM:
            assert metric.name.endswith("_seconds")
