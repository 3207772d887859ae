"""Writes: one update per chunk, at the head of its chain, repeated under one tag until it is done.

Invariants:
    - Every try of one update carries the same (channel, sequence, request
      id): the chain executes it once.
    - A channel carries one update at a time; its sequence grows with every use.
    - A write whose caller is cancelled has ended when the caller goes on, if that takes no
      longer than FINISH_S: nothing of it arrives later.
    - `data` of a write is sent straight from the caller's memory (that of several ranges is
      copied), and no longer referred to once that has ended: so an error that is kept while the
      write goes on is a fresh one, since those that were raised know the calls they came
      through, with all their values.

Source: deepseek-ai/3FS, "UpdateChannelAllocator" (the idea of client
channels for exactly-once updates).
"""

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio
from xxhash import xxh3_64_intdigest

from ..node.api import RoutingView
from ..rpc.api import Received
from ..runtime.ports import Buffer, Runtime
from ..schema import services
from ..schema.config import ClientSection
from ..schema.ids import ClientId, NodeId
from ..schema.lacks import lacking
from ..schema.layout import FileRef, chain_of_chunk
from ..schema.proto import storage_pb2 as pb
from ..schema.routing import Chain
from ..schema.status import FsError, Retry, Status
from .api import OnWritten
from .node_calls import NodeCalls
from .patience import same_error
from .retry import RetryBudget
from .routing_math import Piece, cut_file_range, head_of, table_chain_ids
from .unsynced import Note, Unsynced
from .write_groups import WriteGroups

log = logging.getLogger(__name__)

REQUEST_ID_BYTES = 16
BEGUN_BYTES_MAX = 96 << 10
"""Of a write that is begun without a task: what is larger does not go out at once."""
FINISH_S = 5.0
"""For so long a write whose caller is cancelled is tried further: longer than the pause after the
death of a process; a daemon that ends with its cluster dead is held up no longer.
"""
EMPTY_COUNT_AT_ONCE = 16
"""Chunks of a hole that are emptied at the same time."""


