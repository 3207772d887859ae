"""What the primary tells storage nodes to do.

Every order may be repeated; a node that does not answer is asked again.

The manager never changes a chain because an order was answered: it waits for what the node's
heartbeat says, since that is what leases and chain versions are judged by.
"""

from typing import Final

from ..rpc.api import Channels
from ..schema.ids import TargetId
from ..schema.proto import storage_pb2
from ..schema.routing import Node
from ..schema.services import STORAGE_CREATE_TARGET, STORAGE_OFFLINE_TARGET, STORAGE_REMOVE_TARGET

ORDER_TIMEOUT_S: Final = 5.0


async def stop_serving(channels: Channels, node: Node, target_id: TargetId) -> None:
    """Make a target leave its chain; it comes back through resync as soon as it may.

    Raises:
        FsError: BUSY when it is the last that serves, TARGET_UNKNOWN, or
            any status of the transport.
    """
    request = storage_pb2.OfflineTargetReq(target_id=target_id, is_for_resync=True)
    channel = channels.get(node.address, node_id=node.node_id)
    await channel.call(STORAGE_OFFLINE_TARGET, request, timeout_s=ORDER_TIMEOUT_S)


async def create_target(
    channels: Channels, node: Node, target_id: TargetId, disk_index: int
) -> None:
    """Make an empty target on a disk; it is there when the node reports it.

    Raises:
        FsError: as the node answers, or any status of the transport.
    """
    request = storage_pb2.CreateTargetReq(target_id=target_id, disk_index=disk_index)
    channel = channels.get(node.address, node_id=node.node_id)
    await channel.call(STORAGE_CREATE_TARGET, request, timeout_s=ORDER_TIMEOUT_S)


async def remove_target(channels: Channels, node: Node, target_id: TargetId) -> None:
    """Drop a target that is in no chain, with its data;
    it is gone when the node reports it no more.

    Raises:
        FsError: as the node answers, or any status of the transport.
    """
    request = storage_pb2.RemoveTargetReq(target_id=target_id)
    channel = channels.get(node.address, node_id=node.node_id)
    await channel.call(STORAGE_REMOVE_TARGET, request, timeout_s=ORDER_TIMEOUT_S)
