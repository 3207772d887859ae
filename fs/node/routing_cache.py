"""The newest routing info of this process, kept fresh by one long poll after the other.

Invariants: `info` never becomes older; it is replaced as a whole.  When the manager is silent
the known one stays: acting on old routing info is safe, because every chain version is
checked by whoever holds the data.

Concurrency: any number of readers and waiters; concurrent refreshes share one question.
"""

import logging
from typing import Final

import trio

from ..runtime.ports import Runtime
from ..schema.proto.mgmtd_pb2 import GetRoutingInfoReq, GetRoutingInfoRsp
from ..schema.routing import Role, RoutingInfo, RoutingReader
from ..schema.services import MGMTD_GET_ROUTING_INFO
from ..schema.status import FsError
from .mgmtd_link import MgmtdLink

logger = logging.getLogger(__name__)

POLL_WAIT_S: Final = 10.0
POLL_MARGIN_S: Final = 2.0
REFRESH_TIMEOUT_S: Final = 3.0
PAUSE_S: Final = 0.2


class RoutingCache:
    """A `RoutingView`."""

    def __init__(self, link: MgmtdLink, runtime: Runtime) -> None:
        self._link = link
        self._runtime = runtime
        self.info = RoutingInfo()
        """The current snapshot; version 0 before the first answer.

        An attribute, for every small read asks for it.
        """
        self._reader = RoutingReader()
        self._newer = trio.Event()
        self._refreshing: trio.Event | None = None

    async def wait_newer(self, routing_version: int) -> RoutingInfo:
        """Wait until the snapshot is newer than `routing_version`, then return it."""
        while self.info.routing_version <= routing_version:
            await self._newer.wait()
        return self.info

    async def refresh(self) -> RoutingInfo:
        """Ask the manager now; the known snapshot if it is silent.

        Concurrent callers share one question.
        """
        if self._refreshing is not None:
            await self._refreshing.wait()
            return self.info
        done = self._refreshing = trio.Event()
        try:
            await self._ask(wait_s=0.0)
        except FsError as error:
            logger.warning("routing info not refreshed: %s", error)
        finally:
            self._refreshing = None
            done.set()
        return self.info

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Poll until cancelled."""
        task_status.started()
        while True:
            try:
                await self._ask(wait_s=POLL_WAIT_S)
            except FsError as error:
                logger.warning("no routing info: %s", error)
                await trio.sleep(PAUSE_S * self._runtime.random.uniform(0.5, 1.5))

    async def _ask(self, wait_s: float) -> None:
        known = self.info.routing_version
        request = GetRoutingInfoReq(known_routing_version=known, wait_s=wait_s if known else 0.0)
        reply = await self._link.call(
            MGMTD_GET_ROUTING_INFO,
            request,
            timeout_s=(wait_s + POLL_MARGIN_S) if wait_s else REFRESH_TIMEOUT_S,
            try_timeout_s=wait_s + POLL_MARGIN_S,
        )
        self._take(reply)
        if not reply.HasField("routing_info") and reply.routing_version < known:
            # A manager that knows less than we do answers at once: do not ask it in a tight loop.
            await trio.sleep(PAUSE_S)

    def _take(self, reply: GetRoutingInfoRsp) -> None:
        if not reply.HasField("routing_info"):
            return
        if reply.routing_info.routing_version <= self.info.routing_version:
            return
        self.info = self._reader.read(reply.routing_info)
        self._link.learn(n.address for n in self.info.nodes_with_role(Role.MGMTD) if n.address)
        self._newer.set()
        self._newer = trio.Event()
