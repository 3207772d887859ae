"""What changes of names by path do to a small namespace,
and the search for an order that explains what clients saw.  Pure.

The search is that of linearizable.py with a tree for a state.  Of a change that was
refused only that counts that one of the reasons was given that hold then: which of
several is told first is nobody's promise.  A change whose outcome nobody knows may stand
anywhere after it was asked for, or nowhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fs.schema.status import Status

from .linearizable import FOREVER, may_be_next

DIRECTORY: Final = -1
"""As the content of a path."""
STATE_COUNT_MAX: Final = 100_000

Names = frozenset[tuple[str, int]]
"""What there is: paths with the number of their content."""


@dataclass(slots=True)
class NameOp:
    """One operation on names; `answer` is what was seen, a refusal, or None while nobody knows."""

    kind: str
    """`make`, `put` (a whole file, renamed to here from elsewhere), `mkdir`, `unlink`, `rmdir`,
    `rename`, `exchange`, `no_replace` or `read`.
    """
    path: str
    begin_s: float
    who: str
    new_path: str = ""
    value: int = 0
    """Of the content put there."""
    end_s: float = FOREVER
    answer: int | Status | None = None

    @property
    def changes_nothing(self) -> bool:
        """Whether its answer says so."""
        return self.kind == "read" or isinstance(self.answer, Status)


def _way(state: dict[str, int], path: str) -> set[Status]:
    """Return why the directory of a path is not there."""
    parts = path.split("/")
    for count in range(1, len(parts)):
        found = state.get("/".join(parts[:count]))
        if found is None:
            return {Status.NOT_FOUND}
        if found != DIRECTORY:
            return {Status.NOT_DIRECTORY}
    return set()


def _has_entries(state: dict[str, int], path: str) -> bool:
    return any(other.startswith(f"{path}/") for other in state)


def refusals(state: dict[str, int], op: NameOp) -> set[Status]:
    """Return every reason for which an operation cannot be done; none: it succeeds."""
    if reasons := _way(state, op.path):
        return reasons | (_way(state, op.new_path) if op.new_path else set())
    found = state.get(op.path)
    if op.kind in {"make", "mkdir"}:
        return {Status.EXISTS} if found is not None else set()
    if op.kind == "put":
        return {Status.IS_DIRECTORY} if found == DIRECTORY else set()
    if op.new_path:
        return _rename_refusals(state, op, found)
    if found is None:
        return {Status.NOT_FOUND}
    if op.kind == "rmdir":
        if found != DIRECTORY:
            return {Status.NOT_DIRECTORY}
        return {Status.NOT_EMPTY} if _has_entries(state, op.path) else set()
    return {Status.IS_DIRECTORY} if found == DIRECTORY else set()


def _rename_refusals(state: dict[str, int], op: NameOp, found: int | None) -> set[Status]:
    reasons = _way(state, op.new_path)
    if found is None:
        reasons.add(Status.NOT_FOUND)
    if reasons:
        return reasons
    target = state.get(op.new_path)
    if op.new_path.startswith(f"{op.path}/"):
        reasons.add(Status.INVALID_ARGUMENT)
    if op.kind == "exchange":
        if target is None:
            reasons.add(Status.NOT_FOUND)
        if op.path.startswith(f"{op.new_path}/"):
            reasons.add(Status.INVALID_ARGUMENT)
        return reasons
    if target is None:
        return reasons
    if op.kind == "no_replace":
        return reasons | {Status.EXISTS}
    if op.path == op.new_path:
        return reasons
    if target == DIRECTORY:
        if found != DIRECTORY:
            reasons.add(Status.IS_DIRECTORY)
        if _has_entries(state, op.new_path):
            reasons.add(Status.NOT_EMPTY)
    elif found == DIRECTORY:
        reasons.add(Status.NOT_DIRECTORY)
    return reasons


def applied(state: dict[str, int], op: NameOp) -> dict[str, int]:
    """Return the names after an operation that is not refused."""
    made = dict(state)
    if op.kind in {"make", "put"}:
        made[op.path] = op.value
    elif op.kind == "mkdir":
        made[op.path] = DIRECTORY
    elif op.kind in {"unlink", "rmdir"}:
        del made[op.path]
    elif op.new_path and op.path != op.new_path:
        old, new = _taken(made, op.path), _taken(made, op.new_path)
        made.update({op.new_path + rest: value for rest, value in old.items()})
        if op.kind == "exchange":
            made.update({op.path + rest: value for rest, value in new.items()})
    return made


def _taken(state: dict[str, int], path: str) -> dict[str, int]:
    """Take what is at and below a path out; return it by what follows the path."""
    names = [name for name in state if name == path or name.startswith(f"{path}/")]
    return {name[len(path) :]: state.pop(name) for name in names}


def _after(state: dict[str, int], op: NameOp) -> dict[str, int] | None:
    """Return the names after an operation that ended as it did; None: it cannot stand here."""
    reasons = refusals(state, op)
    if isinstance(op.answer, Status):
        return state if op.answer in reasons else None
    if reasons:
        return None
    if op.kind == "read":
        return state if op.answer == state[op.path] else None
    return applied(state, op)


def explained(history: Sequence[NameOp]) -> bool:
    """Return whether some order explains all answers, beginning with no names at all.

    Order keeps A before B whenever A ended before B began.
    """
    ops = sorted(
        (op for op in history if op.answer is not None or op.kind != "read"),
        key=lambda op: op.begin_s,
    )
    known = sum(1 << i for i, op in enumerate(ops) if op.answer is not None)
    tried: set[tuple[int, Names]] = set()
    stack: list[tuple[int, dict[str, int]]] = [(0, {})]
    while stack:
        done, state = stack.pop()
        done = _with_quiet(ops, done, state)
        if done & known == known:
            return True
        key = done, frozenset(state.items())
        if key in tried:
            continue
        tried.add(key)
        assert len(tried) < STATE_COUNT_MAX, "too many operations at once to find an order"
        for i in sorted(may_be_next(ops, done), key=lambda i: -ops[i].end_s):
            after = None if ops[i].changes_nothing else _after(state, ops[i])
            if after is not None:
                stack.append((done | 1 << i, after))
    return False


def _with_quiet(ops: Sequence[NameOp], done: int, state: dict[str, int]) -> int:
    """Take what fits here and changes nothing: it never needs to come later."""
    while True:
        fitting = [
            i
            for i in may_be_next(ops, done)
            if ops[i].changes_nothing and _after(state, ops[i]) is not None
        ]
        if not fitting:
            return done
        for i in fitting:
            done |= 1 << i
