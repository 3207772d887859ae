"""CancelRebalance: leaves everything where it is by now."""

from dataclasses import replace

from ...schema.proto.mgmtd_pb2 import CancelRebalanceReq, CancelRebalanceRsp
from ..move_book import MoveReason
from ..primary import Primary


async def cancel_rebalance(primary: Primary, _request: CancelRebalanceReq) -> CancelRebalanceRsp:
    """Cancel its moves; those whose new target serves already are finished.

    Raises FsError(NOT_PRIMARY).
    """
    async with primary.lock:
        primary.check_acting()
        if primary.state.book.is_rebalancing:
            book = primary.cancelled_moves(lambda move: move.reason is MoveReason.REBALANCE)
            await primary.change_book(
                replace(book, is_rebalancing=False), why="the end of rebalancing was asked for"
            )
    return CancelRebalanceRsp()
