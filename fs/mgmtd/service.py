"""The Mgmtd service: binds the remote methods to the operations of the reigning primary.

Only the primary answers, and only while it is beyond doubt the primary: before the operation,
and again before its answer is given.  Concurrency: methods run side by side; the primary's
lock orders what changes anything.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import Message

from ..rpc.api import Call, Identity, check_client_id, check_owner
from ..schema.proto import mgmtd_pb2 as pb
from ..schema.proto.common_pb2 import NodeRole
from ..schema.status import FsError, Status
from ..schema.user import User
from .election import Election
from .ops.accept_disks import accept_disks
from .ops.accept_old_image import accept_old_image
from .ops.add_token import add_token
from .ops.cancel_drain import cancel_drain
from .ops.cancel_move import cancel_move
from .ops.cancel_rebalance import cancel_rebalance
from .ops.close_client_session import close_client_session
from .ops.disable_node import disable_node
from .ops.enable_node import enable_node
from .ops.extend_client_session import extend_client_session
from .ops.find_tokens import find_tokens
from .ops.get_primary import get_primary
from .ops.get_routing_info import get_routing_info
from .ops.get_settings import get_settings
from .ops.heartbeat import heartbeat
from .ops.list_client_sessions import list_client_sessions
from .ops.list_host_tags import list_host_tags
from .ops.list_moves import list_moves
from .ops.list_orphan_targets import list_orphan_targets
from .ops.list_routing_events import list_routing_events
from .ops.list_settings import list_settings
from .ops.list_users import list_users
from .ops.register_node import register_node
from .ops.remove_user import remove_user
from .ops.report_unreachable import report_unreachable
from .ops.revoke_token import revoke_token
from .ops.rotate_as_preferred_order import rotate_as_preferred_order
from .ops.rotate_last_serving import rotate_last_serving
from .ops.set_chain_table import set_chain_table
from .ops.set_chains import set_chains
from .ops.set_maintenance import set_maintenance
from .ops.set_preferred_order import set_preferred_order
from .ops.set_settings import set_settings
from .ops.set_tags import set_tags
from .ops.set_user import set_user
from .ops.start_drain import start_drain
from .ops.start_rebalance import start_rebalance
from .ops.unregister_node import unregister_node
from .ops.update_chain import update_chain
from .primary import Primary

ReqT = TypeVar("ReqT")
RspT = TypeVar("RspT")


class MgmtdService:
    """One method per `rpc` line of mgmtd.proto."""

    def __init__(self, election: Election) -> None:
        self.primary: Primary | None = None
        """Set by the main loop for the length of a reign."""
        self._election = election

    def admit(self, user: User, peer: Identity, request: Message) -> None:
        """Let a user's client begin and extend no session but its own, end none but those
        of its token, and see the settings of mounts only.

        Raises:
            FsError: RPC_NOT_ALLOWED.
        """
        is_of_server = isinstance(request, pb.GetSettingsReq) and request.role != NodeRole.CLIENT
        if is_of_server and not user.is_admin:
            raise FsError(Status.RPC_NOT_ALLOWED, "settings of servers are for administrators")
        if isinstance(request, pb.ExtendClientSessionReq):
            check_client_id(request.client_id, peer)
        elif isinstance(request, pb.CloseClientSessionReq):
            check_owner(request.client_id, peer)

    async def _run(
        self, operation: Callable[[Primary, ReqT], Awaitable[RspT]], request: ReqT
    ) -> RspT:
        primary = self.primary
        if primary is None or not primary.is_acting:
            address = self._election.record.address
            raise FsError(Status.NOT_PRIMARY, f"primary is at {address}" if address else "")
        reply = await operation(primary, request)
        primary.check_acting()
        return reply

    async def get_primary(self, _call: Call, request: pb.GetPrimaryReq) -> pb.GetPrimaryRsp:
        """See fs/mgmtd/ops/get_primary.py."""
        return await get_primary(self._election, request)

    async def heartbeat(self, _call: Call, request: pb.HeartbeatReq) -> pb.HeartbeatRsp:
        """See fs/mgmtd/ops/heartbeat.py."""
        return await self._run(heartbeat, request)

    async def get_routing_info(
        self, _call: Call, request: pb.GetRoutingInfoReq
    ) -> pb.GetRoutingInfoRsp:
        """See fs/mgmtd/ops/get_routing_info.py."""
        return await self._run(get_routing_info, request)

    async def register_node(self, _call: Call, request: pb.RegisterNodeReq) -> pb.RegisterNodeRsp:
        """See fs/mgmtd/ops/register_node.py."""
        return await self._run(register_node, request)

    async def set_chains(self, _call: Call, request: pb.SetChainsReq) -> pb.SetChainsRsp:
        """See fs/mgmtd/ops/set_chains.py."""
        return await self._run(set_chains, request)

    async def set_chain_table(
        self, _call: Call, request: pb.SetChainTableReq
    ) -> pb.SetChainTableRsp:
        """See fs/mgmtd/ops/set_chain_table.py."""
        return await self._run(set_chain_table, request)

    async def extend_client_session(
        self, _call: Call, request: pb.ExtendClientSessionReq
    ) -> pb.ExtendClientSessionRsp:
        """See fs/mgmtd/ops/extend_client_session.py."""
        return await self._run(extend_client_session, request)

    async def list_client_sessions(
        self, _call: Call, request: pb.ListClientSessionsReq
    ) -> pb.ListClientSessionsRsp:
        """See fs/mgmtd/ops/list_client_sessions.py."""
        return await self._run(list_client_sessions, request)

    async def report_unreachable(
        self, _call: Call, request: pb.ReportUnreachableReq
    ) -> pb.ReportUnreachableRsp:
        """See fs/mgmtd/ops/report_unreachable.py."""
        return await self._run(report_unreachable, request)

    async def close_client_session(
        self, _call: Call, request: pb.CloseClientSessionReq
    ) -> pb.CloseClientSessionRsp:
        """See fs/mgmtd/ops/close_client_session.py."""
        return await self._run(close_client_session, request)

    async def update_chain(self, _call: Call, request: pb.UpdateChainReq) -> pb.UpdateChainRsp:
        """See fs/mgmtd/ops/update_chain.py."""
        return await self._run(update_chain, request)

    async def set_preferred_order(
        self, _call: Call, request: pb.SetPreferredOrderReq
    ) -> pb.SetPreferredOrderRsp:
        """See fs/mgmtd/ops/set_preferred_order.py."""
        return await self._run(set_preferred_order, request)

    async def rotate_as_preferred_order(
        self, _call: Call, request: pb.RotateAsPreferredOrderReq
    ) -> pb.RotateAsPreferredOrderRsp:
        """See fs/mgmtd/ops/rotate_as_preferred_order.py."""
        return await self._run(rotate_as_preferred_order, request)

    async def rotate_last_serving(
        self, _call: Call, request: pb.RotateLastServingReq
    ) -> pb.RotateLastServingRsp:
        """See fs/mgmtd/ops/rotate_last_serving.py."""
        return await self._run(rotate_last_serving, request)

    async def list_orphan_targets(
        self, _call: Call, request: pb.ListOrphanTargetsReq
    ) -> pb.ListOrphanTargetsRsp:
        """See fs/mgmtd/ops/list_orphan_targets.py."""
        return await self._run(list_orphan_targets, request)

    async def enable_node(self, _call: Call, request: pb.EnableNodeReq) -> pb.EnableNodeRsp:
        """See fs/mgmtd/ops/enable_node.py."""
        return await self._run(enable_node, request)

    async def disable_node(self, _call: Call, request: pb.DisableNodeReq) -> pb.DisableNodeRsp:
        """See fs/mgmtd/ops/disable_node.py."""
        return await self._run(disable_node, request)

    async def unregister_node(
        self, _call: Call, request: pb.UnregisterNodeReq
    ) -> pb.UnregisterNodeRsp:
        """See fs/mgmtd/ops/unregister_node.py."""
        return await self._run(unregister_node, request)

    async def start_drain(self, _call: Call, request: pb.StartDrainReq) -> pb.StartDrainRsp:
        """See fs/mgmtd/ops/start_drain.py."""
        return await self._run(start_drain, request)

    async def cancel_drain(self, _call: Call, request: pb.CancelDrainReq) -> pb.CancelDrainRsp:
        """See fs/mgmtd/ops/cancel_drain.py."""
        return await self._run(cancel_drain, request)

    async def start_rebalance(
        self, _call: Call, request: pb.StartRebalanceReq
    ) -> pb.StartRebalanceRsp:
        """See fs/mgmtd/ops/start_rebalance.py."""
        return await self._run(start_rebalance, request)

    async def cancel_rebalance(
        self, _call: Call, request: pb.CancelRebalanceReq
    ) -> pb.CancelRebalanceRsp:
        """See fs/mgmtd/ops/cancel_rebalance.py."""
        return await self._run(cancel_rebalance, request)

    async def cancel_move(self, _call: Call, request: pb.CancelMoveReq) -> pb.CancelMoveRsp:
        """See fs/mgmtd/ops/cancel_move.py."""
        return await self._run(cancel_move, request)

    async def list_moves(self, _call: Call, request: pb.ListMovesReq) -> pb.ListMovesRsp:
        """See fs/mgmtd/ops/list_moves.py."""
        return await self._run(list_moves, request)

    async def set_user(self, _call: Call, request: pb.SetUserReq) -> pb.SetUserRsp:
        """See fs/mgmtd/ops/set_user.py."""
        return await self._run(set_user, request)

    async def remove_user(self, _call: Call, request: pb.RemoveUserReq) -> pb.RemoveUserRsp:
        """See fs/mgmtd/ops/remove_user.py."""
        return await self._run(remove_user, request)

    async def list_users(self, _call: Call, request: pb.ListUsersReq) -> pb.ListUsersRsp:
        """See fs/mgmtd/ops/list_users.py."""
        return await self._run(list_users, request)

    async def add_token(self, _call: Call, request: pb.AddTokenReq) -> pb.AddTokenRsp:
        """See fs/mgmtd/ops/add_token.py."""
        return await self._run(add_token, request)

    async def revoke_token(self, _call: Call, request: pb.RevokeTokenReq) -> pb.RevokeTokenRsp:
        """See fs/mgmtd/ops/revoke_token.py."""
        return await self._run(revoke_token, request)

    async def find_tokens(self, _call: Call, request: pb.FindTokensReq) -> pb.FindTokensRsp:
        """See fs/mgmtd/ops/find_tokens.py."""
        return await self._run(find_tokens, request)

    async def set_maintenance(
        self, _call: Call, request: pb.SetMaintenanceReq
    ) -> pb.SetMaintenanceRsp:
        """See fs/mgmtd/ops/set_maintenance.py."""
        return await self._run(set_maintenance, request)

    async def list_routing_events(
        self, _call: Call, request: pb.ListRoutingEventsReq
    ) -> pb.ListRoutingEventsRsp:
        """See fs/mgmtd/ops/list_routing_events.py."""
        return await self._run(list_routing_events, request)

    async def set_settings(self, _call: Call, request: pb.SetSettingsReq) -> pb.SetSettingsRsp:
        """See fs/mgmtd/ops/set_settings.py."""
        return await self._run(set_settings, request)

    async def get_settings(self, _call: Call, request: pb.GetSettingsReq) -> pb.GetSettingsRsp:
        """See fs/mgmtd/ops/get_settings.py."""
        return await self._run(get_settings, request)

    async def list_settings(self, _call: Call, request: pb.ListSettingsReq) -> pb.ListSettingsRsp:
        """See fs/mgmtd/ops/list_settings.py."""
        return await self._run(list_settings, request)

    async def set_tags(self, _call: Call, request: pb.SetTagsReq) -> pb.SetTagsRsp:
        """See fs/mgmtd/ops/set_tags.py."""
        return await self._run(set_tags, request)

    async def list_host_tags(self, _call: Call, request: pb.ListHostTagsReq) -> pb.ListHostTagsRsp:
        """See fs/mgmtd/ops/list_host_tags.py."""
        return await self._run(list_host_tags, request)

    async def accept_old_image(
        self, _call: Call, request: pb.AcceptOldImageReq
    ) -> pb.AcceptOldImageRsp:
        """See fs/mgmtd/ops/accept_old_image.py."""
        return await self._run(accept_old_image, request)

    async def accept_disks(self, _call: Call, request: pb.AcceptDisksReq) -> pb.AcceptDisksRsp:
        """See fs/mgmtd/ops/accept_disks.py."""
        return await self._run(accept_disks, request)
