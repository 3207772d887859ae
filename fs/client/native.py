"""The native client: files by path, read and written in batches, without a mount.

`EmberFs` is the public asynchronous API (trio); `fs.client.blocking` is the same for plain threads.  It is
unbuffered: a write is replicated when it returns, and durable after `fsync` or `close`.

Invariants:
    - Close-to-open holds as on a mount: what one client closed, another opens and sees.
    - Every write-open file carries a file session, so its chunks outlive a removal until close.

Does not: cache, read ahead, or gather small writes; the mount's vfs does.
"""

from collections.abc import Sequence

from ..runtime.ports import Buffer, Runtime
from ..schema import services
from ..schema.inode import Inode, InodeType, inode_from_pb
from ..schema.proto import meta_pb2
from ..schema.status import FsError, Status
from .api import ChunkStore, FileRead, MetaCaller
from .entries import DirectoryUsage, DirEntry, Identity, TrashEntry
from .native_file import EmberFile, check_offset
from .native_limits import Limits
from .native_trash import Trash

__all__ = ["DirEntry", "DirectoryUsage", "EmberFile", "EmberFs", "Identity", "TrashEntry"]

SESSION_ID_BYTES = 16


class EmberFs(Trash, Limits):
    """A file system seen through one client.  Any number of tasks may use it at once."""

    def __init__(
        self, meta: MetaCaller, chunks: ChunkStore, *, runtime: Runtime, identity: Identity
    ) -> None:
        super().__init__(meta, identity)
        self._chunks = chunks
        self._runtime = runtime

    async def open(self, path: str) -> EmberFile:
        """Open a file for reading; `async with` or `close` it."""
        found = await self.stat(path)
        request = meta_pb2.OpenReq(
            caller=self._identity.caller(), inode_id=found.inode_id, wants_read=True
        )
        reply = await self._meta.call(services.META_OPEN, request)
        return self._file(inode_from_pb(reply.inode), path, session_id="")

    async def create(
        self, path: str, mode: int = 0o644, *, exclusive: bool = False, truncate: bool = True
    ) -> EmberFile:
        """Open a file for reading and writing, made if it does not exist; emptied if `truncate`."""
        parent, name = await self._parent(path)
        session_id = self._runtime.random.randbytes(SESSION_ID_BYTES).hex()
        request = meta_pb2.CreateReq(
            caller=self._identity.caller(),
            parent_inode_id=parent,
            name=name,
            mode=mode,
            is_exclusive=exclusive,
            is_truncate=truncate,
            wants_read=True,
            wants_write=True,
            session=meta_pb2.FileSessionPb(session_id=session_id, is_write=True),
        )
        reply = await self._meta.call(services.META_CREATE, request)
        file = self._file(inode_from_pb(reply.inode), path, session_id)
        file.is_metered = reply.is_metered
        return file

    def _file(self, inode: Inode, path: str, session_id: str) -> EmberFile:
        if inode.type is not InodeType.FILE:
            raise FsError(Status.NOT_REGULAR, path)
        return EmberFile(
            inode, path, self._meta, self._chunks, identity=self._identity, session_id=session_id
        )

    async def read_file(self, path: str) -> bytes:
        """Return the whole content of a file."""
        async with await self.open(path) as file:
            return await file.read(0, file.length)

    async def write_file(self, path: str, data: Buffer) -> None:
        """Replace the content of a file and make it durable."""
        async with await self.create(path) as file:
            await file.write(0, data)

    async def read_batch(self, reads: Sequence[tuple[EmberFile, int, memoryview]]) -> list[int]:
        """Read (file, offset, buffer) triples in as few requests as possible.

        Returns:
            For each, the bytes filled: fewer than its buffer's length only at the end of the file.
        """
        for file, offset, _ in reads:
            check_offset(file.path, offset)
        wanted = [
            FileRead(file.ref, offset, buffer[: max(0, file.length - offset)])
            for file, offset, buffer in reads
        ]
        await self._chunks.read([read for read in wanted if len(read.buffer)])
        return [len(read.buffer) for read in wanted]
