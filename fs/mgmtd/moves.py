"""Moves: what is done next so that targets are replaced, drained and spread evenly.  Pure.

One mechanism for all: a target joins the chain (a spare one, else one made for it), resyncs by the
ordinary rules, serves, and only then the leaving target is told to stop serving and leaves.
`next_steps` is called again and again on what is known by then; nothing but the book of moves and
the chains is remembered from one call to the next, so it goes on wherever a former primary stopped.

Invariants (tests/mgmtd/test_moves.py, under random failures of nodes, disks, orders and managers):
    - A member that serves is told to stop only while every other member of its chain
      serves, the joining one among them: so at no moment a chain has fewer replicas than it
      would have had without the move.
    - A chain has at most one move that may change it, and never two members on one node.
    - Every move ends when nodes stop failing; nothing is placed on a disk being drained.

Does not: decide public states (chain_state.py), talk to anybody (mover.py).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from ..schema.config import MgmtdSection
from ..schema.ids import ChainId, NodeId, TargetId
from ..schema.routing import Chain, LocalState, NodeState, PublicState, Role, RoutingInfo
from ..schema.status import FsError
from .chain_changes import exchanged, is_replaceable, substituted, with_member, without_member
from .destinations import Cluster, Site, choose, is_suited, wanted
from .move_book import Move, MoveBook, MoveId, MoveReason, MoveState

FAR_PERCENT: Final = 50
"""A replacement that has come so far is finished even if the lost target comes back."""


class OrderKind(Enum):
    """What a node is told to do."""

    CREATE = "create"
    STOP = "stop"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Order:
    """One thing to tell a node; repeating it is harmless."""

    kind: OrderKind
    target_id: TargetId
    site: Site
    move_id: MoveId


@dataclass(frozen=True)
class View:
    """What the next steps are decided on."""

    cluster: Cluster
    absent_s: Mapping[TargetId, float]
    """How long each member or joining target that is offline has been so."""
    section: MgmtdSection

    def is_alive(self, target_id: TargetId) -> bool:
        """Tell whether the node says that the target is there."""
        states = self.cluster.local_states
        return states.get(target_id, LocalState.OFFLINE) is not LocalState.OFFLINE

    def is_lost(self, target_id: TargetId) -> bool:
        """Tell whether a target has been away for so long that it is to be replaced."""
        limit_s = self.section.replace_after_s
        if target_id in self.cluster.of_other_stores:  # until it is emptied, or its store is back
            return False
        return limit_s > 0 and self.absent_s.get(target_id, 0.0) > limit_s


@dataclass(slots=True)
class Steps:
    """What is to be done now."""

    book: MoveBook
    chains: dict[ChainId, Chain] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What cannot be done, and why; for the log and for people."""
    given_up: list[Site] = field(default_factory=list)
    """Where a target that was to join is given up just now,
    because it has been away for too long.
    """


def next_steps(view: View) -> Steps:
    """Return the next steps of all moves, and the moves to begin."""
    steps = Steps(view.cluster.book)
    for move in sorted(steps.book.moves.values(), key=lambda m: m.move_id):
        _STEP_OF[move.state](view, steps, move)
    _begin(view, steps)
    return steps


def finished(chain: Chain, move: Move) -> tuple[Chain, Move] | None:
    """Return chain and move with the leaving target out, if it can go now; else None."""
    if move.state is not MoveState.JOINING:
        return None
    if not is_replaceable(chain, move.leaving, move.joining):
        return None
    return exchanged(chain, move.leaving, move.joining), replace(move, state=MoveState.RETIRING)


def cancelled(info: RoutingInfo, book: MoveBook, which: Callable[[Move], bool]) -> MoveBook:
    """Return the book with some moves cancelled;
    one whose joining target serves already, or may for want of others, goes on to its end.
    """
    for move in book.moves.values():
        is_early = move.state in {MoveState.CREATING, MoveState.JOINING}
        if is_early and which(move) and move.joining not in info.chain(move.chain_id).candidates:
            book = book.with_move(replace(move, state=MoveState.CANCELLING))
    return book


# ---- one move ----------------------------------------------------------------------------------


