"""What the primary tells storage nodes to do.  Every order may be repeated; a node that does not answer is asked again.

The manager never changes a chain because an order was answered: it waits for what the node's heartbeat says, since
that is what leases and chain versions are judged by.
"""

from typing import Final

from ..rpc.api import Channels
from ..schema.ids import TargetId
from ..schema.proto import storage_pb2
from ..schema.routing import Node
from ..schema.services import STORAGE_OFFLINE_TARGET

ORDER_TIMEOUT_S: Final = 5.0


async def stop_serving(channels: Channels, node: Node, target_id: TargetId) -> None:
    """Make a target leave its chain; it comes back through resync as soon as it may.

    Raises:
        FsError: BUSY when it is the last that serves, TARGET_UNKNOWN, or any status of the transport.
    """
    request = storage_pb2.OfflineTargetReq(target_id=target_id, is_for_resync=True)
    channel = channels.get(node.address, node_id=node.node_id)
    await channel.call(STORAGE_OFFLINE_TARGET, request, timeout_s=ORDER_TIMEOUT_S)
