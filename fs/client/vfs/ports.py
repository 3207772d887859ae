"""What the vfs knows of its surroundings: who calls,
and the kernel whose caches it must keep honest.
"""

from dataclasses import dataclass
from typing import Protocol

from ...schema.ids import InodeId
from ...schema.proto import common_pb2 as pb


@dataclass(frozen=True, slots=True)
class Caller:
    """The process on whose behalf an operation runs; meta checks permissions against it."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    def to_pb(self) -> pb.CallerPb:
        """Return the wire form; client id and request id are filled in by the meta client."""
        message = pb.CallerPb()
        self.put(message)
        return message

    def put(self, message: pb.CallerPb) -> None:
        """Do as `to_pb` in a new request itself.

        Requests that a program waits for are filled in field by field: with keyword arguments, of
        which those that are messages are copied, they take three times as long.
        """
        message.uid = self.uid  # also if it is 0: so the message is there
        message.gid = self.gid
        if self.groups:
            message.groups.extend(self.groups)


class KernelCache(Protocol):
    """The kernel's caches of attributes and file content.

    Both calls may have to wait for requests that the kernel has under way, so they must never
    run on the event loop's thread.
    """

    async def invalidate_attributes(self, inode_id: InodeId) -> None:
        """Forget attributes; content stays.  Safe to await inside any request."""
        ...

    async def invalidate_content(self, inode_id: InodeId, start: int = 0, length: int = 0) -> None:
        """Forget attributes, and content from `start` on, of `length` bytes (0: all that follows).

        What programs have changed there through maps is written first.  Waits for reads and
        writes of that content that are under way: a request that the kernel sends while it holds
        such pages must not await it.
        """
        ...


class NoKernelCache:
    """For users of the vfs that are no kernel and keep nothing."""

    async def invalidate_attributes(self, inode_id: InodeId) -> None:
        """Nothing is cached."""

    async def invalidate_content(self, inode_id: InodeId, start: int = 0, length: int = 0) -> None:
        """Nothing is cached."""
