"""CancelMove: gives one move up."""

from ...schema.proto.mgmtd_pb2 import CancelMoveReq, CancelMoveRsp
from ...schema.status import FsError, Status
from ..primary import Primary


async def cancel_move(primary: Primary, request: CancelMoveReq) -> CancelMoveRsp:
    """Cancel a move, unless its new target serves already.

    While its cause lasts (a drain, a lost target) another one will begin, perhaps to another place.

    Raises:
        FsError: MOVE_UNKNOWN, NOT_PRIMARY.
    """
    async with primary.lock:
        primary.check_acting()
        book = primary.state.book
        if request.move_id not in book.moves:
            raise FsError(Status.MOVE_UNKNOWN, f"move {request.move_id}")
        after = primary.cancelled_moves(lambda move: move.move_id == request.move_id)
        if after != book:
            await primary.change_book(after, why="the end of a move was asked for")
    return CancelMoveRsp()
