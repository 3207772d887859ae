"""AddToken: lets a user prove itself by one more token."""

from ...schema.proto.mgmtd_pb2 import AddTokenReq, AddTokenRsp
from ..primary import Primary
from ..user_book import with_token


async def add_token(primary: Primary, request: AddTokenReq) -> AddTokenRsp:
    """Note what checks a token.

    Raises:
        FsError: USER_UNKNOWN, RPC_BAD_REQUEST, CONFLICTING_CHANGE, NOT_PRIMARY.
    """
    uid, token = request.uid, request.token
    await primary.change_users(lambda book, now_ns: with_token(book, uid, token, now_ns))
    return AddTokenRsp()
