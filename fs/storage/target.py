"""The disks and targets of one storage process: what is in memory about them.

Invariants:
    - `LocalTarget.unsettled` names every chunk with an update inside or a leftover pending version, from before
      the update is forwarded until it is committed or dropped here.  A read that finds its chunk not in it may
      return the committed version: whatever any reader saw of the chunk before, is committed here.
    - A target changes its local state only in `Targets.look` and in the functions below; every change
      triggers a heartbeat.
    - No request acts on routing info that `Targets.look` has not seen.

Concurrency: one event loop; nothing here waits, except `Disk.run`, which does the engine's blocking calls.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import trio

from ..chunkengine.api import ChunkEngine
from ..node.api import RoutingView
from ..runtime.ports import Runtime
from ..schema.config import StorageSection
from ..schema.ids import ChainId, ChunkId, NodeId, TargetId
from ..schema.proto import common_pb2, mgmtd_pb2
from ..schema.routing import Chain, ChainTarget, LocalState, PublicState, RoutingInfo
from ..schema.status import FsError, Status
from .channels import ChannelTable
from .chunk_locks import ChunkLocks
from .disk_pace import DiskPace
from .finished_cuts import FinishedCuts
from .inflight import InFlight
from .local_state import Hold, Step, next_step, start_is_over

log = logging.getLogger(__name__)

T = TypeVar("T")

TROUBLE_CHARS_MAX: Final = 300


class Disk:
    """One disk: its engine, and how much may be asked of it at once.

    `engine` is another one after `take`: an operation that kept the former one across a wait is refused by it.
    """

    def __init__(
        self,
        index: int,
        path: str,
        engine: ChunkEngine,
        runtime: Runtime,
        section: StorageSection,
    ) -> None:
        self.index = index
        self.path = path
        self.engine = engine
        self.is_failed = False
        self.inside_count = 0
        """Engine calls off the event loop, now."""
        self._taken_count = 0
        self.free_bytes = 0
        self.capacity_bytes = 0
        self.read_limiter = trio.Semaphore(section.read_concurrency)
        self.write_limiter = trio.Semaphore(section.write_concurrency)
        self.pace = DiskPace()
        self.flush_pace = DiskPace(call_count_min=1)
        self._unflushed_bytes = 0
        self._run_blocking = runtime.run_blocking
        self._clock = runtime.clock
        self.on_failure: Callable[[Disk, FsError], None] = lambda _disk, _error: None
        self.on_pace_change: Callable[[Disk, DiskPace], None] = lambda _disk, _pace: None

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call an engine method off the event loop; an IO_ERROR takes the disk out of service."""
        taken_count = self._taken_count
        self.inside_count += 1
        try:
            return await self._run_blocking(function, *arguments)
        except FsError as error:
            if error.status is Status.IO_ERROR and taken_count == self._taken_count:
                self._fail(error)
            raise
        finally:
            self.inside_count -= 1

    @property
    def has_failed(self) -> bool:
        """Since this process was started; what was acknowledged before that may not be durable."""
        return self.is_failed or self._taken_count > 0

    def take(self, engine: ChunkEngine) -> None:
        """Serve with another engine, opened in place of one that failed; nobody is inside."""
        assert self.is_failed, self.path
        self.engine = engine
        self._taken_count += 1
        self.is_failed = False

    async def run_timed(self, byte_count: int, function: Callable[..., T], *arguments: object) -> T:
        """As `run`; the call reads or writes about so many bytes, and counts for the disk's pace."""
        began_s = self._clock.monotonic_s()
        try:
            return await self.run(function, *arguments)
        finally:
            self.pace.note(self._clock.monotonic_s() - began_s, byte_count)

    async def write_timed(self, byte_count: int, function: Callable[..., T]) -> T:
        """As `run_timed`, `storage.write_concurrency` at a time; a free place costs no turn of the event loop."""
        limiter = self.write_limiter
        try:
            limiter.acquire_nowait()
        except trio.WouldBlock:
            await limiter.acquire()
        try:
            return await self.run_timed(byte_count, function)
        finally:
            limiter.release()

    async def sync(self) -> None:
        """Make everything acknowledged durable; counts for the disk's pace."""
        byte_count, self._unflushed_bytes = self._unflushed_bytes, 0
        began_s = self._clock.monotonic_s()
        await self.run(self.engine.sync)
        self.flush_pace.note(self._clock.monotonic_s() - began_s, byte_count)
        if self.flush_pace.end_window():
            self.on_pace_change(self, self.flush_pace)

    @property
    def is_slow(self) -> bool:
        """Far slower than usual, for some time."""
        return self.pace.is_slow or self.flush_pace.is_slow

    def judge_pace(self) -> None:
        """Judge reads and writes since the last time."""
        if self.pace.end_window():
            self.on_pace_change(self, self.pace)

    def note_written(self, byte_count: int) -> None:
        """So much will have to be flushed."""
        self._unflushed_bytes += byte_count

    def run_inline(self, function: Callable[..., T], *arguments: object) -> T:
        """Call an engine method that takes microseconds, right here; errors as in `run`."""
        try:
            return function(*arguments)
        except FsError as error:
            if error.status is Status.IO_ERROR:
                self._fail(error)
            raise

    async def measure(self) -> None:
        """Read the disk's space anew."""
        space = await self.run(self.engine.space)
        self.free_bytes, self.capacity_bytes = space.free_bytes, space.capacity_bytes

    def _fail(self, error: FsError) -> None:
        if not self.is_failed:
            self.is_failed = True
            self.on_failure(self, error)


