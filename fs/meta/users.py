"""Whose name a request to the metadata service may be in, when a user's token calls.  Pure.

Invariants:
    - Who does not hold the root flag acts as itself: its uid, and of groups no other than its own.
    - A client speaks for itself: no token reaches the sessions, locks or remembered
      replies of another one's clients.  Of its own token's it may free what one held that is gone.
"""

from google.protobuf.message import Message

from ..rpc.api import Identity, check_client_id, check_owner
from ..schema.proto.common_pb2 import CallerPb
from ..schema.proto.meta_pb2 import CloseReq, FreeClientReq
from ..schema.status import FsError, Status
from ..schema.user import User


def admit(user: User, peer: Identity, request: Message) -> None:
    """Check the caller in a request, and replace its groups by what the cluster knows of the user.

    A request without a caller is left to whoever reads it.

    Raises:
        FsError: RPC_NOT_ALLOWED.
    """
    if isinstance(request, CloseReq):
        request = request.sync
    if not request.HasField("caller"):
        return
    caller: CallerPb = request.caller  # type: ignore[attr-defined]
    check_client_id(caller.client_id, peer)
    if isinstance(request, FreeClientReq):
        check_owner(request.client_id, peer)
    if user.is_root:
        return
    if caller.uid != user.uid:
        raise FsError(Status.RPC_NOT_ALLOWED, f"user {user.name} may not act as uid {caller.uid}")
    if caller.gid not in user.groups:
        caller.gid = user.gid
    caller.groups[:] = sorted(user.groups)
