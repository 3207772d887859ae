"""AcceptOldImage: lets the last server of a chain serve from a disk that is older
than what it served.
"""

import logging
from dataclasses import replace

from ...schema.ids import TargetId
from ...schema.proto.mgmtd_pb2 import AcceptOldImageReq, AcceptOldImageRsp
from ...schema.status import FsError, Status
from ..primary import Primary
from ..store import Change

logger = logging.getLogger(__name__)


async def accept_old_image(primary: Primary, request: AcceptOldImageReq) -> AcceptOldImageRsp:
    """Believe the disk as it is: what was written since its state is lost.  Counts as a loss.

    Raises:
        FsError: CHAIN_UNKNOWN, UNSAFE_CHANGE (the chain does not wait for such a disk),
            OLD_DISK_IMAGE (the loss is not accepted), NOT_PRIMARY.
    """
    target_id = TargetId(request.target_id)
    async with primary.lock:
        primary.check_acting()
        chain, watermarks = primary.info.chain(request.chain_id), primary.state.watermarks
        if not watermarks.is_refused(target_id, chain):
            detail = (
                f"chain {chain.chain_id} does not wait for an older image of target {target_id}'s "
                "disk"
            )
            raise FsError(Status.UNSAFE_CHANGE, detail)
        refusal = watermarks.refusal(target_id)
        if not request.accept_data_loss:
            raise refusal
        logger.error(
            "DATA IS LOST: chain %d goes on from an older image, because an operator accepted it: "
            "%s",
            chain.chain_id,
            refusal.detail,
        )
        after = replace(
            chain, chain_version=chain.chain_version + 1, loss_count=chain.loss_count + 1
        )
        watermarks.accept(target_id)
        await primary.settle(
            Change(chains={chain.chain_id: after}),
            why=f"an older image of target {target_id}'s disk was accepted: data loss accepted",
        )
        return AcceptOldImageRsp(chain_version=primary.info.chain(chain.chain_id).chain_version)
