"""Whether a file that was read without a session is still there: if not, what looked like holes was its content.

A session keeps the content of a removed file; who only reads has none, but for what its own mount removed.  The metadata service deletes
an inode before it has the chunks removed, so a file that is still there after a read had all its chunks during it.
"""

from ..schema import services
from ..schema.ids import InodeId
from ..schema.proto import common_pb2, meta_pb2
from .api import MetaCaller


async def require_still_there(
    meta: MetaCaller, caller: common_pb2.CallerPb, inode_id: InodeId
) -> None:
    """Return if an inode exists after what was read of it.

    Raises:
        FsError: STALE: it has been removed; and others of meta.
    """
    await meta.call(services.META_GET_ATTR, meta_pb2.GetAttrReq(caller=caller, inode_id=inode_id))
