"""CancelDrain: a node or disk may be used again."""

from dataclasses import replace

from ...schema.proto.mgmtd_pb2 import CancelDrainReq, CancelDrainRsp
from ..move_book import Move, MoveReason, drain_from_pb
from ..primary import Primary


async def cancel_drain(primary: Primary, request: CancelDrainReq) -> CancelDrainRsp:
    """Forget the drain and cancel its moves; those whose new target serves already are finished.

    Raises:
        FsError: NOT_PRIMARY.  A drain that does not exist is fine.
    """
    async with primary.lock:
        primary.check_acting()
        drain, info = drain_from_pb(request.drain), primary.info

        def is_of_drain(move: Move) -> bool:
            leaving = info.targets.get(move.leaving)
            is_there = leaving is not None and drain.covers(leaving.node_id, leaving.disk_index)
            return move.reason is MoveReason.DRAIN and is_there

        if drain in primary.state.book.drains:
            book = primary.cancelled_moves(is_of_drain)
            await primary.change_book(
                replace(book, drains=book.drains - {drain}), why="the end of a drain was asked for"
            )
    return CancelDrainRsp()
