"""A client's session with the manager: says that the client is there, and good-bye at the end.

Concurrency: one task, `run`.  A client whose session lapsed because the manager was away gets a new
one by the same call; nothing of the client's own state hangs on it.
"""

import logging
from typing import Final

import trio

from ..runtime.ports import Runtime
from ..schema.ids import ClientId
from ..schema.proto.mgmtd_pb2 import (
    CloseClientSessionReq,
    ExtendClientSessionReq,
    ExtendClientSessionRsp,
)
from ..schema.services import MGMTD_CLOSE_CLIENT_SESSION, MGMTD_EXTEND_CLIENT_SESSION
from ..schema.status import FsError
from .api import MgmtdCaller, NoSettings, SettingsPort

logger = logging.getLogger(__name__)

EXTENSIONS_PER_SESSION: Final = 6
CLOSE_TIMEOUT_S: Final = 1.0
CALL_TIMEOUT_S: Final = 5.0
PAUSE_S: Final = 0.5


class ClientSessionKeeper:
    """Keeps one client's session."""

    def __init__(
        self,
        caller: MgmtdCaller,
        runtime: Runtime,
        client_id: ClientId,
        *,
        host_name: str = "",
        mount_point: str = "",
        pid: int = 0,
        release: str = "",
        settings: SettingsPort | None = None,
    ) -> None:
        self._settings = settings or NoSettings()
        self._caller = caller
        self._runtime = runtime
        self._request = ExtendClientSessionReq(
            client_id=client_id,
            host_name=host_name,
            mount_point=mount_point,
            pid=pid,
            release=release,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Extend until cancelled, then close.  Started when the session exists."""
        is_started = False
        try:
            while True:
                answer = await self._extend()
                if answer is not None and not is_started:
                    is_started = True
                    task_status.started()
                pause_s = PAUSE_S
                if answer is not None and not answer.settings:  # else: say soon what came of them
                    pause_s = answer.session_duration_s / EXTENSIONS_PER_SESSION
                await trio.sleep(pause_s * self._runtime.random.uniform(0.8, 1.0))
        finally:
            if is_started:
                with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_TIMEOUT_S):
                    await self._close()

    async def _extend(self) -> ExtendClientSessionRsp | None:
        report = self._settings.report()
        if report is not None:
            self._request.settings.CopyFrom(report)
        try:
            answer = await self._caller.call(
                MGMTD_EXTEND_CLIENT_SESSION, self._request, timeout_s=CALL_TIMEOUT_S
            )
        except FsError as error:
            logger.warning("client %s: session not extended: %s", self._request.client_id, error)
            return None
        self._settings.hear(answer.settings)
        return answer

    async def _close(self) -> None:
        request = CloseClientSessionReq(client_id=self._request.client_id)
        try:
            await self._caller.call(MGMTD_CLOSE_CLIENT_SESSION, request, timeout_s=CLOSE_TIMEOUT_S)
        except FsError as error:
            logger.info("client %s: session not closed: %s", request.client_id, error)
