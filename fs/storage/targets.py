"""All targets of one storage process, and where each stands in its chain.

Invariants:
    - A target changes its local state only in `Targets.look` and in the functions below;
      every change triggers a heartbeat.
    - No request acts on routing info that `Targets.look` has not seen.

Concurrency: one event loop; nothing here waits.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from ..node.api import RoutingView
from ..schema.ids import ChainId, NodeId, TargetId
from ..schema.proto import common_pb2, mgmtd_pb2
from ..schema.routing import Chain, ChainTarget, LocalState, PublicState, RoutingInfo
from ..schema.standing import standing_to_pb
from ..schema.status import FsError, Status
from .disk import Disk
from .disk_pace import DiskPace
from .local_state import Hold, Step, next_step, start_is_over
from .target import LocalTarget

log = logging.getLogger(__name__)

TROUBLE_CHARS_MAX: Final = 300

_SERVING: Final = PublicState.SERVING
_UPTODATE: Final = LocalState.UPTODATE


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
    def may_be_truth(self) -> bool:
        """Our copy is, or may turn out to be, the chain's newest: it keeps all that it knows."""
        return self.public_state is PublicState.LASTSRV or self.awaits_settling

    @property
    def awaits_settling(self) -> bool:
        """Who has the newest data is not known yet:
        after a restore, for want of the right store, or while any of several may go on.
        """
        return self.chain.restored is not None or self.is_of_other_store or self.is_of_several

    @property
    def is_of_several(self) -> bool:
        """Nobody serves, and we are one of those of whom any may."""
        return bool(self.chain.stand_ins) and self.target.target_id in self.chain.candidates

    @property
    def is_of_other_store(self) -> bool:
        """Our disk served under chains of another store:
        it serves nobody under these, also before the manager has heard of that.
        """
        noted = self.target.standing
        return noted is not None and noted.is_of_other_store(self.chain.birth_ns)

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
        self.looked = trio.Event()
        """Set, and replaced, when places change."""
        self.noted = trio.Event()
        """Set, and replaced, when a target's standing has been noted."""
        self._routing = routing
        self._seen: RoutingInfo | None = None
        self._places: dict[ChainId, Place] = {}
        for disk in disks:
            disk.on_failure = self._on_disk_failure
            disk.on_pace_change = self._on_pace_change

    def look(self) -> RoutingInfo:
        """Take in the newest routing info and the local-state steps that follow
        from it; no checkpoint.
        """
        info = self._routing.info
        if info is not self._seen:
            self._seen = info
            self._places = self._find_places(info)
            self._decide_steps(info)
            self.looked.set()
            self.looked = trio.Event()
        return info

    def place(self, chain_id: int) -> Place:
        """Return this node's place in a chain; raises FsError(NOT_SERVING) if it has none."""
        found = self.known_place(chain_id)
        if found is None:
            raise FsError(Status.NOT_SERVING, f"node {self.node_id} is not in chain {chain_id}")
        return found

    def readable(self, chain_id: int, chain_version: int) -> LocalTarget | None:
        """Return our target in a chain, if clients may read there at exactly this version;
        None: `place_at` says why not.
        """
        if self._routing.info is not self._seen:
            self.look()
        place = self._places.get(chain_id)  # type: ignore[call-overload]
        if place is None or place.chain.chain_version != chain_version:
            return None
        target: LocalTarget = place.target
        # As `Place.can_read`, without a call.
        is_readable = place.public_state is _SERVING and target.local_state is _UPTODATE
        return target if is_readable else None

    def known_place(self, chain_id: int) -> Place | None:
        """As `place`; None if this node has none."""
        if self._routing.info is not self._seen:
            self.look()
        return self._places.get(chain_id)  # type: ignore[call-overload,no-any-return]

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
                standing=standing_to_pb(target.standing) if target.standing else None,
                watermark=target.watermark,
            )
            for target in self.targets.values()
        ]

    def decide_again(self) -> None:
        """Have steps decided again that were begun and failed:
        otherwise nobody would before the routing info changes.
        """
        self._seen = None
        self.steps_wanted.set()

    def put_offline(self, target: LocalTarget, hold: Hold, reason: str) -> None:
        """Take a target out of service at once; `hold` says when it may come back.

        A target that is kept offline for a stronger reason stays so; a start, above
        all, is over only when the manager has taken the target out of its chain,
        whoever wants it to leave meanwhile.
        """
        stronger = {Hold.BROKEN, Hold.REQUESTED, Hold.REMOVED, Hold.UNFIT}
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

    def check_blocks(self, target: LocalTarget, told_bytes: int) -> None:
        """Put a target out of service whose disk has other checksum blocks than its predecessor's.

        Digests of the same content would differ, and each would take
        the other's copies for damaged.

        Args:
            target: ours, which the predecessor asks to take something.
            told_bytes: the size of the predecessor's; 0: of a release that does not
                tell, and counts as agreeing.

        Raises:
            FsError: CHECKSUM_BLOCKS_DIFFER naming both sizes; nothing has been taken.
        """
        own_bytes = target.disk.engine.checksum_block_bytes
        if told_bytes in {0, own_bytes} or not own_bytes:
            return
        reason = (
            f"{target.disk.path} has checksum blocks of {own_bytes} bytes, its predecessor's disk "
            f"of {told_bytes}: disks of a cluster must have the same; the one that came last is to "
            "be drained, and formatted anew as the others are"
        )
        self.put_offline(target, Hold.UNFIT, reason)
        raise FsError(Status.CHECKSUM_BLOCKS_DIFFER, f"target {target.target_id}: {reason}")

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
        if place is not None and place.may_be_truth:
            target.awaits_settling = place.awaits_settling
            self.set_local(target, LocalState.ONLINE)  # with all it has and knows
        else:
            target.hold = Hold.EVICTED

    def _end_waiting(self, target: LocalTarget, place: Place | None) -> None:
        """Another copy turned out to be the newest:
        ours comes back through resync, with what that one knows.
        """
        if not target.awaits_settling or place is None or place.awaits_settling:
            return  # without a chain there is none
        target.awaits_settling = False
        if place.public_state not in {PublicState.LASTSRV, PublicState.SERVING}:
            self.put_offline(target, Hold.EVICTED, "another target has the newest data")

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
            self._end_waiting(target, place)
            step = next_step(
                target.local_state,
                target.hold,
                place.public_state if place else None,
                chain_version=place.chain.chain_version if place else 0,
                sync_done_version=target.sync_done_version,
            )
            if step is Step.PROMOTE and place is not None and place.is_of_other_store:
                continue
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
