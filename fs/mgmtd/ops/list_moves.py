"""ListMoves: what is on its way, what still has to leave, and what cannot go on."""

from ...schema.ids import TargetId
from ...schema.proto.mgmtd_pb2 import DrainStatusPb, ListMovesReq, ListMovesRsp, MovePb
from ...schema.resync_progress import resync_to_pb
from ...schema.routing import RoutingInfo
from ..move_book import Drain, Move, drain_to_pb, move_to_pb
from ..primary import Primary


async def list_moves(primary: Primary, _request: ListMovesReq) -> ListMovesRsp:
    """Return moves by id, drains by node."""
    return moves_of(primary)


def moves_of(primary: Primary) -> ListMovesRsp:
    """As `list_moves`, at once."""
    book, info = primary.state.book, primary.info
    drains = sorted(book.drains, key=lambda d: (d.node_id, d.disk_index or 0))
    return ListMovesRsp(
        moves=[_shown(primary, m) for _, m in sorted(book.moves.items())],
        drains=[
            DrainStatusPb(drain=drain_to_pb(d), target_count=len(drained_members(info, d)))
            for d in drains
        ],
        is_rebalancing=book.is_rebalancing,
        problems=primary.mover.problems,
        store_trouble=primary.store_trouble,
    )


def drained_members(info: RoutingInfo, drain: Drain) -> list[TargetId]:
    """Return the members of chains that a drain has still to move."""
    return [
        t.target_id
        for t in info.targets.values()
        if t.chain_id and drain.covers(t.node_id, t.disk_index)
    ]


def _shown(primary: Primary, move: Move) -> MovePb:
    message = move_to_pb(move)
    joining = primary.info.targets.get(move.joining)
    if joining is not None and joining.resync is not None:
        message.resync.CopyFrom(resync_to_pb(joining.resync))
    trouble = primary.mover.trouble
    message.trouble = trouble.get(move.joining) or trouble.get(move.leaving) or ""
    return message
