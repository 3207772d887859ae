"""What every storage operation needs around it:
the ports, the targets, and the checks before serving.

Fencing: a target serves only while this node's lease is valid and only under the chain
version that the sender names.  The manager gives a chain to others only after the lease has
run out, or after the process itself is gone or has said OFFLINE, so a check just before an
answer covers the time before it.
"""

from dataclasses import dataclass, field

import trio

from ..node.api import MgmtdCaller, NodeLease, RoutingView
from ..rpc.api import Channel, Channels
from ..rpc.buffer_pool import BufferPool
from ..runtime.ports import Runtime
from ..schema.config import StorageSection
from ..schema.ids import ChainId, NodeId, TargetId
from ..schema.status import FsError, Status
from .flusher import Flusher
from .targets import Place, Targets

NEWER_ROUTING_WAIT_S = 1.0
"""How long a request waits for the routing info that its sender already has."""


@dataclass(slots=True)
class StorageContext:
    """Shared by all operations of one storage process."""

    runtime: Runtime
    section: StorageSection
    payload_bytes_max: int
    node_id: NodeId
    targets: Targets
    routing: RoutingView
    lease: NodeLease
    channels: Channels
    mgmtd: MgmtdCaller
    buffers: BufferPool
    """For the bytes of read replies."""
    flusher: Flusher = field(default_factory=Flusher)
    tail_scopes: dict[trio.CancelScope, tuple[ChainId, TargetId]] = field(default_factory=dict)
    """Questions to tails under way; one is cancelled
    when its callee stops being the chain's tail.
    """
    without_groups: set[tuple[NodeId, str]] = field(default_factory=set)
    """Processes, by node and incarnation, of a release that takes updates one by one only."""
    without_replace_groups: set[tuple[NodeId, str]] = field(default_factory=set)
    """The same of whole chunks that resync sends."""
    without_ranges: set[tuple[NodeId, str]] = field(default_factory=set)
    """The same of writes at several places of a chunk."""

    def check_lease(self) -> None:
        """Raise FsError(LEASE_EXPIRED) unless this node may serve now."""
        if not self.lease.is_valid():
            raise FsError(
                Status.LEASE_EXPIRED, f"node {self.node_id}, by {-self.lease.margin_s:.3f} s"
            )

    def place_now(self, chain_id: int, chain_version: int) -> Place:
        """Return our place in a chain at exactly this version; no checkpoint.

        Raises:
            FsError: NOT_SERVING; ROUTING_MISMATCH naming our version.
        """
        place = self.targets.place(chain_id)
        if place.chain.chain_version != chain_version:
            raise FsError(
                Status.ROUTING_MISMATCH,
                f"chain {chain_id}: sender has version {chain_version},"
                f" node {self.node_id} has {place.chain.chain_version}",
            )
        return place

    def place_known(self, chain_id: int, chain_version: int) -> Place | None:
        """As `place_at`, but None where that has to wait or raises."""
        place = self.targets.known_place(chain_id)
        return place if place and place.chain.chain_version == chain_version else None

    async def place_at(self, chain_id: int, chain_version: int) -> Place:
        """As `place_now`, but fetches routing info and waits a little
        when the sender's is newer.
        """
        info = self.targets.look()
        chain = info.chains.get(chain_id)  # type: ignore[call-overload]
        if chain is None or chain.chain_version < chain_version:
            with trio.move_on_after(NEWER_ROUTING_WAIT_S):
                info = await self.routing.refresh()
                while (
                    chain := info.chains.get(chain_id)  # type: ignore[call-overload]
                ) is None or chain.chain_version < chain_version:
                    info = await self.routing.wait_newer(info.routing_version)
        return self.place_now(chain_id, chain_version)

    def channel_to(self, target_id: TargetId) -> Channel:
        """Return the channel to the node of a target;
        raises FsError(TARGET_UNKNOWN or NODE_UNKNOWN).
        """
        node = self.routing.info.node_of_target(target_id)
        return self.channels.get(node.address, node_id=node.node_id)
