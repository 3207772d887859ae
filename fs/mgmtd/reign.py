"""A manager's reign, as those see it who carry on what takes long (mover.py, rotator.py):
what it knows, and what it does for them.
"""

from typing import Protocol

import trio

from ..schema.config import MgmtdSection
from ..schema.ids import TargetId
from ..schema.routing import RoutingInfo
from .moves import Order
from .state import ClusterState
from .store import Change


class Reign(Protocol):
    """See the module head; `Primary` is one."""

    state: ClusterState
    lock: trio.Lock
    """Held by who changes `state`, or acts on all of it."""

    @property
    def info(self) -> RoutingInfo:
        """The published routing info."""
        ...

    @property
    def section(self) -> MgmtdSection:
        """The settings in force."""
        ...

    @property
    def now_s(self) -> float:
        """Monotonic time."""
        ...

    @property
    def wall_ns(self) -> int:
        """Wall time in ns."""
        ...

    @property
    def is_acting(self) -> bool:
        """The lease is held beyond doubt."""
        ...

    def check_acting(self) -> None:
        """Raise FsError(NOT_PRIMARY) unless `is_acting`."""
        ...

    async def settle(self, change: Change, *, why: str = "") -> None:
        """Publish a change, and what follows from it; the caller holds `lock`.

        Raises FsError: the reign is over.
        """
        ...

    async def tell(self, order: Order) -> None:
        """Have a node do its part of a move; raises FsError."""
        ...

    async def stop_serving(self, target_id: TargetId) -> None:
        """Have a node take a target out of service, to come back in its place; raises FsError."""
        ...
