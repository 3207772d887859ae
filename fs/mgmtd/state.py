"""The primary's picture of the cluster: published routing info,
and what it heard of each node since it rules.

No I/O, no clock: times are arguments.  Methods that find something to persist return it as a
`Change`; only `apply` replaces the published info, after the store has taken the change.

Invariants:
    - `info` never changes in place; what it says of chains, tables, nodes and
      target locations is persisted.
    - Of a target whose node was neither heard nor judged since the reign began, the local
      state is presumed to be what keeps its public state: a new primary does not punish
      anybody for its own ignorance.
    - An incarnation that was judged gone or was replaced is refused
      until a probe finds it answering.
    - `health[n].demoted_version` is at least the version in which a target
      of node n last stopped serving.

Concurrency: every method is synchronous; callers that act on a returned
change hold the primary's lock.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..schema.config import MgmtdSection
from ..schema.ids import ChainId, NodeId, TargetId
from ..schema.proto.mgmtd_pb2 import HeartbeatReq, TargetReportPb
from ..schema.resync_progress import ResyncProgress, resync_from_pb
from ..schema.routing import (
    Chain,
    LocalState,
    Node,
    NodeState,
    PublicState,
    RoutingInfo,
    Target,
    node_from_pb,
)
from ..schema.standing import Standing, standing_from_pb
from ..schema.status import FsError, Status
from .births import Births
from .chain_state import keeping_state, next_chain, with_loss
from .moves import finished
from .node_health import NodeHealth
from .reports import disk_of, with_report
from .restored import beyond, outranked, settled
from .store import BookChange, Change, Loaded
from .watermarks import Watermarks

logger = logging.getLogger(__name__)


class ClusterState:
    """See the module head."""

    def __init__(self, loaded: Loaded, section: MgmtdSection, now_s: float) -> None:
        info = loaded.info
        nodes = {n: replace(node, state=_loaded(node.state)) for n, node in info.nodes.items()}
        self.info = replace(info, nodes=nodes, is_bootstrapping=True)
        self.book = loaded.book
        self.section = section
        # The lease of a node that slept through the change of primaries is not renewed before it
        # has seen what this reign starts from; the reign's first publication has the next version.
        self.health = {n: NodeHealth(now_s, info.routing_version + 1) for n in nodes}
        self.started_s = now_s
        self._local: dict[TargetId, LocalState] = {}
        self._soft: dict[TargetId, Target] = {}
        self._unsettled = set(info.chains)
        self._by_node: dict[NodeId, list[TargetId]] = {}
        self.standings: dict[TargetId, Standing | None] = {}
        """What each target heard in this reign has noted on its disk; None: nothing."""
        self.watermarks = Watermarks(loaded.watermarks)
        self.births = Births()
        self._index()

    # ---- publishing ----------------------------------------------------------------------------

    @property
    def has_soft_changes(self) -> bool:
        """Something that nobody acts on waits to be published."""
        return bool(self._soft)

    @property
    def heard_targets(self) -> Mapping[TargetId, Target]:
        """All targets as last heard, which may be newer than what is published."""
        return {**self.info.targets, **self._soft}

    def apply(self, change: Change, routing_version: int, *, is_bootstrapping: bool) -> None:
        """Replace the published info by the one with `change`, soft changes included."""
        for chain in change.chains.values():
            self._note_demotions(self.info.chains.get(chain.chain_id), chain, routing_version)
        targets = dict(self.info.targets)
        targets.update(self._soft)
        targets.update(change.targets)
        for target_id in change.removed_targets:
            targets.pop(target_id, None)
            self._local.pop(target_id, None)
            self.watermarks.forget(target_id)
        nodes = {**self.info.nodes, **change.nodes}
        for node_id in change.removed_nodes:
            del nodes[node_id], self.health[node_id]
        touched = [*self._soft, *change.targets]
        touched += [m.target_id for c in change.chains.values() for m in c.targets]
        for target_id in [t for t in touched if t in targets]:
            local = self.local_state(target_id, targets[target_id])
            targets[target_id] = replace(targets[target_id], local_state=local)
        for chain in change.chains.values():  # progress was made under an older version
            for member in chain.targets:
                targets[member.target_id] = replace(targets[member.target_id], resync=None)
        self.info = replace(
            self.info,
            routing_version=routing_version,
            is_bootstrapping=is_bootstrapping,
            nodes=nodes,
            targets=targets,
            chains={**self.info.chains, **change.chains},
            chain_tables={**self.info.chain_tables, **change.chain_tables},
        )
        self._soft.clear()
        self._unsettled.update(change.chains)
        if change.book is not None:
            self.book = change.book.after
        if change.targets or change.nodes or change.removed_targets or change.removed_nodes:
            self._index()

    def _note_demotions(self, old: Chain | None, new: Chain, routing_version: int) -> None:
        for target_id in old.serving if old is not None else ():
            if new.state_of(target_id) is not PublicState.SERVING:
                node_id = self.info.target(target_id).node_id
                self.health[node_id].demoted_version = routing_version

    def _index(self) -> None:
        self._by_node = {node_id: [] for node_id in self.info.nodes}
        for target in self.info.targets.values():
            self._by_node.setdefault(target.node_id, []).append(target.target_id)

    # ---- chains --------------------------------------------------------------------------------

    def next_chains(self) -> Change:
        """Judge the chains whose members' local states changed; empty when all are settled."""
        change = Change()
        for chain_id in sorted(self._unsettled):
            chain = self.info.chains[chain_id]
            after = self._judged(chain)
            if after is chain:
                self._unsettled.discard(chain_id)
            else:
                change = self._with_chain(change, chain, after)
        return change

    def _judged(self, chain: Chain) -> Chain:
        if chain.restored is None:
            return next_chain(beyond(chain, self.standings), self.local_states(chain))
        after = settled(chain, self.standings)
        if after is not chain:
            last = after.keepers[0]
            logger.info(
                "chain %d was restored: target %d has its newest data", chain.chain_id, last
            )
        return after

    def _with_chain(self, change: Change, chain: Chain, after: Chain) -> Change:
        """Add a judged chain; a target that another one has replaced leaves it in the same step.

        Only so it cannot come back before anybody has looked.
        """
        move = self.book.move_of_chain(chain.chain_id)
        end = finished(after, move) if move is not None else None
        if end is None:
            return replace(change, chains={**change.chains, chain.chain_id: after})
        without = replace(end[0], chain_version=chain.chain_version + 1)
        left = membership_change(self.info, chain, without)
        book = change.book.after if change.book is not None else self.book
        return replace(
            change,
            chains={**change.chains, **left.chains},
            targets={**change.targets, **left.targets},
            book=BookChange(self.book, book.with_move(end[1])),
        )

    def local_states(self, chain: Chain) -> dict[TargetId, LocalState]:
        """Return what is known, else presumed, of a chain's members."""
        members = [m.target_id for m in chain.targets]
        return {t: self.local_state(t, self.info.target(t)) for t in members}

    def local_state(self, target_id: TargetId, target: Target) -> LocalState:
        """Return what is known, else presumed, of a target;
        one whose disk is too old, or of another store, counts as away.
        """
        chain = self.info.chains.get(target.chain_id)
        if self.watermarks.is_refused(target_id, chain) or self.births.refusal(target_id):
            return LocalState.OFFLINE
        known = self._local.get(target_id)
        if known is not None:
            return known
        public = chain.state_of(target_id) if chain is not None else None
        if public is None or self.health[target.node_id].is_known:
            return LocalState.OFFLINE
        return keeping_state(public)

    def is_alive(self, target_id: TargetId) -> bool:
        """Tell whether a target is known, or presumed, to be there."""
        target = self.info.targets.get(target_id)
        return target is not None and self.local_state(target_id, target) is not LocalState.OFFLINE

    def _set_local(self, target_id: TargetId, local: LocalState) -> None:
        if self._local.get(target_id) is local:
            return
        self._local[target_id] = local
        target = self.info.targets.get(target_id)
        if target is None:
            return
        self._soft[target_id] = replace(self._soft.get(target_id, target), local_state=local)
        if target.chain_id in self.info.chains:
            self._unsettled.add(target.chain_id)

    # ---- judging nodes -------------------------------------------------------------------------

    def targets_of(self, node_id: NodeId) -> Sequence[TargetId]:
        """Return the targets of a node."""
        return self._by_node.get(node_id, ())

    def note_ended(self, node_id: NodeId, incarnation: str) -> None:
        """A process is proved to have ended: its heartbeats, still under way, are refused,
        and it is judged when it is due (together.py).
        """
        node, health = self.info.nodes.get(node_id), self.health.get(node_id)
        if node is None or health is None or node.incarnation != incarnation:
            return
        if health.is_judged and incarnation in health.refused:
            return
        health.refuse(incarnation)
        health.ended = incarnation

    def judge(self, node: Node) -> Change:
        """Judge a node failed: its targets count as offline."""
        health = self.health[node.node_id]
        health.is_known = health.is_judged = True
        health.ended = ""
        for target_id in self._by_node[node.node_id]:
            self._set_local(target_id, LocalState.OFFLINE)
        if node.state in {NodeState.FAILED, NodeState.DISABLED}:
            return Change()
        return Change(nodes={node.node_id: replace(node, state=NodeState.FAILED)})

    def excuse(self, seconds: float, now_s: float) -> None:
        """Forgive everybody so much silence, because the primary could not hear;
        at most all of it.
        """
        for health in self.health.values():
            health.heard_s = min(health.heard_s + seconds, now_s)
            health.alive_s = min(health.alive_s + seconds, now_s)

    def confirm(self, node_id: NodeId, incarnation: str, now_s: float) -> None:
        """Take heartbeats of an incarnation that a probe found answering."""
        health = self.health.get(node_id)
        if health is None:  # unregistered meanwhile
            return
        health.refused = [other for other in health.refused if other != incarnation]
        if incarnation == self.info.node(node_id).incarnation:
            health.alive_s, health.ended = now_s, ""

    def add_node(self, node_id: NodeId, now_s: float) -> None:
        """Begin to listen for a node that is about to be registered."""
        self.health.setdefault(node_id, NodeHealth(now_s, 0))

    # ---- hearing -------------------------------------------------------------------------------

    def note_arrival(self, node_id: NodeId, incarnation: str, now_s: float) -> None:
        """Count a heartbeat as heard though it has to wait for its turn to be acted on."""
        node = self.info.nodes.get(node_id)
        if node is None or node.state is NodeState.DISABLED:
            return
        if node.incarnation == incarnation:
            self.health[node_id].heard_s = self.health[node_id].alive_s = now_s

    def replaced_by(self, request: HeartbeatReq) -> Node | None:
        """Return the node whose last process the sender of a heartbeat has taken the place of;
        None: it is that process, or is not heard.
        """
        node = self.info.nodes.get(NodeId(request.node.node_id))
        if node is None or not node.incarnation or node.state is NodeState.DISABLED:
            return None
        incarnation = request.node.incarnation
        is_other = incarnation not in {node.incarnation, *self.health[node.node_id].refused}
        return node if is_other else None

    def hear(self, request: HeartbeatReq, now_s: float) -> Change:
        """Take a heartbeat in; return what must be persisted because of it.

        Who says that he stops has ended.

        Raises:
            FsError: NODE_UNKNOWN, NODE_DISABLED, NODE_FAILED (a refused
                incarnation), STALE_HEARTBEAT.
        """
        known = self.info.nodes.get(NodeId(request.node.node_id))
        if known is None:
            detail = (
                f"node {request.node.node_id}: make it known by `ember admin cluster init` or "
                "`ember admin node add`"
            )
            raise FsError(Status.NODE_UNKNOWN, detail)
        health = self.health[known.node_id]
        incarnation = request.node.incarnation
        name = f"node {known.node_id} incarnation {incarnation}"
        if known.state is NodeState.DISABLED:
            raise FsError(Status.NODE_DISABLED, name)
        if incarnation in health.refused:
            raise FsError(Status.NODE_FAILED, f"{name} was judged gone or was replaced")
        is_restart = incarnation != known.incarnation
        if not is_restart and request.heartbeat_version < health.heartbeat_version:
            detail = f"{name}: {request.heartbeat_version} after {health.heartbeat_version}"
            raise FsError(Status.STALE_HEARTBEAT, detail)
        if is_restart:
            health.restart(known.incarnation)
        health.heartbeat_version = request.heartbeat_version
        health.heard_s = health.alive_s = now_s
        health.disks = {d.disk_index: disk_of(d) for d in request.disks}
        moved, gone, lossy = self._hear_targets(
            known.node_id, request.targets, is_restart=is_restart
        )
        boot_id = request.node.boot_id or known.boot_id
        rebooted = self._rebooted(known, boot_id, moved)
        rebooted -= self._flushed(known, request.targets)
        rebooted |= lossy
        health.is_known, health.is_judged = True, False
        node = replace(
            node_from_pb(request.node),
            state=NodeState.CONNECTED,
            tags=dict(request.node.tags) or known.tags,
            boot_id=boot_id,
            maintenance_until_ns=known.maintenance_until_ns,
        )
        if request.is_stopping:
            health.refuse(incarnation)
            health.ended = incarnation
        return Change(
            nodes={} if node == known else {node.node_id: node},
            targets={target.target_id: target for target in moved},
            removed_targets=gone,
            chains=self._with_losses(rebooted),
        )

    def _hear_targets(
        self, node_id: NodeId, reports: Iterable[TargetReportPb], *, is_restart: bool
    ) -> tuple[list[Target], frozenset[TargetId], set[TargetId]]:
        """Take the reports in; return the targets that changed for good, those that ceased to be,
        and those that lost something.

        A target in no chain is there for as long as its node says so.
        """
        unheard = dict.fromkeys(self._by_node[node_id])
        if is_restart:  # whatever the old process said is void
            for target_id in unheard:
                self._set_local(target_id, LocalState.OFFLINE)
        moved, lossy = list[Target](), set[TargetId]()
        for report in reports:
            target_id = TargetId(report.target_id)
            known = self.info.targets.get(target_id)
            target = self._reported(known, node_id, report)
            if target is None:
                continue
            if target is not known:
                moved.append(with_report(target, report))
            self._hear_standing(node_id, target_id, report)  # not that of a copy of a disk
            if report.disk_loss_count > target.disk_loss_count:
                lossy.add(target_id)
                target = replace(target, disk_loss_count=report.disk_loss_count)
                moved.append(with_report(target, report))
            unheard.pop(target_id, None)
            self._hear_target(target, report)
        for target_id in unheard:
            self._set_local(target_id, LocalState.OFFLINE)
        gone = frozenset(t for t in unheard if not self.info.targets[t].chain_id)
        return moved, gone, lossy

    def _reported(
        self, known: Target | None, node_id: NodeId, report: TargetReportPb
    ) -> Target | None:
        """Return the target that a node reports, with where it is now;
        None: another node has it, and this is a copy.
        """
        if known is None:
            return Target(
                TargetId(report.target_id),
                ChainId(0),
                node_id,
                report.disk_index,
                disk_loss_count=report.disk_loss_count,
            )
        if (known.node_id, known.disk_index) == (node_id, report.disk_index):
            return known
        if known.node_id != node_id and not self._may_move(known):
            logger.warning(
                "target %d: reported by node %d, but node %d has it",
                known.target_id, node_id, known.node_id,
            )  # fmt: skip
            return None
        return replace(known, node_id=node_id, disk_index=report.disk_index)

    def _rebooted(self, known: Node, boot_id: str, moved: Iterable[Target]) -> set[TargetId]:
        """Return the targets of a node whose unsynced data was lost,
        as the start of its machine tells.

        Also those that another machine had before.  A boot id that is not known says nothing.
        """
        found = {
            target.target_id
            for target in moved
            if (old := self.info.targets.get(target.target_id)) is not None
            and (node := self.info.nodes.get(old.node_id)) is not None
            and node.boot_id not in {"", boot_id}
        }
        if known.boot_id not in {"", boot_id}:
            found.update(self._by_node[known.node_id])
        return found

    def _flushed(self, known: Node, reports: Iterable[TargetReportPb]) -> set[TargetId]:
        """Return the targets of which the last process that held them made everything durable
        when it stopped.

        That is the last one heard: before a process may acknowledge anything,
        its incarnation is recorded.
        """
        found = set()
        for report in reports:
            target = self.info.targets.get(TargetId(report.target_id))
            holder = self.info.nodes.get(target.node_id) if target is not None else known
            if report.flushed_by and holder is not None and holder.incarnation == report.flushed_by:
                found.add(TargetId(report.target_id))
        return found

    def _with_losses(self, rebooted: set[TargetId]) -> dict[ChainId, Chain]:
        """Judge the chains that lost updates by it;
        told in the same step as the boot id, or it would be forgotten.
        """
        chains = {}
        for chain_id in sorted({self.info.targets[t].chain_id for t in rebooted}):
            before = self.info.chains.get(chain_id)
            if before is None or before.restored is not None:
                continue
            after = next_chain(before, self.local_states(before))
            counted = with_loss(before, after, rebooted)
            if counted is not after:
                logger.warning("chain %d may have lost what was not synced", chain_id)
                chains[chain_id] = counted
        return chains

    def _may_move(self, target: Target) -> bool:
        return self.local_state(target.target_id, target) is LocalState.OFFLINE

    def _hear_target(self, target: Target, report: TargetReportPb) -> None:
        target_id = target.target_id
        local = LocalState(report.local_state or LocalState.OFFLINE)
        chain = self.info.chains.get(target.chain_id)
        has_changed = self.births.hear(chain, report)
        has_changed |= self.watermarks.hear(target_id, report.watermark)
        if has_changed and chain is not None:
            self._unsettled.add(chain.chain_id)
        if not report.watermark and local is LocalState.UPTODATE:
            # Served by a release that keeps none, it has less from now on.
            self.watermarks.forget(target_id)
        if report.chain_version == (chain.chain_version if chain is not None else 0):
            self._set_local(target_id, local)
        elif target_id not in self._local:  # stale, and all that is known: go on presuming
            self._set_local(target_id, self.local_state(target_id, target))
        told = self._soft.get(target_id, target)
        is_old = self.watermarks.is_refused(target_id, chain)
        refusal = self.watermarks.refusal(target_id) if is_old else self.births.refusal(target_id)
        heard = replace(with_report(told, report), has_old_image=is_old)
        if refusal is not None:
            heard = replace(heard, trouble=str(refusal))
            if is_old and not told.has_old_image:
                logger.error("chain %d waits: %s", target.chain_id, heard.trouble)
        if heard != told:
            self._soft[target_id] = heard
        if chain is not None and report.HasField("resync"):
            self._hear_resync(chain, resync_from_pb(report.resync))

    def _hear_standing(self, node_id: NodeId, target_id: TargetId, report: TargetReportPb) -> None:
        has_noted = report.HasField("standing")
        disk = self.health[node_id].disks.get(report.disk_index)
        if not has_noted and disk is not None and disk.is_failed:
            return  # what it has noted could not be read
        standing = standing_from_pb(report.standing) if has_noted else None
        if target_id in self.standings and self.standings[target_id] == standing:
            return
        self.standings[target_id] = standing
        self._unsettled.update(
            c
            for c, chain in self.info.chains.items()
            if chain.restored or outranked(chain, standing)
        )

    def _hear_resync(self, chain: Chain, progress: ResyncProgress) -> None:
        """Note how far the chain's syncing target is;
        what is said of another version is out of date.
        """
        is_current = progress.chain_version == chain.chain_version
        if is_current and chain.state_of(progress.target_id) is PublicState.SYNCING:
            told = self._soft.get(progress.target_id, self.info.target(progress.target_id))
            self._soft[progress.target_id] = replace(told, resync=progress)


def membership_change(info: RoutingInfo, before: Chain, after: Chain) -> Change:
    """Return the change to a chain with other members, whose targets' records follow."""
    left = {m.target_id for m in before.targets} - {m.target_id for m in after.targets}
    moved = {t: replace(info.target(t), chain_id=ChainId(0), resync=None) for t in left}
    for member in after.targets:
        target = info.target(member.target_id)
        if target.chain_id != after.chain_id:
            moved[member.target_id] = replace(target, chain_id=after.chain_id)
    return Change(chains={after.chain_id: after}, targets=moved)


def _loaded(state: NodeState) -> NodeState:
    return state if state is NodeState.DISABLED else NodeState.UNKNOWN
