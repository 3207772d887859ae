"""Whether the way to a peer is free: only a free way, in both directions, carries a new connection.

That a process is slow, or stopped, says nothing against the way to it: its kernel
accepts connections all the same.  Nor does that calls to it wait: the connection they
are on may be stuck by itself.  Nor that its name leads nowhere: a name service that fails takes no
connection away.
"""

import trio

from ..runtime.ports import Network
from ..schema.status import FsError, Status


async def is_way_free(network: Network, address: str, within_s: float) -> bool:
    """Tell whether a connection of its own can be made within a time; it is closed again at once.

    Raises:
        FsError: OUT_OF_RESOURCES: nothing is found out, since this process has no
            descriptor or memory for it.
    """
    stream = None
    try:
        with trio.move_on_after(within_s):
            stream = await network.connect(address, may_be_old=True)
    except FsError as error:
        if error.status is Status.OUT_OF_RESOURCES:
            raise
    if stream is None:
        return False
    # Outside of the limit: a process that had no turn for so long finds both at once, that it is
    # connected and that the time is over.
    await stream.aclose()
    return True
