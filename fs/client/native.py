"""The native client: files by path, read and written in batches, without a mount.

`EmberFs` is the public asynchronous API (trio); `fs.client.blocking` is the same for plain threads.
It is unbuffered: a write is replicated when it returns, and durable after `fsync` or `close`.

Invariants:
    - Close-to-open holds as on a mount: what one client closed, another opens and sees.
    - Every write-open file carries a file session, so its chunks outlive a removal until close.

Does not: cache, read ahead, or gather small writes; the mount's vfs does.
"""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import trio

from ..runtime.ports import Buffer, Runtime
from ..schema import services
from ..schema.ids import InodeId, SessionId
from ..schema.inode import Inode, InodeType, inode_from_pb
from ..schema.layout import MIB
from ..schema.proto import meta_pb2
from ..schema.status import FsError, Status
from .api import ChunkStore, MetaCaller
from .ending import EndingSessions
from .entries import DirectoryUsage, DirEntry, FoundPath, Identity, TrashEntry
from .file_read import FileRead
from .inline_bytes import brought_bytes
from .many_inline import REPLY_BYTES_MAX, Part, Wanted, ask_many, parts_of
from .native_content import byte_view, check_offset, fill_from, room_view
from .native_file import EmberFile
from .native_limits import Limits
from .native_paths import Place, split_path
from .native_trash import Trash
from .native_trees import Trees
from .own_changes import Opening, OwnChanges, Room
from .side_by_side import each_or_error, side_by_side

__all__ = [
    "DirEntry",
    "DirectoryUsage",
    "EmberFile",
    "EmberFs",
    "FoundPath",
    "Identity",
    "TrashEntry",
]

SESSION_ID_BYTES = 16
CALLS_AT_ONCE = 64
"""Files that are opened or written side by side."""
OPEN_BATCH_COUNT = 128
"""Files that are asked for with one call, which brings the bytes of those that are inline."""
OPEN_CALLS_AT_ONCE = 2
"""So that there is one to answer while another's reply is received."""
LINKS_FOLLOWED_MAX = 40
PREFETCH_PIECE_BYTES = 32 * MIB
COPY_PIECE_BYTES = 8 * MIB
"""Read while the piece before it is written."""


