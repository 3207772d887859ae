"""What an open file of the native client knows of its file, and reading it:
from chunks, or from the metadata service what is inline.

Invariants:
    - The bytes of an inline file are those that came with its open for `opened_s` at most;
      later each read asks for them.
    - What storage calls a hole is read as zeros only if the file is still there, not inline by now,
      and, open for reading, not cut since its length was learnt.
    - A file that was closed is not read: ValueError, as of Python's own files.
"""

import math

from ..runtime.ports import Buffer
from ..schema import services
from ..schema.ids import InodeId
from ..schema.inode import FilePart, Inode, inode_from_pb
from ..schema.layout import FileRef, Layout
from ..schema.proto import meta_pb2
from ..schema.status import FsError, Status
from .api import ChunkStore, MetaCaller
from .entries import Identity
from .file_read import FileRead
from .inline_bytes import brought_bytes
from .many_inline import Told
from .own_changes import OwnChanges
from .still_there import SEEN_THERE_S


def check_offset(path: str, offset: int) -> None:
    """Refuse an offset before the start; raises FsError(INVALID_ARGUMENT)."""
    if offset < 0:
        raise FsError(Status.INVALID_ARGUMENT, f"{path}: offset {offset}")


def byte_view(data: Buffer) -> memoryview:
    """Return memory of any type and shape as bytes, so that its length is their number.

    Raises:
        TypeError: no memory, or one with gaps.
    """
    view = memoryview(data)
    if view.format == "B" and view.ndim == 1 and view.c_contiguous:
        return view
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def room_view(buffer: Buffer) -> memoryview:
    """Return memory that is to be filled as `byte_view` does.

    Raises:
        TypeError: also where it is read-only.
    """
    view = byte_view(buffer)
    if not view.readonly:
        return view
    if view.nbytes:
        raise TypeError("a buffer to be filled is read-only")
    return memoryview(bytearray())


