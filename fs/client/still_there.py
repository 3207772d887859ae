"""Whether a file that was read is still there:
if not, or if it has been truncated, what looked like holes was its content.

A session keeps the content of a removed file; who only reads has none, but for what its own mount
removed.  The metadata service deletes an inode before it has the chunks removed, so a file that is
still there after a read had all its chunks during it.  Nor does it cut any before it counts a
truncation: of a file whose truncate version is the same after a read nothing was cut before it.

Sessions end without a word while their client is stopped, or cut off from the managers, for longer
than they last: so whoever has one asks, too, now and then.
"""

from typing import Final

from ..schema import services
from ..schema.ids import InodeId
from ..schema.inode import Inode, inode_from_pb
from ..schema.proto import common_pb2, meta_pb2
from .api import MetaCaller

SEEN_THERE_S: Final = 1.0
"""How long what has turned out to be a hole is taken for one without asking;
much less than a session lasts.
"""


async def require_still_there(
    meta: MetaCaller, caller: common_pb2.CallerPb, inode_id: InodeId
) -> Inode:
    """Return an inode as it is after what was read of it.

    Raises:
        FsError: STALE: it has been removed; and others of meta.
    """
    request = meta_pb2.GetAttrReq(caller=caller, inode_id=inode_id)
    return inode_from_pb((await meta.call(services.META_GET_ATTR, request)).inode)