class EmberFs(Trash, Limits, Trees):
    """A file system seen through one client.  Any number of tasks may use it at once."""

    def __init__(
        self,
        meta: MetaCaller,
        chunks: ChunkStore,
        *,
        runtime: Runtime,
        identity: Identity,
        ending: EndingSessions | None = None,
        opened_s: float = 0.0,
    ) -> None:
        """Use a cluster through its two halves.

        Args:
            meta: names and attributes.
            chunks: content.
            runtime: clock, randomness.
            identity: on whose behalf.
            ending: ends sessions of files that nothing was written to; run by the caller.
                Default: each close ends its own.
            opened_s: for how long the bytes of a small file that came with its open
                may be shown to who reads it.
        """
        super().__init__(meta, identity)
        self._chunks = chunks
        self._runtime = runtime
        self._ending = ending
        self._changes = OwnChanges(runtime.clock, opened_s)

    async def open(self, path: str, *, is_writable: bool = False) -> EmberFile:
        """Open a file that exists, for reading, and for writing if `is_writable`;
        `async with` or `close` it.
        """
        asked_s = self._changes.now_s()
        found = await self._resolve(path, wants_read=not is_writable)
        inode = inode_from_pb(found.inode)
        if found.may_read and not is_writable:
            return self._read_only(inode, path, brought_bytes(found), asked_s)
        return await self._open(inode, path, is_writable=is_writable)

    async def open_many(self, paths: Sequence[str]) -> list[EmberFile | FsError]:
        """Open files for reading, many with each call;
        return each, or why it could not be opened.
        """
        starts = range(0, len(paths), OPEN_BATCH_COUNT)
        room = self._changes.room()
        calls = [
            partial(self._open_batch, paths[start : start + OPEN_BATCH_COUNT], room)
            for start in starts
        ]
        opened = await side_by_side(calls, at_once_max=OPEN_CALLS_AT_ONCE)
        return [one for batch in opened for one in batch]

    async def _open_batch(self, paths: Sequence[str], room: Room) -> list[EmberFile | FsError]:
        """Open files with one call, which brings the bytes of those that are inline as far as there
        is room for them.
        """
        asked_s = self._changes.now_s()
        request = meta_pb2.BatchResolvePathReq(
            caller=self._identity.caller(),
            paths=map(os.fsencode, paths),
            follow_last=True,
            wants_read=True,
            takes_inline=True,
            payload_bytes_max=room.take(REPLY_BYTES_MAX),
        )
        method = services.META_BATCH_RESOLVE_PATH
        reply, payload = await self._meta.fetch(method, request)
        opened: list[EmberFile | FsError] = []
        unchecked: dict[int, Callable[[], Awaitable[EmberFile]]] = {}
        parts = parts_of(reply.resolved, payload)
        lengths = (len(part) for part in parts if isinstance(part, memoryview))
        room.settle(request.payload_bytes_max, lengths)
        for position, (found, path) in enumerate(zip(reply.resolved, paths, strict=True)):
            try:
                if not found.HasField("inode"):
                    raise FsError(Status(found.status), found.detail)  # noqa: TRY301 - collected
                inode = inode_from_pb(found.inode)
                if not found.may_read:  # a service of an earlier release
                    unchecked[position] = partial(self._open, inode, path, is_writable=False)
                data = _kept(parts[position]) or brought_bytes(found)
                opened.append(self._read_only(inode, path, data, asked_s))
            except FsError as error:
                opened.append(error.with_traceback(None))
        if unchecked:
            calls = list(unchecked.values())
            done = await each_or_error(calls, at_once_max=CALLS_AT_ONCE)
            for position, file in zip(unchecked, done, strict=True):
                opened[position] = file
        return opened

    def _read_only(self, inode: Inode, path: str, data: Buffer | None, asked_s: float) -> EmberFile:
        file = self._file(inode, path, "")
        file.note_opened(data, asked_s)
        return file

    async def _open(self, found: Inode, path: str, *, is_writable: bool) -> EmberFile:
        session_id = self._new_session_id() if is_writable else ""
        request = meta_pb2.OpenReq(
            caller=self._identity.caller(),
            inode_id=found.inode_id,
            wants_read=True,
            wants_write=is_writable,
            takes_inline=True,
        )
        asked_s = self._changes.now_s()
        if not is_writable:
            reply = await self._meta.call(services.META_OPEN, request)
            return self._read_only(inode_from_pb(reply.inode), path, brought_bytes(reply), asked_s)
        request.session.session_id, request.session.is_write = session_id, True
        with self._changes.opening() as opening:
            try:
                reply = await self._meta.call(services.META_OPEN, request)
            except BaseException as error:
                is_refused = isinstance(error, FsError) and error.definite
                if self._ending is not None and not is_refused:  # it may be open by now
                    self._ending.end(found.inode_id, SessionId(session_id))
                raise
            return self._writable(reply, path, session_id, opening, asked_s)

    def _writable(
        self,
        reply: meta_pb2.InodeRsp | meta_pb2.CreateRsp,
        path: str,
        session_id: str,
        opening: Opening,
        asked_s: float,
    ) -> EmberFile:
        inode, data = inode_from_pb(reply.inode), brought_bytes(reply)
        file = self._file(inode, path, session_id)
        file.note_opened(data, asked_s)
        file.note_writable(
            reply.inline_bytes_max,
            is_new=isinstance(reply, meta_pb2.CreateRsp) and reply.was_created,
            may_be_inline=opening.may_be_inline(inode.inode_id),
        )
        file.is_metered = reply.is_metered
        return file

    def _new_session_id(self) -> str:
        return self._runtime.random.randbytes(SESSION_ID_BYTES).hex()

    async def create(
        self, path: str, mode: int = 0o644, *, exclusive: bool = False, truncate: bool = True
    ) -> EmberFile:
        """Open a file for reading and writing, made if it does not exist; emptied if `truncate`.

        A symbolic link is followed, also to where nothing is yet, unless `exclusive`.
        """
        followed = path
        for _ in range(LINKS_FOLLOWED_MAX):
            try:
                return await self._create(followed, mode, exclusive=exclusive, truncate=truncate)
            except FsError as error:
                if error.status is not Status.EXISTS or exclusive:
                    raise
                found = await self.stat(followed, follow=False)
                if found.type is not InodeType.SYMLINK:
                    raise
                target = os.fsdecode(found.symlink_target)
                followed = os.path.join(os.path.dirname(followed), target)  # noqa: PTH118, PTH120
        raise FsError(Status.TOO_MANY_SYMLINKS, path)

    async def _create(self, path: str, mode: int, *, exclusive: bool, truncate: bool) -> EmberFile:
        directory, name = split_path(path)
        if path.endswith("/"):
            raise FsError(Status.IS_DIRECTORY, path)
        session_id = self._new_session_id()
        request = meta_pb2.CreateReq(
            caller=self._identity.caller(),
            name=name,
            mode=mode,
            is_exclusive=exclusive,
            is_truncate=truncate,
            wants_read=True,
            wants_write=True,
            session=meta_pb2.FileSessionPb(session_id=session_id, is_write=True),
            takes_inline=True,
        )
        asked_s = self._changes.now_s()
        with self._changes.opening() as opening:
            try:
                reply = await self._change(services.META_CREATE, request, Place(directory))
            except BaseException:
                if truncate:  # it may have been done, and of which file nobody says
                    self._changes.note_any_changed()
                raise
            if truncate and not reply.was_created:
                self._changes.note_changed(InodeId(reply.inode.inode_id))
            return self._writable(reply, path, session_id, opening, asked_s)

    def _file(self, inode: Inode, path: str, session_id: str) -> EmberFile:
        if inode.type is not InodeType.FILE:
            status = Status.IS_DIRECTORY if inode.is_dir else Status.NOT_REGULAR
            raise FsError(status, path)
        return EmberFile(
            inode,
            path,
            self._meta,
            self._chunks,
            identity=self._identity,
            changes=self._changes,
            session_id=session_id,
            ending=self._ending,
        )

    async def read_file(self, path: str) -> bytes:
        """Return the whole content of a file."""
        async with await self.open(path) as file:
            data = file.take_opened()
            return await file.read(0, file.length) if data is None else bytes(data)

    async def write_file(self, path: str, data: Buffer) -> None:
        """Replace the content of a file and make it durable; TypeError: what is no bytes."""
        view = byte_view(data)  # while the file has what it had
        async with await self.create(path) as file:
            await file.write(0, view, is_last=True)

    async def write_files(self, contents: Mapping[str, Buffer]) -> dict[str, FsError]:
        """Do `write_file` for many files side by side; return those that failed, and why."""
        calls = [partial(self.write_file, path, data) for path, data in contents.items()]
        done = await each_or_error(calls, at_once_max=CALLS_AT_ONCE)
        results = zip(contents, done, strict=True)
        return {path: result for path, result in results if isinstance(result, FsError)}

    async def copy_file(self, source: str, target: str, mode: int = 0o644) -> int:
        """Make `target` a copy of what `source` holds, durable when it returns; return its bytes.

        The bytes pass through this client, in large pieces; holes are not filled.  Others may see a
        part of the copy before it is complete.

        Raises:
            FsError: INVALID_ARGUMENT: both are the same file; and as of
                opening, reading and writing.
        """
        async with (
            await self.open(source) as reading,
            await self.create(target, mode, truncate=False) as writing,
        ):
            if reading.ref.inode_id == writing.ref.inode_id:
                raise FsError(Status.INVALID_ARGUMENT, f"{source} and {target} are the same file")
            if writing.length:
                await writing.truncate(0)
            await self._copy_pieces(reading, writing)
            if writing.length < reading.length:  # it ends with a hole
                await writing.truncate(reading.length)
            if not reading.length:
                await writing.fsync()  # closing what was not written to makes nothing durable
            return reading.length

    async def _copy_pieces(self, reading: EmberFile, writing: EmberFile) -> None:
        give, take = trio.open_memory_channel[FileRead](0)
        failures: list[FsError] = []

        async def write_pieces() -> None:
            async with take:
                try:
                    async for piece in take:
                        is_all = len(piece.buffer) == reading.length
                        await writing.write(piece.offset, piece.buffer, is_last=is_all)
                except FsError as error:
                    failures.append(error)

        async with trio.open_nursery() as nursery, give:
            nursery.start_soon(write_pieces)
            for offset in range(0, reading.length, COPY_PIECE_BYTES):
                length = min(COPY_PIECE_BYTES, reading.length - offset)
                if length <= 0:  # it was cut meanwhile
                    break
                piece = FileRead(reading.ref, offset, memoryview(bytearray(length)))
                try:
                    await reading.fill(piece)
                    if piece.hole_bytes < length:
                        await give.send(piece)
                except FsError as error:
                    failures.append(error)
                    break
                except trio.BrokenResourceError:  # the writer failed, and has said why
                    break
        if failures:
            raise failures[0]

    async def prefetch(
        self, file: EmberFile, offset: int = 0, length: int | None = None
    ) -> tuple[int, list[FsError]]:
        """Have the storage nodes read a range of a file into their page caches, on every replica;
        default: all of it.

        Returns the bytes that were read, replicas counted, and what failed: as a
        favour, nothing is tried twice.
        """
        file.require_open()
        check_offset(file.path, offset)
        if file.is_inline:
            return 0, []
        end = file.length if length is None else min(offset + length, file.length)
        read_bytes, failures = 0, list[FsError]()
        for start in range(offset, end, PREFETCH_PIECE_BYTES):
            size = min(PREFETCH_PIECE_BYTES, end - start)
            piece = FileRead(file.ref, start, memoryview(bytearray(size)))
            count, wrong = await self._chunks.warm([piece])
            read_bytes += count
            failures += wrong
        return read_bytes, failures

    async def read_batch(self, reads: Sequence[tuple[EmberFile, int, Buffer]]) -> list[int]:
        """Read (file, offset, buffer) triples in as few requests as possible.

        Returns:
            For each, the bytes filled: fewer than its buffer has only at the end of the file.

        Raises:
            TypeError: a buffer that is read-only, or has gaps; a file of another client.
        """
        return await self._read_views([(file, at, room_view(buffer)) for file, at, buffer in reads])

    async def _read_views(self, reads: Sequence[tuple[EmberFile, int, memoryview]]) -> list[int]:
        for file, offset, _ in reads:
            file.require_open()
            file.require_of(self._changes)
            check_offset(file.path, offset)
        counts = [0] * len(reads)
        left = list(range(len(reads)))
        while left:
            left = await self._read_some(reads, left, counts)
        return counts

    async def _read_some(
        self,
        reads: Sequence[tuple[EmberFile, int, memoryview]],
        left: Sequence[int],
        counts: list[int],
    ) -> list[int]:
        """Do those of some reads that are left, by position;
        return those that must be done again, as their files are others by now.
        """
        stored: dict[int, FileRead] = {}
        unknown: dict[EmberFile, list[int]] = {}
        for position in left:
            file, offset, buffer = reads[position]
            data = file.fresh_content()
            if data is not None:
                counts[position] = fill_from(data, offset, buffer)
            elif file.is_inline:
                unknown.setdefault(file, []).append(position)
            else:
                wanted = buffer[: max(0, file.length - offset)]
                counts[position] = len(wanted)
                if len(wanted):
                    stored[position] = FileRead(file.ref, offset, wanted)
        moved = await self._read_inline(reads, unknown, counts) if unknown else []
        if not stored:
            return moved
        await self._chunks.read(list(stored.values()))
        doubted = {reads[position][0]: read for position, read in stored.items() if read.hole_bytes}
        other = {file for file, read in doubted.items() if await file.is_other_by_now(read)}
        return moved + [position for position in stored if reads[position][0] in other]

    async def _read_inline(
        self,
        reads: Sequence[tuple[EmberFile, int, memoryview]],
        unknown: Mapping[EmberFile, Sequence[int]],
        counts: list[int],
    ) -> list[int]:
        """Do the reads, by position, of files that are inline as far as known;
        return those of files that turn out not to be.
        """
        asked_s, moved = self._changes.now_s(), list[int]()
        wanted = [Wanted(file.inode_id, file.length) for file in unknown]
        told = await ask_many(self._meta, self._identity.caller, wanted)
        for (file, positions), one in zip(unknown.items(), told, strict=True):
            if isinstance(one, FsError):
                raise one
            data = file.take_told(one, asked_s)
            if data is None:
                moved += positions
                continue
            for position in positions:
                _, offset, buffer = reads[position]
                counts[position] = fill_from(data, offset, buffer)
        return moved

    async def read_each(
        self, reads: Sequence[tuple[EmberFile, int, Buffer]]
    ) -> list[int | FsError]:
        """Do what `read_batch` does, and say of each for itself how it went."""
        try:
            return list(await self.read_batch(reads))
        except FsError as error:
            if len(reads) == 1:
                return [error]
        calls = [partial(file.read_into, offset, buffer) for file, offset, buffer in reads]
        return await each_or_error(calls, at_once_max=CALLS_AT_ONCE)

    async def write_each(
        self, writes: Sequence[tuple[EmberFile, int, Buffer]]
    ) -> list[FsError | None]:
        """Write (file, offset, bytes) triples side by side; overlapping ones in any order.

        Say of each how it went.

        Raises:
            TypeError: a file of another client; nothing was written.
        """
        for file, *_ in writes:
            file.require_open()
            file.require_of(self._changes)
        calls = [partial(file.write, offset, data) for file, offset, data in writes]
        return await each_or_error(calls, at_once_max=CALLS_AT_ONCE)


def _kept(part: Part) -> bytes | None:
    """Return what a payload has of one file, without the rest of it, to be kept; None: nothing.

    Raises the FsError that it may be.
    """
    if isinstance(part, FsError):
        raise part
    return None if part is None else bytes(part)
