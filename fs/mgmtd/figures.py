"""What the acting primary says of the cluster when its metrics are read."""

from collections import Counter

from ..runtime.figures import Figures
from ..schema import metrics
from ..schema.routing import Chain, NodeState, PublicState, RoutingInfo
from .move_book import MoveState
from .primary import Primary

CHAIN_STATES = ("complete", "degraded", "unavailable")


def chain_state(chain: Chain) -> str:
    """Return one of CHAIN_STATES."""
    serving_count = len(chain.serving)
    if not serving_count:
        return "unavailable"
    return "complete" if serving_count >= chain.replica_count else "degraded"


def say(primary: Primary, figures: Figures) -> None:
    """Say everything; the caller has found it acting."""
    info = primary.info
    figures.note(metrics.ROUTING_VERSION, info.routing_version)
    figures.note(metrics.CLIENT_SESSIONS, primary.sessions.count)
    _say_chains(info, figures)
    roles = Counter((role, node.state) for node in info.nodes.values() for role in node.roles)
    for role in {role for role, _ in roles}:
        for state in NodeState:
            count = roles[role, state]
            figures.note(metrics.NODES, count, role.name.lower(), state.name.lower())
    moves = Counter(move.state for move in primary.state.book.moves.values())
    for move_state in MoveState:
        figures.note(metrics.MOVES, moves[move_state], move_state.name.lower())


def _say_chains(info: RoutingInfo, figures: Figures) -> None:
    chains = info.chains.values()
    states = Counter(map(chain_state, chains))
    for state in CHAIN_STATES:
        figures.note(metrics.CHAINS, states[state], state)
    members = Counter(member.public_state for chain in chains for member in chain.targets)
    for public in PublicState:
        figures.note(metrics.CHAIN_TARGETS, members[public], public.name.lower())
    out_of_order = sum(chain.serving != chain.preferred_order for chain in chains)
    figures.note(metrics.CHAINS_OUT_OF_ORDER, out_of_order)
    figures.note(metrics.LOSSES, sum(chain.losses for chain in chains))
    for table_id, table in _newest_tables(info).items():
        for chain_id in set(table):
            figures.note(metrics.TABLE_CHAINS, 1, table_id, chain_id)


def _newest_tables(info: RoutingInfo) -> dict[int, tuple[int, ...]]:
    """Return the chains of the newest version of each table."""
    newest: dict[int, tuple[int, tuple[int, ...]]] = {}
    for table in info.chain_tables.values():
        version, _ = newest.get(table.table_id, (-1, ()))
        if table.table_version > version:
            newest[table.table_id] = (table.table_version, table.chain_ids)
    return {table_id: chain_ids for table_id, (_, chain_ids) in newest.items()}
