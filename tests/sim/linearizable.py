"""Is a history of reads and writes of one register linearizable?  Pure.

Every operation has a begin and an end time and a value; an operation whose outcome is unknown may
have happened at any time after its begin, or never.  The search is Wing and Gong's with memory of
the (done set, value) pairs that were tried (Lowe's improvement).  A write of unknown outcome whose
value nobody read need not have happened and is left out; one whose value was read had happened by
the end of the first such read.  That keeps few operations open at a time, so thousands of
operations take a fraction of a second.

Source: J. M. Wing, C. Gong, "Testing and verifying concurrent objects" (1993); G. Lowe,
"Testing for linearizability" (2017).
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

FOREVER = math.inf


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a history."""

    kind: str
    """`read` or `write`."""
    value: object
    begin_s: float
    end_s: float
    """FOREVER: the outcome is unknown."""
    who: str = ""


def is_linearizable(history: Sequence[Op], initial: object) -> bool:
    """Return whether some order of the operations explains all reads, from one initial value."""
    return is_linearizable_from(history, {initial})


def is_linearizable_from(history: Sequence[Op], initials: Collection[object]) -> bool:
    """Return whether some order of the operations, after some initial value, explains all reads.

    Reads of unknown outcome say nothing and are ignored.  The order must keep A before B whenever A
    ended before B began.
    """
    ops = _settled(history, initials)
    ops.sort(key=lambda op: op.begin_s)
    must_happen = sum(1 << i for i, op in enumerate(ops) if op.end_s < FOREVER)
    tried: set[tuple[int, object]] = set()
    stack: list[tuple[int, object]] = [(0, value) for value in initials]
    while stack:
        done, value = stack.pop()
        if done & must_happen == must_happen:
            return True
        if (done, value) in tried:
            continue
        tried.add((done, value))
        stack.extend(_next_states(ops, done, value))
    return False


def _settled(history: Sequence[Op], initials: Collection[object]) -> list[Op]:
    """Return the operations that say something,
    those of unknown outcome with the latest end they can have had.
    """
    ops = [op for op in history if op.kind == "write" or op.end_s < FOREVER]
    writes_of = Counter(op.value for op in ops if op.kind == "write")
    read_s: dict[object, float] = {}
    for op in ops:
        if op.kind == "read":
            read_s[op.value] = min(read_s.get(op.value, FOREVER), op.end_s)
    settled = []
    for op in ops:
        if op.end_s < FOREVER:
            settled.append(op)
        elif op.value in read_s:
            is_only = writes_of[op.value] == 1 and op.value not in initials
            end_s = max(read_s[op.value], op.begin_s) if is_only else FOREVER
            settled.append(replace(op, end_s=end_s))
    return settled


class Interval(Protocol):
    """When something happened: between its begin and its end."""

    begin_s: float
    end_s: float


def may_be_next(ops: Sequence[Interval], done: int) -> list[int]:
    """Return which of the undone operations (bits of `done`) began before any undone one ended.

    `ops` must be sorted by begin.
    """
    open_indices: list[int] = []
    first_end = FOREVER
    first = (~done & (done + 1)).bit_length() - 1  # the lowest bit that is not set
    for i in range(first, len(ops)):
        if ops[i].begin_s > first_end:
            break  # so did all that follow
        if not done >> i & 1:
            open_indices.append(i)
            first_end = min(first_end, ops[i].end_s)
    return [i for i in open_indices if ops[i].begin_s <= first_end]


def _next_states(ops: Sequence[Op], done: int, value: object) -> list[tuple[int, object]]:
    found: list[tuple[int, object]] = []
    for i in may_be_next(ops, done):
        op = ops[i]
        if op.kind == "write":
            found.append((done | 1 << i, op.value))
        elif op.value == value:
            # A read that fits now can be taken at once: it changes nothing for the others.
            return [(done | 1 << i, value)]
    return found
