"""UpdateChain: adds a target to a chain, or removes one."""

from typing import Final

import trio

from ...schema.ids import TargetId
from ...schema.proto.mgmtd_pb2 import ADD_MEMBER, REMOVE_MEMBER, UpdateChainReq, UpdateChainRsp
from ...schema.routing import Chain, PublicState, RoutingInfo
from ...schema.status import FsError, Status
from ..chain_changes import check_may_leave, with_member, without_member
from ..orders import ORDER_TIMEOUT_S
from ..primary import Primary

STOP_SERVING_S_MAX: Final = ORDER_TIMEOUT_S


async def update_chain(primary: Primary, request: UpdateChainReq) -> UpdateChainRsp:
    """Change the members of a chain; answered when the change is published.

    Raises:
        FsError: CHAIN_UNKNOWN, TARGET_UNKNOWN, RPC_BAD_REQUEST, UNSAFE_CHANGE, CONFLICTING_CHANGE
            (the target is in another chain or moves, or its node holds a member already),
            NOT_PRIMARY, and what the node answers when a target that serves has to stop first.
    """
    chain_id, target_id = request.chain_id, TargetId(request.target_id)
    if request.update == REMOVE_MEMBER:
        if primary.info.chain(chain_id).state_of(target_id) is PublicState.SERVING:
            accepted = request.accept_fewer_replicas
            await _stop_serving(primary, chain_id, target_id, accept_fewer_replicas=accepted)
    elif request.update != ADD_MEMBER:
        raise FsError(Status.RPC_BAD_REQUEST, f"chain {chain_id}: update {request.update}")
    async with primary.lock:
        primary.check_acting()
        info = primary.info
        chain = info.chain(chain_id)
        primary.check_not_moving(chain.chain_id, target_id)
        if request.update == ADD_MEMBER:
            _check_may_join(info, chain, target_id)
            after = with_member(chain, target_id)
        else:
            info.target(target_id)
            after = without_member(chain, target_id)
        await primary.change_members(after, why="other members were asked for")
        return UpdateChainRsp(chain_version=primary.info.chain(chain_id).chain_version)


def _check_may_join(info: RoutingInfo, chain: Chain, target_id: TargetId) -> None:
    target = info.target(target_id)
    if target.chain_id not in {0, chain.chain_id}:
        detail = f"target {target_id} is in chain {target.chain_id} already"
        raise FsError(Status.CONFLICTING_CHANGE, detail)
    for member in chain.targets:
        is_other = member.target_id != target_id
        if is_other and info.target(member.target_id).node_id == target.node_id:
            detail = (
                f"target {member.target_id} of chain {chain.chain_id} is on node {target.node_id} "
                "too"
            )
            raise FsError(Status.CONFLICTING_CHANGE, detail)


async def _stop_serving(
    primary: Primary, chain_id: int, target_id: TargetId, *, accept_fewer_replicas: bool
) -> None:
    """Have a member stop serving, and return when the chain says so."""
    chain = primary.info.chain(chain_id)
    primary.check_not_moving(chain.chain_id, target_id)
    check_may_leave(chain, target_id)
    if not accept_fewer_replicas:
        detail = f"chain {chain_id}: target {target_id} serves; say that you accept fewer replicas"
        raise FsError(Status.UNSAFE_CHANGE, detail)
    await primary.stop_serving(target_id)
    with trio.move_on_after(STOP_SERVING_S_MAX):
        while primary.info.chain(chain_id).state_of(target_id) is PublicState.SERVING:
            primary.check_acting()
            await primary.wait_newer(primary.info.routing_version, STOP_SERVING_S_MAX)
