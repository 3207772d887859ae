"""Joins the parts of a client: link to the manager, routing info, session,
meta side and storage side.

`open_client` serves every kind of client (native, mount daemon); `connect` is the native one, from
a list of manager addresses to a file system.

Invariants:
    - When the block is entered, routing info is known and the client session exists; when it is
      left, the session is closed, so that file sessions of this client can be cleaned up at once.
"""

import math
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from ..node.api import SettingsPort
from ..node.client_session import ClientSessionKeeper
from ..node.mgmtd_link import MgmtdLink
from ..node.routing_cache import RoutingCache
from ..rpc.api import Channels
from ..rpc.api import Identity as RpcIdentity
from ..rpc.channel import open_channels
from ..rpc.credential_files import caller_secrets, configured_uid
from ..rpc.credentials import Token, new_client_id
from ..runtime.background import open_background
from ..runtime.ports import Runtime
from ..runtime.tracing import Tracer, parse_traceparent
from ..schema.config import ClientSection, ProcessConfig
from ..schema.ids import ClientId
from ..schema.proto.mgmtd_pb2 import GetPrimaryReq
from ..schema.services import MGMTD_GET_PRIMARY
from ..schema.status import FsError, Status
from .ending import EndingSessions
from .entries import Identity
from .meta_client import MetaClient
from .native import EmberFs
from .native_tracing import TracedCalls
from .storage_client import StorageClient

TRACEPARENT_VARIABLE = "TRACEPARENT"
"""Names the span of the program that runs us, if that is traced, as OpenTelemetry has it."""


@dataclass(frozen=True, slots=True)
class Client:
    """A connected client."""

    client_id: ClientId
    mgmtd: MgmtdLink
    routing: RoutingCache
    meta: MetaClient
    chunks: StorageClient

    def adopt(self, section: ClientSection) -> None:
        """Go on with other settings."""
        self.meta.adopt(section)
        self.chunks.adopt(section)


@asynccontextmanager
async def open_client(
    runtime: Runtime,
    config: ProcessConfig,
    channels: Channels,
    *,
    client_id: ClientId,
    mount_point: str = "",
    release: str = "",
    settings: SettingsPort | None = None,
    answers_within_s: float | None = None,
) -> AsyncIterator[Client]:
    """Connect and keep a client session, alive as long as the block.

    Args:
        runtime: clock, randomness.
        config: process.mgmtd_addresses and section client are used.
        channels: owned by the caller.
        client_id: new for every process.
        mount_point: shown to operators.
        release: shown to operators.
        settings: hears of the settings that the managers keep for mounts; None: nobody does.
        answers_within_s: how long a manager may take to answer for the first time;
            None: client.retry_time_s_max.

    Raises:
        FsError: RPC_WRONG_CLUSTER at once; RPC_TIMEOUT when no manager answers in time.
    """
    retry_s = config.client.retry_time_s_max
    limit_s = retry_s if answers_within_s is None else answers_within_s
    mgmtd = MgmtdLink(channels, config.process.mgmtd_addresses, runtime)
    routing = RoutingCache(mgmtd, runtime)
    session = ClientSessionKeeper(
        mgmtd,
        runtime,
        client_id,
        host_name=socket.gethostname(),
        mount_point=mount_point,
        pid=os.getpid(),
        release=release,
        settings=settings,
    )
    meta = MetaClient(
        client_id, channels=channels, routing=routing, runtime=runtime, section=config.client
    )
    chunks = StorageClient(
        client_id,
        channels=channels,
        routing=routing,
        mgmtd=mgmtd,
        runtime=runtime,
        section=config.client,
    )
    async with open_background() as nursery:
        nursery.start_soon(routing.run)
        nursery.start_soon(chunks.run)
        nursery.start_soon(meta.run)
        with trio.move_on_after(limit_s) as scope:
            # What no waiting will cure, such as a wrong cluster id, is told at once.
            await mgmtd.call(MGMTD_GET_PRIMARY, GetPrimaryReq(), timeout_s=math.inf)
            limit_s, scope.deadline = retry_s, trio.current_time() + retry_s
            await routing.wait_newer(0)
            await nursery.start(session.run)
        if scope.cancelled_caught:
            at = ", ".join(mgmtd.addresses)
            raise FsError(Status.RPC_TIMEOUT, f"no manager answers at {at} within {limit_s:g} s")
        yield Client(client_id, mgmtd, routing, meta, chunks)


@asynccontextmanager
async def connect(
    mgmtd_addresses: Sequence[str],
    cluster_id: str,
    *,
    runtime: Runtime,
    config: ProcessConfig | None = None,
    identity: Identity | None = None,
    token: Token | None = None,
    tracer: Tracer | None = None,
    answers_within_s: float | None = None,
) -> AsyncIterator[EmberFs]:
    """Connect to a cluster and use it without a mount.

    Args:
        mgmtd_addresses: one or more managers, `tcp:HOST:PORT` or `unix:/PATH`.
        cluster_id: of the cluster that is expected there.
        runtime: clock, network, randomness; `fs.runtime.real` makes one.
        config: limits, retry times, credentials; default: as built in,
            credentials as the environment says.
        identity: on whose behalf; default: the token's user, without a token this process's.
        token: instead of the credentials of config and environment.
        tracer: begins the spans of calls; default: one that samples as
            config.trace says, and tells nobody.
        answers_within_s: see `open_client`.

    All calls are traced where the environment has a TRACEPARENT.
    """
    given = config or ProcessConfig()
    process = type(given.process)(cluster_id=cluster_id, mgmtd_addresses=list(mgmtd_addresses))
    config = ProcessConfig(
        process=process, rpc=given.rpc, auth=given.auth, client=given.client, trace=given.trace
    )
    secrets = [token.secret] if token else caller_secrets(config.auth)
    uid = token.uid if token else configured_uid(config.auth)
    client_id = ClientId(new_client_id(runtime.random.randbytes, secrets))
    speaker = RpcIdentity(cluster_id=cluster_id, client_id=client_id)
    own = Identity.of_process()
    if uid is not None and uid != own.uid:
        own = Identity(uid, own.gid)
    async with (
        open_channels(runtime, speaker, config.rpc, secrets=secrets) as channels,
        open_client(
            runtime, config, channels, client_id=client_id, answers_within_s=answers_within_s
        ) as client,
    ):
        acting = identity or own
        ending = EndingSessions(client.meta, acting.caller)
        connected = EmberFs(
            client.meta,
            client.chunks,
            runtime=runtime,
            identity=acting,
            ending=ending,
            opened_s=config.client.attr_timeout_s,
        )
        if tracer is None:
            tracer = Tracer(runtime.clock, runtime.random, sample_rate=config.trace.sample_rate)
        cause = parse_traceparent(os.environ.get(TRACEPARENT_VARIABLE, ""))
        TracedCalls(tracer, cause).apply(connected)
        async with open_background() as nursery:
            nursery.start_soon(ending.run)
            try:
                yield connected
            finally:
                with trio.move_on_after(config.client.retry_time_s_max):
                    await ending.finish()
