"""Bringing a syncing successor up to date, beside normal traffic.

One attempt (`resync_successor`), made by the predecessor for one chain version:
    1. Wait until every update that came in under an older chain version has left: it may have ended
       as the tail's, without the successor.  Every later one is forwarded as a full-chunk-replace.
    2. Walk both listings in chunk-id order, page by page (memory is
       bounded by two pages), and decide.
    3. Bring each chunk over under its chunk lock.  Leftover pending versions are completed.
       Present chunks are sent whole, together where their way is plain (resync_groups.py).
       Absent ones are removed there.
    4. Nothing failed: SyncDone, with what we know of clients' last updates.  The successor makes
       itself durable and reports UPTODATE.

The attempt ends when the chain version changes, also while it waits for its turn by the rate limit.
The next one starts over, and skips what is equal.

Source: deepseek-ai/3FS src/storage/sync/ResyncWorker.cc; decisions in resync_plan.py.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain as joined
from itertools import islice, takewhile

import trio

from ..chunkengine.api import ChunkState
from ..rpc.buffer_pool import BufferPool
from ..schema import services
from ..schema.config import StorageSection
from ..schema.ids import ChunkId
from ..schema.lacks import require_passing
from ..schema.proto import storage_pb2
from ..schema.routing import PublicState
from ..schema.status import FsError, Status
from .chunk_messages import result_to_pb, state_from_pb
from .context import StorageContext
from .copies import Repaired, repair_copy
from .damage import note_damage
from .forward import forward
from .outgoing import Outgoing
from .rate_limit import RateLimit
from .replica import UpdateType
from .resync_groups import (
    BYTES_UNDER_WAY_MAX,
    GROUP_BYTES_MAX,
    Group,
    grouped,
    takes_groups,
    transfer_together,
)
from .resync_plan import Item, Need, merge, window_end
from .settle import settle
from .target import LocalTarget, ResyncProgress
from .targets import Place
from .transfer import transfer

log = logging.getLogger(__name__)

PAGE_CHUNK_COUNT = 1024
CALL_TIMEOUT_S = 10.0
DONE_TIMEOUT_S = 120.0
"""SyncDone includes a flush of the successor's disk."""

CHANNEL_COUNT_MAX = 50_000
"""Channels handed over; at 100 bytes each they fit into one message."""


