"""ListClientSessions: who is there, and whether that is everybody."""

from ...schema.proto.mgmtd_pb2 import ListClientSessionsReq, ListClientSessionsRsp
from ..primary import Primary


async def list_client_sessions(
    primary: Primary, _request: ListClientSessionsReq
) -> ListClientSessionsRsp:
    """Return the sessions that have not expired."""
    now_s = primary.now_s
    primary.sessions.expire(now_s)
    return ListClientSessionsRsp(
        sessions=primary.sessions.listed(now_s, primary.host_tags.of),
        is_complete=primary.sessions.is_complete(now_s),
    )
