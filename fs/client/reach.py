"""Which storage nodes a client does not reach, though they live.

A network may be cut between one client and one storage node while everybody else reaches both.
The manager judges nobody then: both tell it that they live.  What waits for that node would
wait for as long as the cut lasts.

So a node that keeps a call waiting is tried: by a connection of its own, which only a free way
carries.  Where none can be made the node counts as cut off from here.  Calls to it end at once, and
are made again by whoever repeats them, through another storage node (relay_channel.py; which one
relay_choice.py says).  Once a connection can be made again, requests go straight to it.

Invariants:
    - A node that is slow, or stopped, is not cut off: its kernel accepts connections.  Nor is one
      that answers anything while it is tried.
    - Nobody is tried while calls end within ANSWER_S and connections are made.
    - What has been found out holds for one process of the node, by its incarnation, and ends when
      the manager judges that process: new routing info says who is to be asked in its place.  The
      next process of such a node is tried at once, before anybody waits for it.
    - A way that is cut again within CALM_S has to be free for longer than the last time before
      requests go straight again: who goes straight too soon pays for it with a pause.
    - With nobody to pass on the node itself is called, as ever, until there is somebody.
    - For a lack of memory something is found out later, and nothing else ends.

Concurrency: one task looks, `watch`; each try is one more.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final, NamedTuple

import trio

from ..node.api import RoutingView
from ..rpc.api import Channels, UnderWay
from ..rpc.free_way import is_way_free
from ..runtime.ports import Runtime
from ..runtime.readiness import current_time
from ..schema.ids import NodeId
from ..schema.routing import Node, NodeState
from ..schema.status import FsError
from .patience import PATIENT_S, let_lack_pass
from .relay_channel import RelayChannel
from .relay_choice import Process, RelayChoice, process_of

log = logging.getLogger(__name__)

ANSWER_S: Final = 2.0
"""A node that keeps a call waiting for so long, or for half of the call's time, is tried."""

ANSWER_S_MIN: Final = 0.25

TRY_S: Final = 2.0
"""Within this a free way carries a connection:
a packet that is lost is sent again after a second.
"""

TRY_AGAIN_S: Final = 5.0
"""So often a node is tried that keeps calls waiting, or that is cut off."""

CALM_S: Final = 300.0
"""A way that was free for so long is as good as one that was never cut."""

FREE_COUNT_MAX: Final = 12
"""So many tries in a row, a minute, have to find a way free that is cut again and again."""

_NOT_TRIED: Final = "whether node %d is reached cannot be tried"

Links = Callable[[], Iterable[tuple[Node, AbstractSet[UnderWay]]]]
"""Returns the nodes that calls are under way to, each with them; a node may come more than once."""

EndCalls = Callable[[Node], Awaitable[None]]
"""Ends the calls that a node has been sent, and its connections."""


@dataclass(slots=True)
class _Cut:
    """A node that is cut off from here."""

    node: Node
    since_s: float
    wanted_count: int
    """So many tries in a row have to find the way free."""
    free_count: int = 0
    """So many have."""
    told_ids: set[NodeId] = field(default_factory=set)
    """Of whom the log says that they pass on to it."""


class _Mended(NamedTuple):
    """A way that was cut, and is free."""

    at_s: float
    wanted_count: int


class _Waiting(NamedTuple):
    """Calls that wait for a node."""

    node: Node
    calls: set[UnderWay]


