"""Emptying a node or a disk: the plan, the order, the waiting.

Does not decide anything: fs/mgmtd does.
"""

from typing import Annotated

import typer

from ...schema import services
from ...schema.proto import mgmtd_pb2 as pb
from ...schema.routing import NodeState, Role, RoutingInfo
from ..reach.where import Where
from ..terminal.amounts import count_text
from ..terminal.listing import confirm
from .moves import wait_drained

WaitOption = Annotated[
    bool, typer.Option("--wait", help="Until nothing is left there; Ctrl-C stops waiting only.")
]
CancelOption = Annotated[
    bool,
    typer.Option("--cancel", help="Use it again; moves that have begun to serve are finished."),
]


def chains_of(info: RoutingInfo, node_id: int, disk_index: int | None = None) -> list[int]:
    """Return the chains that have a member on the node, or on one of its disks."""
    return sorted(
        chain.chain_id
        for chain in info.chains.values()
        if any(
            target.node_id == node_id and disk_index in {None, target.disk_index}
            for target in (info.target(member.target_id) for member in chain.targets)
        )
    )


def place_name(place: pb.DrainPb) -> str:
    """Return what a drain is about, for people."""
    return f"node {place.node_id}" + (f" disk {place.disk_index}" if place.is_one_disk else "")


def drain(
    where: Where, place: pb.DrainPb, *, cancel: bool, wait: bool, dry_run: bool, yes: bool
) -> None:
    """Show the plan and begin to empty a place, or end that."""
    name = place_name(place)
    info = where.routing()
    info.node(place.node_id)
    if cancel:
        confirm([f"{name} is used again"], dry_run=dry_run, yes=True)
        where.ask(services.MGMTD_CANCEL_DRAIN, pb.CancelDrainReq(drain=place))
        return
    confirm(drain_plan(info, place), dry_run=dry_run, yes=yes)
    start_drain(where, place, wait=wait)


def start_drain(where: Where, place: pb.DrainPb, *, wait: bool) -> None:
    """Begin to empty a place; wait until that is done, if asked to."""
    reply = where.ask(services.MGMTD_START_DRAIN, pb.StartDrainReq(drain=place))
    typer.echo(
        f"{place_name(place)}: {reply.target_count} targets have to leave; progress: ember admin "
        "move list"
    )
    if wait:
        wait_drained(where, place, reply.target_count)


def drain_plan(info: RoutingInfo, place: pb.DrainPb) -> list[str]:
    """Say what emptying a place means."""
    chains = chains_of(info, place.node_id, place.disk_index if place.is_one_disk else None)
    others = [
        n.node_id
        for n in info.nodes.values()
        if Role.STORAGE in n.roles and n.node_id != place.node_id and n.state is NodeState.CONNECTED
    ]
    lines = [
        (
            f"{place_name(place)}: a member of each of {count_text(len(chains), 'chain')} is "
            "replaced by one elsewhere"
        )
    ]
    size = max((info.chain(chain_id).replica_count for chain_id in chains), default=0)
    if not place.is_one_disk and len(others) < size:
        lines.append(
            f"only {len(others)} other storage nodes are there for chains of {size}: it waits "
            "until there are more"
        )
    return lines
