"""Heartbeat: a node says that it lives and what its targets are like; the answer is its lease."""

import logging

from ...schema.ids import NodeId, TargetId, is_target_id
from ...schema.proto.common_pb2 import StoredSettingsPb
from ...schema.proto.mgmtd_pb2 import HeartbeatReq, HeartbeatRsp, OlderImagePb
from ...schema.routing import LocalState, node_from_pb
from ...schema.status import FsError, Status
from ..levels import too_old
from ..node_lease import granted_s
from ..primary import Primary

logger = logging.getLogger(__name__)

_LOCAL_STATES = frozenset(map(int, LocalState))


async def heartbeat(primary: Primary, request: HeartbeatReq) -> HeartbeatRsp:
    """Take the heartbeat in, judge the chains it changes, and only then grant the lease.

    Raises:
        FsError: RPC_BAD_REQUEST, NODE_UNKNOWN, NODE_DISABLED, NODE_FAILED, STALE_HEARTBEAT,
            NOT_PRIMARY; NOT_SUPPORTED: a storage process that is too old.
    """
    if not request.node.incarnation or not request.node.address:
        detail = f"heartbeat of node {request.node.node_id} without incarnation or address"
        raise FsError(Status.RPC_BAD_REQUEST, detail)
    _check_known(request)
    node_id = NodeId(request.node.node_id)
    _check_level(primary, request)
    arrived_s = primary.now_s
    primary.state.note_arrival(node_id, request.node.incarnation, arrived_s)
    async with primary.lock:
        primary.check_acting()
        replaced = primary.state.replaced_by(request)
        if replaced is not None:
            await primary.make_way(replaced)
        await primary.settle(primary.state.hear(request, arrived_s))
        if request.is_stopping:
            await primary.judge_due()
            await _keep_watermarks(primary)
        lease_s = _lease_s(primary, request)
        return HeartbeatRsp(
            lease_duration_s=0.0 if request.is_stopping else lease_s,
            routing_version=primary.info.routing_version,
            settings=_settings(primary, request),
            older_images=_older_images(primary, request),
        )


def _check_level(primary: Primary, request: HeartbeatReq) -> None:
    """Refuse a storage process that is too old, and say so once of each;
    only that it stops is heard of it.
    """
    health = primary.state.health.get(NodeId(request.node.node_id))
    refusal = too_old(primary.info, request.node)
    if health is None or request.is_stopping:
        return
    was_too_old, health.is_too_old = health.is_too_old, refusal is not None
    if refusal is None:
        return
    if not was_too_old:
        logger.error("%s", refusal)
    raise refusal


def _lease_s(primary: Primary, request: HeartbeatReq) -> float:
    """Return the lease that the answer grants;
    say once of a node that acts on what another store published that it gets none.
    """
    health = primary.state.health[NodeId(request.node.node_id)]
    known, published = request.known_routing_version, primary.info.routing_version
    was_beyond, health.is_beyond = health.is_beyond, known > published
    if health.is_beyond and not was_beyond:
        logger.error(
            "node %d acts on routing version %d, though there is none beyond %d in this store: it "
            "gets no lease; start it anew",
            request.node.node_id,
            known,
            published,
        )
    return granted_s(known, health.demoted_version, published, primary.section)


async def _keep_watermarks(primary: Primary) -> None:
    """Write what was told last at once: whoever stops everything stops the manager next."""
    try:
        await primary.write_watermarks()
    except FsError as error:  # its disk only looks newer than what was told
        logger.warning("watermarks are not kept: %s", error)


def _older_images(primary: Primary, request: HeartbeatReq) -> list[OlderImagePb]:
    """Return what was told of those with less:
    whoever becomes whole by a resync goes on beyond it.
    """
    found = [
        (t.target_id, primary.state.watermarks.older(TargetId(t.target_id)))
        for t in request.targets
    ]
    return [OlderImagePb(target_id=t, told_watermark=told) for t, told in found if told is not None]


def _settings(primary: Primary, request: HeartbeatReq) -> list[StoredSettingsPb]:
    """Note how far the node is with its settings; return those that it is to take over."""
    if not request.HasField("settings"):
        primary.heard_settings.pop(NodeId(request.node.node_id), None)
        return []
    primary.heard_settings[NodeId(request.node.node_id)] = request.settings
    return primary.settings.unheard(request.node.roles, request.settings)


def _check_known(request: HeartbeatReq) -> None:
    """Refuse numbers that cannot be, or that this release does not know,
    before anything of the heartbeat has been taken in.
    """
    node_from_pb(request.node)
    for report in request.targets:
        if not is_target_id(report.target_id):
            raise FsError(Status.RPC_BAD_REQUEST, f"target {report.target_id} cannot be")
        if report.local_state and report.local_state not in _LOCAL_STATES:
            detail = f"target {report.target_id}: local state {report.local_state}"
            raise FsError(Status.RPC_BAD_REQUEST, detail)