class Reach:
    """See module head."""

    def __init__(self, channels: Channels, routing: RoutingView, runtime: Runtime) -> None:
        self.unreached: frozenset[NodeId] = frozenset()
        """The nodes that are cut off from here."""
        self._channels = channels
        self._routing = routing
        self._network = runtime.network
        self._relays = RelayChoice(routing, runtime.random)
        self._cuts: dict[Process, _Cut] = {}
        """Changed as a whole, together with `unreached`."""
        self._mended: dict[NodeId, _Mended] = {}
        self._ended: dict[NodeId, float] = {}
        """Whose process ended, or was judged, while it was cut off, and when."""
        self._tried_s: dict[Process, float] = {}
        self._doubted_s: dict[Process, float] = {}
        """Since when connections to them fail."""
        self._trying: set[Process] = set()

    # ---- the way to a node

    def detour(self, node: Node) -> RelayChannel | None:
        """Return the way to a node that is cut off; None: it is not, or nobody passes on to it."""
        cut = self._cuts.get(process_of(node))
        relay = self._relays.choose(node, self._cuts) if cut is not None else None
        if cut is None or relay is None:
            return None
        if relay.node_id not in cut.told_ids:
            cut.told_ids.add(relay.node_id)
            log.info("requests to node %d go through node %d", node.node_id, relay.node_id)
        channel = self._channels.get(relay.address, node_id=relay.node_id)
        on_vain = partial(self._relays.note_vain, relay, node)
        return RelayChannel(relay, node, channel, on_vain=on_vain)

    def doubt(self, node: Node) -> None:
        """No connection to a node could be made: it is tried unless it is judged soon."""
        self._doubted_s.setdefault(process_of(node), current_time())

    # ---- trying

    async def watch(self, links: Links, limit_s: Callable[[], float], end_calls: EndCalls) -> None:
        """Try nodes that keep calls waiting, or are cut off, until cancelled.

        Args:
            links: the calls under way, by who has been sent them.
            limit_s: returns the time limit of a call to a node that was not slow.
            end_calls: for a node that turns out to be cut off.
        """
        async with trio.open_nursery() as nursery:
            while True:
                next_s = current_time() + ANSWER_S
                try:
                    next_s = await self._look(nursery, links, limit_s(), end_calls)
                except Exception as error:  # noqa: BLE001 - raised again if it is a bug
                    let_lack_pass(error, "who is reached from here is looked at later")
                await trio.sleep_until(next_s)

    async def _look(
        self, nursery: trio.Nursery, links: Links, limit_s: float, end_calls: EndCalls
    ) -> float:
        """Begin the tries that are due; return when to look again."""
        answer_s = max(ANSWER_S_MIN, min(ANSWER_S, limit_s / 2))
        next_s = current_time() + answer_s
        self._forget()
        waiting: dict[Process, _Waiting] = {}
        for node, calls in links():
            waiting.setdefault(process_of(node), _Waiting(node, set())).calls.update(calls)
        for one, due_s in self._due(waiting, limit_s, answer_s):
            if due_s <= current_time():
                self._begin_trying(nursery, one, end_calls)
            else:
                next_s = min(next_s, due_s)
        for process, cut in self._cuts.items():
            if process not in waiting or current_time() - cut.since_s < ANSWER_S:
                continue  # they are just being ended
            if self._relays.choose(cut.node, self._cuts) is not None:
                await end_calls(cut.node)  # they went straight since nobody passed on then
        return next_s

    def _due(
        self, waiting: dict[Process, _Waiting], limit_s: float, answer_s: float
    ) -> list[tuple[_Waiting, float]]:
        """Return who may have to be tried, and when."""
        return [
            (one, max(due_s, self._tried_s.get(process_of(one.node), -inf) + TRY_AGAIN_S))
            for one, due_s in self._suspects(waiting, limit_s, answer_s)
            if process_of(one.node) not in self._trying
        ]

    def _suspects(
        self, waiting: dict[Process, _Waiting], limit_s: float, answer_s: float
    ) -> Iterator[tuple[_Waiting, float]]:
        now_s = current_time()
        for process, one in waiting.items():
            if one.calls and process not in self._cuts:
                began_s = min(_begin_of(call, now_s, limit_s) for call in one.calls)
                yield one, began_s + answer_s
        nodes = self._routing.info.nodes
        for process, since_s in self._doubted_s.items():
            if process not in self._cuts:
                yield waiting.get(process) or _Waiting(nodes[process[0]], set()), since_s + ANSWER_S
        for cut in self._cuts.values():
            yield _Waiting(cut.node, set()), 0.0

    def _begin_trying(self, nursery: trio.Nursery, one: _Waiting, end_calls: EndCalls) -> None:
        process = process_of(one.node)
        if process in self._trying:
            return
        try:
            self._tried_s[process] = current_time()
            self._trying.add(process)
            nursery.start_soon(self._try, process, one, end_calls)
        except Exception as error:  # noqa: BLE001 - raised again if it is a bug
            self._trying.discard(process)
            let_lack_pass(error, _NOT_TRIED, one.node.node_id)

    async def _try(self, process: Process, one: _Waiting, end_calls: EndCalls) -> None:
        try:
            node = one.node
            is_free = await is_way_free(self._network, node.address, TRY_S)
            has_failed = self._doubted_s.pop(process, None) is not None
            # Packets may have been lost.  Who has answered meanwhile is reached.
            is_suspect = has_failed or _are_unanswered(one.calls)
            cut = self._cuts.get(process)
            if cut is not None:
                self._note_tried(process, cut, is_free=is_free)
            elif is_suspect and not is_free and self._is_there(node):
                self._cut(node)
                await end_calls(node)
        except FsError as error:  # of this process: nothing is found out
            log.info("%s: %s", _NOT_TRIED % process[0], error)
        except Exception as error:  # noqa: BLE001 - raised again if it is a bug
            let_lack_pass(error, _NOT_TRIED, process[0])
        finally:
            self._trying.discard(process)

    def _is_there(self, node: Node) -> bool:
        """Return whether the process that was tried is still the node's, and not judged."""
        now = self._routing.info.nodes.get(node.node_id)
        return (
            now is not None
            and process_of(now) == process_of(node)
            and now.state is not NodeState.FAILED
        )

    def _cut(self, node: Node) -> None:
        process, now_s = process_of(node), current_time()
        mended, wanted_count = self._mended.get(node.node_id), 1
        if mended is not None and now_s - mended.at_s < CALM_S:
            wanted_count = min(2 * mended.wanted_count, FREE_COUNT_MAX)
        self._set_cuts({**self._cuts, process: _Cut(node, now_s, wanted_count)})
        log.warning(
            "node %d at %s is not reached from here: neither do calls to it end nor can it be "
            "connected to; until it is, other storage nodes are asked to pass requests on to it",
            node.node_id,
            node.address,
        )

    def _note_tried(self, process: Process, cut: _Cut, *, is_free: bool) -> None:
        """Note what a try of the way to a node that is cut off has come to."""
        cut.free_count = cut.free_count + 1 if is_free else 0
        if cut.free_count < cut.wanted_count:
            return
        now_s = current_time()
        self._mended[process[0]] = _Mended(now_s, cut.wanted_count)
        self._set_cuts({key: one for key, one in self._cuts.items() if key != process})
        took_s = now_s - cut.since_s
        log.warning("node %d is reached from here again, after %.0f s", process[0], took_s)

    def _set_cuts(self, cuts: dict[Process, _Cut]) -> None:
        unreached = frozenset(node_id for node_id, _ in cuts)
        # Both or none: there may be no memory for the second one.
        self._cuts, self.unreached = cuts, unreached

    def _forget(self) -> None:
        """Forget processes that are judged failed, or gone, and what was long ago."""
        now_s, nodes = current_time(), self._routing.info.nodes
        gone = [cut.node.node_id for cut in self._cuts.values() if not self._is_there(cut.node)]
        if gone:
            self._ended |= dict.fromkeys(gone, now_s)
            self._set_cuts({k: cut for k, cut in self._cuts.items() if self._is_there(cut.node)})
        if self._doubted_s:
            present = {process_of(n) for n in nodes.values() if n.state is not NodeState.FAILED}
            self._doubted_s = {k: s for k, s in self._doubted_s.items() if k in present}
        for node_id, ended_s in list(self._ended.items()):
            node = nodes.get(node_id)
            if node is not None and node.state is not NodeState.FAILED:
                self._doubted_s[process_of(node)] = now_s - ANSWER_S  # the next one, or it is back
                del self._ended[node_id]
            elif now_s - ended_s > CALM_S:
                del self._ended[node_id]
        if self._mended:
            self._mended = {k: m for k, m in self._mended.items() if now_s - m.at_s < CALM_S}
        if self._tried_s:
            least_s = now_s - TRY_AGAIN_S
            self._tried_s = {key: at_s for key, at_s in self._tried_s.items() if at_s > least_s}
        self._relays.forget()


def _are_unanswered(calls: AbstractSet[UnderWay]) -> bool:
    """Return whether there are calls, and none has been answered: who was cancelled, or had no
    more time, has heard nothing.
    """
    return bool(calls) and not any(call.is_answered for call in calls)


def _begin_of(call: UnderWay, now_s: float, limit_s: float) -> float:
    """Return when a call began, by when its time will be over."""
    is_patient = call.deadline_s - now_s > limit_s
    return call.deadline_s - (max(PATIENT_S, limit_s) if is_patient else limit_s)
