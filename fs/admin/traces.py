"""Spans of several processes put together to traces.  Pure.

Clocks of machines differ: what began before the span that caused it, by its
own machine's clock, is shown so.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = Mapping[str, Any]
"""As fs/runtime/span_keeper.py tells a span."""


@dataclass(slots=True)
class Node:
    """One span of a trace, and what it caused."""

    row: Row
    where: str
    """The process that told it."""
    caused: list["Node"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Trace:
    """One request, through all processes that told of it."""

    trace_id: str
    tops: Sequence[Node]
    """In general one; others are spans whose cause nobody has told."""

    @property
    def name(self) -> str:
        """What was asked for."""
        return str(self.tops[0].row["name"])

    @property
    def began_ns(self) -> int:
        """When it began, by the wall clock."""
        return min(int(top.row["began_ns"]) for top in self.tops)

    @property
    def took_s(self) -> float:
        """How long its first span took."""
        return _took_s(self.tops[0].row)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each span, what it caused below it."""
        for top in self.tops:
            yield from self._rows(top, 0)

    def _rows(self, node: Node, depth: int) -> Iterator[dict[str, Any]]:
        row = node.row
        yield {
            "trace_id": self.trace_id,
            "span_id": row["span_id"],
            "parent_id": row["parent_id"],
            "depth": depth,
            "at_s": (row["began_ns"] - self.began_ns) / 1e9,
            "took_s": _took_s(row),
            "where": node.where,
            "name": row["name"],
            "kind": row["kind"],
            "error": row["error"],
            "attributes": row["attributes"],
        }
        for below in sorted(node.caused, key=lambda one: int(one.row["began_ns"])):
            yield from self._rows(below, depth + 1)


def _took_s(row: Row) -> float:
    return float(row["ended_ns"] - row["began_ns"]) / 1e9


def join(told: Mapping[str, Sequence[Row]]) -> list[Trace]:
    """Return the traces that the spans of all processes belong to,
    in the order in which they began.

    Args:
        told: what each process told, by what it is called.
    """
    traces: dict[str, dict[str, Node]] = defaultdict(dict)
    for where, rows in told.items():
        for row in rows:
            traces[row["trace_id"]][row["span_id"]] = Node(row, where)
    found: list[Trace] = []
    for trace_id, nodes in traces.items():
        tops: list[Node] = []
        for node in nodes.values():
            cause = nodes.get(node.row["parent_id"])
            (tops if cause is None else cause.caused).append(node)
        tops.sort(key=lambda one: (one.row["parent_id"] != "", one.row["began_ns"]))
        if tops:
            found.append(Trace(trace_id, tops))
    return sorted(found, key=lambda trace: trace.began_ns)
