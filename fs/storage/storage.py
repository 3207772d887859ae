"""One storage process: its disks and targets, and the loops that run beside the requests.

Loops: take in routing info; carry out local-state steps; measure space; flush; resync successors;
repair damaged copies and look for more; complete leftovers; bring failed disks back; forget idle
channels. Made and wired by `app`; nothing here opens a disk, a socket or a configuration file.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

import trio

from ..chunkengine.api import ChunkEngine
from ..chunkengine.refused import RefusedEngine
from ..node.api import MgmtdCaller, NodeLease, RoutingView
from ..rpc.api import Channels, Identity
from ..rpc.buffer_pool import BufferPool
from ..rpc.slabs import SlabShelf
from ..runtime.figures import Figures
from ..runtime.ports import Runtime
from ..schema.config import DiskSection, ProcessConfig, StorageSection
from ..schema.ids import NodeId, TargetId
from ..schema.proto import mgmtd_pb2
from ..schema.routing import LocalState, PublicState
from ..schema.services import MGMTD_LIST_CLIENT_SESSIONS
from ..schema.status import FsError
from . import standings
from .channels import ChannelTable
from .context import StorageContext
from .damage import Repair, note_damage
from .disk import Disk
from .disk_calls import DiskCalls
from .failed_disks import FailedDisks, Reopen
from .figures import say
from .forward import NotSuccessorError
from .leftovers import Leftovers
from .links import Links
from .local_state import Hold, Step
from .lone_update import LoneUpdates
from .on_disk import (
    commit_pending,
    disk_losses,
    flushed_by,
    forget_updates,
    keep_offline_if_asked,
    load_updates,
    note_flushed,
)
from .resync import Resync
from .scrub import Scrub
from .service import StorageService
from .target import LocalTarget
from .target_changes import TargetChanges
from .targets import Place, Targets, check_unique, trouble
from .update_notes import note_key
from .watermarks import Watermarks, load_watermark, raise_watermarks

log = logging.getLogger(__name__)

SPACE_INTERVAL_S: Final = 1.0
PACE_WINDOW_COUNT: Final = 5
"""Of those intervals: what is judged together to tell whether a disk is slow."""

CHANNEL_SCAN_INTERVAL_S: Final = 60.0
STEP_RETRY_S: Final = 1.0
FLUSH_INTERVAL_S: Final = 10.0
"""So much is lost at most with the power of all machines, of what nobody asked to be
durable; it also bounds how long removed chunks hold their space, and how much an
engine verifies after a power loss.
"""

COMPACT_INTERVAL_S: Final = 300.0
COMPACT_PAUSE_S: Final = 1.0

READ_BUFFER_BYTES_MAX: Final = 192 * 1024 * 1024
"""Of read replies under way; further reads wait until their clients have taken some."""


class Storage:
    """The storage service of one process.

    `service` is for the RPC server, `report` for the heartbeats; `run` does the rest.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: ProcessConfig,
        identity: Identity,
        engines: Sequence[ChunkEngine],
        *,
        routing: RoutingView,
        lease: NodeLease,
        channels: Channels,
        mgmtd: MgmtdCaller,
        trigger_heartbeat: Callable[[], None],
        reopen: Reopen,
        calls: Sequence[DiskCalls] | None = None,
        shelf: SlabShelf | None = None,
    ) -> None:
        """Wire a process.

        Args:
            runtime: clock, network, blocking calls, randomness.
            config: its [storage] section lists the disks and their targets.
            identity: who this process is.
            engines: one per configured disk, in that order; a refused one where it could not be
                opened.  They stay the caller's.
            routing: the newest routing info.
            lease: this node's right to serve.
            channels: to other nodes.
            mgmtd: to the primary manager.
            trigger_heartbeat: makes the next heartbeat go out at once; must not wait.
            reopen: gives a disk a new engine after the old one has failed; that
                one, too, stays the caller's.
            calls: of the disks, watched; None: nobody looks whether a disk hangs.
            shelf: where idle slabs of buffers for reads are kept; None: one that nobody shares.

        Raises:
            FsError: CONFLICTING_CHANGE if two disks hold the same target.
        """
        section = config.storage
        self._disks = _disks_of(runtime, section, engines, calls)
        targets = _targets_of(self._disks, section)
        self._stepping: set[LocalTarget] = set()
        self._measured_count = 0
        self._incarnation = identity.incarnation
        self.targets = Targets(
            NodeId(identity.node_id), self._disks, targets, routing, trigger_heartbeat
        )
        self._context = StorageContext(
            runtime,
            section,
            config.rpc.payload_bytes_max,
            NodeId(identity.node_id),
            self.targets,
            routing,
            lease,
            channels,
            mgmtd,
            BufferPool(READ_BUFFER_BYTES_MAX, shelf),
        )
        self.watermarks = Watermarks(self.targets, runtime.clock, lease, self._has_room)
        self._resync = Resync(self._context)
        for disk in self._disks:
            disk.calls.on_hang.append(lambda _error: self._context.buffers.disown())
            disk.calls.on_hang.append(lambda _error: self._resync.disown_buffers())
        self._repair = Repair(self._context)
        self._scrub = Scrub(self._context)
        self._changes = TargetChanges(self._context)
        self._failed_disks = FailedDisks(self._context, self._changes, reopen)
        self._lone = LoneUpdates(self._context)
        self.leftovers = Leftovers(self._context)
        self.service = StorageService(self._context, self._changes, self._lone)

    async def finish_client(self, client_id: str) -> None:
        """Complete what a client has left over that is gone, and that no connection serves any
        more; raises FsError: something of it may come yet.
        """
        self.service.relays.check_none_lately(client_id)
        await self.leftovers.complete_all()

    def adopt(self, section: StorageSection) -> None:
        """Go on with other settings; disks, and what they were opened with, must be the same."""
        self._context.section = section
        self._resync.adopt(section)
        for disk in self._disks:
            disk.adopt(section)

    def report(self) -> list[mgmtd_pb2.TargetReportPb]:
        """Return what the next heartbeat says of our targets."""
        reports = self.targets.report()
        fraction = self._context.section.low_space_fraction
        is_heard = self._context.lease.is_valid()
        for report in reports:
            if not is_heard:
                report.flushed_by = self.targets.target(report.target_id).flushed_by
            disk = self._disks[report.disk_index]
            report.low_space = disk.free_bytes < fraction * disk.capacity_bytes
        return reports

    def _has_room(self, disk: Disk) -> bool:
        return disk.free_bytes > self._context.section.reject_create_free_bytes_min

    def report_disks(self) -> list[mgmtd_pb2.DiskReportPb]:
        """Return what the next heartbeat says of our disks, as last measured."""
        return [
            mgmtd_pb2.DiskReportPb(
                disk_index=disk.index,
                capacity_bytes=disk.capacity_bytes,
                free_bytes=disk.free_bytes,
                is_failed=disk.is_failed,
            )
            for disk in self._disks
        ]

    def say(self, figures: Figures) -> None:
        """Say what this process measures."""
        say(self._context, self.service.relays, figures)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the loops until cancelled."""
        await self._measure()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_routing)
            nursery.start_soon(self._carry_out_steps)
            nursery.start_soon(standings.run, self.targets)
            nursery.start_soon(self.watermarks.run)
            nursery.start_soon(self._measure_loop)
            nursery.start_soon(self._flush_loop)
            nursery.start_soon(self._context.flusher.run)
            nursery.start_soon(self._lone.run)
            nursery.start_soon(self._compact_loop)
            nursery.start_soon(self._forget_idle_channels)
            nursery.start_soon(self._resync.run)
            nursery.start_soon(self._repair.run)
            nursery.start_soon(self._scrub.run)
            nursery.start_soon(self._changes.run)
            nursery.start_soon(self._failed_disks.run)
            nursery.start_soon(self.leftovers.run)
            nursery.start_soon(Links(self._context).run)
            task_status.started()

    async def note_stop(self) -> None:
        """Make everything durable and note that it is, where no disk has failed;
        after `run` and the server have ended.

        The next process tells the manager, so that the start of the machine
        in between counts as no loss.
        """
        for disk in self._disks:
            if disk.has_failed:
                continue
            here = [t.target_id for t in self.targets.targets.values() if t.disk is disk]
            try:
                await disk.run(note_flushed, disk.engine, here, self._incarnation)
            except FsError as error:
                log.warning("disk %d (%s): stop not noted: %s", disk.index, disk.path, error)

    async def _follow_routing(self) -> None:
        """Let every new routing info take effect at once, also on calls in flight."""
        while True:
            info = self.targets.look()
            for place in self.targets.places():
                successor_id = place.successor.target_id if place.successor else None
                for callee, calls in list(place.target.forwards.items()):
                    if callee != successor_id:
                        for call in list(calls):
                            call.fail(NotSuccessorError(callee))
            for scope, (chain_id, tail) in list(self._context.tail_scopes.items()):
                chain = info.chains.get(chain_id)
                if chain is None or chain.serving[-1:] != (tail,):
                    scope.cancel()
            await self._context.routing.wait_newer(info.routing_version)

    async def _carry_out_steps(self) -> None:
        """Start the wanted steps; one target waiting for its updates
        to end does not hold up the others.
        """
        async with trio.open_nursery() as nursery:
            while True:
                await self.targets.steps_wanted.wait()
                self.targets.steps_wanted = trio.Event()
                self.targets.look()
                for target in self.targets.targets.values():
                    if target.pending_step is not Step.STAY and target not in self._stepping:
                        self._stepping.add(target)
                        nursery.start_soon(self._carry_out, target)

    async def _carry_out(self, target: LocalTarget) -> None:
        step = target.pending_step
        try:
            if step is Step.RELOAD:
                await self._reload(target)
            else:
                await self._promote(target)
        except FsError as error:
            log.warning("target %d: %s failed: %s", target.target_id, step.value, error)
            await trio.sleep(STEP_RETRY_S)
            self.targets.decide_again()
        finally:
            self._stepping.discard(target)
        if target.pending_step is not Step.STAY:
            self.targets.steps_wanted.set()

    async def _reload(self, target: LocalTarget) -> None:
        """Start the target anew: nothing of its former service is inside any more."""
        await target.inflight.wait_older_left(2**32)
        if target.pending_step is not Step.RELOAD:
            return
        place = self._place_of(target)
        has_no_chains = not self._context.routing.info.chains  # a store that was lost, or is new
        if not has_no_chains and (place is None or not place.may_be_truth):
            # What it knows of clients will come from its predecessor.  The
            # last serving one is the truth.
            await target.disk.run(forget_updates, target)
            if target.pending_step is not Step.RELOAD:
                return
        target.awaits_settling = has_no_chains or (place is not None and place.awaits_settling)
        target.pending_step = Step.STAY
        target.channels = ChannelTable()
        target.sync_done_version = target.resynced_version = 0
        self.targets.set_local(target, LocalState.ONLINE)

    async def _promote(self, target: LocalTarget) -> None:
        """The chain says SERVING: our copy is the truth, so what is pending here is committed.

        Only a new chain's target and the last serving one come this way; a former tail may have
        committed, and shown, what is pending here.
        """
        place = self._place_of(target)
        target.pending_step = Step.STAY
        if place is None or place.public_state is not PublicState.SERVING:
            return
        count = await target.disk.run(commit_pending, target, place.chain.chain_version)
        target.unsettled.clear()
        known = await target.disk.run(load_updates, target)
        for note in known:
            target.channels.record(note.tag, note.result, trio.current_time())
        if count or known:
            log.info(
                "target %d: committed %d leftover versions, knows %d updates of clients",
                target.target_id,
                count,
                len(known),
            )
        await raise_watermarks(target.disk, [target], self._context.runtime.clock)
        if target.local_state is LocalState.ONLINE:
            self.targets.set_local(target, LocalState.UPTODATE)

    def _place_of(self, target: LocalTarget) -> Place | None:
        return next((p for p in self.targets.places() if p.target is target), None)

    async def _measure_loop(self) -> None:
        while True:
            await trio.sleep(SPACE_INTERVAL_S)
            await self._measure()

    async def _measure(self) -> None:
        """Read the disks' space and pace; a target that was full comes back when there is room."""
        self._measured_count += 1
        if self._measured_count % PACE_WINDOW_COUNT == 0:
            for disk in self._disks:
                disk.judge_pace()
        async with trio.open_nursery() as nursery:  # one that hangs holds up no other
            for disk in self._disks:
                if not disk.is_failed:
                    nursery.start_soon(self._measure_disk, disk)
        room = 2 * self._context.section.reject_create_free_bytes_min
        for target in self.targets.targets.values():
            if target.hold is Hold.FULL and target.disk.free_bytes > room:
                self.targets.put_offline(target, Hold.EVICTED, "there is room again")

    async def _measure_disk(self, disk: Disk) -> None:
        try:
            await disk.measure()
            for target in self.targets.targets.values():
                if target.disk is disk:
                    target.used_bytes = disk.run_inline(disk.engine.used_bytes, target.target_id)
        except FsError as error:
            log.warning("disk %d (%s): no space figures: %s", disk.index, disk.path, error)

    async def _flush_loop(self) -> None:
        under_way: set[Disk] = set()
        async with trio.open_nursery() as nursery:  # one that hangs holds up no other
            while True:
                await trio.sleep(FLUSH_INTERVAL_S)
                for disk in self._disks:
                    if not disk.is_failed and disk not in under_way:
                        under_way.add(disk)
                        nursery.start_soon(self._flush, disk, under_way)

    async def _flush(self, disk: Disk, under_way: set[Disk]) -> None:
        try:
            await disk.sync()
        except FsError as error:
            log.warning("disk %d (%s): not flushed: %s", disk.index, disk.path, error)
        finally:
            under_way.remove(disk)

    async def _compact_loop(self) -> None:
        """Return the space of sparse groups of blocks, at a bounded rate, pass after pass."""
        while True:
            await trio.sleep(COMPACT_INTERVAL_S)
            async with trio.open_nursery() as nursery:
                for disk in self._disks:
                    nursery.start_soon(self._compact, disk)

    async def _compact(self, disk: Disk) -> None:
        """Make one pass over a disk: about `compact_bytes_per_s_max` bytes moved in each second;
        ends when that is 0.
        """
        try:
            while not disk.is_failed and (rate := self._context.section.compact_bytes_per_s_max):
                done = await disk.run(disk.engine.compact, rate)
                for target_id, chunk_id in done.damaged:
                    if target_id in self.targets.targets:
                        note_damage(self.targets.targets[target_id], chunk_id, "met by compaction")
                if done.is_finished:
                    return
                await trio.sleep(COMPACT_PAUSE_S)
        except FsError as error:
            log.warning("disk %d (%s): not compacted: %s", disk.index, disk.path, error)

    async def _forget_idle_channels(self) -> None:
        while True:
            await trio.sleep(CHANNEL_SCAN_INTERVAL_S)
            live_clients = await self._live_clients()
            for target in list(self.targets.targets.values()):
                await self._forget_idle(target, live_clients)

    async def _live_clients(self) -> set[str] | None:
        """Return the clients that have a session; None if that cannot be told now."""
        if not any(len(target.channels) for target in self.targets.targets.values()):
            return None
        request = mgmtd_pb2.ListClientSessionsReq()
        try:
            reply = await self._context.mgmtd.call(MGMTD_LIST_CLIENT_SESSIONS, request)
        except FsError as error:
            log.info("which clients are there is not known: %s", error)
            return None
        return {session.client_id for session in reply.sessions} if reply.is_complete else None

    async def _forget_idle(self, target: LocalTarget, live_clients: set[str] | None) -> None:
        slots = target.channels.expire(trio.current_time(), live_clients)
        keys = [note_key(*slot) for slot in slots]
        try:
            if keys:
                engine = target.disk.engine
                await target.disk.run(engine.forget_notes, target.target_id, keys)
        except FsError as error:
            log.warning("target %d: notes not forgotten: %s", target.target_id, error)


