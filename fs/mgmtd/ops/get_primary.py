"""GetPrimary: whom to turn to; answered by every manager."""

from ...schema.proto.mgmtd_pb2 import GetPrimaryReq, GetPrimaryRsp
from ..election import Election


async def get_primary(election: Election, _request: GetPrimaryReq) -> GetPrimaryRsp:
    """Return the owner of the lease as this manager last saw it; empty when nobody holds it."""
    record = election.record
    return GetPrimaryRsp(node_id=record.node_id, address=record.address, is_self=election.may_act())
