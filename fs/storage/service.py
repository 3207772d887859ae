"""The storage service as the RPC server sees it:
one method per RPC, each a few lines around the paths.

What is refused here and nowhere else: requests beyond the counts below.
"""

from collections.abc import Coroutine
from functools import partial
from typing import Any

import trio
from google.protobuf.message import Message

from ..rpc.api import Begin, Call, Identity, Later, Quick, Reply
from ..schema.ids import TargetId
from ..schema.proto import storage_pb2
from ..schema.read_columns import from_rows, to_rows
from ..schema.routing import LocalState, PublicState
from ..schema.status import FsError, Status
from ..schema.user import User
from . import queries
from .answers import take_over_updates
from .chunk_messages import result_from_pb, state_to_pb
from .context import StorageContext
from .copies import read_copy
from .local_state import Hold
from .lone_update import LoneUpdates
from .on_disk import note_offline
from .read_one import read_one
from .read_path import read_batch, read_packed
from .relay import Relays, check_names, check_rights
from .resync import PAGE_CHUNK_COUNT
from .target_changes import TargetChanges
from .targets import Place
from .update_group import run_group
from .watermarks import raise_watermarks
from .write_path import run_update

QUERY_COUNT_MAX = 4096
GROUP_COUNT_MAX = 256
"""Four times what clients send together: who is in a group is looked up among all of it,
so its cost grows with the square.
"""

NOTE_BATCH_COUNT = 256
"""Of a predecessor's results, stored in one go on the event loop."""


