"""The native client's locks on directories, usage and quotas."""

from ..schema import services
from ..schema.proto import meta_pb2
from .entries import DirectoryUsage, usage_from_pb
from .native_paths import Paths


class Limits(Paths):
    """The part of `EmberFs` that deals with locks on directories, usage and quotas."""

    async def lock_directory(self, path: str, *, preempt: bool = False) -> None:
        """Let no other client change names in a directory, until this client unlocks it or is gone.

        Args:
            path: of the directory; those below it are not locked.
            preempt: also if another client holds it, who is not told; only by its owner or root.

        Raises:
            FsError: NO_LOCK: another client holds it; ACCESS_DENIED,
                NOT_PERMITTED, NOT_DIRECTORY, NOT_FOUND.
        """
        action = meta_pb2.LOCK_PREEMPT if preempt else meta_pb2.LOCK_TAKE
        await self._lock(path, action)

    async def unlock_directory(self, path: str, *, clear: bool = False) -> None:
        """Unlock a directory; `clear`: also another client's lock, by its owner or root.

        Raises as `lock_directory`.
        """
        await self._lock(path, meta_pb2.LOCK_CLEAR if clear else meta_pb2.LOCK_FREE)

    async def _lock(self, path: str, action: meta_pb2.DirectoryLockAction.ValueType) -> None:
        inode_id = (await self.stat(path)).inode_id
        request = meta_pb2.LockDirectoryReq(
            caller=self._identity.caller(), inode_id=inode_id, action=action
        )
        await self._meta.call(services.META_LOCK_DIRECTORY, request)

    async def usage(self, path: str) -> tuple[DirectoryUsage, list[DirectoryUsage]]:
        """Return the usage of a directory, and of those
        at or above it that have quotas, nearest first.
        """
        inode_id = (await self.stat(path)).inode_id
        request = meta_pb2.GetUsageReq(caller=self._identity.caller(), inode_id=inode_id)
        reply = await self._meta.call(services.META_GET_USAGE, request)
        return usage_from_pb(reply.directory), [usage_from_pb(entry) for entry in reply.limiting]

    async def set_quota(self, path: str, *, bytes_max: int, inodes_max: int) -> None:
        """Limit what may lie below a directory, 0: no limit;
        raises FsError(NOT_PERMITTED) but for root.
        """
        inode_id = (await self.stat(path)).inode_id
        quota = meta_pb2.QuotaPb(bytes_max=bytes_max, inodes_max=inodes_max)
        request = meta_pb2.SetQuotaReq(
            caller=self._identity.caller(), inode_id=inode_id, quota=quota
        )
        await self._meta.call(services.META_SET_QUOTA, request)

    async def quotas(self) -> list[DirectoryUsage]:
        """Return all directories that have quotas, by age;
        raises FsError(NOT_PERMITTED) but for root.
        """
        found: list[DirectoryUsage] = []
        after = 0
        while True:
            request = meta_pb2.ListQuotasReq(caller=self._identity.caller(), after_inode_id=after)
            page = await self._meta.call(services.META_LIST_QUOTAS, request)
            found.extend(usage_from_pb(entry) for entry in page.entries)
            if not page.has_more:
                return found
            after = page.last_inode_id