def _step_creating(view: View, steps: Steps, move: Move) -> None:
    """Join the chain once the target is there; give up what has lost its sense or its place."""
    info, chain = view.cluster.info, view.cluster.info.chain(move.chain_id)
    target, site = info.targets.get(move.joining), Site(move.node_id, move.disk_index)
    is_void = chain.state_of(move.leaving) is None or _is_back(view, move)
    if is_void or site not in view.cluster.sites or (target is not None and target.chain_id):
        _set(steps, move, MoveState.CANCELLING)
    elif target is None:
        steps.orders.append(Order(OrderKind.CREATE, move.joining, site, move.move_id))
    elif chain.serving and view.cluster.local_states.get(move.joining) is LocalState.ONLINE:
        _join(view, steps, move, chain)


def _join(view: View, steps: Steps, move: Move, chain: Chain) -> None:
    """Make the joining target a member; in place of the leaving one if that is offline
    on the same node.
    """
    others = [t.target_id for t in chain.targets if t.target_id != move.leaving]
    nodes = {view.cluster.info.target(t).node_id for t in others}
    if move.node_id in nodes:
        _set(steps, move, MoveState.CANCELLING)
        return
    is_home = view.cluster.info.target(move.leaving).node_id == move.node_id
    try:
        if is_home:
            after, state = substituted(chain, move.leaving, move.joining), MoveState.RETIRING
        else:
            after = with_member(chain, move.joining, is_wanted=False)
            state = MoveState.JOINING
    except FsError:  # the chain has changed since the move was planned
        _set(steps, move, MoveState.CANCELLING)
        return
    steps.chains[chain.chain_id] = after
    _set(steps, move, state)


def _step_joining(view: View, steps: Steps, move: Move) -> None:
    """Wait until everybody serves, then let the leaving target stop."""
    chain = view.cluster.info.chain(move.chain_id)
    if (end := finished(chain, move)) is not None:
        steps.chains[chain.chain_id] = end[0]
        steps.book = steps.book.with_move(end[1])
    elif move.joining not in chain.candidates:
        is_stalled = view.absent_s.get(move.joining, 0.0) > view.section.move_stall_s
        is_gone = chain.state_of(move.joining) is None
        if is_stalled:
            steps.given_up.append(Site(move.node_id, move.disk_index))
        if is_gone or is_stalled or (_is_back(view, move) and not _is_far(view, move)):
            _set(steps, move, MoveState.CANCELLING)
    else:
        _let_leave(view, steps, move, chain)


def _let_leave(view: View, steps: Steps, move: Move, chain: Chain) -> None:
    """The joining target serves: have the leaving one stop;
    or take out one that was lost meanwhile instead.
    """
    missing = [
        m.target_id
        for m in chain.targets
        if m.public_state is not PublicState.SERVING and m.target_id != move.leaving
    ]
    if not missing and move.leaving in chain.serving:
        site = view.cluster.site_of(move.leaving)
        steps.orders.append(Order(OrderKind.STOP, move.leaving, site, move.move_id))
    for target_id in missing:
        if move.leaving in chain.serving and view.is_lost(target_id):
            swapped = replace(move, leaving=target_id, reason=MoveReason.REPLACE)
            steps.book = steps.book.with_move(swapped)
            return


def _step_cancelling(view: View, steps: Steps, move: Move) -> None:
    """Take the joining target out of the chain;
    when it serves by now, or may stand in for the last that did, go on instead.
    """
    chain = view.cluster.info.chain(move.chain_id)
    if chain.restored is not None:  # its members stay until it is known who has the newest data
        return
    if move.joining in chain.candidates:
        _set(steps, move, MoveState.JOINING)
        return
    if chain.state_of(move.joining) is not None:
        steps.chains[chain.chain_id] = without_member(chain, move.joining)
    dropped = replace(move, leaving=move.joining, state=MoveState.RETIRING)
    steps.book = steps.book.with_move(dropped)


def _step_retiring(view: View, steps: Steps, move: Move) -> None:
    """Have the data dropped; the move ends when the target's node reports it no more."""
    target = view.cluster.info.targets.get(move.leaving)
    is_of_other_store = move.leaving in view.cluster.of_other_stores
    if target is None or target.chain_id or is_of_other_store:  # whose chunks stay
        steps.book = steps.book.without_move(move.move_id)
    elif view.cluster.info.node(target.node_id).state is NodeState.CONNECTED:
        site = view.cluster.site_of(move.leaving)
        steps.orders.append(Order(OrderKind.REMOVE, move.leaving, site, move.move_id))


