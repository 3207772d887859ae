"""SetPreferredOrder: says in which order the members of a chain should stand, nothing else."""

from ...schema.ids import TargetId
from ...schema.proto.mgmtd_pb2 import SetPreferredOrderReq, SetPreferredOrderRsp
from ..chain_changes import with_preferred_order
from ..primary import Primary
from ..store import Change


async def set_preferred_order(
    primary: Primary, request: SetPreferredOrderReq
) -> SetPreferredOrderRsp:
    """Note the order; RotateAsPreferredOrder carries it out.

    Raises:
        FsError: CHAIN_UNKNOWN, CONFLICTING_CHANGE (it does not name
            every member once), NOT_PRIMARY.
    """
    async with primary.lock:
        primary.check_acting()
        chain = primary.info.chain(request.chain_id)
        primary.check_not_moving(chain.chain_id)
        after = with_preferred_order(chain, [TargetId(t) for t in request.target_ids])
        if after is not chain:
            await primary.settle(
                Change(chains={chain.chain_id: after}), why="another order was asked for"
            )
        version = primary.info.chain(request.chain_id).chain_version
    return SetPreferredOrderRsp(chain_version=version)
