"""SetUser: makes a user of a closed cluster, or changes one."""

from ...schema.proto.mgmtd_pb2 import SetUserReq, SetUserRsp
from ..primary import Primary
from ..user_book import with_user


async def set_user(primary: Primary, request: SetUserReq) -> SetUserRsp:
    """Note a user; raises FsError(RPC_BAD_REQUEST, CONFLICTING_CHANGE, NOT_PRIMARY)."""
    await primary.change_users(lambda book, now_ns: with_user(book, request.user, now_ns))
    return SetUserRsp()
