"""Which cluster a command means, and how it talks to it.

    --dir DIR                a cluster of this machine
    --config FILE            the configuration of any of its processes, which names the managers and
                             how to prove who we are
    ember admin --at ADDRESS any process of it, which is asked for the managers; credentials as
                             the environment says
    ember admin --kv STORE   its key-value store, when no service answers
    nothing                  what EMBERFS_CONFIG or /etc/emberfs says on a machine of a deployed
                             cluster (configured.py), else the cluster of this machine

When the services of a cluster of this machine are down, its store is read instead.  What is read so
is said to be so, and nothing can be changed.
"""

import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
import trio
import typer

from ...admin.stored import stored_cluster
from ...kv.api import KvEngine
from ...mgmtd.store import Loaded
from ...node.mgmtd_link import MgmtdLink
from ...rpc.api import Identity
from ...rpc.channel import ChannelPool, open_channels
from ...rpc.credential_files import KEY_FILE_VARIABLE, TOKEN_FILE_VARIABLE, caller_secrets
from ...rpc.credentials import new_client_id
from ...rpc.transport import SocketNetwork
from ...runtime.config_file import read_config
from ...runtime.real import real_runtime
from ...schema import services
from ...schema.config import AuthSection, KvSection, ProcessConfig, RpcSection
from ...schema.method import Method, ReqT, RspT
from ...schema.proto import core_pb2, mgmtd_pb2
from ...schema.routing import RoutingInfo
from ...schema.status import FsError, Status
from ..machine.cluster_dir import auth_of, mgmtd_addresses, need_record
from ..process.release import RELEASE
from ..stores.store_access import (
    OpenStore,
    StoreChoice,
    check_exists,
    is_running,
    open_chosen,
    parse_store,
    store_of_cluster,
)
from ..terminal.errors import first_error
from .configured import configured_file
from .entry import current_entry
from .mgmtd_link import newest_routing, run_with_mgmtd
from .which_cluster import chosen_directory

TIMEOUT_S: Final = 20.0
"""For the manager to answer; it may be changing just now."""

ENTRY_TIMEOUT_S: Final = 5.0

T = TypeVar("T")

DirOption = Annotated[Path | None, typer.Option("--dir", help="The cluster's directory.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Of a process of the cluster; it says where the manager is.",
    ),
]


@dataclass(frozen=True, slots=True)
class Where:
    """The managers of a cluster; or its store alone, when its services are down."""

    addresses: tuple[str, ...]
    cluster_id: str
    auth: AuthSection = field(default_factory=AuthSection)
    store: StoreChoice | None = None
    """What to read when there are no addresses; None: the managers say where it is."""

    @property
    def is_down(self) -> bool:
        """True if nothing but the store is to be asked."""
        return not self.addresses

    def run(self, use: Callable[[MgmtdLink, ChannelPool], Awaitable[T]]) -> T:
        """As `run_with_mgmtd`, without an end of its own: every call in it has one.

        Raises:
            FsError: also NOT_RUNNING, when the services are down.
        """
        if self.is_down:
            detail = (
                "the services are down, and the store does not tell this: ember up, or drop --kv"
            )
            raise FsError(Status.NOT_RUNNING, detail)
        return run_with_mgmtd(
            self.addresses, self.cluster_id, use, timeout_s=math.inf, auth=self.auth
        )

    def ask(self, method: Method[ReqT, RspT], request: ReqT) -> RspT:
        """Call the manager once; raises FsError: what it says, or RPC_TIMEOUT."""

        async def use(mgmtd: MgmtdLink, _channels: ChannelPool) -> RspT:
            return await mgmtd.call(method, request, timeout_s=TIMEOUT_S)

        return self.run(use)

    def routing(self) -> RoutingInfo:
        """Return the newest routing info, from the store when the services are down.

        Raises:
            FsError: RPC_TIMEOUT; what opening the store says.
        """

        async def use(mgmtd: MgmtdLink, _channels: ChannelPool) -> RoutingInfo:
            return await newest_routing(mgmtd, TIMEOUT_S)

        return self.stored().info if self.is_down else self.run(use)

    def stored(self) -> Loaded:
        """Return what the store says of the cluster; raises FsError."""
        return self.read_store(lambda engine: stored_cluster(engine, self.cluster_id))

    def read_store(self, use: Callable[[KvEngine], Awaitable[T]]) -> T:
        """Run `use` on the cluster's store; whoever looks is told when that is all there is.

        Raises:
            FsError: what `use` and opening the store say, BAD_CONFIG for a store that is not there.
        """
        choice = self.chosen_store()
        if self.is_down:
            typer.echo(f"read from the store ({choice.text}); services are down", err=True)
        return self._with_store(choice, lambda opened: use(opened.engine), for_reading=True)

    def change_store(self, use: Callable[[OpenStore], Awaitable[T]]) -> T:
        """Run `use` on the cluster's store, to change it; also while services are down.

        Raises:
            FsError: as `read_store`; ALREADY_RUNNING for a store that is in use
                and was named by its path.
        """
        return self._with_store(self.chosen_store(), use, for_reading=False)

    def chosen_store(self) -> StoreChoice:
        """Return the store to read; raises FsError:
        as the managers answer, NOT_SUPPORTED for one that nobody serves.
        """
        choice = self.store or self._asked_store()
        check_exists(choice)
        return choice

    @staticmethod
    def _with_store(
        choice: StoreChoice, use: Callable[[OpenStore], Awaitable[T]], *, for_reading: bool
    ) -> T:
        async def run() -> T:
            async with open_chosen(choice, for_reading=for_reading) as opened:
                return await use(opened)

        try:
            return trio.run(run)
        except ExceptionGroup as group:
            leaf = first_error(group)
            if isinstance(leaf, FsError):
                raise leaf from group
            raise

    @asynccontextmanager
    async def channels(self) -> AsyncIterator[ChannelPool]:
        """Open channels to the cluster's processes, within what runs already."""
        runtime = real_runtime(SocketNetwork())
        secrets = caller_secrets(self.auth)
        client_id = new_client_id(runtime.random.randbytes, secrets)
        identity = Identity(cluster_id=self.cluster_id, client_id=client_id, release=RELEASE)
        async with open_channels(runtime, identity, RpcSection(), secrets=secrets) as channels:
            yield channels

    def _asked_store(self) -> StoreChoice:
        """Return the store that the primary manager uses."""

        async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> tuple[str, KvSection]:
            request = mgmtd_pb2.GetPrimaryReq()
            primary = await mgmtd.call(services.MGMTD_GET_PRIMARY, request, timeout_s=TIMEOUT_S)
            channel = channels.get(primary.address)
            received = await channel.call(services.CORE_GET_CONFIG, core_pb2.GetConfigReq())
            found = msgspec.json.decode(received.message.json, type=ProcessConfig)
            return primary.address, found.kv

        address, section = self.run(use)
        if section.engine == "rocksdb":  # its own, which it serves to this machine
            if not address.startswith("unix:"):
                raise FsError(
                    Status.NOT_SUPPORTED,
                    f"the manager at {address} has a store of its own ({section.path}) and serves "
                    "it to nobody: stop it and name the store on its machine, --kv "
                    f"rocksdb:{section.path}; a kv process serves a store while all work "
                    "(deploy/README.md)",
                )
            section = KvSection(engine="remote", address=address)
        return StoreChoice(section, self.cluster_id, self.auth)


