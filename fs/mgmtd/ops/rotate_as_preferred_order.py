"""RotateAsPreferredOrder: one step of a chain towards its preferred order."""

from ...schema.proto.mgmtd_pb2 import RotateAsPreferredOrderReq, RotateAsPreferredOrderRsp
from ..chain_changes import next_rotation
from ..primary import Primary


async def rotate_as_preferred_order(
    primary: Primary, request: RotateAsPreferredOrderReq
) -> RotateAsPreferredOrderRsp:
    """Send the first misplaced target to the end: it stops serving and resyncs there.

    Until that is over the chain has one replica less; so a step is refused
    while any member does not serve.

    Raises:
        FsError: CHAIN_UNKNOWN, UNSAFE_CHANGE, NOT_PRIMARY, and what the target's node answers.
    """
    chain = primary.info.chain(request.chain_id)
    primary.check_not_moving(chain.chain_id)
    target_id = next_rotation(chain)
    if target_id is None:
        return RotateAsPreferredOrderRsp()
    await primary.stop_serving(target_id)
    return RotateAsPreferredOrderRsp(target_id=target_id)
