"""The native client's trash: moving there, listing, restoring, removing for good."""

import os

from ..schema import services
from ..schema.proto import meta_pb2
from ..schema.status import FsError, Status
from .entries import TrashEntry, trash_entry_from_pb
from .native_paths import Paths


class Trash(Paths):
    """The part of `EmberFs` that deals with one's trash."""

    async def move_to_trash(self, path: str, expire_s: int = 0) -> None:
        """Move what a path names to one's trash; what lies in the trash is removed for good.

        Args:
            path: of anything; of a directory with all below it, which takes no longer.
            expire_s: how long it can be restored, up to 30 days; 0: as the cluster is configured.

        Raises:
            FsError: as of a removal; NOT_PERMITTED also for a directory of somebody else.
        """
        await self._require_meant(path)
        parent, name = await self._parent(path)
        request = meta_pb2.MoveToTrashReq(
            caller=self._identity.caller(), parent_inode_id=parent, name=name, expire_s=expire_s
        )
        await self._meta.call(services.META_MOVE_TO_TRASH, request)

    async def trash(self) -> list[TrashEntry]:
        """Return what is in one's trash, by name."""
        try:
            inode_id = (await self.stat(f"/.trash/{self._identity.uid}")).inode_id
        except FsError as error:
            if error.status is Status.NOT_FOUND:
                return []
            raise
        return [
            trash_entry_from_pb(inode_id, e) for e in await self._list(inode_id, with_inodes=False)
        ]

    async def restore(self, entry: TrashEntry, to: str = "") -> str:
        """Move a name out of the trash, to `to` or to where it was; return where that is now.

        Raises:
            FsError: EXISTS: something has that name now; NOT_FOUND: the directory where it was is
                gone; BUSY: that directory is in the trash, too; and as of a rename.
        """
        parent, name = await self._parent(to) if to else await self._origin(entry)
        request = meta_pb2.RenameReq(
            caller=self._identity.caller(),
            old_parent_inode_id=entry.place[0],
            old_name=entry.place[1],
            new_parent_inode_id=parent,
            new_name=name,
            no_replace=True,
        )
        await self._meta.call(services.META_RENAME, request)
        return to or f"{(await self.real_path(parent)).rstrip('/')}/{os.fsdecode(name)}"

    async def _origin(self, entry: TrashEntry) -> tuple[int, bytes]:
        parent, name = entry.origin
        try:
            above = await self.real_path(parent)
        except FsError as error:
            if error.status not in {Status.NOT_FOUND, Status.STALE}:
                raise
            what = f"the directory of {entry.path or entry.name} is gone: say where to restore it"
            raise FsError(Status.NOT_FOUND, what) from error
        if above.startswith("/.trash/"):
            what = f"the directory of {entry.path or entry.name} is in the trash: restore it first"
            raise FsError(Status.BUSY, what)
        return parent, name

    async def remove_for_good(self, entry: TrashEntry) -> None:
        """Remove a name in the trash now."""
        parent, name = entry.place
        request = meta_pb2.MoveToTrashReq(
            caller=self._identity.caller(), parent_inode_id=parent, name=name
        )
        await self._meta.call(services.META_MOVE_TO_TRASH, request)
