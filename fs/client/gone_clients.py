"""Has a cluster let go of a client whose process is gone:
its file sessions end and its locks are free at once, not when it has been silent for long.

Whoever calls has proof of that end (fs/app/mounts/mount_record.py); here is none asked for.

Invariants:
    - Nothing is freed before every process that may hold a request of that client has said that it
      carries out none any more.  So who gets a lock meets no late write of who held it.
    - While one does not answer, nothing is freed: the silence of the client does that in the end
      (fs/meta/sessions.py), as it does where a service is of an earlier release.

Decision: specs/decisions/0233-dead-mounts-free-what-they-held.md.
"""

import logging
from collections.abc import Iterable
from typing import Final

import trio

from ..node.api import MgmtdCaller, RoutingView
from ..rpc.api import Channels, ConnectionRefused
from ..schema.proto.common_pb2 import CallerPb
from ..schema.proto.core_pb2 import EndClientReq
from ..schema.proto.meta_pb2 import FreeClientReq
from ..schema.proto.mgmtd_pb2 import CloseClientSessionReq
from ..schema.routing import Node, NodeState, Role, RoutingInfo
from ..schema.services import CORE_END_CLIENT, META_FREE_CLIENT, MGMTD_CLOSE_CLIENT_SESSION
from ..schema.status import FsError, Status
from .api import MetaCaller

log = logging.getLogger(__name__)

CALL_TIMEOUT_S: Final = 10.0
"""Of one question; its service may have to wait for others, to complete what was begun."""
PAUSE_S: Final = 0.25
"""Before those are asked again who could not say so; twice as long each time."""
PAUSE_S_MAX: Final = 8.0
TRY_S_MAX: Final = 180.0
"""After that the silence of the client has done it."""
_NEVER: Final = {Status.RPC_UNKNOWN_METHOD, Status.RPC_NOT_ALLOWED, Status.NOT_SUPPORTED}


def may_hold_requests(info: RoutingInfo) -> list[Node]:
    """Return the processes that may carry out what a client has sent to them.

    A storage process that is declared failed has no lease, and carries out nothing as long as it
    has none.  A metadata service needs none: it may have been stopped with a request in its hands.
    """
    nodes = [n for n in info.nodes.values() if n.address]
    storage = [n for n in nodes if Role.STORAGE in n.roles and n.state is not NodeState.FAILED]
    return [n for n in nodes if Role.META in n.roles] + storage


class GoneClients:
    """What a client asks in the matter of another one that is gone."""

    def __init__(
        self, *, channels: Channels, routing: RoutingView, mgmtd: MgmtdCaller, meta: MetaCaller
    ) -> None:
        self._channels = channels
        self._routing = routing
        self._mgmtd = mgmtd
        self._meta = meta

    async def free(self, client_id: str) -> bool:
        """Free all that a client held whose process is gone; False: it is left to its silence."""
        pause_s = PAUSE_S
        with trio.move_on_after(TRY_S_MAX):
            while True:
                try:
                    await self._free(client_id)
                except FsError as error:
                    if error.status in _NEVER:
                        log.info("client %s is gone, and left to its silence: %s", client_id, error)
                        return False
                    log.info("client %s is gone; not freed so far: %s", client_id, error)
                else:
                    log.info("client %s is gone: what it held is free", client_id)
                    return True
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
        log.warning("client %s is gone, and left to its silence", client_id)
        return False

    async def _free(self, client_id: str) -> None:
        await self._fence(client_id)
        free = FreeClientReq(caller=CallerPb(), client_id=client_id)
        await self._meta.call(META_FREE_CLIENT, free, timeout_s=CALL_TIMEOUT_S)
        # Last, as managers may be away for longer.
        request = CloseClientSessionReq(client_id=client_id)
        try:
            await self._mgmtd.call(MGMTD_CLOSE_CLIENT_SESSION, request, timeout_s=CALL_TIMEOUT_S)
        except FsError as error:  # an earlier release, or nobody who acts: it is only listed longer
            log.info("client %s: session not closed: %s", client_id, error)

    async def _fence(self, client_id: str) -> None:
        """Return when nobody carries out anything of a client any more; raises FsError."""
        nodes = may_hold_requests(self._routing.info)
        while (dead := await self._ask(client_id, nodes)) and len(dead) < len(nodes):
            # What those that died had passed on to others is asked for again.
            nodes = [n for n in nodes if n not in dead]

    async def _ask(self, client_id: str, nodes: Iterable[Node]) -> list[Node]:
        """Have all of them refuse a client; return those that are gone themselves.

        Raises:
            FsError: one has not said so: of an earlier release if any is.
        """
        errors: list[FsError] = []
        dead: list[Node] = []

        async def ask(node: Node) -> None:
            channel = self._channels.get(node.address, node_id=node.node_id)
            request = EndClientReq(client_id=client_id)
            try:
                await channel.call(CORE_END_CLIENT, request, timeout_s=CALL_TIMEOUT_S)
            except ConnectionRefused:
                dead.append(node)
            except FsError as error:
                errors.append(FsError(error.status, f"node {node.node_id}: {error.detail}"))

        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(ask, node)
        for error in sorted(errors, key=lambda e: e.status not in _NEVER):
            raise error
        return dead
