"""May processes be started anew now, one after the other?  Pure.

Judges a snapshot by what the doctor finds, and says in which order to
go: who is asked before who asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..schema.routing import Role, RoutingInfo
from .doctor import Finding, Severity, Snapshot, diagnose

BLOCKING: Final = frozenset(
    {
        "bootstrapping",
        "chain-degraded",
        "chain-unavailable",
        "lease-short",
        "chain-restored",
        "maintenance",
        "node-disabled",
        "node-failed",
        "node-silent",
        "replicas-together",
        "target-trouble",
    }
)
"""While one of these is so, stopping another process may take chains away,
or hide what went wrong.
"""
RESTART_ORDER: Final = (Role.MGMTD, Role.STORAGE, Role.META)
"""Who is asked before who asks."""


@dataclass(frozen=True, slots=True)
class Step:
    """One process to start anew."""

    node_id: int
    roles: str
    release: str
    effect: str
    """What its absence means."""


def obstacles(now: Snapshot) -> list[Finding]:
    """Return what should be put right before an upgrade is begun or goes on."""
    found = [finding for finding in diagnose(now) if finding.kind in BLOCKING]
    moves = now.moves
    if moves.moves or moves.is_rebalancing or any(d.target_count for d in moves.drains):
        found.append(
            Finding(
                "moves-under-way",
                Severity.WARNING,
                "moves",
                "targets are being moved: chains are changed while processes are stopped",
                "wait for them (ember admin move list), or stop rebalancing",
            )
        )
    found += [
        Finding(
            "chain-of-one",
            Severity.WARNING,
            f"chain {chain.chain_id}",
            "has one replica only: its files are not there while that node is started anew",
            "plan for it, or move the chain away: ember admin node drain",
        )
        for chain in now.routing.chains.values()
        if chain.replica_count == 1
    ]
    return found


def steps(info: RoutingInfo, primary: int) -> Sequence[Step]:
    """Return the processes in the order in which to start them anew.

    Who is asked comes before who asks, since a newer process serves older callers and may be
    refused by older ones: managers, the acting one (node id `primary`) last of them; storage nodes
    one at a time, each when all chains are complete again; metadata services.  The store of a
    cluster without FoundationDB, which is no node, comes before all of them, and mounts after.
    """
    effects = {
        Role.STORAGE: (
            "its chains have one replica fewer; wait until all are complete before the next"
        ),
        Role.META: (
            "clients go on with another metadata service, or wait for this one if it is the only "
            "one"
        ),
        Role.MGMTD: "another manager takes over, or all wait for this one if it is the only one",
    }
    ranked = sorted(
        info.nodes.values(),
        key=lambda n: (
            min((_rank(r) for r in n.roles), default=0),
            n.node_id == primary,
            n.node_id,
        ),
    )
    return [
        Step(
            node.node_id,
            "+".join(sorted(role.name.lower() for role in node.roles)),
            node.release,
            effects[
                min((r for r in node.roles if r in RESTART_ORDER), key=_rank, default=Role.STORAGE)
            ],
        )
        for node in ranked
    ]


def _rank(role: Role) -> int:
    return RESTART_ORDER.index(role) if role in RESTART_ORDER else 0
