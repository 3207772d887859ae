"""GetRoutingInfo: the newest routing info, waiting for one if the caller knows the current one."""

from typing import Final

from ...schema.proto.mgmtd_pb2 import GetRoutingInfoReq, GetRoutingInfoRsp
from ..primary import Primary

WAIT_S_MAX: Final = 60.0


async def get_routing_info(primary: Primary, request: GetRoutingInfoReq) -> GetRoutingInfoRsp:
    """Return routing info newer than known; without it after `wait_s`, at once if that is 0."""
    known = request.known_routing_version
    if request.wait_s > 0:
        await primary.wait_newer(known, min(request.wait_s, WAIT_S_MAX))
    version = primary.info.routing_version
    if version <= known:
        return GetRoutingInfoRsp(routing_version=version)
    return GetRoutingInfoRsp(routing_info=primary.message(), routing_version=version)
