"""What being a member of the cluster means for the rest of a process.  No I/O here.

`RoutingView` is how everybody reads routing info; `NodeLease` is how a storage service
knows whether it may still serve; `MgmtdCaller` is how anything reaches the primary manager.
The objects behind them live in fs/node/membership.py, routing_cache.py and mgmtd_link.py;
in tests a fixed view will do.
"""

from collections.abc import Sequence
from typing import Protocol

from ..schema.method import Method, ReqT, RspT
from ..schema.proto.common_pb2 import SettingsReportPb, StoredSettingsPb
from ..schema.routing import RoutingInfo


class RoutingView(Protocol):
    """The newest routing info this process knows."""

    @property
    def info(self) -> RoutingInfo:
        """The current snapshot; replaced as a whole, never older than before."""
        ...

    async def wait_newer(self, routing_version: int) -> RoutingInfo:
        """Wait until the snapshot is newer than `routing_version`, then return it."""
        ...

    async def refresh(self) -> RoutingInfo:
        """Ask the manager now and return the newest snapshot;
        the known one if the manager is silent.

        Concurrent callers share one question.
        """
        ...


class NodeLease(Protocol):
    """The right to serve, renewed by heartbeats and measured from when a heartbeat was sent."""

    def is_valid(self) -> bool:
        """True while the lease has not run out on this process's monotonic clock."""
        ...

    @property
    def margin_s(self) -> float:
        """Seconds left; negative when it has run out."""
        ...


class MgmtdCaller(Protocol):
    """Calls the primary manager, wherever it is."""

    async def call(
        self, method: Method[ReqT, RspT], request: ReqT, *, timeout_s: float | None = None
    ) -> RspT:
        """Call, following NOT_PRIMARY hints and trying all known managers until the timeout.

        Raises:
            FsError: what the primary replied, or RPC_TIMEOUT when no primary answered in time.
        """
        ...


class SettingsPort(Protocol):
    """How a process hears of the settings that the managers keep for it."""

    def report(self) -> SettingsReportPb | None:
        """Return how far it is, to be told with every heartbeat or extension;
        None: it takes none.
        """
        ...

    def hear(self, settings: Sequence[StoredSettingsPb]) -> None:
        """Take over what a manager answered; must not wait."""
        ...


class NoSettings:
    """A `SettingsPort` of who has none but its own."""

    def report(self) -> SettingsReportPb | None:
        """See SettingsPort."""
        return None

    def hear(self, settings: Sequence[StoredSettingsPb]) -> None:
        """See SettingsPort."""