class ChannelPool:
    """Channel numbers 1..count, each used by one update at a time."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count, 0, -1))
        self._sequences = dict.fromkeys(self._free, 0)
        self._available = trio.Semaphore(count)

    def take_now(self) -> tuple[int, int] | None:
        """Return a channel as `use` would, which is to be given back; None: there is none free."""
        try:
            self._available.acquire_nowait()
        except trio.WouldBlock:
            return None
        return self._take()

    def _take(self) -> tuple[int, int]:
        channel_id = self._free.pop()
        self._sequences[channel_id] += 1
        return channel_id, self._sequences[channel_id]

    def give_back(self, channel_id: int) -> None:
        """Say that nothing is under way any more in a channel."""
        self._free.append(channel_id)
        self._available.release()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[tuple[int, int]]:
        """Wait for a free channel; yield (channel id, its next sequence number)."""
        try:
            self._available.acquire_nowait()  # the other way costs a turn of the event loop
        except trio.WouldBlock:
            await self._available.acquire()
        taken = self._take()
        try:
            yield taken
        finally:
            self.give_back(taken[0])


@dataclass(frozen=True, slots=True)
class _Acked:
    """A try of an update that needs no further one."""

    chain: Chain
    """As its head was asked under."""
    is_durable: bool = False
    before: Note | None = None
    """What no sync had covered when it was sent."""


def _request_of(piece: Piece, finished_cut: int, *, is_durable: bool) -> pb.UpdateReq:
    """Return the write of a piece, without chain version and tag."""
    return pb.UpdateReq(
        inode_id=piece.inode_id,
        chunk_index=piece.chunk_index,
        chain_id=piece.chain_id,
        type=pb.UpdateTypePb.WRITE,
        offset=piece.offset,
        length=len(piece.buffer),
        chunk_size_bytes=piece.chunk_size_bytes,
        payload_checksum=xxh3_64_intdigest(piece.buffer),
        truncate_ver=finished_cut,
        is_durable=is_durable,
    )


class StorageWrites:
    """The update side of the storage client."""

    def __init__(
        self,
        client_id: ClientId,
        nodes: NodeCalls,
        *,
        routing: RoutingView,
        runtime: Runtime,
        section: ClientSection,
        unsynced: Unsynced,
        gives_way: bool = False,
    ) -> None:
        self._unsynced = unsynced
        self._gives_way = gives_way
        self._client_id = client_id
        self._nodes = nodes
        self._routing = routing
        self._runtime = runtime
        self._section = section
        self._channels = ChannelPool(section.channel_count)
        self._groups = WriteGroups(nodes, routing)
        self._without_ranges: set[tuple[NodeId, str]] = set()
        """Processes, by node and incarnation, of a release that takes writes of one range only."""

    def adopt(self, section: ClientSection) -> None:
        """Go on with other settings."""
        self._section = section

    async def write(
        self, file: FileRef, offset: int, data: Buffer, *, is_durable: bool = False
    ) -> bool:
        """See `fs.client.api.ChunkStore.write`."""
        pieces = cut_file_range(self._routing.info, file, offset, memoryview(data))
        for piece in pieces:
            slot = piece.chunk_index % file.layout.stripe_size
            assert slot < file.dyn_stripe, (file, piece.chunk_index)
        if len(pieces) == 1:
            return await self._write_piece(pieces[0], file.finished_cut, is_durable=is_durable)
        errors: list[FsError] = []
        durable: list[bool] = []

        async def write_one(piece: Piece) -> None:
            try:
                durable.append(
                    await self._write_piece(piece, file.finished_cut, is_durable=is_durable)
                )
            except FsError as error:
                errors.append(same_error(error))

        async with trio.open_nursery() as nursery:
            for piece in pieces:
                nursery.start_soon(write_one, piece)
        if errors:
            raise same_error(errors[0])
        return all(durable)

    async def write_ranges(
        self,
        file: FileRef,
        ranges: Sequence[tuple[int, Sequence[Buffer]]],
        *,
        is_durable: bool = False,
    ) -> bool:
        """See `fs.client.api.ChunkStore.write_ranges`; the bytes are copied."""
        pieces = [(offset, b"".join(buffers)) for offset, buffers in ranges]
        without = self._without_ranges
        if len(pieces) > 1 and not (without and self._head(file, pieces[0][0]) in without):
            try:
                return await self._write_together(file, pieces, is_durable=is_durable)
            except FsError as error:
                if error.status is not Status.RPC_UNKNOWN_METHOD:
                    raise
                # No copy of it will be taken any more: each names its version of the chain, and
                # the chain has changed since.
                log.info("inode %d: written range by range: %s", file.inode_id, error)
        durable = [
            await self.write(file, offset, data, is_durable=is_durable) for offset, data in pieces
        ]
        return all(durable)

    def _head(self, file: FileRef, offset: int) -> tuple[NodeId, str] | None:
        """Return the process, by node and incarnation, that is the head of a byte's chain;
        None: nobody, just now.
        """
        info = self._routing.info
        (piece,) = cut_file_range(info, file, offset, memoryview(b"x"))
        try:
            node = info.node_of_target(head_of(info.chain(piece.chain_id)))
        except FsError as error:  # who writes waits for one
            log.debug("%s: %s", piece.name, error)
            return None
        return node.node_id, node.incarnation

    async def _write_together(
        self, file: FileRef, ranges: Sequence[tuple[int, bytes]], *, is_durable: bool
    ) -> bool:
        """Write ranges of one chunk by one update.

        Raises:
            FsError: as `write`; RPC_UNKNOWN_METHOD: the head takes none, and nothing is done.
        """
        data = b"".join([part for _, part in ranges])
        first, last = ranges[0], ranges[-1]
        span = last[0] + len(last[1]) - first[0]
        size = file.layout.chunk_size_bytes
        assert first[0] // size == (first[0] + span - 1) // size, (first[0], span)
        (place,) = cut_file_range(self._routing.info, file, first[0], memoryview(first[1]))
        assert place.chunk_index % file.layout.stripe_size < file.dyn_stripe, (file, place)
        place.buffer = memoryview(data)
        request = _request_of(place, file.finished_cut, is_durable=is_durable)
        request.length = span
        base = first[0] - place.offset
        request.range_offsets.extend(offset - base for offset, _ in ranges)
        request.range_lengths.extend(len(part) for _, part in ranges)
        return await self._update_noted(place.name, request, [data])

    async def _write_piece(self, piece: Piece, finished_cut: int, *, is_durable: bool) -> bool:
        request = _request_of(piece, finished_cut, is_durable=is_durable)
        return await self._update_noted(piece.name, request, [piece.buffer])

    def begin(self, file: FileRef, offset: int, data: Buffer, on_end: OnWritten) -> bool:
        """See `fs.client.api.BeginsWrites.begin_write`."""
        view = memoryview(data)
        try:
            pieces = cut_file_range(self._routing.info, file, offset, view)
        except FsError as error:  # the usual way says so, to whom it concerns
            log.debug("inode %d: not begun: %s", file.inode_id, error)
            return False
        if len(pieces) != 1 or len(view) > BEGUN_BYTES_MAX:
            return False
        piece = pieces[0]
        assert piece.chunk_index % file.layout.stripe_size < file.dyn_stripe, (file, piece)
        taken = self._channels.take_now()
        if taken is None:
            return False
        request = _request_of(piece, file.finished_cut, is_durable=True)
        request.tag.CopyFrom(self._tag(*taken))
        began_s, is_begun = trio.current_time(), False

        async def go_on(error: FsError) -> bool:
            try:
                budget = RetryBudget(self._section, self._runtime, began_s)
                acked = await self._again(piece.name, request, [piece.buffer], budget, error)
            finally:
                self._channels.give_back(taken[0])
            return self._noted(request, acked)

        # Quoted: they would be evaluated for every write.
        def ended(received: "Received[pb.UpdateRsp] | None", error: "FsError | None") -> None:
            if received is None:
                assert error is not None
                on_end(False, partial(go_on, error))
                return
            try:
                is_durable = self._noted(
                    request, _Acked(chain, received.message.is_durable, before)
                )
            except Exception as failure:  # noqa: BLE001 - asked again, by a task: storage knows it, and a sync of it must not be forgotten
                log.warning("%s: %r", piece.name, failure)
                on_end(False, partial(go_on, lacking(piece.name, failure)))
                return
            self._channels.give_back(taken[0])
            on_end(is_durable, None)

        try:
            info = self._routing.info
            chain = info.chain(request.chain_id)
            request.chain_version = chain.chain_version
            node_id = info.target(head_of(chain)).node_id
            before = self._unsynced.get(request.inode_id, chain)
            payload = [piece.buffer]
            begun = self._nodes.begin(
                node_id, services.STORAGE_WRITE, request, ended, payload=payload
            )
            is_begun = begun is not None
        except FsError as error:
            log.debug("%s: not begun: %s", piece.name, error)
        finally:
            if not is_begun:
                self._channels.give_back(taken[0])
        return is_begun

    async def empty(self, file: FileRef, first_index: int, end_index: int) -> None:
        """See `fs.client.api.ChunkStore.empty_chunks`.

        A chunk is cut to nothing, not removed: its version goes on, so that what a stopped replica
        still has of it is known to be old.
        """
        layout = file.layout
        chain_ids = table_chain_ids(self._routing.info, file)
        # Slots from dyn_stripe on never had a chunk.
        indices = (
            i for i in range(first_index, end_index) if i % layout.stripe_size < file.dyn_stripe
        )
        errors: list[FsError] = []

        async def work() -> None:
            for index in indices:
                if errors:
                    return
                try:
                    chain_id = chain_of_chunk(layout, index, chain_ids)
                    await self._empty_chunk(file, index, chain_id)
                except FsError as error:
                    errors.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(EMPTY_COUNT_AT_ONCE):
                nursery.start_soon(work)
        if errors:
            raise errors[0]

    async def _empty_chunk(self, file: FileRef, index: int, chain_id: int) -> None:
        request = pb.UpdateReq(
            inode_id=file.inode_id,
            chunk_index=index,
            chain_id=chain_id,
            type=pb.UpdateTypePb.TRUNCATE,
            length=0,
            chunk_size_bytes=file.layout.chunk_size_bytes,
        )
        await self._update_noted(f"chunk {file.inode_id}.{index} chain {chain_id}", request)

    async def _update_noted(
        self, name: str, request: pb.UpdateReq, payload: Sequence[Buffer] = ()
    ) -> bool:
        """Make an update of a file's content exactly once;
        a later sync has to cover it, if this says False.

        Raises as `_repeat`.
        """
        return self._noted(request, await self._repeat(name, request, payload))

    def _noted(self, request: pb.UpdateReq, acked: _Acked) -> bool:
        """Note that a later sync has to cover an update; return False, or True if none has to."""
        if acked.is_durable and self._unsynced.cover(request.inode_id, acked.chain, acked.before):
            return True
        now_s = self._runtime.clock.monotonic_s()
        self._unsynced.note(request.inode_id, acked.chain, now_s)
        self._unsynced.trim(self._routing.info, now_s)
        return False

    async def cut(
        self, name: str, request: pb.UpdateReq, is_wanted: Callable[[], Awaitable[bool]]
    ) -> None:
        """Have the chain of `request` cut a chunk exactly once,
        unless the truncation is over meanwhile.

        Args:
            name: the chunk, for messages.
            request: all but chain version and tag, which are set here.
            is_wanted: asked before each try, after the chain version that the try names is known.

        Raises:
            FsError: a final status, or the last one when the retry time is over.
        """
        await self._repeat(name, request, (), is_wanted)

    async def fill(
        self, piece: Piece, truncate_ver: int, is_wanted: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Have the first chunk of a file, which metadata has kept so far, written exactly once,
        unless that is over meanwhile.

        Args:
            piece: the bytes, and where they go.
            truncate_ver: of the truncation that moves them.
            is_wanted: as for `cut`.

        Returns:
            Whether the bytes would survive a power loss; else it takes a sync.

        Raises:
            FsError: as `cut`.
        """
        request = _request_of(piece, truncate_ver, is_durable=True)
        request.is_fill = True
        return (await self._repeat(piece.name, request, [piece.buffer], is_wanted)).is_durable

    async def _repeat(
        self,
        name: str,
        request: pb.UpdateReq,
        payload: Sequence[Buffer],
        is_wanted: Callable[[], Awaitable[bool]] | None = None,
    ) -> _Acked:
        """Try until it is done, or not wanted any more.

        Returns:
            What is known of the last try, which was acknowledged if the update is done.

        Raises:
            FsError: a final status, or the last one when the retry time is over.
        """
        budget = RetryBudget(self._section, self._runtime, gives_way=self._gives_way)
        async with self._channels.use() as taken:
            request.tag.CopyFrom(self._tag(*taken))
            try:
                return await self._tries(name, request, payload, budget, is_wanted)
            except FsError:
                raise
            except BaseException:
                # Who cuts and fills has others that go on with it.
                if is_wanted is None and trio.current_effective_deadline() == -math.inf:
                    await self._finish(name, request, payload)
                raise

    async def _finish(self, name: str, request: pb.UpdateReq, payload: Sequence[Buffer]) -> None:
        """See to it that an update whose caller is cancelled does not arrive later.

        What of it is on its way would come after all that the caller does next, such as a close,
        which asks the chains how far the file reaches.  So it is made, as the same update, if that
        takes no longer than FINISH_S.  Until then the caller's memory is read.
        """
        with trio.CancelScope(shield=True, deadline=trio.current_time() + FINISH_S) as scope:
            budget = RetryBudget(self._section, self._runtime)
            try:
                self._noted(request, await self._tries(name, request, payload, budget))
            except FsError as error:
                log.info("%s: cancelled, and not made: %s", name, error)
        if scope.cancelled_caught:
            log.warning("%s: cancelled, and not made within %g s: it may be yet", name, FINISH_S)

    async def _tries(
        self,
        name: str,
        request: pb.UpdateReq,
        payload: Sequence[Buffer],
        budget: RetryBudget,
        is_wanted: Callable[[], Awaitable[bool]] | None = None,
    ) -> _Acked:
        """As `_repeat`, with a tag."""
        try:
            return await self._try(request, payload, is_wanted)
        except FsError as error:
            failure = same_error(error)
        return await self._again(name, request, payload, budget, failure, is_wanted)

    def _tag(self, channel_id: int, sequence: int) -> pb.TagPb:
        return pb.TagPb(
            client_id=self._client_id,
            channel_id=channel_id,
            sequence=sequence,
            request_id=self._runtime.random.randbytes(REQUEST_ID_BYTES),
        )

    async def _again(  # noqa: PLR0917 - those of `_repeat`
        self,
        name: str,
        request: pb.UpdateReq,
        payload: Sequence[Buffer],
        budget: RetryBudget,
        error: FsError,
        is_wanted: Callable[[], Awaitable[bool]] | None = None,
    ) -> _Acked:
        """As `_repeat`, after a try that has ended with `error`."""
        while True:
            budget.check(error)
            log.debug("update of %s: try %d: %s", name, budget.try_count, error)
            if error.retry in {Retry.ROUTING, Retry.OTHER}:
                await self._routing.refresh()
            await budget.pause()
            try:
                return await self._try(request, payload, is_wanted)
            except FsError as failure:
                error = same_error(failure)

    async def _try(
        self,
        request: pb.UpdateReq,
        payload: Sequence[Buffer],
        is_wanted: Callable[[], Awaitable[bool]] | None,
    ) -> _Acked:
        info = self._routing.info
        chain = info.chain(request.chain_id)
        request.chain_version = chain.chain_version
        node_id = info.target(head_of(chain)).node_id
        if is_wanted is not None and not await is_wanted():
            return _Acked(chain)
        is_ranged = bool(request.range_offsets)
        if request.type == pb.UpdateTypePb.WRITE and not (request.is_durable or is_ranged):
            await self._groups.send(node_id, request, payload[0])
            return _Acked(chain)
        before = self._unsynced.get(request.inode_id, chain) if request.is_durable else None
        method = services.STORAGE_WRITE_RANGES if is_ranged else services.STORAGE_WRITE
        try:
            received = await self._nodes.call(node_id, method, request, payload=payload)
        except FsError as error:
            if is_ranged and error.status is Status.RPC_UNKNOWN_METHOD:
                self._without_ranges.add((node_id, info.node(node_id).incarnation))
            raise
        return _Acked(chain, received.message.is_durable, before)
