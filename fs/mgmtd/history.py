"""What a change of the routing info is about, in words that are kept.  Pure.

Each publication that changes a node, the members or states of a chain, a table or a drain is one
event; that a target uses more space is none.  An event is written in the transaction of the change
itself, so that the history has exactly what happened.

Invariants:
    - Event ids count on without gaps, over changes of primaries.
    - No more than EVENTS_KEPT events are kept; an event fits into one value of any store.
"""

from collections.abc import Callable, Iterator
from typing import Final

from ..schema.ids import TargetId
from ..schema.proto.mgmtd_pb2 import RoutingChangePb, RoutingEventPb
from ..schema.routing import Chain, LocalState, Node, NodeState, PublicState, RoutingInfo
from .move_book import Drain
from .store import BookChange, Change

EVENTS_KEPT: Final = 10_000
EVENT_BYTES_MAX: Final = 30_000
"""FoundationDB takes 100,000 in one value."""
TEXT_LENGTH_MAX: Final = 500

LocalStateOf = Callable[[TargetId], LocalState]


def event_of(
    info: RoutingInfo, change: Change, local_state_of: LocalStateOf, why: str
) -> RoutingEventPb | None:
    """Return what a change is about; None for what nobody asks about later.

    Args:
        info: what is published now.
        change: what is about to be.
        local_state_of: what is known of the targets' own states.
        why: what an operator asked for, if that is the cause.
    """
    event = RoutingEventPb(why=why[:TEXT_LENGTH_MAX])
    size = 0
    for told in _changes(info, change, local_state_of):
        told.text = told.text[:TEXT_LENGTH_MAX]
        size += told.ByteSize() + 4
        if size > EVENT_BYTES_MAX:
            event.left_out_count += 1
        else:
            event.changes.append(told)
    return event if event.changes else None


def _changes(
    info: RoutingInfo, change: Change, local_state_of: LocalStateOf
) -> Iterator[RoutingChangePb]:
    for node in change.nodes.values():
        if text := _node_text(info.nodes.get(node.node_id), node):
            yield RoutingChangePb(node_id=node.node_id, text=text)
    for node_id in sorted(change.removed_nodes):
        yield RoutingChangePb(node_id=node_id, text="forgotten")
    for chain in change.chains.values():
        text = _chain_text(info, change, chain, local_state_of)
        yield RoutingChangePb(chain_id=chain.chain_id, chain_version=chain.chain_version, text=text)
    for table in change.chain_tables.values():
        name = f"table {table.table_id} version {table.table_version}"
        yield RoutingChangePb(text=f"{name}: {len(table.chain_ids)} chains")
    if change.book is not None:
        yield from _book_changes(change.book)


def _node_text(before: Node | None, after: Node) -> str:
    """Say what is new of a node; empty: nothing that matters."""
    if before is None:
        roles = "+".join(sorted(role.name.lower() for role in after.roles))
        return f"registered: {roles} at {after.address}"
    parts = []
    if before.state is not after.state:
        parts.append(f"{before.state.name.lower()} -> {after.state.name.lower()}")
    if before.incarnation != after.incarnation:
        parts.append("its process has started")
    if before.boot_id not in {"", after.boot_id}:
        parts.append("its machine was started anew")
    if before.release not in {"", after.release}:
        parts.append(f"release {before.release} -> {after.release}")
    if before.address not in {"", after.address}:
        parts.append(f"address {before.address} -> {after.address}")
    if before.maintenance_until_ns != after.maintenance_until_ns:
        parts.append(f"maintenance {'begins' if after.maintenance_until_ns else 'ends'}")
    return ", ".join(parts)


def _chain_text(
    info: RoutingInfo, change: Change, after: Chain, local_state_of: LocalStateOf
) -> str:
    before = info.chains.get(after.chain_id)
    if before is None:
        return "made of " + _listed(after)
    parts = [
        f"{member.target_id} {_name(old)} -> {_name(member.public_state)}"
        f" ({_cause(info, change, member.target_id, local_state_of)})"
        for member in after.targets
        if (old := before.state_of(member.target_id)) is not member.public_state
    ]
    parts += [
        f"{member.target_id} leaves"
        for member in before.targets
        if after.state_of(member.target_id) is None
    ]
    if before.loss_count != after.loss_count:
        parts.append(f"loss {after.losses} of what was not synced")
    if before.preferred_order != after.preferred_order:
        parts.append(f"preferred order {' '.join(map(str, after.preferred_order))}")
    if not parts:
        parts.append("order")
    return f"{', '.join(parts)}; now {_listed(after)}"


def _cause(
    info: RoutingInfo, change: Change, target_id: TargetId, local_state_of: LocalStateOf
) -> str:
    """Say what is known of a member's node and of the member itself:
    that is what its state follows from.
    """
    target = change.targets.get(target_id) or info.target(target_id)
    node = change.nodes.get(target.node_id) or info.nodes.get(target.node_id)
    if node is None:
        return f"node {target.node_id} is not known"
    if node.state in {NodeState.FAILED, NodeState.DISABLED}:
        return f"node {node.node_id} is {node.state.name.lower()}"
    local = local_state_of(target_id).name.lower().removeprefix("local_")
    trouble = f": {target.trouble}" if target.trouble else ""
    return f"node {node.node_id} says {local}{trouble}"


def _book_changes(book: BookChange) -> Iterator[RoutingChangePb]:
    before, after = book.before, book.after
    for move_id in sorted(after.moves.keys() - before.moves.keys()):
        move = after.moves[move_id]
        place = f"node {move.node_id} disk {move.disk_index}"
        text = (
            f"move {move_id} begins ({move.reason.name.lower()}): {move.joining} on {place} for "
            f"{move.leaving}"
        )
        yield RoutingChangePb(chain_id=move.chain_id, text=text)
    for move_id in sorted(before.moves.keys() - after.moves.keys()):
        move = before.moves[move_id]
        yield RoutingChangePb(chain_id=move.chain_id, text=f"move {move_id} ends")
    for begins, drains in (
        (True, after.drains - before.drains),
        (False, before.drains - after.drains),
    ):
        for drain in sorted(drains, key=_place):
            text = f"drain of {_drained(drain)} {'begins' if begins else 'ends'}"
            yield RoutingChangePb(node_id=drain.node_id, text=text)
    if before.is_rebalancing != after.is_rebalancing:
        yield RoutingChangePb(text=f"rebalancing {'begins' if after.is_rebalancing else 'ends'}")


def _place(drain: Drain) -> tuple[int, int]:
    return drain.node_id, -1 if drain.disk_index is None else drain.disk_index


def _drained(drain: Drain) -> str:
    return "the node" if drain.disk_index is None else f"disk {drain.disk_index}"


def _listed(chain: Chain) -> str:
    return " ".join(f"{t.target_id}:{_name(t.public_state)}" for t in chain.targets)


def _name(state: PublicState | None) -> str:
    return "no member" if state is None else state.name.lower()
