"""CloseClientSession: a client says that it is leaving."""

from ...schema.proto.mgmtd_pb2 import CloseClientSessionReq, CloseClientSessionRsp
from ..primary import Primary


async def close_client_session(
    primary: Primary, request: CloseClientSessionReq
) -> CloseClientSessionRsp:
    """End a session; one that does not exist is fine."""
    primary.sessions.close(request.client_id)
    return CloseClientSessionRsp()
