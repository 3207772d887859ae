"""SetChainTable: a new version of a numbered list of chains; older versions stay readable."""

from ...schema.ids import ChainId, ChainTableId
from ...schema.proto.mgmtd_pb2 import SetChainTableReq, SetChainTableRsp
from ...schema.routing import ChainTable, RoutingInfo
from ...schema.status import FsError, Status
from ..primary import Primary
from ..store import Change


async def set_chain_table(primary: Primary, request: SetChainTableReq) -> SetChainTableRsp:
    """Set the list; the newest version is answered when it holds the same list already.

    Raises:
        FsError: RPC_BAD_REQUEST, CHAIN_UNKNOWN, CONFLICTING_CHANGE (chains of unequal
            replica counts), NOT_PRIMARY.
    """
    async with primary.lock:
        primary.check_acting()
        table, is_new = _plan(primary.info, request)
        if is_new:
            key = (table.table_id, table.table_version)
            await primary.settle(Change(chain_tables={key: table}), why="a new table was asked for")
    return SetChainTableRsp(table_version=table.table_version)


def _plan(info: RoutingInfo, request: SetChainTableReq) -> tuple[ChainTable, bool]:
    table_id, chain_ids = request.table_id, tuple(ChainId(c) for c in request.chain_ids)
    if not table_id or not chain_ids or len(set(chain_ids)) < len(chain_ids):
        raise FsError(Status.RPC_BAD_REQUEST, f"chain table {table_id} of {list(chain_ids)}")
    replica_counts = {info.chain(chain_id).replica_count for chain_id in chain_ids}
    if len(replica_counts) > 1:
        detail = f"chain table {table_id} mixes replica counts {sorted(replica_counts)}"
        raise FsError(Status.CONFLICTING_CHANGE, detail)
    newest = max((v for t, v in info.chain_tables if t == table_id), default=0)
    if newest:
        existing = info.chain_table(table_id, newest)
        if existing.chain_ids == chain_ids:
            return existing, False
    return ChainTable(ChainTableId(table_id), newest + 1, chain_ids), True
