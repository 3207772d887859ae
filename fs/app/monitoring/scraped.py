"""Metrics of other processes, fetched and read; what happened between two readings.

Knows no metric by name.
"""

import urllib.request
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from ...schema.status import FsError, Status

TIMEOUT_S: Final = 30.0

Labels = dict[str, str]


def fetch(address: str, timeout_s: float = TIMEOUT_S) -> str:
    """Return what is shown at `HOST:PORT`, as text; raises FsError(RPC_CONNECT_FAILED)."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=timeout_s) as reply:
            text: bytes = reply.read()
    except (OSError, HTTPException) as error:
        raise FsError(Status.RPC_CONNECT_FAILED, f"metrics at {address}: {error}") from error
    return text.decode()


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that one process showed at one moment."""

    at_s: float
    """On the reader's clock."""
    samples: dict[str, list[tuple[Labels, float]]]
    """By the name of the sample, which has _bucket, _count or _sum for histograms."""

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with these labels; 0 when there is none."""
        return sum(value for _, value in self.matching(name, labels))

    def matching(self, name: str, labels: Labels) -> Iterator[tuple[Labels, float]]:
        """Yield the samples that have these labels, among others."""
        for found, value in self.samples.get(name, ()):
            if labels.items() <= found.items():
                yield found, value

    def without(self, label: str, values: Collection[str]) -> "Reading":
        """Return the reading without the samples in which a label has one of these values."""
        kept = {
            name: [(found, value) for found, value in samples if found.get(label) not in values]
            for name, samples in self.samples.items()
        }
        return Reading(self.at_s, kept)

    def values(self, name: str, label: str) -> set[str]:
        """Return the values of a label."""
        return {found[label] for found, _ in self.samples.get(name, ()) if label in found}

    def buckets(self, name: str, labels: Labels) -> dict[float, float]:
        """Return the counts of a histogram up to each bound, over everything with these labels."""
        counts: dict[float, float] = {}
        for found, value in self.matching(f"{name}_bucket", labels):
            end = float(found["le"])
            counts[end] = counts.get(end, 0.0) + value
        return counts


def parse(text: str, at_s: float) -> Reading:
    """Return what a process showed."""
    samples: dict[str, list[tuple[Labels, float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return Reading(at_s, samples)


@dataclass(frozen=True, slots=True)
class Span:
    """What happened between two readings of one process;
    a process that began anew counts from its start.
    """

    before: Reading
    after: Reading

    @property
    def seconds(self) -> float:
        """Its length; never 0."""
        return max(self.after.at_s - self.before.at_s, 1e-3)

    def grown(self, name: str, **labels: str) -> float:
        """Return by how much a counter has grown."""
        now, then = self.after.total(name, **labels), self.before.total(name, **labels)
        return now - then if now >= then else now

    def rate(self, name: str, **labels: str) -> float:
        """Return by how much a counter grows per second."""
        return self.grown(name, **labels) / self.seconds

    def mean_s(self, name: str, **labels: str) -> float:
        """Return the mean of a histogram of times; 0 when nothing happened."""
        count = self.grown(f"{name}_count", **labels)
        return self.grown(f"{name}_sum", **labels) / count if count > 0 else 0.0

    def quantile_s(self, name: str, share: float, **labels: str) -> float:
        """Return an upper bound of the time that `share` of what happened took at most;
        0 when nothing happened.
        """
        then = self.before.buckets(name, labels)
        now = self.after.buckets(name, labels)
        if any(now[end] < then.get(end, 0.0) for end in now):
            then = {}
        return quantile({end: now[end] - then.get(end, 0.0) for end in now}, share)


def quantile(buckets: dict[float, float], share: float) -> float:
    """Return the end of the first bucket up to which `share` of everything lies.

    Args:
        buckets: counts up to each bound, the last being infinite.
        share: 0 to 1.

    Returns:
        0 for an empty histogram; the last finite bound for what lies beyond it.
    """
    if not buckets or max(buckets.values()) <= 0:
        return 0.0
    ends = sorted(buckets)
    wanted = share * buckets[ends[-1]]
    found = next(end for end in ends if buckets[end] >= wanted)
    return found if found != float("inf") else ends[-2] if len(ends) > 1 else 0.0
