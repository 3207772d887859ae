"""Spans kept while somebody watches."""

import json
import math
import random

import pytest

from fs.runtime.span_keeper import SPANS_MAX, WATCH_S_MAX, SpanKeeper
from fs.runtime.tracing import Tracer


class Clock:
    now_s = 100.0

    def monotonic_s(self):
        return self.now_s

    def wall_ns(self):
        return int(self.now_s * 1e9)


def names(keeper, after=0):
    return [span.name for _, span in keeper.since(after)]


def some(tracer, *wanted):
    for name in wanted:
        with tracer.root(name):
            pass


def test_what_ends_during_a_watch_is_kept_and_sampling_is_as_before_afterwards():
    exported = []
    tracer = Tracer(Clock(), random.Random(1), sample_rate=0.25, sink=exported.append)
    keeper = SpanKeeper(tracer)
    some(tracer, "before")
    keeper.watch(5.0, 1.0)
    assert (tracer.sample_rate, keeper.is_on) == (1.0, True)
    some(tracer, "a", "b")
    tracer.clock.now_s += 4
    keeper.watch(5.0, 0.0)  # goes on, with what is configured
    assert tracer.sample_rate == 0.25
    some(tracer, "c")
    tracer.clock.now_s += 5.1
    some(tracer, "after")
    assert not keeper.is_on
    assert names(keeper) == ["a", "b", "c"]
    assert names(keeper, after=2) == ["c"]
    assert [span.name for span in exported] == ["before", "a", "b", "c", "after"]
    keeper.watch(0, 0)
    assert names(keeper) == ["a", "b", "c"]
    keeper.watch(1e9, 1.0)
    assert names(keeper) == []
    tracer.clock.now_s += WATCH_S_MAX + 1
    some(tracer, "late")
    assert names(keeper) == []
    assert tracer.sample_rate == 0.25


def test_a_rate_that_is_set_during_a_watch_stays():
    tracer = Tracer(Clock(), random.Random(1))
    keeper = SpanKeeper(tracer)
    keeper.watch(5.0, 1.0)
    tracer.sample_rate = 0.5
    keeper.watch(0, 0)
    assert (tracer.sample_rate, tracer.sink) == (0.5, None)


@pytest.mark.parametrize("rate", [math.nan, math.inf, -1.0, 2.0, 1e-320])
def test_what_is_no_rate_or_time_changes_nothing(rate):
    tracer = Tracer(Clock(), random.Random(1), sample_rate=0.25)
    keeper = SpanKeeper(tracer)
    for time_s in (math.nan, -math.inf, -1.0):
        keeper.watch(time_s, 1.0)
        assert not keeper.is_on
    keeper.watch(math.inf, rate)
    assert keeper.is_on and tracer.sample_rate == 0.25
    some(tracer, "a")
    assert tracer.is_due() in {True, False}
    tracer.clock.now_s += WATCH_S_MAX + 1
    some(tracer, "late")
    assert not keeper.is_on and names(keeper) == ["a"]


@pytest.mark.thorough
def test_what_is_kept_is_bounded_and_told_in_pages():
    tracer = Tracer(Clock(), random.Random(1))
    keeper = SpanKeeper(tracer)
    keeper.watch(5.0, 1.0)
    some(tracer, *map(str, range(SPANS_MAX + 10)))
    found, after, has_more = [], SPANS_MAX - 90, True
    while has_more:
        told = keeper.told(after, 4000)
        assert len(told) <= 4000
        page = json.loads(told)
        found += page["spans"]
        after, has_more = found[-1]["number"], page["has_more"]
    assert [row["name"] for row in found] == [str(n) for n in range(SPANS_MAX - 90, SPANS_MAX + 10)]
    assert names(keeper)[0] == "10"
    assert {"trace_id", "span_id", "parent_id", "began_ns", "ended_ns", "kind"} <= set(found[0])
