"""StartRebalance: spreads the members of chains evenly over all disks, new ones included."""

from dataclasses import replace

from ...schema.proto.mgmtd_pb2 import StartRebalanceReq, StartRebalanceRsp
from ..primary import Primary


async def start_rebalance(primary: Primary, _request: StartRebalanceReq) -> StartRebalanceRsp:
    """Begin; it ends by itself when no move makes it more even.  Raises FsError(NOT_PRIMARY)."""
    async with primary.lock:
        primary.check_acting()
        book = primary.state.book
        if not book.is_rebalancing:
            await primary.change_book(
                replace(book, is_rebalancing=True), why="rebalancing was asked for"
            )
    return StartRebalanceRsp()
