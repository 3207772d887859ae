"""What may be there after everything lost its power at once.  Pure.

Trees: a durable operation (closing a written file) keeps everything before it, since a power loss
leaves a prefix of the metadata commits.  So one of the states since then is there, with or without
the effect of the operation that was under way.  A file that was just being rewritten has its old
content, the new one, or none: data is durable before the length that makes it visible, and an old
length never outlives its data.

Registers: the history goes on in a new epoch, which begins with a value that nobody had certainly
overwritten before the last sync, or by a write of a client that outlived the cut and whose next
sync succeeded: it would have been told of a loss.  A write under way at the cut may have taken
effect before it, been read, been lost with the power, and taken effect again by its client's
repeat; or it was kept, and the repeat changed nothing.  Cuts that leave the power on forgive
nothing: what recognises repeats is stored with what they repeat.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from .linearizable import FOREVER, Op, is_linearizable_from

Tree = dict[str, bytes]
"""Content by path."""


@dataclass(frozen=True, slots=True)
class TreeOp:
    """One operation on a client's own directory."""

    kind: str
    """`write`, `rename`, `unlink` or `check`."""
    name: str
    new_name: str = ""
    content: bytes = b""

    def applied_to(self, tree: Tree) -> Tree:
        """Return the tree afterwards; the same content if the operation does not apply."""
        made = dict(tree)
        if self.kind == "write":
            made[self.name] = self.content
        elif self.kind == "rename" and self.name in made:
            made[self.new_name] = made.pop(self.name)
        elif self.kind == "unlink":
            made.pop(self.name, None)
        return made


def allowed_trees(recent: Sequence[Tree], under_way: TreeOp, *, chunk_bytes: int = 0) -> list[Tree]:
    """Return every state that may be found when power was lost during an operation.

    With `chunk_bytes`: the operation ended with an error, so any of the chunks
    it wrote may be zeros or old.
    """
    allowed: list[Tree] = []
    for tree in recent:
        allowed += [tree, under_way.applied_to(tree)]
        if under_way.kind == "write":
            allowed.append({**tree, under_way.name: b""})
            old = tree.get(under_way.name, b"")
            for content in _mixed(under_way.content, old, chunk_bytes) if chunk_bytes else ():
                allowed.append({**tree, under_way.name: content})
    return allowed


def _mixed(content: bytes, old: bytes, chunk_bytes: int) -> list[bytes]:
    """Return a content with any of its chunks lost or as they were before,
    and ended behind any of them.
    """
    found = [b""]
    for at in range(0, len(content), chunk_bytes):
        chunk = content[at : at + chunk_bytes]
        before = old[at : at + len(chunk)].ljust(len(chunk), b"\0")
        longest = [whole for whole in found if len(whole) == at]
        found += [whole + part for whole in longest for part in {chunk, bytes(len(chunk)), before}]
    return found


def survivors(
    writes: Iterable[Op], synced_s: float, kept: Collection[object] = frozenset()
) -> set[object]:
    """Return the values that may be there after a cut:
    those not overwritten before `synced_s`, or by one of `kept`.
    """
    known = list(writes)
    there = [op for op in known if op.end_s < synced_s or (op.value in kept and op.end_s < FOREVER)]
    return {op.value for op in known if not any(op.end_s < other.begin_s for other in there)}


def is_linearizable_across(
    history: Sequence[Op],
    initial: object,
    cuts: Sequence[tuple[float, float]],
    kept: Collection[object] = frozenset(),
) -> bool:
    """Return whether a register's history is linearizable, epoch by epoch.

    What ends in the very moment of a cut was committed before it, and may be gone.

    Args:
        history: of the whole run.
        initial: value at the start.
        cuts: (time, time before which everything was durable) of each cut, in order.
        kept: values of writes of which a later sync has said that nothing is lost.
    """
    initials: set[object] = {initial}
    begin_s, before = -FOREVER, list[Op]()
    for cut_s, synced_s in [*cuts, (FOREVER, FOREVER)]:
        epoch = [
            _within(op, begin_s, cut_s)
            for op in history
            if op.begin_s < cut_s and op.end_s > begin_s and _counts(op, begin_s, cut_s)
        ]
        initials = {v for v in initials if _is_explained(epoch, v, _done_before(v, before))}
        if not initials:
            return False
        first = [Op("write", value, begin_s, begin_s) for value in initials]
        initials = survivors([*first, *(op for op in epoch if op.kind == "write")], synced_s, kept)
        begin_s, before = cut_s, epoch + first
    return True


def _done_before(value: object, before: Sequence[Op]) -> list[object]:
    """Return the writes under way at a cut that may be behind `value`, which is what the cut left.

    Such a write was done and survived, so its client's repeat got the
    first result, and changed nothing.
    """
    last = [op for op in before if op.kind == "write" and op.value == value]
    under_way = [op for op in before if op.kind == "write" and op.end_s == FOREVER]
    return [w.value for w in under_way if any(not op.end_s < w.begin_s for op in last)]


def _is_explained(epoch: Sequence[Op], initial: object, optional: Collection[object]) -> bool:
    """Return whether an epoch is linearizable without some of the writes
    that may have been done before it.
    """
    ended = {op.value for op in epoch if op.kind == "write" and op.end_s < FOREVER}
    optional = [value for value in optional if value in ended]  # others need not happen anyway
    return any(
        is_linearizable_from(
            [op for op in epoch if op.value not in left_out or op.kind == "read"], {initial}
        )
        for count in range(len(optional) + 1)
        for left_out in combinations(optional, count)
    )


def _counts(op: Op, begin_s: float, cut_s: float) -> bool:
    """A read that spans a cut may be of either side."""
    return op.kind == "write" or (op.begin_s >= begin_s and op.end_s < cut_s)


def _within(op: Op, begin_s: float, cut_s: float) -> Op:
    """Return the part of an operation that lies in an epoch;
    unfinished in it means outcome unknown.
    """
    return replace(
        op, begin_s=max(op.begin_s, begin_s), end_s=FOREVER if op.end_s >= cut_s else op.end_s
    )
