"""FindTokens: tells processes of the cluster whose tokens are, and what checks them."""

from functools import reduce
from typing import Final

from ...schema.proto.mgmtd_pb2 import FindTokensReq, FindTokensRsp, UserPb
from ...schema.status import FsError, Status
from ..primary import Primary
from ..user_book import UserBook, with_use

TOKEN_COUNT_MAX: Final = 10_000


async def find_tokens(primary: Primary, request: FindTokensReq) -> FindTokensRsp:
    """Return the users of tokens; that they were asked for is noted, to the hour, as their use.

    Raises:
        FsError: RPC_BAD_REQUEST, NOT_PRIMARY.
    """
    token_ids = list(request.token_ids)
    if len(token_ids) > TOKEN_COUNT_MAX:
        raise FsError(Status.RPC_BAD_REQUEST, f"{len(token_ids)} tokens")
    users = [primary.users.facts(token_id) or UserPb() for token_id in token_ids]
    if primary.users != _used(primary.users, token_ids, primary.wall_ns):
        await primary.change_users(lambda book, now_ns: _used(book, token_ids, now_ns))
    return FindTokensRsp(users=users)


def _used(book: UserBook, token_ids: list[bytes], now_ns: int) -> UserBook:
    return reduce(lambda made, token_id: with_use(made, token_id, now_ns), token_ids, book)