class StorageService:
    """Serves the RPCs of fs/schema/proto/storage.proto."""

    def __init__(self, context: StorageContext, changes: TargetChanges, lone: LoneUpdates) -> None:
        self._context = context
        self._changes = changes
        self.relays = Relays(context)
        self.quick_batch_read: Quick = partial(read_one, context)
        """One small read."""
        self.begin_write: Begin = partial(lone.begin, is_from_client=True)
        """One small write; so the next."""
        self.begin_update: Begin = partial(lone.begin, is_from_client=False)

    def admit(self, user: User, peer: Identity, request: Message) -> None:
        """Let a user's client take no channel but its own, also by way of others;
        raises FsError(RPC_NOT_ALLOWED).
        """
        if isinstance(request, storage_pb2.RelayReq):
            check_rights(user, peer, request)
        else:
            check_names(peer, request)

    def packed_batch_read(
        self, call: Call, message: bytes
    ) -> (
        Reply[storage_pb2.BatchReadRsp]
        | Coroutine[Any, Any, Reply[storage_pb2.BatchReadRsp]]
        | Later
        | None
    ):
        """See `read_packed`."""
        context, is_cold = self._context, call.would_block
        return read_packed(context, call, message, is_cold=is_cold)

    def batch_read(
        self, call: Call, request: storage_pb2.BatchReadReq
    ) -> Coroutine[Any, Any, Reply[storage_pb2.BatchReadRsp]]:
        """Read from any serving target of each chain."""
        if request.ios:
            return self._batch_read_by_rows(call, request)
        return read_batch(self._context, request, deadline_s=call.deadline_s)

    async def _batch_read_by_rows(
        self, call: Call, request: storage_pb2.BatchReadReq
    ) -> Reply[storage_pb2.BatchReadRsp]:
        reply = await read_batch(self._context, from_rows(request), deadline_s=call.deadline_s)
        assert not isinstance(reply.message, bytes)
        return Reply(to_rows(reply.message), reply.payload, reply.release)

    async def write(self, call: Call, request: storage_pb2.UpdateReq) -> storage_pb2.UpdateRsp:
        """Execute a client's update; we are the head."""
        return await self._run_update(call, request, is_from_client=True)

    async def update(self, call: Call, request: storage_pb2.UpdateReq) -> storage_pb2.UpdateRsp:
        """Execute an update that our predecessor passes on."""
        return await self._run_update(call, request, is_from_client=False)

    async def write_ranges(
        self, call: Call, request: storage_pb2.UpdateReq
    ) -> storage_pb2.UpdateRsp:
        """Execute a client's write at several places of a chunk; we are the head."""
        return await self._run_update(call, request, is_from_client=True)

    async def update_ranges(
        self, call: Call, request: storage_pb2.UpdateReq
    ) -> storage_pb2.UpdateRsp:
        """Execute such a write that our predecessor passes on."""
        return await self._run_update(call, request, is_from_client=False)

    def _run_update(
        self, call: Call, request: storage_pb2.UpdateReq, *, is_from_client: bool
    ) -> Coroutine[Any, Any, storage_pb2.UpdateRsp]:
        return run_update(
            self._context,
            request,
            call.payload,
            is_from_client=is_from_client,
            deadline_s=call.deadline_s,
            tell=call.tell,
        )

    async def write_group(
        self, call: Call, request: storage_pb2.UpdateGroupReq
    ) -> storage_pb2.UpdateGroupRsp:
        """Execute several writes of a client; we are the head."""
        return await self._run_group(call, request, is_from_client=True)

    async def update_group(
        self, call: Call, request: storage_pb2.UpdateGroupReq
    ) -> storage_pb2.UpdateGroupRsp:
        """Execute several writes that our predecessor passes on."""
        return await self._run_group(call, request, is_from_client=False)

    async def replace_group(
        self, call: Call, request: storage_pb2.UpdateGroupReq
    ) -> storage_pb2.UpdateGroupRsp:
        """Take several whole chunks that our predecessor brings over; we are syncing."""
        return await self._run_group(call, request, is_from_client=False, is_replacing=True)

    def _run_group(
        self,
        call: Call,
        request: storage_pb2.UpdateGroupReq,
        *,
        is_from_client: bool,
        is_replacing: bool = False,
    ) -> Coroutine[Any, Any, storage_pb2.UpdateGroupRsp]:
        _limit(len(request.updates), GROUP_COUNT_MAX)
        return run_group(
            self._context,
            request,
            call.payload,
            is_from_client=is_from_client,
            is_replacing=is_replacing,
            deadline_s=call.deadline_s,
        )

    async def query_last_chunk(
        self, _call: Call, request: storage_pb2.QueryLastChunkReq
    ) -> storage_pb2.QueryLastChunkRsp:
        """Find last chunks; we are the head of each chain."""
        _limit(len(request.queries))
        results = [await queries.query_last_chunk(self._context, q) for q in request.queries]
        return storage_pb2.QueryLastChunkRsp(results=results)

    async def remove_chunks(
        self, call: Call, request: storage_pb2.RemoveChunksReq
    ) -> storage_pb2.RemoveChunksRsp:
        """Remove chunks of files; the count is bounded per call and range."""
        _limit(len(request.ranges))
        count_max = min(
            request.chunk_count_max or queries.REMOVE_COUNT_MAX, queries.REMOVE_COUNT_MAX
        )
        results = await queries.remove_ranges(
            self._context, request.ranges, count_max, call.deadline_s
        )
        return storage_pb2.RemoveChunksRsp(results=results)

    async def query_versions(
        self, call: Call, request: storage_pb2.QueryVersionsReq
    ) -> storage_pb2.QueryVersionsRsp:
        """Tell committed versions; we are the tail of each chain."""
        _limit(len(request.queries))
        results = [
            await queries.query_version(self._context, query, call.deadline_s)
            for query in request.queries
        ]
        return storage_pb2.QueryVersionsRsp(results=results)

    async def sync_chains(
        self, _call: Call, request: storage_pb2.SyncChainsReq
    ) -> storage_pb2.SyncChainsRsp:
        """Make acknowledged updates durable."""
        _limit(len(request.chains))
        await queries.sync_chains(self._context, request)
        return storage_pb2.SyncChainsRsp()

    async def space_info(
        self, _call: Call, _request: storage_pb2.SpaceInfoReq
    ) -> storage_pb2.SpaceInfoRsp:
        """Tell the space of our disks."""
        return await queries.space_info(self._context)

    async def sync_start(
        self, _call: Call, request: storage_pb2.SyncStartReq
    ) -> storage_pb2.SyncStartRsp:
        """List a page of our syncing target's chunks for the predecessor."""
        place = await self._syncing_place(
            request.chain_id, request.chain_version, request.target_id
        )
        target = place.target
        self._context.targets.check_blocks(target, request.checksum_block_bytes)
        limit = max(1, min(request.chunk_count_max, PAGE_CHUNK_COUNT))
        engine, after = target.disk.engine, request.after
        states = await target.disk.run(
            lambda: engine.list_chunks(target.target_id, after=after, limit=limit)
        )
        return storage_pb2.SyncStartRsp(
            chunks=[state_to_pb(state) for state in states], has_more=len(states) == limit
        )

    async def sync_done(
        self, _call: Call, request: storage_pb2.SyncDoneReq
    ) -> storage_pb2.SyncDoneRsp:
        """Take note that our target has everything; it is made durable before we say so."""
        place = await self._syncing_place(
            request.chain_id, request.chain_version, request.target_id
        )
        target = place.target
        known = [result_from_pb(channel) for channel in request.channels]
        for start in range(0, len(known), NOTE_BATCH_COUNT):
            await take_over_updates(target, known[start : start + NOTE_BATCH_COUNT])
        await target.disk.sync()
        await self._syncing_place(request.chain_id, request.chain_version, request.target_id)
        await raise_watermarks(target.disk, [target], self._context.runtime.clock)
        await self._syncing_place(request.chain_id, request.chain_version, request.target_id)
        target.sync_done_version = request.chain_version
        self._context.targets.set_local(target, LocalState.UPTODATE)
        return storage_pb2.SyncDoneRsp()

    async def list_chunks(
        self, call: Call, request: storage_pb2.ListChunksReq
    ) -> storage_pb2.ListChunksRsp:
        """List chunks of a target, for checks."""
        return await queries.list_chunks(self._context, request, call.deadline_s)

    async def offline_target(
        self, _call: Call, request: storage_pb2.OfflineTargetReq
    ) -> storage_pb2.OfflineTargetRsp:
        """Take a target out of service, the last serving one only by force; or let it back."""
        targets = self._context.targets
        target = targets.target(request.target_id)
        if request.is_released:
            await target.disk.run(partial(note_offline, target, is_wanted=False))
            targets.release(target, Hold.REQUESTED)
            return storage_pb2.OfflineTargetRsp()
        own = [place for place in targets.places() if place.target is target]
        for place in own:
            if place.chain.serving == (target.target_id,) and (
                not request.is_forced or request.is_for_resync
            ):
                raise FsError(Status.BUSY, f"target {target.target_id} is the last serving one")
        hold = Hold.EVICTED if request.is_for_resync else Hold.REQUESTED
        targets.put_offline(target, hold, "on request")
        if hold is Hold.REQUESTED:
            await target.disk.run(partial(note_offline, target, is_wanted=True))
        return storage_pb2.OfflineTargetRsp()

    async def create_target(
        self, _call: Call, request: storage_pb2.CreateTargetReq
    ) -> storage_pb2.CreateTargetRsp:
        """Make an empty target; a repeat finds it there."""
        await self._changes.create(TargetId(request.target_id), request.disk_index)
        return storage_pb2.CreateTargetRsp()

    async def remove_target(
        self, _call: Call, request: storage_pb2.RemoveTargetReq
    ) -> storage_pb2.RemoveTargetRsp:
        """Remove a target that is in no chain; a repeat finds it gone."""
        await self._changes.remove(TargetId(request.target_id))
        return storage_pb2.RemoveTargetRsp()

    async def fetch_copy(
        self, _call: Call, request: storage_pb2.FetchCopyReq
    ) -> Reply[storage_pb2.FetchCopyRsp]:
        """Hand over a version of a chunk, from a target in whatever state."""
        data = await read_copy(self._context.targets.target(request.target_id), request)
        return Reply(storage_pb2.FetchCopyRsp(), [data] if data else ())

    async def relay(self, call: Call, request: storage_pb2.RelayReq) -> Reply[storage_pb2.RelayRsp]:
        """Pass a request on to another node, which its client does not reach."""
        return await self.relays.relay(call, request)

    async def _syncing_place(self, chain_id: int, chain_version: int, target_id: int) -> Place:
        self._context.check_lease()
        place = await self._context.place_at(chain_id, chain_version)
        place.target.heard_s = trio.current_time()
        if (
            place.target.target_id != target_id
            or place.public_state is not PublicState.SYNCING
            or not place.can_write
        ):
            raise FsError(
                Status.SYNC_REFUSED,
                f"target {target_id} is {place.public_state.name}, here "
                f"{place.target.local_state.name}",
            )
        return place


def _limit(count: int, count_max: int = QUERY_COUNT_MAX) -> None:
    if count > count_max:
        raise FsError(Status.RPC_BAD_REQUEST, f"{count} parts in one request")
