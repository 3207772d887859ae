"""Core service: what every process answers, whatever else it does."""

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec
from google.protobuf.message import Message

from ..runtime.ports import Clock
from ..runtime.settings import Settings
from ..runtime.span_keeper import SpanKeeper
from ..schema.config import ProcessConfig
from ..schema.proto import core_pb2 as core
from ..schema.proto.common_pb2 import SettingsChangePb
from ..schema.status import FsError, Status
from ..schema.user import User
from .api import Call, Identity, Reply, check_owner

ECHO_BYTES_MAX = 256 * 1024 * 1024
SPANS_BYTES_MAX = 1024 * 1024
"""Of one answer."""


RelayedLinks = Callable[[], Sequence[core.RelayedLinkPb]]


class ChangeableSettings(Protocol):
    """The settings of a process that administrators may change while it runs."""

    settings: Settings

    async def change(self, text: str, *, is_live_only: bool, is_reset: bool) -> SettingsChangePb:
        """See fs/node/kept_settings.py."""
        ...


class CoreService:
    """Echo for tests and measurements, GetInfo and the settings for watchers and people."""

    def __init__(
        self,
        identity: Identity,
        clock: Clock,
        service_names: Sequence[str],
        config: ProcessConfig | None = None,
        *,
        changeable: ChangeableSettings | None = None,
        margins_s: Sequence[Callable[[], float]] = (),
        relayed_links: Sequence[RelayedLinks] = (),
        spans: SpanKeeper | None = None,
        end_client: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """Answer for the process `identity`, which offers `service_names` besides Core.

        Args:
            identity: who it is.
            clock: its clock.
            service_names: what it offers besides Core.
            config: its settings, if they do not change.
            changeable: else.
            margins_s: tell the seconds left of its leases; more may be added meanwhile.
            relayed_links: tell for whom it passes requests on; more may be added meanwhile.
            spans: keeps those of its tracer.
            end_client: serves nothing of a client any more, and returns when nothing of it
                is under way.
        """
        self._end_client = end_client
        self._spans = spans
        self._relayed_links = relayed_links
        self._margins_s = margins_s
        self._settings = changeable.settings if changeable else Settings(config or ProcessConfig())
        self._changeable = changeable
        self._identity = identity
        self._clock = clock
        self._service_names = service_names
        self._begin_s = clock.monotonic_s()
        self._zeros = b""

    async def echo(self, call: Call, request: core.EchoReq) -> Reply[core.EchoRsp]:
        """Return the data, and the payload or as many zero bytes as asked for."""
        count = request.reply_payload_bytes
        message = core.EchoRsp(data=request.data, payload_bytes=len(call.payload))
        if not count:
            return Reply(message, [call.payload] if call.payload else ())
        if count > ECHO_BYTES_MAX:
            raise FsError(Status.RPC_TOO_LARGE, f"{count} bytes; at most {ECHO_BYTES_MAX}")
        if len(self._zeros) < count:
            self._zeros = bytes(count)
        return Reply(message, [memoryview(self._zeros)[:count]])

    async def get_info(self, _call: Call, _request: core.GetInfoReq) -> core.GetInfoRsp:
        """Say who this process is."""
        identity = self._identity
        return core.GetInfoRsp(
            node_id=identity.node_id,
            cluster_id=identity.cluster_id,
            incarnation=identity.incarnation,
            release=identity.release,
            uptime_s=self._clock.monotonic_s() - self._begin_s,
            services=self._service_names,
            pid=os.getpid(),
            wall_ns=self._clock.wall_ns(),
            mgmtd_addresses=self._settings.config.process.mgmtd_addresses,
            lease_margin_s=min((margin_s() for margin_s in self._margins_s), default=0.0),
            lease_s=self._settings.config.mgmtd.node_lease_s if self._margins_s else 0.0,
            relayed_links=[link for tell in self._relayed_links for link in tell()],
        )

    def admit(self, _user: User, peer: Identity, request: Message) -> None:
        """Let a user's client end those of its own token only; raises FsError(RPC_NOT_ALLOWED)."""
        if isinstance(request, core.EndClientReq):
            check_owner(request.client_id, peer)

    async def end_client(self, call: Call, request: core.EndClientReq) -> core.EndClientRsp:
        """Have nothing of a client carried out any more.

        Raises:
            FsError: RPC_BAD_REQUEST: the caller means itself, or nobody; NOT_SUPPORTED; or what is
                under way of it does not end.
        """
        if request.client_id in {"", call.peer.client_id}:
            detail = f"{request.client_id!r} is no client that is gone"
            raise FsError(Status.RPC_BAD_REQUEST, detail)
        if self._end_client is None:
            raise FsError(Status.NOT_SUPPORTED, "this process serves no clients")
        await self._end_client(request.client_id)
        return core.EndClientRsp()

    async def get_spans(self, _call: Call, request: core.GetSpansReq) -> core.GetSpansRsp:
        """Keep spans for whoever watches, and tell those that are kept."""
        if self._spans is None:
            raise FsError(Status.NOT_SUPPORTED, "this process keeps no traces")
        if request.HasField("watch_s"):
            self._spans.watch(request.watch_s, request.sample_rate)
        return core.GetSpansRsp(json=self._spans.told(request.after, SPANS_BYTES_MAX).decode())

    async def get_config(self, _call: Call, _request: core.GetConfigReq) -> core.GetConfigRsp:
        """Say which settings are in force here."""
        return core.GetConfigRsp(
            json=msgspec.json.encode(self._settings.config).decode(),
            settings=self._settings.report() if self._changeable else None,
        )

    async def try_settings(self, _call: Call, request: core.TrySettingsReq) -> core.TrySettingsRsp:
        """Say what would happen if a text were kept for a role of this process."""
        role = next((r for r in self._settings.roles if int(r) == request.role), None)
        if role is None:
            detail = f"this process takes no settings of role {request.role}"
            raise FsError(Status.RPC_BAD_REQUEST, detail)
        change = self._settings.try_stored(role, request.text)
        return core.TrySettingsRsp(change=change)

    async def change_settings(
        self, _call: Call, request: core.ChangeSettingsReq
    ) -> core.ChangeSettingsRsp:
        """Change settings of this process alone; raises FsError(BAD_CONFIG, IO_ERROR)."""
        if self._changeable is None:
            raise FsError(Status.RPC_BAD_REQUEST, "the settings of this process do not change")
        change = await self._changeable.change(
            request.text, is_live_only=request.is_live_only, is_reset=request.is_reset
        )
        return core.ChangeSettingsRsp(change=change, settings=self._settings.report())
