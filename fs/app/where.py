"""Which cluster a command means, and how it talks to it.

A cluster of this machine is found by its directory, any other by the configuration file of one of its processes, which
names the managers and how to prove who we are.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from ..node.mgmtd_link import MgmtdLink
from ..rpc.channel import ChannelPool
from ..runtime.config_file import read_config
from ..schema.config import AuthSection
from ..schema.method import Method, ReqT, RspT
from ..schema.routing import RoutingInfo
from .cluster_dir import auth_of, mgmtd_addresses, need_record
from .mgmtd_link import newest_routing, run_with_mgmtd
from .running import chosen_directory

TIMEOUT_S: Final = 20.0
"""For the manager to answer; it may be changing just now."""

T = TypeVar("T")

DirOption = Annotated[Path | None, typer.Option("--dir", help="The cluster's directory.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Of a process of the cluster; it says where the manager is."),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Where:
    """The managers of a cluster."""

    addresses: tuple[str, ...]
    cluster_id: str
    auth: AuthSection = field(default_factory=AuthSection)

    def run(self, use: Callable[[MgmtdLink, ChannelPool], Awaitable[T]]) -> T:
        """As `run_with_mgmtd`, without an end of its own: every call in it has one."""
        return run_with_mgmtd(
            self.addresses, self.cluster_id, use, timeout_s=math.inf, auth=self.auth
        )

    def ask(self, method: Method[ReqT, RspT], request: ReqT) -> RspT:
        """Call the manager once; raises FsError: what it says, or RPC_TIMEOUT."""

        async def use(mgmtd: MgmtdLink, _channels: ChannelPool) -> RspT:
            return await mgmtd.call(method, request, timeout_s=TIMEOUT_S)

        return self.run(use)

    def routing(self) -> RoutingInfo:
        """Return the newest routing info; raises FsError(RPC_TIMEOUT)."""

        async def use(mgmtd: MgmtdLink, _channels: ChannelPool) -> RoutingInfo:
            return await newest_routing(mgmtd, TIMEOUT_S)

        return self.run(use)


def find(directory: Path | None, config: Path | None) -> Where:
    """Return the cluster that the options name; without any, the one of this machine.

    Raises:
        FsError: BAD_CONFIG, BAD_CLUSTER_DIR.
    """
    if config is not None:
        found = read_config(config)
        process = found.process
        return Where(tuple(process.mgmtd_addresses), process.cluster_id, found.auth)
    chosen = chosen_directory(directory)
    record = need_record(chosen)
    return Where(tuple(mgmtd_addresses(chosen, record)), record.cluster_id, auth_of(chosen, record))