class Resync:
    """The resync work of one process."""

    def __init__(self, context: StorageContext) -> None:
        self._context = context
        self._rate = RateLimit(context.section.resync_bytes_per_s_max)
        self._slots = trio.Semaphore(context.section.resync_concurrency)
        self._removal_slots = trio.Semaphore(context.section.resync_concurrency)
        """For what has no bytes: the others may all be taken by who waits for the rate."""
        self._buffers = BufferPool(BYTES_UNDER_WAY_MAX)
        self._running: set[LocalTarget] = set()

    def disown_buffers(self) -> None:
        """Use no memory again that chunks are being read into:
        a disk hangs, and may write into it yet.
        """
        self._buffers.disown()

    def adopt(self, section: StorageSection) -> None:
        """Go on with other limits; chunks under way still count by the old ones."""
        self._rate.adopt(section.resync_bytes_per_s_max)
        self._slots = trio.Semaphore(section.resync_concurrency)
        self._removal_slots = trio.Semaphore(section.resync_concurrency)

    async def run(self) -> None:
        """Look for syncing successors for ever."""
        async with trio.open_nursery() as nursery:
            while True:
                for place in self._context.targets.places():
                    if self._is_wanted(place):
                        self._running.add(place.target)
                        nursery.start_soon(self._attempt, place)
                await trio.sleep(self._context.section.resync_interval_s)

    def _is_wanted(self, place: Place) -> bool:
        successor = place.successor
        return (
            successor is not None
            and successor.public_state is PublicState.SYNCING
            and place.can_write
            and place.target not in self._running
            and place.target.resynced_version != place.chain.chain_version
            and place.target.standing == place.chain.standing
            and self._context.lease.is_valid()
        )

    async def _attempt(self, place: Place) -> None:
        target, chain = place.target, place.chain
        try:
            await self.resync_successor(place)
        except Exception as error:  # noqa: BLE001 - of a bug it is raised again
            require_passing(error)
            log.warning(
                "target %d chain %d version %d: resync attempt ended: %s",
                target.target_id,
                chain.chain_id,
                chain.chain_version,
                error,
            )
        finally:
            target.progress.is_running = False
            self._running.discard(target)
            if not self._running and not self._buffers.used_bytes:
                self._buffers = BufferPool(BYTES_UNDER_WAY_MAX)  # returns what it kept

    async def resync_successor(self, place: Place) -> None:
        """Make one attempt for the chain version of `place`.

        Raises:
            FsError: why it could not be completed; nothing is lost, the next attempt goes on.
        """
        target, successor = place.target, place.successor
        assert successor is not None
        chain_id, chain_version = place.chain.chain_id, place.chain.chain_version
        progress = target.progress = ResyncProgress(
            successor_id=successor.target_id,
            chain_version=chain_version,
            began_s=trio.current_time(),
            is_running=True,
        )
        # 1. The barrier.
        await target.inflight.wait_older_left(chain_version)
        # 2. and 3., window by window.
        after: bytes | None = b""
        while after is not None:
            after = await self._resync_window(place, after)
        if progress.failed_count:
            raise FsError(Status.CHECKSUM_MISMATCH, f"{progress.failed_count} chunks are no source")
        # 4. The successor is complete.
        self._context.place_now(chain_id, chain_version)
        await self._context.channel_to(successor.target_id).call(
            services.STORAGE_SYNC_DONE,
            storage_pb2.SyncDoneReq(
                chain_id=chain_id,
                chain_version=chain_version,
                target_id=successor.target_id,
                channels=[
                    result_to_pb(tag, result)
                    for tag, result in target.channels.results(CHANNEL_COUNT_MAX)
                ],
            ),
            timeout_s=DONE_TIMEOUT_S,
        )
        target.resynced_version = chain_version
        log.info(
            "target %d: successor %d is resynced: %s",
            target.target_id,
            successor.target_id,
            progress.summary(),
        )

    async def _resync_window(self, place: Place, after: bytes) -> bytes | None:
        """Bring one window of chunk ids over; return where the next one starts, None at the end."""
        target, successor = place.target, place.successor
        assert successor is not None
        engine = target.disk.engine
        received = await self._context.channel_to(successor.target_id).call(
            services.STORAGE_SYNC_START,
            storage_pb2.SyncStartReq(
                chain_id=place.chain.chain_id,
                chain_version=place.chain.chain_version,
                target_id=successor.target_id,
                after=after,
                chunk_count_max=PAGE_CHUNK_COUNT,
                checksum_block_bytes=engine.checksum_block_bytes,
            ),
            timeout_s=CALL_TIMEOUT_S,
        )
        remote = [state_from_pb(chunk) for chunk in received.message.chunks]
        # After the remote page: what is listed here is then never older than what is listed there.
        local = await target.disk.run(
            lambda: engine.list_chunks(target.target_id, after=after, limit=PAGE_CHUNK_COUNT)
        )
        end = window_end(
            local[-1].chunk_id.pack() if len(local) == PAGE_CHUNK_COUNT else None,
            remote[-1].chunk_id.pack() if received.message.has_more else None,
        )
        async with trio.open_nursery() as nursery:
            here = {state.chunk_id: state for state in _until(local, end)}
            items = list(merge(_until(local, end), _until(remote, end)))
            removals = [Group((item,), 0) for item in items if item.need is Need.REMOVE]
            wanted = _wanted(target.progress, items, here)
            # First what waits for no rate.
            for group in joined(removals, grouped(wanted, self._rate.group_bytes_max)):
                slots = self._slots if group.byte_count else self._removal_slots
                await slots.acquire()
                try:
                    nursery.start_soon(self._bring_in_slot, place, group, slots)
                except BaseException:  # no memory
                    slots.release()
                    raise
                if target.progress.failed_count and not self._is_current(place):
                    break
        self._context.place_now(place.chain.chain_id, place.chain.chain_version)
        return end

    def _is_current(self, place: Place) -> bool:
        now = self._context.targets.known_place(place.chain.chain_id)
        return now is not None and now.chain.chain_version == place.chain.chain_version

    async def _bring_in_slot(self, place: Place, group: Group, slots: trio.Semaphore) -> None:
        try:
            left = group.items
            byte_count = _bytes_now(place.target, left)
            # Before any lock: no update waits for it.  Nor does the next attempt wait for the
            # turns of one that is over.
            if not await self._rate.take(byte_count, partial(self._is_current, place)):
                self._context.place_now(place.chain.chain_id, place.chain.chain_version)  # raises
            if byte_count and left[0].need is Need.TRANSFER and not left[0].is_suspect:
                if len(left) > 1:  # they may have grown since they were listed
                    byte_count = min(byte_count, GROUP_BYTES_MAX)
                there = await self._bring_together(place, left, byte_count)
                left = tuple(item for item in left if item.chunk_id not in there)
            for item in left:
                await self._bring_one(place, item)
        except Exception as error:  # noqa: BLE001 - of a bug it is raised again
            require_passing(error)
            place.target.progress.failed_count += 1
            log.warning("target %d: not resynced: %s", place.target.target_id, error)
        finally:
            slots.release()

    async def _bring_one(self, place: Place, item: Item) -> None:
        try:
            await self._bring_chunk(place, item)
        except Exception as error:  # noqa: BLE001 - of a bug it is raised again
            require_passing(error)
            place.target.progress.failed_count += 1
            log.warning("chunk %s: not resynced: %s", item.chunk_id, error)

    async def _bring_together(
        self, place: Place, items: Sequence[Item], byte_count: int
    ) -> Collection[ChunkId]:
        """Bring those over whose way is plain, as many as are in `byte_count` bytes;
        return which of them are there.
        """
        context, target, progress = self._context, place.target, place.target.progress
        if not takes_groups(context, place):
            return ()
        buffers, count = self._buffers, 0
        chunk_ids = [item.chunk_id for item in items]  # of these so many are held, and come first
        lease = await buffers.acquire(byte_count)
        try:
            for chunk_id in chunk_ids:
                if target.locks.take(chunk_id):
                    chunk_ids[count] = chunk_id  # takes no memory
                    count += 1
            held = chunk_ids[:count]
            context.place_now(place.chain.chain_id, place.chain.chain_version)
            deadline_s = trio.current_time() + context.section.forward_timeout_s
            there = await transfer_together(context, place, held, lease, deadline_s=deadline_s)
        except FsError as error:
            log.info("target %d: chunks are not resynced together: %s", target.target_id, error)
            return ()
        finally:
            for chunk_id in islice(chunk_ids, count):
                target.locks.release(chunk_id)
            buffers.release(lease)
        progress.transferred_count += len(there)
        progress.transferred_bytes += sum(there.values())
        return there

    async def _bring_chunk(self, place: Place, item: Item) -> None:
        """Bring one chunk of the successor to our state of it, whatever that is by now."""
        context, target, progress = self._context, place.target, place.target.progress
        chain_id, chain_version = place.chain.chain_id, place.chain.chain_version
        deadline_s = trio.current_time() + context.section.forward_timeout_s
        if item.is_suspect:
            progress.suspect_count += 1
            log.error(
                "target %d chunk %s: successor's looks newer", target.target_id, item.chunk_id
            )
        async with target.locks.hold(item.chunk_id):
            context.place_now(chain_id, chain_version)
            state = target.disk.run_inline(target.disk.engine.get, target.target_id, item.chunk_id)
            if state is not None and state.pending_ver:
                if await settle(
                    context,
                    target,
                    chain_id,
                    state,
                    deadline_s=deadline_s,
                    only_version=chain_version,
                ):
                    progress.transferred_count += 1
                    return
                state = target.disk.run_inline(
                    target.disk.engine.get, target.target_id, item.chunk_id
                )
            if state is None:
                await self._remove_there(place, item.chunk_id, deadline_s)
                progress.removed_count += 1
            else:
                await self._transfer(place, state, deadline_s)
                progress.transferred_count += 1

    async def _transfer(self, place: Place, state: ChunkState, deadline_s: float) -> None:
        """Send a chunk; one whose copy here is bad from another copy, or,
        if there is none, as damaged.
        """
        send = partial(
            transfer,
            self._context,
            place.target,
            place.chain.chain_id,
            chain_version=place.chain.chain_version,
            deadline_s=deadline_s,
        )
        progress = place.target.progress
        try:
            sent_bytes = await send(state)
            progress.transferred_bytes += sent_bytes  # others have added theirs meanwhile
        except FsError as error:
            if error.status is not Status.CHECKSUM_MISMATCH:
                raise
            note_damage(place.target, state.chunk_id, f"met by resync: {error}")
            if await repair_copy(self._context, place, state) is Repaired.YES:
                sent_bytes = await send(state)
                progress.transferred_bytes += sent_bytes
                return
            progress.damaged_count += 1
            await send(state, is_damaged=True)

    async def _remove_there(self, place: Place, chunk_id: ChunkId, deadline_s: float) -> None:
        await forward(
            self._context,
            place.target,
            place.chain.chain_id,
            Outgoing(chunk_id, UpdateType.REMOVE, 1, 0),
            None,
            deadline_s=deadline_s,
            only_version=place.chain.chain_version,
        )


def _wanted(
    progress: ResyncProgress, items: Iterable[Item], here: Mapping[ChunkId, ChunkState]
) -> Iterator[tuple[Item, ChunkState | None]]:
    """Yield what is to be brought, with the chunk here; count what is not."""
    for item in items:
        state = here.get(item.chunk_id)
        progress.compared_bytes += state.length if state is not None else 0
        if item.need is Need.SKIP:
            progress.skipped_count += 1
        elif item.need is Need.TRANSFER:
            yield item, state


def _bytes_now(target: LocalTarget, items: Sequence[Item]) -> int:
    """Return the bytes of chunks, which may have changed, or gone, since they were listed."""
    disk = target.disk
    states = (disk.run_inline(disk.engine.get, target.target_id, item.chunk_id) for item in items)
    return sum(state.length for state in states if state is not None)


def _until(states: Sequence[ChunkState], end: bytes | None) -> Sequence[ChunkState]:
    if end is None:
        return states
    return list(takewhile(lambda state: state.chunk_id.pack() <= end, states))
