"""Who is asked to pass requests on to a storage node that is cut off from here (reach.py).

Invariants:
    - Who has turned out not to reach the process of a node is not asked again for SHUN_S, and for
      UNREACHED_S only where all others are in trouble: each question costs somebody seconds.
      Who passes nothing on at all is never asked again.
    - Who was in trouble of the moment is asked after others for SHUN_S.  Of several, the one is
      asked whose trouble is longest ago.  So nobody is stuck at one that has no room, and there is
      somebody as long as anybody passes on.
"""

import logging
from collections import Counter
from collections.abc import Container
from math import inf
from random import Random
from typing import Final, NamedTuple

from ..node.api import RoutingView
from ..runtime.readiness import current_time
from ..schema.ids import NodeId
from ..schema.routing import Node, NodeState, Role, RoutingInfo
from .relay_channel import Vain

log = logging.getLogger(__name__)

SHUN_S: Final = 10.0
UNREACHED_S: Final = 300.0
SHARED_S: Final = 60.0
"""So old may be what is known of the chains that two nodes share: to count them takes
milliseconds where there are tens of thousands, and routing info is published all the time.
"""

_COUNTS_S: Final = {
    Vain.UNABLE: UNREACHED_S,
    Vain.UNREACHED: UNREACHED_S,
    Vain.TROUBLE: SHUN_S,
}
"""For so long others are asked before."""

Process = tuple[NodeId, str]
"""A node, and its incarnation."""


class _Trial(NamedTuple):
    """What has come of asking one to pass on to another."""

    vain: Vain
    at_s: float
    """Trio time."""


class RelayChoice:
    """See module head."""

    def __init__(self, routing: RoutingView, random: Random) -> None:
        self._routing = routing
        self._random = random
        self._trials: dict[tuple[Process, Process], _Trial] = {}
        """By who was asked, and for whom."""
        self._unable: set[Process] = set()
        """Those of a release that passes nothing on."""
        self._relays_info: RoutingInfo | None = None
        self._relays: dict[NodeId, list[Node]] = {}
        """By whom they are to pass on to, in `_relays_info`."""
        self._shared: dict[NodeId, tuple[float, Counter[NodeId]]] = {}
        """Since when `chains_shared` is known, and what it said, by node."""
        self._start: int | None = None

    def choose(self, node: Node, cut_off: Container[Process]) -> Node | None:
        """Return who is to pass something on to a node; None: there is nobody.

        Args:
            node: whom it is for.
            cut_off: processes that are not reached themselves.
        """
        now_s, second, second_at_s = current_time(), None, inf
        for relay in self._relays_of(node):
            process = process_of(relay)
            if process in cut_off or process in self._unable:
                continue
            trial = self._trials.get((process, process_of(node)))
            if trial is None or now_s - trial.at_s >= _COUNTS_S[trial.vain]:
                return relay
            is_shunned = trial.vain is not Vain.TROUBLE and now_s - trial.at_s < SHUN_S
            if not is_shunned and trial.at_s < second_at_s:
                second, second_at_s = relay, trial.at_s
        return second

    def _relays_of(self, node: Node) -> list[Node]:
        info = self._routing.info
        if info is not self._relays_info:
            self._relays_info, self._relays = info, {}
        relays = self._relays.get(node.node_id)
        if relays is None:
            if self._start is None:  # others that are cut off from it begin with others
                self._start = self._random.randrange(1 << 16)
            shared = self._shared_with(node.node_id)
            relays = relays_to(info, node.node_id, self._start, shared)
            self._relays[node.node_id] = relays
        return relays

    def _shared_with(self, node_id: NodeId) -> Counter[NodeId]:
        now_s, known = current_time(), self._shared.get(node_id)
        if known is not None and now_s - known[0] < SHARED_S:
            return known[1]
        shared = chains_shared(self._routing.info, node_id)
        self._shared[node_id] = now_s, shared
        return shared

    def note_vain(self, relay: Node, node: Node, vain: Vain) -> None:
        """A node did not pass on to another one."""
        process = process_of(relay)
        if vain is Vain.UNABLE and process not in self._unable:
            log.info("node %d is of a release that passes no requests on", relay.node_id)
            self._unable.add(process)
        self._trials[process, process_of(node)] = _Trial(vain, current_time())

    def forget(self) -> None:
        """Forget what does not count any more."""
        now_s, nodes = current_time(), self._routing.info.nodes
        if self._trials:
            self._trials = {
                key: trial
                for key, trial in self._trials.items()
                if now_s - trial.at_s < _COUNTS_S[trial.vain]
            }
        if self._unable:
            present = {process_of(node) for node in nodes.values()}
            self._unable &= present


def process_of(node: Node) -> Process:
    """Return the process that a node is at present."""
    return node.node_id, node.incarnation


def chains_shared(info: RoutingInfo, node_id: NodeId) -> Counter[NodeId]:
    """Return how many chains a node has in common with others."""
    own = {target.chain_id for target in info.targets.values() if target.node_id == node_id}
    shared: Counter[NodeId] = Counter()
    for chain_id in own & info.chains.keys():
        members = info.chains[chain_id].targets
        targets = (info.targets.get(member.target_id) for member in members)
        shared.update({target.node_id for target in targets if target is not None})
    return shared


def relays_to(
    info: RoutingInfo, node_id: NodeId, start: int, shared: Counter[NodeId]
) -> list[Node]:
    """Return the storage nodes that may pass requests on to another one,
    those with most chains in common first: they use their links to it.

    Args:
        info: a routing snapshot.
        node_id: the other one.
        start: where to begin among equals.
        shared: how many chains it has in common with whom.
    """
    living = [
        node
        for node in info.nodes_with_role(Role.STORAGE)
        if node.node_id != node_id and node.state in {NodeState.CONNECTED, NodeState.STARTING}
    ]
    turned = living[start % len(living) :] + living[: start % len(living)] if living else []
    return sorted(turned, key=lambda node: -shared[node.node_id])