_STEP_OF: Final = {
    MoveState.CREATING: _step_creating,
    MoveState.JOINING: _step_joining,
    MoveState.CANCELLING: _step_cancelling,
    MoveState.RETIRING: _step_retiring,
}


def _set(steps: Steps, move: Move, state: MoveState) -> None:
    steps.book = steps.book.with_move(replace(move, state=state))


def _is_back(view: View, move: Move) -> bool:
    """Tell whether the target that was lost is there again."""
    return move.reason is MoveReason.REPLACE and view.is_alive(move.leaving)


def _is_far(view: View, move: Move) -> bool:
    progress = view.cluster.info.target(move.joining).resync
    if progress is None or not progress.chunks_total:
        return False
    return 100 * progress.chunks_done >= FAR_PERCENT * progress.chunks_total


# ---- new moves ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Slots:
    """How many more moves may begin."""

    left: int
    per_node_max: int
    used: Counter[NodeId]

    def take(self, nodes: set[NodeId]) -> bool:
        """Take a slot of each node; False, and none taken, where one has no more."""
        if self.left <= 0 or any(self.used[n] >= self.per_node_max for n in nodes):
            return False
        self.left -= 1
        self.used.update(nodes)
        return True


def _begin(view: View, steps: Steps) -> None:
    """Begin moves, the most urgent first, within the limits;
    those that end now free theirs at the next call.
    """
    moving = [m for m in steps.book.moves.values() if m.is_open]
    slots = _Slots(
        view.section.moves_max - len(moving),
        view.section.moves_per_node_max,
        Counter(n for m in moving for n in _nodes_at_work(view, m.chain_id, m.node_id)),
    )
    for chain, leaving, reason in [*_to_replace(view, steps), *_to_drain(view)]:
        if slots.left <= 0:
            return
        if steps.book.move_of_chain(chain.chain_id) is None and chain.chain_id not in steps.chains:
            _begin_one(view, steps, slots, chain=chain, leaving=leaving, reason=reason)
    if steps.book.is_rebalancing:
        _rebalance(view, steps, slots)


def _begin_one(
    view: View,
    steps: Steps,
    slots: _Slots,
    *,
    chain: Chain,
    leaving: TargetId,
    reason: MoveReason,
) -> None:
    name = f"chain {chain.chain_id}: target {leaving} ({reason.name.lower()})"
    waits_for = [
        m.target_id
        for m in chain.targets
        if m.target_id != leaving and m.public_state is not PublicState.SERVING
    ]
    if waits_for and reason is not MoveReason.REPLACE:
        steps.problems.append(f"{name} stays until targets {waits_for} serve")
        return
    cluster = replace(view.cluster, book=steps.book)
    site = choose(cluster, wanted(cluster, chain, leaving), slots.used)
    if site is None:
        detail = "no disk in a suitable failure domain has room"
        steps.problems.append(f"{name} cannot be replaced: {detail}")
    elif slots.take(_nodes_at_work(view, chain.chain_id, site.node_id)):
        _add(cluster, steps, chain=chain, leaving=leaving, site=site, reason=reason)


def _add(
    cluster: Cluster,
    steps: Steps,
    *,
    chain: Chain,
    leaving: TargetId,
    site: Site,
    reason: MoveReason,
) -> None:
    book = steps.book
    spares = cluster.spares.get(site, [])
    next_target_id = max(book.next_target_id, max(cluster.info.targets, default=0) + 1)
    joining = spares[0] if spares else TargetId(next_target_id)
    move = Move(
        MoveId(book.next_move_id),
        chain.chain_id,
        leaving,
        joining,
        site.node_id,
        site.disk_index,
        reason,
    )
    steps.book = replace(
        book.with_move(move),
        next_move_id=book.next_move_id + 1,
        next_target_id=next_target_id + (0 if spares else 1),
    )


