"""Which chains are brought a step nearer to their preferred order now.

No I/O, no clock: time is an argument.

Chains leave their preferred order whenever a member goes and comes back, and tables are even only
in that order (specs/placement.md).  A step is `chain_changes.next_rotation`: one target stops
serving, goes to the end and resyncs there.  For that long the chain has one replica less, so a step
is made only when nothing else is going on.

Invariants (tests/mgmtd/test_rotations.py, under random failures):
    - A target is told to stop only while every member of its chain serves and was heard just now,
      nothing moves or drains there, no other chain of these nodes misses anybody, and at least
      SERVING_COUNT_MIN go on serving.
    - The chain has been so, under one chain version, for `mgmtd.rotate_after_s`.
    - At most `mgmtd.rotations_max` chains at once.

What is remembered is a primary's own; the next one watches for `rotate_after_s` anew.
"""

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from ..schema.config import MgmtdSection
from ..schema.ids import ChainId, NodeId, TargetId
from ..schema.routing import Chain, LocalState, NodeState, PublicState, RoutingInfo
from ..schema.status import FsError
from .chain_changes import next_rotation
from .move_book import MoveBook

SERVING_COUNT_MIN: Final = 2
"""So many go on serving while one is on its way to the end;
chains of two are rotated by hand only.
"""

NO_EFFECT_S: Final = 10.0
"""A step that has shown no effect for so long was not taken."""


@dataclass(frozen=True)
class RotationView:
    """What the next steps are decided on."""

    info: RoutingInfo
    """With all targets as last heard."""
    book: MoveBook
    heard: Container[NodeId]
    """Nodes whose last heartbeat is not older than it should be."""
    section: MgmtdSection
    now_s: float


@dataclass(frozen=True, slots=True)
class _Step:
    """What a target was told and what has become of it is not known yet."""

    target_id: TargetId
    chain_version: int
    told_s: float


class Rotations:
    """See the module head."""

    def __init__(self) -> None:
        self._quiet: dict[ChainId, tuple[int, float]] = {}
        """Under which chain version, since when."""
        self._steps: dict[ChainId, _Step] = {}

    def forget(self) -> None:
        """Begin to watch anew: what happened meanwhile was not heard."""
        self._quiet.clear()

    def next_steps(self, view: RotationView) -> dict[ChainId, TargetId]:
        """Return whom to tell to stop serving now; they count as told."""
        self._end_steps(view)
        self._watch(view)
        if not view.section.rotate_after_s:
            return {}
        steps: dict[ChainId, TargetId] = {}
        busy = self._nodes_at_work(view)
        for chain_id, (version, since_s) in sorted(self._quiet.items()):
            if len(self._steps) >= view.section.rotations_max:
                break
            chain = view.info.chains[chain_id]
            is_due = view.now_s - since_s >= view.section.rotate_after_s
            if not is_due or chain_id in self._steps or busy & _nodes_of(view.info, chain):
                continue
            target_id = _misplaced(chain)
            if target_id is not None:
                steps[chain_id] = target_id
                self._steps[chain_id] = _Step(target_id, version, view.now_s)
        return steps

    def _end_steps(self, view: RotationView) -> None:
        """Forget steps that are over, had no effect, or whose target is away for long:
        it is no matter of ours any more.
        """
        for chain_id, step in list(self._steps.items()):
            chain = view.info.chains.get(chain_id)
            state = chain.state_of(step.target_id) if chain is not None else None
            waited_s = view.now_s - step.told_s
            if chain is None or state is None:
                is_over = True
            elif chain.chain_version == step.chain_version:
                is_over = waited_s >= NO_EFFECT_S
            elif state in {PublicState.SERVING, PublicState.SYNCING}:
                is_over = state is PublicState.SERVING
            else:
                is_over = waited_s >= view.section.move_stall_s
            if is_over:
                del self._steps[chain_id]
                self._quiet.pop(chain_id, None)

    def _watch(self, view: RotationView) -> None:
        quiet = {}
        for chain in view.info.chains.values():
            if _is_quiet(view, chain):
                version, since_s = self._quiet.get(chain.chain_id, (0, 0.0))
                is_same = version == chain.chain_version
                quiet[chain.chain_id] = (chain.chain_version, since_s if is_same else view.now_s)
        self._quiet = quiet

    def _nodes_at_work(self, view: RotationView) -> set[NodeId]:
        """Return the nodes of chains that miss somebody, but for our own steps."""
        missing = (
            chain
            for chain in view.info.chains.values()
            if not _is_whole(chain) and chain.chain_id not in self._steps
        )
        return {node_id for chain in missing for node_id in _nodes_of(view.info, chain)}


def _misplaced(chain: Chain) -> TargetId | None:
    """Return whom to send to the end, None where the order is as preferred or none
    that names all is known.
    """
    try:
        return next_rotation(chain)
    except FsError:  # the preferred order names others
        return None


def _is_whole(chain: Chain) -> bool:
    return len(chain.serving) == len(chain.targets)


def _is_quiet(view: RotationView, chain: Chain) -> bool:
    """Tell whether nothing is under way in a chain, and it can do without a replica for a while."""
    if not _is_whole(chain) or len(chain.targets) <= SERVING_COUNT_MIN:
        return False
    if view.book.move_of_chain(chain.chain_id) is not None:
        return False
    return all(_is_well(view, member.target_id) for member in chain.targets)


def _is_well(view: RotationView, target_id: TargetId) -> bool:
    """Tell whether a target is there, and would be taken back."""
    target = view.info.targets.get(target_id)
    node = view.info.nodes.get(target.node_id) if target is not None else None
    if target is None or node is None:
        return False
    return (
        target.local_state is LocalState.UPTODATE
        and target.node_id in view.heard
        and node.state is NodeState.CONNECTED
        and not view.book.is_drained(target.node_id, target.disk_index)
        and not (target.low_space or target.is_slow or target.trouble)
    )


def _nodes_of(info: RoutingInfo, chain: Chain) -> set[NodeId]:
    """Return the nodes of a chain's members; of one that is not there nothing is known."""
    found = (info.targets.get(member.target_id) for member in chain.targets)
    return {target.node_id for target in found if target is not None}
