"""ListUsers: who may hold tokens, and which."""

from typing import Final

from ...schema.proto.mgmtd_pb2 import ListUsersReq, ListUsersRsp, UserPb
from ..primary import Primary

PAGE_COUNT: Final = 500


async def list_users(primary: Primary, request: ListUsersReq) -> ListUsersRsp:
    """Return a page of users by uid, without what checks their tokens."""
    uids = sorted(uid for uid in primary.users.users if uid >= request.first_uid)
    page = [_shown(primary.users.users[uid]) for uid in uids[:PAGE_COUNT]]
    return ListUsersRsp(users=page, has_more=len(uids) > PAGE_COUNT)


def _shown(user: UserPb) -> UserPb:
    shown = UserPb.FromString(user.SerializeToString())
    for token in shown.tokens:
        token.ClearField("stored_key")
        token.ClearField("listener_key")
    return shown
