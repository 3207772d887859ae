"""Primary election: what a manager does about the lease record it has just read.

Pure: the record and the times are arguments.  Persisting the outcome is the store's part, and it
happens in the transaction that read the record, so two managers cannot both succeed.

The right to act is judged by monotonic clocks alone; wall time stands in the record for people:
    - The owner counts its right from before its last successful write of the record *started*, and
      stops acting so long before it ends as drifting clocks may differ by then (`certain_s`).
    - A rival counts from when it *saw* the record in its present form, later than that
      write started.  It takes over when the record has stayed the same for the whole lease
      time; or at once when the owner released it, when the owner's process is proved gone,
      or when the record names the rival's own node: a node id belongs to one process, which
      has bound its address before it asks.

Invariants:
    - A changed owner has a larger epoch; the record differs after every write (`end_ns` grows).
    - While an owner acts, nobody else takes over, if clocks drift at most CLOCK_DRIFT_MAX.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from ..schema.config import certain_s
from ..schema.ids import NodeId

NOBODY: Final = NodeId(0)
"""Owner of a record that was released or never written."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The persisted record; `epoch` grows at every change of owner."""

    node_id: NodeId = NOBODY
    address: str = ""
    incarnation: str = ""
    start_ns: int = 0
    end_ns: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """The manager that decides."""

    node_id: NodeId
    address: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Held:
    """What an owner knows: its epoch, and the monotonic time
    before its last successful write started.
    """

    epoch: int
    confirmed_s: float


@dataclass(frozen=True, slots=True)
class Observation:
    """What a rival knows: the record, the monotonic time it first saw it so,
    and whether its owner is gone.
    """

    record: LeaseRecord
    since_s: float
    is_owner_gone: bool = False


class Verdict(Enum):
    """What to do next."""

    KEEP = "keep"  # ours, fresh enough
    EXTEND = "extend"  # ours, write it again
    TAKE_OVER = "take over"  # nobody's any more, write it as ours with the next epoch
    GIVE_UP = "give up"  # we thought it ours, but somebody took it
    FOLLOW = "follow"  # somebody else's


def decide(
    record: LeaseRecord,
    me: Candidate,
    *,
    held: Held | None,
    observation: Observation | None,
    now_s: float,
    lease_s: float,
    extend_interval_s: float,
) -> Verdict:
    """Judge the record just read at monotonic time `now_s`.

    A lapsed lease whose record still names our epoch is extended, not
    given up: nobody acted meanwhile.
    """
    if held is not None:
        if not is_owned(record, me, held.epoch):
            return Verdict.GIVE_UP
        is_fresh = now_s - held.confirmed_s < extend_interval_s
        return Verdict.KEEP if is_fresh else Verdict.EXTEND
    if record.node_id in {NOBODY, me.node_id}:
        return Verdict.TAKE_OVER
    if observation is None or observation.record != record:
        return Verdict.FOLLOW
    if observation.is_owner_gone or now_s - observation.since_s >= lease_s:
        return Verdict.TAKE_OVER
    return Verdict.FOLLOW


def is_owned(record: LeaseRecord, me: Candidate, epoch: int) -> bool:
    """Tell whether the record gives `epoch` to this very process."""
    return (record.epoch, record.node_id, record.incarnation) == (epoch, me.node_id, me.incarnation)


def may_act(held: Held | None, *, now_s: float, lease_s: float) -> bool:
    """Tell whether the owner is certain that nobody has taken over."""
    return held is not None and now_s < held.confirmed_s + certain_s(lease_s)


def observe(old: Observation | None, record: LeaseRecord, seen_s: float) -> Observation:
    """Return the observation after a read of the record that was over at `seen_s`."""
    return old if old is not None and old.record == record else Observation(record, seen_s)


def taken(record: LeaseRecord, me: Candidate, *, now_ns: int, lease_s: float) -> LeaseRecord:
    """Return the record of a new owner."""
    end_ns = max(now_ns + _ns(lease_s), record.end_ns + 1)
    return LeaseRecord(me.node_id, me.address, me.incarnation, now_ns, end_ns, record.epoch + 1)


def extended(record: LeaseRecord, *, now_ns: int, lease_s: float) -> LeaseRecord:
    """Return the owner's record with a later end;
    always different, also when wall time stepped back.
    """
    return replace(record, end_ns=max(now_ns + _ns(lease_s), record.end_ns + 1))


def released(record: LeaseRecord) -> LeaseRecord:
    """Return the record that anybody may take; it keeps the epoch, which must go on growing."""
    return LeaseRecord(end_ns=record.end_ns + 1, epoch=record.epoch)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
