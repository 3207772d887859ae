"""StartDrain: every target of a node, or of one disk, is replaced by one elsewhere."""

from dataclasses import replace

from ...schema.proto.mgmtd_pb2 import StartDrainReq, StartDrainRsp
from ...schema.routing import Role
from ...schema.status import FsError, Status
from ..move_book import drain_from_pb
from ..primary import Primary
from .list_moves import drained_members


async def start_drain(primary: Primary, request: StartDrainReq) -> StartDrainRsp:
    """Note that the place is to become empty, and stay so; the moves begin by themselves.

    Raises:
        FsError: NODE_UNKNOWN, RPC_BAD_REQUEST (no storage node, or no such disk), NOT_PRIMARY.
    """
    async with primary.lock:
        primary.check_acting()
        drain = drain_from_pb(request.drain)
        node = primary.info.node(drain.node_id)
        if Role.STORAGE not in node.roles:
            raise FsError(Status.RPC_BAD_REQUEST, f"node {node.node_id} is no storage node")
        disks = primary.state.health[node.node_id].disks
        if drain.disk_index is not None and drain.disk_index not in disks:
            detail = f"node {node.node_id} reports disks {sorted(disks)}, not {drain.disk_index}"
            raise FsError(Status.RPC_BAD_REQUEST, detail)
        book = primary.state.book
        if drain not in book.drains:
            await primary.change_book(
                replace(book, drains=book.drains | {drain}), why="a drain was asked for"
            )
        return StartDrainRsp(target_count=len(drained_members(primary.info, drain)))
