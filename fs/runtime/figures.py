"""What a process measures, as it is read: counters and histograms that are cheap to keep,
and one reading of them all.

Parts of a process keep plain numbers and say them to a `Figures` when somebody asks.  Nothing here
knows who asks, or how it is put to them (fs/app/process/exposition.py).

Concurrency: event loop only; a reading is taken without a checkpoint and
belongs to its reader afterwards.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from ..schema.metric import Kind, Metric

BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Upper ends of the buckets of every histogram, in seconds; one more bucket holds the rest."""


class Histogram:
    """How long things took."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """By bucket, not cumulated."""
        self.sum_s = 0.0

    def note(self, duration_s: float, count: int = 1) -> None:
        """One thing took so long, or each of several."""
        self.counts[bisect_left(BOUNDS_S, duration_s)] += count
        self.sum_s += duration_s * count

    @property
    def count(self) -> int:
        """How many things there were."""
        return sum(self.counts)

    def copy(self) -> "Histogram":
        """Return what does not change any more."""
        twin = Histogram()
        twin.counts[:] = self.counts
        twin.sum_s = self.sum_s
        return twin


class Figures:
    """One reading of the metrics of a process."""

    def __init__(self) -> None:
        self.numbers: dict[Metric, dict[tuple[str, ...], float]] = {}
        self.histograms: dict[Metric, dict[tuple[str, ...], Histogram]] = {}

    def note(self, metric: Metric, value: float, *labels: object) -> None:
        """Take in a value; several of the same metric and labels,
        which several parts of a process may have, add up.
        """
        assert metric.kind is not Kind.HISTOGRAM and len(labels) == len(metric.labels), metric.name
        values = self.numbers.setdefault(metric, {})
        key = tuple(map(str, labels))
        values[key] = values.get(key, 0) + value

    def note_histogram(self, metric: Metric, value: Histogram, *labels: object) -> None:
        """Take in a copy of a histogram."""
        assert metric.kind is Kind.HISTOGRAM and len(labels) == len(metric.labels), metric.name
        self.histograms.setdefault(metric, {})[tuple(map(str, labels))] = value.copy()


Source = Callable[[Figures], None]
"""Says what a part of a process measures; must neither wait nor take long."""