def _disks_of(
    runtime: Runtime,
    section: StorageSection,
    engines: Sequence[ChunkEngine],
    calls: Sequence[DiskCalls] | None,
) -> list[Disk]:
    assert len(engines) == len(section.disks), (len(engines), len(section.disks))
    return [
        Disk(n, disk.path, engines[n], runtime, section, calls=calls[n] if calls else None)
        for n, disk in enumerate(section.disks)
    ]


def _targets_of(disks: Sequence[Disk], section: StorageSection) -> list[LocalTarget]:
    """Return the targets of all disks; raises FsError(CONFLICTING_CHANGE)
    if two disks hold the same one.
    """
    targets = [
        target
        for disk, its in zip(disks, section.disks, strict=True)
        for target in _targets_on(disk, its)
    ]
    check_unique(targets)
    return targets


def _targets_on(disk: Disk, section: DiskSection) -> list[LocalTarget]:
    """Return the targets of a disk by its own record;
    of one that could not be opened those that are configured, OFFLINE.
    """
    engine: object = disk.engine
    if isinstance(engine, RefusedEngine):
        disk.is_failed = True
        return [
            LocalTarget(
                TargetId(target_id),
                disk,
                hold=Hold.BROKEN,
                trouble=trouble(Hold.BROKEN, str(engine.reason)),
            )
            for target_id in sorted(section.target_ids)
        ]
    targets = [LocalTarget(target_id, disk) for target_id in disk.engine.target_ids()]
    for target in targets:
        keep_offline_if_asked(target)
        target.flushed_by = flushed_by(target)
        target.disk_loss_count = disk_losses(target)
        target.standing = standings.load_standing(disk.engine, target.target_id)
        target.watermark = load_watermark(disk.engine, target.target_id)
    return targets