class FileContent:
    """See module head.  Any number of tasks may read at once."""

    def __init__(  # noqa: PLR0917 - what one client is made of
        self,
        inode: Inode,
        path: str,
        meta: MetaCaller,
        chunks: ChunkStore,
        identity: Identity,
        changes: OwnChanges,
    ) -> None:
        assert inode.file is not None
        self.path = path
        self._inode = inode
        self._meta = meta
        self._chunks = chunks
        self._identity = identity
        self._changes = changes
        self._session_id = ""
        self._is_closed = False
        self._seen_there_s = -math.inf
        """When meta was last asked whether it still has the file, and had it."""
        self._dyn_stripe = inode.file.dyn_stripe
        self._truncate_ver = inode.file.truncate_ver
        self._length = inode.file.length
        self._written_end = 0
        """Of what was written through this object since the file was last cut, as far as known."""
        self._opened: Buffer | None = None
        self._opened_s = -math.inf
        """The bytes that came with the open, and when it was asked for."""

    @property
    def inode_id(self) -> InodeId:
        """Which inode it is, whatever its path means by now."""
        return self._inode.inode_id

    @property
    def length(self) -> int:
        """Bytes in the file, as known at open and grown by writes through this object;
        of an inline file, and of one that is read and was cut, as last read.
        """
        return self._length

    @property
    def _part(self) -> FilePart:
        assert self._inode.file is not None
        return self._inode.file

    @property
    def layout(self) -> Layout:
        """How the file is cut and spread."""
        return self._part.layout

    @property
    def is_inline(self) -> bool:
        """True while it is known to have no chunks: its bytes are with the metadata service."""
        return self._part.is_inline

    @property
    def ref(self) -> FileRef:
        """Names the file's chunks to the storage side."""
        about = self._inode.inode_id, self.layout, self._dyn_stripe, self._part.finished_cut
        return FileRef(*about, self._truncate_ver)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}{', closed' if self._is_closed else ''}>"

    def require_open(self) -> None:
        """Raise ValueError if the file was closed."""
        if self._is_closed:
            raise ValueError(f"{self.path}: the file is closed")

    def require_of(self, changes: OwnChanges) -> None:
        """Raise TypeError if not the client with these changes has opened the file:
        its numbers may mean another file to another one, of another cluster.
        """
        if self._changes is not changes:
            raise TypeError(f"{self.path!r} was not opened by this client")

    def note_opened(self, data: Buffer | None, asked_s: float) -> None:
        """Keep the bytes that came with an open that was asked for then (`OwnChanges.now_s`);
        None: none came.
        """
        self._opened, self._opened_s = data, asked_s
        self._changes.keep_opened(self, len(data or b""))

    def forget_kept(self) -> None:
        """Keep the bytes that came with the open no longer: who reads asks for them."""
        self._opened = None

    def _forget_opened(self) -> None:
        if self._opened is not None:
            self._opened = None
            self._changes.keep_opened(self, 0)

    def take_opened(self) -> Buffer | None:
        """Return the bytes that came with the open, for who has opened the file to read it at once;
        None: none did, or it has been written to.
        """
        return self._opened if self.is_inline else None

    def fresh_content(self) -> Buffer | None:
        """Return all bytes of the file as they were at the open,
        if it is inline and they may be shown still; None: meta is to be asked.
        """
        if self._opened is None or not self.is_inline:
            return None
        if self._changes.is_fresh(self._inode.inode_id, self._opened_s):
            return self._opened
        self._forget_opened()
        return None

    async def inline_content(self) -> Buffer | None:
        """Return all bytes of the file if it is inline, as they are now or were at the open;
        None: they are in chunks.

        Raises:
            FsError: STALE: the file was removed; CHECKSUM_MISMATCH, and others of meta.
        """
        while self.is_inline:
            data = self.fresh_content()
            if data is None:
                data = await self._ask_inline()
            if data is not None:
                return data
        return None

    def take_told(self, told: Told, asked_s: float) -> Buffer | None:
        """Take in what meta has told of this file, asked for at `asked_s`;
        return its bytes, None: they are in chunks.
        """
        self._seen_there_s = asked_s
        part, known = told.inode.file, self._part
        is_as_known = (
            part.is_inline
            and known.is_inline
            and not (part.truncate_pending or known.truncate_pending)
            and (part.truncate_ver, part.data_ver) == (known.truncate_ver, known.data_ver)
            and part.length == self._length
        )
        if not is_as_known:  # mostly there is nothing to learn
            self._learn(inode_from_pb(told.inode), is_brought=told.data is not None)
        return told.data

    async def _ask_inline(self) -> bytes | None:
        """Ask meta for the file and, where it is inline, its bytes; None: they are in chunks."""
        request = meta_pb2.GetAttrReq(
            caller=self._identity.caller(), inode_id=self._inode.inode_id, takes_inline=True
        )
        asked_s = self._changes.now_s()
        reply = await self._meta.call(services.META_GET_ATTR, request)
        self._seen_there_s = asked_s
        data = brought_bytes(reply)
        self._learn(inode_from_pb(reply.inode), is_brought=data is not None)
        if data is None and reply.inode.file.is_inline:
            what = f"{self.path}: the metadata service does not give its bytes"
            raise FsError(Status.INTERNAL_ERROR, what)
        return data

    def _learn(self, inode: Inode, *, is_brought: bool) -> None:
        """Take in a file as meta has it, if it is inline, or was as far as known, or was cut;
        not from a reply that is late.

        Who writes to it learns of a truncation when he reports, as only then it is
        known what was written before it.
        """
        part, known = inode.file, self._part
        if part is None:
            return
        is_inline = self.is_inline or is_brought
        if not is_inline and (self._session_id or part.truncate_ver <= self._truncate_ver):
            return
        told = part.truncate_ver, part.data_ver
        have = known.truncate_ver, known.data_ver
        # What is inline no more has the versions that it had while it was moved.
        if told < have or (told == have and not self.is_inline):
            return
        # While they are moved to a chunk nobody writes there: they may have to be moved once more.
        is_moving = is_inline and part.truncate_pending
        self._inode, self._dyn_stripe = inode, 0 if is_moving else part.dyn_stripe
        if part.truncate_ver != self._truncate_ver:  # cut by others: what was known is void
            self._truncate_ver, self._written_end = part.truncate_ver, 0
        self._length = max(part.length, self._written_end)

    async def read_into(self, offset: int, buffer: Buffer) -> int:
        """Fill `buffer`, memory of any type, from `offset` on; return the bytes filled,
        fewer only at the end of the file.

        Raises:
            FsError: STALE: the file was removed, and not open for writing here; and others.
            ValueError: it was closed.
            TypeError: memory that is read-only, or has gaps.
        """
        self.require_open()
        check_offset(self.path, offset)
        buffer = room_view(buffer)
        if offset >= self._length or not len(buffer):
            return 0
        while True:
            data = await self.inline_content()
            if data is not None:
                return fill_from(data, offset, buffer)
            wanted = buffer[: max(0, self._length - offset)]
            if not len(wanted):
                return 0
            read = FileRead(self.ref, offset, wanted)
            await self._chunks.read([read])
            if not read.hole_bytes or not await self.is_other_by_now(read):
                return len(wanted)

    async def fill(self, read: FileRead) -> None:
        """Fill a buffer within the file, and say what of it came from holes;
        what others have cut off meanwhile counts as one.

        Raises:
            FsError: as `read_into`.
        """
        while True:
            data = await self.inline_content()
            if data is not None:
                count = fill_from(data, read.offset, read.buffer)
                read.hole_bytes = len(read.buffer) - count
                read.buffer[count:] = bytes(read.hole_bytes)
                return
            read.file = self.ref
            await self._chunks.read([read])
            if not read.hole_bytes or not await self.is_other_by_now(read):
                return

    async def is_other_by_now(self, read: FileRead) -> bool:
        """Find out whether what was read as a hole is none, as the file has become inline,
        or was cut; it is to be read again then.

        Raises:
            FsError: STALE: it is none, as the file has been removed; and others of meta.
        """
        asked_s = self._changes.now_s()
        # While it is open for writing here nobody else can make it inline.
        is_asked = not self._session_id or asked_s >= self._seen_there_s + SEEN_THERE_S
        if is_asked and await self._ask_inline() is not None:
            return True
        return read.file.truncate_ver != self._truncate_ver

    async def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset` on."""
        self.require_open()
        check_offset(self.path, offset)
        data = await self.inline_content() if self.is_inline and length > 0 else None
        if data is not None:
            return bytes(data[offset : offset + length])
        buffer = bytearray(max(0, min(length, self._length - offset)))
        count = await self.read_into(offset, memoryview(buffer))
        return bytes(buffer) if count == len(buffer) else bytes(buffer[:count])


def fill_from(data: Buffer, offset: int, buffer: memoryview) -> int:
    """Fill a buffer with what `data` has from `offset` on; return the bytes filled."""
    found = data[offset : offset + len(buffer)]
    buffer[: len(found)] = found
    return len(found)
