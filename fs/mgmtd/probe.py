"""Asking a process whether it lives: the only evidence besides silence on which anybody is judged.

A refused connection, another node or another incarnation at the address prove that the process
which was there has ended: its listening socket lives exactly as long as it serves.  A timeout or a
broken connection proves nothing.
"""

from enum import Enum

from ..rpc.api import Channels, ConnectionRefused
from ..schema.proto.core_pb2 import GetInfoReq
from ..schema.services import CORE_GET_INFO
from ..schema.status import FsError, Status


class Proof(Enum):
    """What a probe found out about one incarnation."""

    ALIVE = "alive"
    GONE = "gone"
    NOTHING = "nothing"


async def probe(
    channels: Channels, address: str, node_id: int, incarnation: str, *, timeout_s: float
) -> tuple[Proof, str]:
    """Ask once, and once more if the connection broke: a killed process then refuses.

    Returns:
        What is proved of `incarnation`, and the incarnation that answered, "" for none.
    """
    for _ in range(2):
        try:
            channel = channels.get(address, node_id=node_id)
            received = await channel.call(CORE_GET_INFO, GetInfoReq(), timeout_s=timeout_s)
        except ConnectionRefused:
            return Proof.GONE, ""
        except FsError as error:
            if error.status is Status.RPC_WRONG_NODE:
                return Proof.GONE, ""
            if error.status is not Status.RPC_CONNECTION_LOST:
                return Proof.NOTHING, ""
        else:
            found = received.message.incarnation
            return (Proof.ALIVE if found == incarnation else Proof.GONE), found
    return Proof.NOTHING, ""
