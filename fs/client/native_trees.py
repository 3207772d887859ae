"""The native client's changes of whole trees, name by name.

Does not: change a tree in one step; whoever looks meanwhile sees a part of it changed.
"""

from collections.abc import Callable
from functools import partial

from ..schema import services
from ..schema.proto import meta_pb2
from ..schema.status import FsError, Status
from .native_paths import Paths
from .side_by_side import side_by_side

CHANGES_AT_ONCE = 32


class Trees(Paths):
    """The part of `EmberFs` that changes trees."""

    async def change_owner_below(
        self,
        path: str,
        *,
        uid: int | None = None,
        gid: int | None = None,
        told: Callable[[int], None] = lambda _count: None,
    ) -> int:
        """Give a directory and all below it another owner, group or both;
        return how many were changed.

        By inode, so that nothing outside of the tree is changed, whatever is renamed meanwhile: of
        a symbolic link it is the link itself.  What is removed meanwhile is passed over.

        Args:
            path: of anything; a symbolic link is not followed.
            uid: new owner; None: as it is.
            gid: new group; None: as it is.
            told: gets the number of those changed so far.

        Raises:
            FsError: NOT_FOUND, NOT_PERMITTED, ACCESS_DENIED; a part is changed then.
        """
        top = await self.stat(path, follow=False)
        count = await self._change_owner(top.inode_id, uid, gid)
        waiting = [top.inode_id] if top.is_dir else []
        while waiting:
            entries = await self._list_if_there(waiting.pop(), is_first=False)
            calls = [partial(self._change_owner, one.inode.inode_id, uid, gid) for one in entries]
            count += sum(await side_by_side(calls, at_once_max=CHANGES_AT_ONCE))
            waiting += [one.inode.inode_id for one in entries if one.inode.is_dir]
            told(count)
        return count

    async def _change_owner(self, inode_id: int, uid: int | None, gid: int | None) -> int:
        request = meta_pb2.SetAttrReq(
            caller=self._identity.caller(), inode_id=inode_id, uid=uid, gid=gid
        )
        try:
            await self._meta.call(services.META_SET_ATTR, request)
        except FsError as error:
            if error.status not in {Status.NOT_FOUND, Status.STALE}:
                raise
            return 0  # removed since its directory was listed
        return 1
