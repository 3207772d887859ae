"""Which storage nodes a client does not reach, though they live,
and who passes requests on to them meanwhile.

A network may be cut between one client and one storage node while everybody else reaches both.
The manager judges nobody then: both tell it that they live.  What waits for that node would
wait for as long as the cut lasts.

So a node that keeps a call waiting is tried: by a connection of its own, which only a free way
carries.  Where none can be made the node counts as cut off from here.  Calls to it end at once, and
are made again by whoever repeats them, through another storage node (relay_channel.py).  Once a
connection can be made again, requests go straight to it.

Invariants:
    - A node that is slow, or stopped, is not cut off: its kernel accepts connections.  Nor is one
      that answers anything while it is tried.
    - Nobody is tried while calls end within ANSWER_S and connections are made.
    - What has been found out holds for one process of the node, by its incarnation, and ends when
      the manager judges that process: new routing info says who is to be asked in its place.
    - Who cannot pass on to a node is not asked to again for SHUN_S.  With nobody left the
      node itself is called, as ever.

Concurrency: one task looks, `watch`; each try is one more.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

import trio

from ..node.api import RoutingView
from ..rpc.api import Channels, UnderWay
from ..rpc.free_way import is_way_free
from ..runtime.ports import Runtime
from ..runtime.readiness import current_time
from ..schema.ids import NodeId
from ..schema.routing import Node, NodeState, Role, RoutingInfo
from ..schema.status import FsError
from .patience import PATIENT_S, let_lack_pass
from .relay_channel import RelayChannel

log = logging.getLogger(__name__)

ANSWER_S: Final = 2.0
"""A node that keeps a call waiting for so long is tried."""

TRY_S: Final = 2.0
"""Within this a free way carries a connection:
a packet that is lost is sent again after a second.
"""

TRY_AGAIN_S: Final = 5.0
"""So often a node is tried that keeps calls waiting, or that is cut off."""

SHUN_S: Final = 10.0

Process = tuple[NodeId, str]
"""A node, and its incarnation."""

Links = Callable[[], Iterable[tuple[Node, AbstractSet[UnderWay]]]]
"""Returns the nodes that calls are under way to, each with them."""


@dataclass(slots=True)
class _Cut:
    """A node that is cut off from here."""

    node: Node
    since_s: float
    relay_id: NodeId | None = None
    """Who was last told to pass something on to it."""


class Reach:
    """See module head."""

    def __init__(self, channels: Channels, routing: RoutingView, runtime: Runtime) -> None:
        self.unreached: frozenset[NodeId] = frozenset()
        """The nodes that are cut off from here."""
        self._channels = channels
        self._routing = routing
        self._network = runtime.network
        self._random = runtime.random
        self._cuts: dict[Process, _Cut] = {}
        self._tried_s: dict[Process, float] = {}
        self._doubted_s: dict[Process, float] = {}
        """Since when connections to them fail."""
        self._trying: set[Process] = set()
        self._shunned_until_s: dict[tuple[Process, NodeId], float] = {}
        self._unable: set[Process] = set()
        """Those of a release that passes nothing on."""
        self._relays_info: RoutingInfo | None = None
        self._relays: dict[NodeId, list[Node]] = {}
        """By whom they are to pass on to, in `_relays_info`."""
        self._start: int | None = None

    # ---- the way to a node

    def detour(self, node: Node) -> RelayChannel | None:
        """Return the way to a node that is cut off; None: it is not, or nobody passes on to it."""
        cut = self._cuts.get(process_of(node))
        relay = self._relay_to(node) if cut is not None else None
        if cut is None or relay is None:
            return None
        if cut.relay_id != relay.node_id:
            cut.relay_id = relay.node_id
            log.info("requests to node %d go through node %d", node.node_id, relay.node_id)
        channel = self._channels.get(relay.address, node_id=relay.node_id)
        return RelayChannel(relay, node, channel, on_vain=partial(self._shun, relay, node))

    def _relay_to(self, node: Node) -> Node | None:
        info, now_s = self._routing.info, current_time()
        if info is not self._relays_info:
            self._relays_info, self._relays = info, {}
        relays = self._relays.get(node.node_id)
        if relays is None:
            if self._start is None:  # others that are cut off from it begin with others
                self._start = self._random.randrange(1 << 16)
            relays = self._relays[node.node_id] = relays_to(info, node.node_id, self._start)
        for relay in relays:
            process = process_of(relay)
            if process in self._cuts or process in self._unable:
                continue
            if self._shunned_until_s.get((process, node.node_id), 0.0) <= now_s:
                return relay
        return None

    def _shun(self, relay: Node, node: Node, is_unable: bool) -> None:
        """A node did not pass on to another one; `is_unable`: nor does it to any."""
        if is_unable:
            log.info("node %d is of a release that passes no requests on", relay.node_id)
            self._unable.add(process_of(relay))
        self._shunned_until_s[process_of(relay), node.node_id] = current_time() + SHUN_S

    def doubt(self, node: Node) -> None:
        """No connection to a node could be made: it is tried unless it is judged soon."""
        self._doubted_s.setdefault(process_of(node), current_time())

    # ---- trying

    async def watch(
        self,
        links: Links,
        limit_s: Callable[[], float],
        end_calls: Callable[[Node], Awaitable[None]],
    ) -> None:
        """Try nodes that keep calls waiting, or are cut off, until cancelled.

        Args:
            links: the calls under way, by who has been sent them.
            limit_s: returns the time limit of a call to a node that was not slow.
            end_calls: ends those to a node that turns out to be cut off, and its connections.
        """
        async with trio.open_nursery() as nursery:
            while True:
                next_s = current_time() + ANSWER_S
                self._forget_others()
                for node, calls, due_s in self._due(links, limit_s()):
                    if due_s <= current_time():
                        self._begin_trying(nursery, node, calls, end_calls)
                    else:
                        next_s = min(next_s, due_s)
                await trio.sleep_until(next_s)

    def _due(self, links: Links, limit_s: float) -> list[tuple[Node, AbstractSet[UnderWay], float]]:
        """Return who may have to be tried, and when."""
        now_s, found = current_time(), []
        for node, calls in links():
            if calls and process_of(node) not in self._cuts:
                began_s = min(_begin_of(call, now_s, limit_s) for call in calls)
                found.append((node, calls, began_s + ANSWER_S))
        nodes = self._routing.info.nodes
        found += [
            (nodes[process[0]], frozenset[UnderWay](), since_s + ANSWER_S)
            for process, since_s in self._doubted_s.items()
            if process not in self._cuts
        ]
        found += [(cut.node, frozenset[UnderWay](), 0.0) for cut in self._cuts.values()]
        return [
            (node, calls, max(due_s, self._tried_s.get(process_of(node), -inf) + TRY_AGAIN_S))
            for node, calls, due_s in found
            if process_of(node) not in self._trying
        ]

    def _begin_trying(
        self,
        nursery: trio.Nursery,
        node: Node,
        calls: AbstractSet[UnderWay],
        end_calls: Callable[[Node], Awaitable[None]],
    ) -> None:
        process = process_of(node)
        if process in self._trying:
            return
        self._trying.add(process)
        self._tried_s[process] = current_time()
        try:
            nursery.start_soon(self._try, node, calls, end_calls)
        except Exception as error:  # noqa: BLE001 - raised again if it is a bug
            self._trying.discard(process)
            let_lack_pass(node, error)

    async def _try(
        self,
        node: Node,
        calls: AbstractSet[UnderWay],
        end_calls: Callable[[Node], Awaitable[None]],
    ) -> None:
        process = process_of(node)
        try:
            waiting = set(calls)
            is_free = await is_way_free(self._network, node.address, TRY_S)
            has_failed = self._doubted_s.pop(process, None) is not None
            if is_free:
                self._mend(process)
            # Packets may have been lost.  Who has answered meanwhile is reached.
            elif process not in self._cuts and (has_failed or (waiting and waiting <= calls)):
                self._cut(node)
                await end_calls(node)
        except FsError as error:  # of this process: nothing is found out
            log.info("whether node %d is reached cannot be tried: %s", node.node_id, error)
        except Exception as error:  # noqa: BLE001 - raised again if it is a bug
            let_lack_pass(node, error)
        finally:
            self._trying.discard(process)

    def _cut(self, node: Node) -> None:
        log.warning(
            "node %d at %s is not reached from here: neither do calls to it end nor can it be "
            "connected to;"
            " until it is, other storage nodes are asked to pass requests on to it",
            node.node_id,
            node.address,
        )
        self._cuts[process_of(node)] = _Cut(node, current_time())
        self._note_unreached()

    def _mend(self, process: Process) -> None:
        cut = self._cuts.pop(process, None)
        if cut is None:
            return
        took_s = current_time() - cut.since_s
        log.warning("node %d is reached from here again, after %.0f s", process[0], took_s)
        self._note_unreached()

    def _note_unreached(self) -> None:
        self.unreached = frozenset(node_id for node_id, _ in self._cuts)

    def _forget_others(self) -> None:
        """Forget processes that are judged failed, or gone."""
        nodes = self._routing.info.nodes
        for process in {*self._cuts, *self._doubted_s}:
            node = nodes.get(process[0])
            if node is None or process_of(node) != process or node.state is NodeState.FAILED:
                self._doubted_s.pop(process, None)
                if self._cuts.pop(process, None) is not None:
                    self._note_unreached()
        now_s = current_time()
        if self._shunned_until_s:
            self._shunned_until_s = {
                key: until_s for key, until_s in self._shunned_until_s.items() if until_s > now_s
            }
        if self._tried_s:
            least_s = now_s - TRY_AGAIN_S
            self._tried_s = {key: at_s for key, at_s in self._tried_s.items() if at_s > least_s}


def process_of(node: Node) -> Process:
    """Return the process that a node is at present."""
    return node.node_id, node.incarnation


def _begin_of(call: UnderWay, now_s: float, limit_s: float) -> float:
    """Return when a call began, by when its time will be over."""
    is_patient = call.deadline_s - now_s > limit_s
    return call.deadline_s - (max(PATIENT_S, limit_s) if is_patient else limit_s)


def relays_to(info: RoutingInfo, node_id: NodeId, start: int) -> list[Node]:
    """Return the storage nodes that may pass requests on to another one,
    those with most chains in common first: they use their links to it.

    Args:
        info: a routing snapshot.
        node_id: the other one.
        start: where to begin among equals.
    """
    shared: Counter[NodeId] = Counter()
    for chain in info.chains.values():
        targets = (info.targets.get(member.target_id) for member in chain.targets)
        members = {target.node_id for target in targets if target is not None}
        if node_id in members:
            shared.update(members)
    living = [
        node
        for node in info.nodes_with_role(Role.STORAGE)
        if node.node_id != node_id and node.state in {NodeState.CONNECTED, NodeState.STARTING}
    ]
    turned = living[start % len(living) :] + living[: start % len(living)] if living else []
    return sorted(turned, key=lambda node: -shared[node.node_id])