def _nodes_at_work(view: View, chain_id: ChainId, node_id: NodeId) -> set[NodeId]:
    """Return the nodes that a move to `node_id` loads:
    that one and the one the chain is copied from.
    """
    info = view.cluster.info
    return {node_id, *(info.target(t).node_id for t in info.chain(chain_id).serving[-1:])}


def _to_replace(view: View, steps: Steps) -> Iterator[tuple[Chain, TargetId, MoveReason]]:
    """Yield what has been away for too long, chains with fewest serving targets first."""
    info = view.cluster.info
    lost = [
        (len(chain.serving), chain.chain_id, member.target_id)
        for chain in info.chains.values()
        if chain.serving
        for member in chain.targets
        if member.public_state is PublicState.OFFLINE and view.is_lost(member.target_id)
    ]
    storages = info.nodes_with_role(Role.STORAGE)
    alive_count = sum(n.state is NodeState.CONNECTED for n in storages)
    if lost and 2 * alive_count <= len(storages):
        steps.problems.append(
            f"{len(lost)} targets are not replaced: only {alive_count} of {len(storages)} storage"
            " nodes are there, so it is not they that are lost"
        )
        return
    for _, chain_id, target_id in sorted(lost):
        yield info.chain(chain_id), target_id, MoveReason.REPLACE


def _to_drain(view: View) -> Iterator[tuple[Chain, TargetId, MoveReason]]:
    info, book = view.cluster.info, view.cluster.book
    for chain_id in sorted(info.chains) if book.drains else ():
        chain = info.chains[chain_id]
        for member in chain.targets:
            if not chain.serving or not book.is_drained(*view.cluster.site_of(member.target_id)):
                continue
            yield chain, member.target_id, MoveReason.DRAIN


def _rebalance(view: View, steps: Steps, slots: _Slots) -> None:
    """Begin moves that make the disks more evenly filled;
    the rebalancing is over when there is none.
    """
    while slots.left > 0:
        cluster = replace(view.cluster, book=steps.book)
        found = _most_useful(steps, cluster)
        if found is None:
            if not cluster.incoming and not _somebody_will_be_back(view):
                steps.book = replace(steps.book, is_rebalancing=False)
            return
        chain, leaving, site = found
        if not slots.take(_nodes_at_work(view, chain.chain_id, site.node_id)):
            return
        _add(cluster, steps, chain=chain, leaving=leaving, site=site, reason=MoveReason.REBALANCE)


def _somebody_will_be_back(view: View) -> bool:
    """Tell whether a chain is short of a member that is not lost:
    it may be moved when it is whole again.
    """
    return any(
        m.public_state is not PublicState.SERVING and not view.is_lost(m.target_id)
        for chain in view.cluster.info.chains.values()
        for m in chain.targets
    )


def _most_useful(steps: Steps, cluster: Cluster) -> tuple[Chain, TargetId, Site] | None:
    """Return the move from the fullest to the emptiest disks that can be made.

    The sum over all disks of members squared by capacity falls with each, so they come to an end.
    """
    movable: dict[Site, list[tuple[ChainId, TargetId]]] = {}
    for chain_id, chain in sorted(cluster.info.chains.items()):
        is_whole = len(chain.serving) == len(chain.targets)
        if (
            is_whole
            and cluster.book.move_of_chain(chain_id) is None
            and chain_id not in steps.chains
        ):
            for target_id in chain.serving:
                movable.setdefault(cluster.site_of(target_id), []).append((chain_id, target_id))
    by_fill = sorted(cluster.sites, key=lambda site: (cluster.fill(site), site))
    with_room = [s for s in by_fill if cluster.has_room(s, 0) and s not in cluster.given_up]
    for source in reversed(by_fill):
        for site in with_room:
            if not _evens_out(cluster, source, site):
                break
            for chain_id, target_id in movable.get(source, ()):
                chain = cluster.info.chain(chain_id)
                if is_suited(cluster, wanted(cluster, chain, target_id), site):
                    return chain, target_id, site
    return None


def _evens_out(cluster: Cluster, source: Site, site: Site) -> bool:
    here, there = cluster.member_counts[source], cluster.member_counts[site]
    gain = (2 * here - 1) / cluster.sites[source].capacity_bytes
    return (2 * there + 1) / cluster.sites[site].capacity_bytes < gain
