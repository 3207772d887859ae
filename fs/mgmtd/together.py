"""Who is judged together: those that ended, or fell silent, at about the same time,
where nobody is known to have gone on without them.

Who is judged alone leaves the newest data to the others of his chains, and the last of them is
waited for though all have the same.  So nobody is judged before it is known of somebody who serves
with him that he lives; where all have ended or are silent they are judged at once, and each may
stand in for the other (chain_state.py).  So it is after an orderly stop of everything, or a loss of
all power, whichever machines are switched on again, and however much later the others are.

Invariants:
    - Nobody waits for longer than the longest silence that is not judged yet: of who was not heard
      in this reign, since it began.
    - What is judged late harms nobody: until then the chain is as it was,
      and as if no manager answered.

Pure.  Decision: specs/decisions/0155-who-is-waited-for-at-a-start.md.
"""

from collections.abc import Iterator

from ..schema.ids import NodeId
from ..schema.routing import Chain
from .node_lease import is_silent
from .state import ClusterState

FRESH_PART = 0.5
"""Of the silence after which a node counts as failed:
who was heard, or answered a probe, so recently is taken for alive.
"""


def due(state: ClusterState, now_s: float) -> frozenset[NodeId]:
    """Return the nodes that are to be judged now."""
    found = set[NodeId]()
    for node_id, health in state.health.items():
        is_judged = health.is_judged and not _has_ended(state, node_id)
        if node_id not in found and not is_judged and _is_out(state, node_id, now_s):
            found |= judged_with(state, node_id, now_s)
    return frozenset(found)


def judged_with(state: ClusterState, node_id: NodeId, now_s: float) -> frozenset[NodeId]:
    """Return a node that has ended or is silent, and all that have to be judged in the same step;
    empty while that cannot be known.
    """
    group, todo = {node_id}, [node_id]
    while todo:
        for chain in _served(state, todo.pop()):
            others = {state.info.target(t).node_id for t in chain.serving} - group
            out = {n for n in others if _is_out(state, n, now_s)}
            left = others - out
            if any(_is_fresh(state, n, now_s) for n in left):
                continue
            if left:
                return frozenset()
            group |= out
            todo += out
    return frozenset(group)


def _served(state: ClusterState, node_id: NodeId) -> Iterator[Chain]:
    """Yield the chains in which a target of the node serves."""
    for target_id in state.targets_of(node_id):
        chain = state.info.chains.get(state.info.target(target_id).chain_id)
        if chain is not None and target_id in chain.serving:
            yield chain


def _has_ended(state: ClusterState, node_id: NodeId) -> bool:
    ended = state.health[node_id].ended
    return bool(ended) and ended == state.info.node(node_id).incarnation


def _is_out(state: ClusterState, node_id: NodeId, now_s: float) -> bool:
    """Tell whether a node is to be judged: its process has ended,
    or has been silent for too long.
    """
    heard_s = state.health[node_id].heard_s
    return _has_ended(state, node_id) or is_silent(heard_s, now_s, state.section)


def _is_fresh(state: ClusterState, node_id: NodeId, now_s: float) -> bool:
    limit_s = FRESH_PART * state.section.node_failed_after_s
    return now_s - state.health[node_id].alive_s <= limit_s
