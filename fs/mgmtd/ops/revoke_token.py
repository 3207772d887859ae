"""RevokeToken: lets a token prove nothing any more."""

from ...schema.proto.mgmtd_pb2 import RevokeTokenReq, RevokeTokenRsp
from ..primary import Primary
from ..user_book import without_token


async def revoke_token(primary: Primary, request: RevokeTokenReq) -> RevokeTokenRsp:
    """Forget a token; one that does not exist is fine.  Raises FsError(NOT_PRIMARY)."""
    await primary.change_users(lambda book, _now_ns: without_token(book, request.token_id))
    return RevokeTokenRsp()
