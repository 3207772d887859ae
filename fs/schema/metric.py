"""What is said of a metric: its kind, who shows it, its name and meaning.

All of them: metrics.py.  Pure.
"""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What may be done with the values of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Shower(Enum):
    """Which processes show a metric."""

    ALL = "every process"
    MEMBER = "managers, metadata services, storage nodes"
    STORAGE = "storage nodes"
    META = "metadata services"
    MGMTD = "managers"
    PRIMARY = "the primary manager"
    KV = "kv processes"
    MOUNT = "mount daemons"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    kind: Kind
    shower: Shower
    help: str
    labels: tuple[str, ...] = ()
    occasion: str = ""
    """When it shows anything at all; empty: always."""


def counter(name: str, shower: Shower, help_: str, *labels: str, occasion: str = "") -> Metric:
    """Return one that only grows."""
    return Metric(name, Kind.COUNTER, shower, help_, labels, occasion)


def gauge(name: str, shower: Shower, help_: str, *labels: str, occasion: str = "") -> Metric:
    """Return one that rises and falls."""
    return Metric(name, Kind.GAUGE, shower, help_, labels, occasion)


def histogram(name: str, shower: Shower, help_: str, *labels: str, occasion: str = "") -> Metric:
    """Return one of many values: how many up to each bound."""
    return Metric(name, Kind.HISTOGRAM, shower, help_, labels, occasion)
