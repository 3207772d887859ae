"""RemoveUser: forgets a user and its tokens."""

from ...schema.proto.mgmtd_pb2 import RemoveUserReq, RemoveUserRsp
from ..primary import Primary
from ..user_book import without_user


async def remove_user(primary: Primary, request: RemoveUserReq) -> RemoveUserRsp:
    """Forget a user; one that does not exist is fine.  Raises FsError(NOT_PRIMARY)."""
    await primary.change_users(lambda book, _now_ns: without_user(book, request.uid))
    return RemoveUserRsp()