@dataclass(slots=True)
class ResyncProgress:
    """Counters of the last or present resync of this target's successor."""

    transferred_count: int = 0
    transferred_bytes: int = 0
    removed_count: int = 0
    skipped_count: int = 0
    failed_count: int = 0
    successor_id: int = 0
    chain_version: int = 0
    began_s: float = 0.0
    """trio time."""
    is_running: bool = False
    compared_bytes: int = 0
    """Of the chunks done with, here, whether they had to be transferred or not."""
    suspect_count: int = 0
    damaged_count: int = 0
    """Handed over without bytes, since nobody has them."""

    def report(self, total_bytes: int, now_s: float) -> common_pb2.ResyncProgressPb:
        """Return what the heartbeat says of it; how long it takes is guessed from the bytes of our own target.

        Args:
            total_bytes: that our target takes on its disk, blocks included.
            now_s: trio time.
        """
        done = self.transferred_count + self.removed_count + self.skipped_count
        elapsed_s = now_s - self.began_s
        share = min(1.0, self.compared_bytes / total_bytes) if total_bytes else 0.0
        return common_pb2.ResyncProgressPb(
            target_id=self.successor_id,
            chain_version=self.chain_version,
            chunks_done=done,
            chunks_total=max(done, round(done / share)) if share else done,
            bytes_done=self.compared_bytes,
            bytes_total=max(total_bytes, self.compared_bytes),
            elapsed_s=elapsed_s,
            eta_s=elapsed_s * (1 - share) / share if share else 0.0,
        )


