"""ExtendClientSession: a client says that it is there,
and hears of settings that it does not have yet.
"""

from ...schema.proto.mgmtd_pb2 import ExtendClientSessionReq, ExtendClientSessionRsp
from ...schema.routing import Role
from ...schema.status import FsError, Status
from ..primary import Primary


async def extend_client_session(
    primary: Primary, request: ExtendClientSessionReq
) -> ExtendClientSessionRsp:
    """Begin or extend a session; raises FsError(RPC_BAD_REQUEST, RPC_OVERLOADED)."""
    if not request.client_id:
        raise FsError(Status.RPC_BAD_REQUEST, "a client session without client id")
    primary.sessions.extend(request, primary.now_s)
    return ExtendClientSessionRsp(
        session_duration_s=primary.section.client_session_s,
        routing_version=primary.info.routing_version,
        settings=primary.settings.unheard((Role.CLIENT,), request.settings),
    )
