"""RotateLastServing: gives up a last serving target that will not come back."""

import logging

from ...schema.ids import TargetId
from ...schema.proto.mgmtd_pb2 import RotateLastServingReq, RotateLastServingRsp
from ...schema.routing import LocalState
from ...schema.status import FsError, Status
from ..chain_changes import rotated_last_serving
from ..primary import Primary
from ..restored import given_up
from ..store import Change

logger = logging.getLogger(__name__)


async def rotate_last_serving(
    primary: Primary, request: RotateLastServingReq
) -> RotateLastServingRsp:
    """Believe another member, whose data may be older: acknowledged writes may be lost.

    Raises:
        FsError: CHAIN_UNKNOWN, UNSAFE_CHANGE (not accepted, or nothing is lost),
            CONFLICTING_CHANGE, NOT_PRIMARY.
    """
    async with primary.lock:
        primary.check_acting()
        chain = primary.info.chain(request.chain_id)
        if not request.accept_data_loss:
            detail = (
                f"chain {chain.chain_id}: acknowledged writes may be lost; say that you accept it"
            )
            raise FsError(Status.UNSAFE_CHANGE, detail)
        states = primary.state.local_states(chain)
        alive = {t for t, local in states.items() if local is not LocalState.OFFLINE}
        alive = {t for t in alive if primary.state.watermarks.older(t) is None}
        lost, chosen = TargetId(request.lost_target_id), TargetId(request.chosen_target_id)
        if chain.restored is not None:
            after = given_up(chain, primary.state.standings, lost, chosen or None)
        else:
            after = rotated_last_serving(chain, lost, chosen or None, alive)
        if after is not chain:
            logger.error(
                "DATA MAY BE LOST: chain %d gives up target %d, which was the last to serve, and "
                "believes target %d from now on (members %s), because an operator accepted the "
                "loss",
                chain.chain_id,
                lost,
                after.targets[0].target_id,
                list(states),
            )
            await primary.settle(
                Change(chains={chain.chain_id: after}),
                why="the last server was given up: data loss accepted",
            )
        now = primary.info.chain(chain.chain_id)
        return RotateLastServingRsp(
            chosen_target_id=now.keepers[0], chain_version=now.chain_version
        )
