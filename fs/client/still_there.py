"""Whether a file that was read without a session is still there: if not, what looked like holes was its content.

A session keeps the content of a removed file; who only reads has none, but for what its own mount removed.  The metadata service deletes
an inode before it has the chunks removed, so a file that is still there after a read had all its chunks during it.

Sessions end without a word while their client is stopped, or cut off from the managers, for longer than they last: so whoever has one
asks, too, now and then.
"""

from typing import Final

from ..schema import services
from ..schema.ids import InodeId
from ..schema.proto import common_pb2, meta_pb2
from .api import MetaCaller

SEEN_THERE_S: Final = 1.0
"""How long a file with holes that a session keeps is taken to be there without asking; much less than a session lasts."""


async def require_still_there(
    meta: MetaCaller, caller: common_pb2.CallerPb, inode_id: InodeId
) -> None:
    """Return if an inode exists after what was read of it.

    Raises:
        FsError: STALE: it has been removed; and others of meta.
    """
    await meta.call(services.META_GET_ATTR, meta_pb2.GetAttrReq(caller=caller, inode_id=inode_id))