def find(directory: Path | None, config: Path | None) -> Where:
    """Return the cluster that the options name; without any, the one of this machine.

    Raises:
        FsError: BAD_CONFIG, BAD_CLUSTER_DIR; when --at is given, also what that process answers.
    """
    entry = current_entry()
    if config is not None:
        return _of_file(config, read_config(config).auth)
    if entry.kv:
        if not entry.cluster_id:
            raise FsError(Status.BAD_CONFIG, "--kv: whose store is it? say --cluster-id, too")
        choice = StoreChoice(parse_store(entry.kv), entry.cluster_id)
        return Where((), entry.cluster_id, store=choice)
    if entry.at:
        cluster_id = entry.cluster_id or ProcessConfig().process.cluster_id
        return Where(managers_at(entry.at, cluster_id), cluster_id)
    if directory is None and (file := configured_file()) is not None:
        return _of_file(file, auth_of_file(file))
    chosen = chosen_directory(directory)
    record = need_record(chosen)
    auth = auth_of(chosen, record)
    if not is_running(chosen):
        return Where((), record.cluster_id, auth, store_of_cluster(chosen))
    addresses = tuple(mgmtd_addresses(chosen, record))
    return Where(addresses, record.cluster_id, auth, store_of_cluster(chosen))


def _of_file(file: Path, auth: AuthSection) -> Where:
    process = read_config(file).process
    return Where(tuple(process.mgmtd_addresses), process.cluster_id, auth)


def auth_of_file(file: Path) -> AuthSection:
    """Return what a command proves that was not given this file:
    who names a token or a key in the environment wants that.
    """
    is_named = any(os.environ.get(name) for name in (TOKEN_FILE_VARIABLE, KEY_FILE_VARIABLE))
    return AuthSection() if is_named else read_config(file).auth


def store_of_file(file: Path, auth: AuthSection) -> StoreChoice:
    """Return the store of the cluster of a configuration file:
    the one that it names, else the managers'.

    Raises:
        FsError: as `Where.chosen_store`.
    """
    config = read_config(file)
    if config.kv.engine in {"remote", "foundationdb"}:
        return StoreChoice(config.kv, config.process.cluster_id, auth)
    return _of_file(file, auth).chosen_store()


def managers_at(address: str, cluster_id: str) -> tuple[str, ...]:
    """Ask any process of a cluster where its managers are; raises FsError as it answers."""

    async def use(_mgmtd: MgmtdLink, channels: ChannelPool) -> tuple[str, ...]:
        received = await channels.get(address).call(
            services.CORE_GET_INFO, core_pb2.GetInfoReq(), timeout_s=ENTRY_TIMEOUT_S
        )
        return tuple(received.message.mgmtd_addresses)

    return run_with_mgmtd([address], cluster_id, use, timeout_s=TIMEOUT_S) or (address,)