@dataclass(slots=True, eq=False)
class LocalTarget:
    """One target of this node."""

    target_id: TargetId
    disk: Disk
    local_state: LocalState = LocalState.OFFLINE
    hold: Hold = Hold.STARTING
    trouble: str = ""
    """Why it is OFFLINE, for people."""
    flushed_by: str = ""
    """Incarnation of the process that stopped in order before this one, having made everything durable."""
    disk_loss_count: int = 0
    """How often its disk, when it was opened, lacked what had been committed."""
    locks: ChunkLocks = field(default_factory=ChunkLocks)
    channels: ChannelTable = field(default_factory=ChannelTable)
    inflight: InFlight = field(default_factory=InFlight)
    unsettled: dict[ChunkId, None] = field(default_factory=dict)
    remove_locks: ChunkLocks = field(default_factory=ChunkLocks)
    sync_done_version: int = 0
    """Chain version under which this target's resync was completed."""
    resynced_version: int = 0
    """Chain version under which this target brought its successor up to date."""
    pending_step: Step = Step.STAY
    """RELOAD or PROMOTE: being carried out by Storage."""
    epoch: int = 1
    """Sent with what this target forwards; grows after every attempt of unknown outcome."""
    epoch_seen: tuple[int, int] = (0, 0)
    """The highest (chain version, epoch) that the predecessor sent."""
    unanswered_since_s: float = 0.0
    """Since when (trio time) calls to the successor have been waiting without any answer; 0: they are not."""
    heard_s: float = 0.0
    """When the predecessor last said anything, in trio time."""
    forward_scopes: dict[trio.CancelScope, TargetId] = field(default_factory=dict)
    """Calls to successors in flight; one is cancelled when its callee stops being our successor."""
    cuts: FinishedCuts = field(default_factory=FinishedCuts)
    used_bytes: int = 0
    checksum_error_count: int = 0
    difference_count: int = 0
    """Chunks of which the successor had more, less or other content with nothing under way."""
    repaired_count: int = 0
    lost_count: int = 0
    """Chunks that were found to be whole on no target of the chain."""
    read_elsewhere_count: int = 0
    """Reads of bad copies here that another replica answered."""
    damaged: dict[ChunkId, float] = field(default_factory=dict)
    """Chunks whose copy here is to be repaired (damage.py), and when to try next, in trio time; see UNTIL_FLUSHED."""
    progress: ResyncProgress = field(default_factory=ResyncProgress)

    def admit_epoch(self, chain_version: int, epoch: int) -> None:
        """Let an update of the predecessor pass unless a later attempt has voided it.

        Raises:
            FsError: SUPERSEDED_UPDATE.
        """
        if (chain_version, epoch) < self.epoch_seen:
            raise FsError(
                Status.SUPERSEDED_UPDATE, f"target {self.target_id}: epoch {epoch} is over"
            )
        self.epoch_seen = (chain_version, epoch)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a target of this node stands in its chain, at one version of it."""

    target: LocalTarget
    chain: Chain
    public_state: PublicState
    is_head: bool
    is_tail: bool
    """The last serving one: what is committed here is committed."""
    successor: ChainTarget | None

    @property
    def can_read(self) -> bool:
        """Clients may read here."""
        return (
            self.public_state is PublicState.SERVING
            and self.target.local_state is LocalState.UPTODATE
        )

    @property
    def can_write(self) -> bool:
        """Updates may pass through here."""
        if self.public_state is PublicState.SYNCING:
            return self.target.local_state is not LocalState.OFFLINE
        return self.can_read


class Targets:
    """All targets of this node, seen through the newest routing info."""

    def __init__(
        self,
        node_id: NodeId,
        disks: Sequence[Disk],
        targets: Sequence[LocalTarget],
        routing: RoutingView,
        trigger_heartbeat: Callable[[], None],
    ) -> None:
        self.node_id = node_id
        self.disks = disks
        """All of the node, by index."""
        self.targets = {target.target_id: target for target in targets}
        self.trigger_heartbeat = trigger_heartbeat
        self.steps_wanted = trio.Event()
        self._routing = routing
        self._seen: RoutingInfo | None = None
        self._places: dict[ChainId, Place] = {}
        for disk in disks:
            disk.on_failure = self._on_disk_failure
            disk.on_pace_change = self._on_pace_change

    def look(self) -> RoutingInfo:
        """Take in the newest routing info and the local-state steps that follow from it; no checkpoint."""
        info = self._routing.info
        if info is not self._seen:
            self._seen = info
            self._places = self._find_places(info)
            self._decide_steps(info)
        return info

    def place(self, chain_id: int) -> Place:
        """Return this node's place in a chain; raises FsError(NOT_SERVING) if it has none."""
        self.look()
        found = self._places.get(ChainId(chain_id))
        if found is None:
            raise FsError(Status.NOT_SERVING, f"node {self.node_id} is not in chain {chain_id}")
        return found

    def places(self) -> list[Place]:
        """Return this node's places in all chains, by chain id."""
        self.look()
        return [self._places[chain_id] for chain_id in sorted(self._places)]

    def target(self, target_id: int) -> LocalTarget:
        """Return a target of this node; raises FsError(TARGET_UNKNOWN)."""
        found = self.targets.get(TargetId(target_id))
        if found is None:
            raise FsError(Status.TARGET_UNKNOWN, f"target {target_id} on node {self.node_id}")
        return found

    def add(self, target: LocalTarget) -> None:
        """Take a new target in and tell the manager."""
        assert target.target_id not in self.targets, target
        self.targets[target.target_id] = target
        self._seen = None
        self.trigger_heartbeat()

    def forget(self, target: LocalTarget) -> None:
        """Leave a removed target out from now on; the manager will not hear of it any more."""
        del self.targets[target.target_id]
        self._seen = None
        self.trigger_heartbeat()

    def report(self) -> list[mgmtd_pb2.TargetReportPb]:
        """Return what the heartbeat says of every target, under the routing info just looked at."""
        self.look()
        versions = {p.target.target_id: p.chain.chain_version for p in self._places.values()}
        return [
            mgmtd_pb2.TargetReportPb(
                target_id=target.target_id,
                disk_index=target.disk.index,
                local_state=common_pb2.LocalStatePb.ValueType(target.local_state),
                chain_version=versions.get(target.target_id, 0),
                used_bytes=target.used_bytes,
                resync=target.progress.report(target.used_bytes, trio.current_time())
                if target.progress.is_running
                else None,
                is_slow=target.disk.is_slow,
                trouble=target.trouble,
                disk_loss_count=target.disk_loss_count,
            )
            for target in self.targets.values()
        ]

    def put_offline(self, target: LocalTarget, hold: Hold, reason: str) -> None:
        """Take a target out of service at once; `hold` says when it may come back.

        A target that is kept offline for a stronger reason stays so; a start, above all, is over only when the manager
        has taken the target out of its chain, whoever wants it to leave meanwhile.
        """
        stronger = {Hold.BROKEN, Hold.REQUESTED, Hold.REMOVED}
        if target.hold in stronger | {Hold.STARTING} and hold not in stronger:
            return
        log.warning(
            "node %d target %d goes offline (%s): %s",
            self.node_id,
            target.target_id,
            hold.value,
            reason,
        )
        target.hold = hold
        target.trouble = trouble(hold, reason)
        target.pending_step = Step.STAY
        self.set_local(target, LocalState.OFFLINE)
        self._seen = None

    def release(self, target: LocalTarget, hold: Hold) -> None:
        """Let a target that is kept offline for this reason come back through resync."""
        if target.hold is hold:
            target.hold = Hold.EVICTED
            self._seen = None
            self.trigger_heartbeat()

    def set_local(self, target: LocalTarget, state: LocalState) -> None:
        """Change a local state and tell the manager."""
        if state is target.local_state:
            return
        log.info(
            "node %d target %d: %s -> %s",
            self.node_id,
            target.target_id,
            target.local_state.name,
            state.name,
        )
        target.local_state = state
        if state is not LocalState.OFFLINE:
            target.hold, target.trouble = Hold.NONE, ""
        self._seen = None
        self.trigger_heartbeat()

    def _find_places(self, info: RoutingInfo) -> dict[ChainId, Place]:
        places = {}
        for chain in info.chains.values():
            for member in chain.targets:
                target = self.targets.get(member.target_id)
                if target is not None:
                    places[chain.chain_id] = _place(target, chain, member.public_state)
        return places

    def _end_start(self, target: LocalTarget, place: Place | None) -> None:
        if place is not None and place.public_state is PublicState.LASTSRV:
            self.set_local(target, LocalState.ONLINE)  # with all it has and knows
        else:
            target.hold = Hold.EVICTED

    def _decide_steps(self, info: RoutingInfo) -> None:
        if info.routing_version == 0:
            return  # who is in which chain is not known yet
        place_of = {place.target.target_id: place for place in self._places.values()}
        if any(t.hold is Hold.STARTING for t in self.targets.values()) and start_is_over(
            info, self.targets
        ):
            for target in self.targets.values():
                if target.hold is Hold.STARTING:
                    self._end_start(target, place_of.get(target.target_id))
        for target in self.targets.values():
            place = place_of.get(target.target_id)
            step = next_step(
                target.local_state,
                target.hold,
                place.public_state if place else None,
                chain_version=place.chain.chain_version if place else 0,
                sync_done_version=target.sync_done_version,
            )
            if step is Step.DEMOTE:
                self.set_local(target, LocalState.ONLINE)
            elif step in {Step.RELOAD, Step.PROMOTE} and target.pending_step is not step:
                if step is Step.RELOAD:
                    target.hold = Hold.EVICTED
                    self.set_local(target, LocalState.OFFLINE)
                target.pending_step = step
                self.steps_wanted.set()

    def _on_pace_change(self, disk: Disk, pace: DiskPace) -> None:
        log.warning(
            "node %d disk %d (%s) is %s: %.3f s per call or MiB, usual are %.3f s",
            self.node_id,
            disk.index,
            disk.path,
            "slow" if pace.is_slow else "not slow any more",
            pace.window_s,
            pace.usual_s,
        )
        self.trigger_heartbeat()

    def _on_disk_failure(self, disk: Disk, error: FsError) -> None:
        log.error("node %d disk %d (%s) failed: %s", self.node_id, disk.index, disk.path, error)
        for target in self.targets.values():
            if target.disk is disk:
                self.put_offline(target, Hold.BROKEN, str(error))


def trouble(hold: Hold, reason: str) -> str:
    """Return what people are told of a target that is OFFLINE."""
    return f"{hold.value}: {reason}"[:TROUBLE_CHARS_MAX]


def check_unique(targets: Sequence[LocalTarget]) -> None:
    """Raise FsError(CONFLICTING_CHANGE) if two disks of the node hold the same target."""
    seen: dict[TargetId, LocalTarget] = {}
    for target in targets:
        other = seen.setdefault(target.target_id, target)
        if other is not target:
            raise FsError(
                Status.CONFLICTING_CHANGE,
                f"target {target.target_id} is on disk {other.disk.path} and on disk"
                f" {target.disk.path}: take one of them out of storage.disks",
            )


def _place(target: LocalTarget, chain: Chain, public_state: PublicState) -> Place:
    serving = chain.serving
    return Place(
        target,
        chain,
        public_state,
        is_head=bool(serving) and serving[0] == target.target_id,
        is_tail=bool(serving) and serving[-1] == target.target_id,
        successor=chain.successor_of(target.target_id),
    )
