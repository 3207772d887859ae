"""One reign of a primary: everything it decides, from taking the lease to losing it.

Invariants:
    - What is published has been committed in a transaction that validated the lease, with a larger
      routing version than before; so whoever names a version names one content.
    - A write whose outcome is not certain ends the reign: the next one loads what is there.
    - Once `is_lost`, or when the lease is in doubt, nothing is answered but NOT_PRIMARY.

Concurrency: whoever changes the state holds `lock` from reading it until `publish` has returned.  A
publication cannot be cancelled halfway, because memory must follow the store.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import trio

from ..rpc.api import Channels
from ..runtime.ports import Runtime
from ..schema.config import MgmtdSection
from ..schema.ids import ChainId, NodeId, TargetId
from ..schema.proto.common_pb2 import RoutingInfoPb, SettingsReportPb
from ..schema.proto.mgmtd_pb2 import RoutingEventPb
from ..schema.routing import Chain, LocalState, Node, Role, RoutingInfo, routing_info_to_pb
from ..schema.status import FsError, Status
from . import orders
from .adoption import given_births
from .election import Election
from .history import EVENTS_KEPT, event_of
from .host_tags import HostTags
from .move_book import Move, MoveBook
from .mover import Mover
from .moves import Order, OrderKind, cancelled
from .node_lease import excused_s
from .probe import Proof, probe
from .rotator import Rotator
from .sessions import ClientSessions
from .settings_book import SettingsBook
from .state import ClusterState, membership_change
from .store import BookChange, Change, Loaded, Record, Store, event_records
from .together import due, judged_with
from .user_book import UserBook

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.5
"""Between two probes of a node: a killed process is judged within about this."""

GATHER_S = 0.02
"""Proofs that come within this are judged together:
of several that ended at once any may go on with their chains, not only one.
"""

FIRST_LOOK_S = 0.25
"""A reign's first probes of all may take so long;
who does not answer in that time is watched like everybody.
"""

SOFT_INTERVAL_S = 5.0
"""How long changes that nobody acts on (space used) are collected."""

WATERMARK_INTERVAL_S = 1.0
"""Between two looks whether targets told higher watermarks than are kept."""

SESSION_INTERVAL_S = 5.0
"""Between two looks for client sessions that ended by silence."""

WATCHED_ROLES = frozenset({Role.STORAGE, Role.META})


class Primary:
    """See the module head."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        election: Election,
        store: Store,
        runtime: Runtime,
        channels: Channels,
        section: MgmtdSection,
    ) -> None:
        now_s = runtime.clock.monotonic_s()
        self.state = ClusterState(loaded, section, now_s)
        self.sessions = ClientSessions(section.client_session_s, now_s)
        self.users = loaded.users
        self.settings = loaded.settings
        self.host_tags = loaded.host_tags
        self.heard_settings: dict[NodeId, SettingsReportPb] = {}
        """How far nodes are with their settings, as they said last; soft."""
        self._last_event_id = loaded.last_event_id
        self.lock = trio.Lock()
        self.lost = trio.Event()
        self._election = election
        self._epoch = election.epoch
        self._store = store
        self._clock = runtime.clock
        self._channels = channels
        self._published = trio.Event()
        self._probing: set[NodeId] = set()
        self._quiet_until_s = now_s
        self._message: RoutingInfoPb | None = None
        self.mover = Mover(self)
        self._rotator = Rotator(self)

    # ---- state ---------------------------------------------------------------------------------

    @property
    def info(self) -> RoutingInfo:
        """The published routing info."""
        return self.state.info

    @property
    def section(self) -> MgmtdSection:
        """The settings in force."""
        return self.state.section

    @property
    def now_s(self) -> float:
        """Monotonic time."""
        return self._clock.monotonic_s()

    @property
    def wall_ns(self) -> int:
        """Wall time in ns."""
        return self._clock.wall_ns()

    @property
    def store_trouble(self) -> str:
        """See `KvEngine.trouble`."""
        return self._store.trouble

    @property
    def is_quiet(self) -> bool:
        """Everything is being stopped: nobody is judged for having ended,
        so that all have the newest data of their chains when they start again.
        """
        return self.now_s < self._quiet_until_s

    def be_quiet_until(self, until_s: float) -> None:
        """Judge nobody until that monotonic time.

        Should not all stop, whoever is missed holds up updates so long, as if we did not answer.
        """
        self._quiet_until_s = until_s

    @property
    def is_acting(self) -> bool:
        """We hold the lease beyond doubt, and memory equals the store."""
        is_ours = self._election.epoch == self._epoch and self._election.may_act()
        return is_ours and not self.lost.is_set()

    def check_acting(self) -> None:
        """Raise FsError(NOT_PRIMARY) when the answer being given may come
        from a deposed primary.
        """
        if not self.is_acting:
            raise FsError(Status.NOT_PRIMARY, "this manager has just lost the lease")

    def message(self) -> RoutingInfoPb:
        """Return the wire form of the published info; made once per version, not to be changed."""
        if self._message is None:
            self._message = routing_info_to_pb(self.info)
        return self._message

    def lose(self) -> None:
        """End the reign."""
        self.lost.set()
        self._announce()

    # ---- publishing ----------------------------------------------------------------------------

    async def publish(
        self, change: Change, *, is_bootstrapping: bool | None = None, why: str = ""
    ) -> None:
        """Persist a change with the next routing version, then show it.  The caller holds `lock`.

        `why` is for the history: what an operator asked for.

        Raises:
            FsError: NOT_PRIMARY; it is not known whether the change was persisted.
        """
        assert self.lock.locked()
        self.check_acting()
        version = self.info.routing_version + 1
        if is_bootstrapping is None:
            is_bootstrapping = self.info.is_bootstrapping
        event = event_of(self.info, change, self._local_state_of, why)
        records = change.records()
        if event is not None:
            event.event_id = self._last_event_id + 1
            event.wall_ns, event.routing_version = self.wall_ns, version
            records += event_records(event, EVENTS_KEPT)
        write = self._store.write(self._election.me, self._epoch, version, records)
        await self._written(write, f"routing version {version}")
        self._last_event_id += event is not None
        self.state.apply(change, version, is_bootstrapping=is_bootstrapping)
        self._message = None
        self._announce()

    def _local_state_of(self, target_id: TargetId) -> LocalState:
        target = self.info.targets.get(target_id)
        return LocalState.OFFLINE if target is None else self.state.local_state(target_id, target)

    async def events(self, before_event_id: int, count: int) -> list[RoutingEventPb]:
        """Return events of the history; see `Store.events`."""
        return await self._store.events(before_event_id, count)

    async def _written(self, write: Awaitable[None], what: str) -> None:
        """Carry a write through, or end the reign; raises FsError(NOT_PRIMARY)."""
        is_written = False
        with trio.move_on_after(self.section.primary_lease_s, shield=True):
            try:
                await write
                is_written = True
            except FsError as error:
                logger.warning("%s: not written: %s", what, error)
        if not is_written:
            self.lose()
            raise FsError(Status.NOT_PRIMARY, f"{what} was not written")

    async def change_users(self, change: Callable[[UserBook, int], UserBook]) -> None:
        """Persist and show what a change makes of the users, given the wall time in ns.

        Raises:
            FsError: what `change` raises; NOT_PRIMARY: it is not known
                whether the change was persisted.
        """
        async with self.lock:
            self.check_acting()
            after = change(self.users, self._clock.wall_ns())
            await self._write_apart(self.users.records(after), "a change of users")
            self.users = after

    async def _write_apart(self, records: list[Record], what: str) -> None:
        if records:
            write = self._store.write_apart(self._election.me, self._epoch, records)
            await self._written(write, what)

    async def change_settings(self, change: Callable[[SettingsBook, int], SettingsBook]) -> None:
        """As `change_users`, of the settings that are kept for roles."""
        async with self.lock:
            self.check_acting()
            after = change(self.settings, self._clock.wall_ns())
            await self._write_apart(self.settings.records(after), "a change of settings")
            self.settings = after

    async def change_host_tags(self, change: Callable[[HostTags], HostTags]) -> None:
        """As `change_users`, of the tags of hosts."""
        async with self.lock:
            self.check_acting()
            after = change(self.host_tags)
            await self._write_apart(self.host_tags.records(after), "a change of tags")
            self.host_tags = after

    def adopt(self, section: MgmtdSection) -> None:
        """Go on with other settings."""
        self.state.section = section

    async def settle(self, change: Change, *, why: str = "") -> None:
        """Publish a change, then every chain change that follows from it.

        The caller holds `lock`.
        """
        if change:
            await self.publish(change, why=why)
        while change := self.state.next_chains():
            for chain in change.chains.values():
                members = " ".join(f"{t.target_id}:{t.public_state.name}" for t in chain.targets)
                logger.info("chain %d version %d: %s", chain.chain_id, chain.chain_version, members)
            await self.publish(change)

    async def change_members(self, after: Chain, *, why: str) -> None:
        """Publish a chain with other members, and what follows.  The caller holds `lock`."""
        before = self.info.chain(after.chain_id)
        if after is not before:
            await self.settle(membership_change(self.info, before, after), why=why)

    def check_not_moving(self, chain_id: ChainId, target_id: TargetId | None = None) -> None:
        """Raise FsError(CONFLICTING_CHANGE) when a move has the chain or the target in hand."""
        move = self.state.book.move_of_chain(chain_id)
        if move is None and target_id is not None:
            move = self.state.book.move_of_target(target_id)
        if move is not None:
            detail = f"move {move.move_id} of chain {move.chain_id} is under way; cancel it first"
            raise FsError(Status.CONFLICTING_CHANGE, detail)

    def cancelled_moves(self, which: Callable[[Move], bool]) -> MoveBook:
        """Return the book with some moves cancelled as far as they still can be."""
        return cancelled(self.info, self.state.book, which)

    async def change_book(self, after: MoveBook, *, why: str) -> None:
        """Publish another book of moves.  The caller holds `lock`."""
        await self.settle(Change(book=BookChange(self.state.book, after)), why=why)

    # ---- orders --------------------------------------------------------------------------------

    async def stop_serving(self, target_id: TargetId) -> None:
        """Have a target leave its chain; raises FsError as its node answers."""
        await orders.stop_serving(self._channels, self.info.node_of_target(target_id), target_id)

    async def tell(self, order: Order) -> None:
        """Tell a node its part of a move; raises FsError as it answers."""
        node = self.info.node(order.site.node_id)
        match order.kind:
            case OrderKind.CREATE:
                disk_index = order.site.disk_index
                await orders.create_target(self._channels, node, order.target_id, disk_index)
            case OrderKind.STOP:
                await orders.stop_serving(self._channels, node, order.target_id)
            case OrderKind.REMOVE:
                await orders.remove_target(self._channels, node, order.target_id)

    def _announce(self) -> None:
        self._published.set()
        self._published = trio.Event()

    async def wait_newer(self, routing_version: int, wait_s: float) -> None:
        """Wait until the published version is newer, the reign is over, or `wait_s` has passed."""
        with trio.move_on_after(wait_s):
            while self.info.routing_version <= routing_version and not self.lost.is_set():
                await self._published.wait()

    # ---- judging -------------------------------------------------------------------------------

    async def judge_gone(self, node_id: NodeId, incarnation: str) -> None:
        """Judge a process that was proved gone, with all others that were by now,
        unless another one has taken its place already.
        """
        self.state.note_ended(node_id, incarnation)
        await trio.sleep(GATHER_S)
        async with self.lock:
            await self.judge_due()

    async def judge_due(self) -> None:
        """Judge who has ended or has been silent for too long, as far as it is due (together.py).

        The caller holds `lock`.
        """
        if not self.is_quiet:
            await self._judge(due(self.state, self.now_s))

    async def make_way(self, node: Node) -> None:
        """Judge a process that another one has replaced,
        if others have to be judged in the same step.  The caller holds `lock`.

        Raises:
            FsError: NODE_FAILED while that cannot be known; the successor is not to be heard yet.
        """
        self.state.note_ended(node.node_id, node.incarnation)
        group = judged_with(self.state, node.node_id, self.now_s)
        if not group:
            detail = (
                f"node {node.node_id}: its former process is judged once somebody who served with "
                "it is heard, or all are silent"
            )
            raise FsError(Status.NODE_FAILED, detail)
        if len(group) > 1:
            await self._judge(group)

    async def _judge(self, node_ids: Iterable[NodeId]) -> None:
        judged: dict[NodeId, Node] = {}
        for node_id in sorted(node_ids):
            node = self.info.node(node_id)
            has_ended = self.state.health[node_id].ended == node.incarnation
            reason = "is gone" if has_ended else "has been silent too long"
            logger.warning("node %d incarnation %s %s", node_id, node.incarnation, reason)
            judged.update(self.state.judge(node).nodes)
        await self.settle(Change(nodes=judged))

    async def probe_node(self, node: Node) -> Proof:
        """Probe a node's incarnation and act on what is proved."""
        proof = await self._prove(node)
        if proof is Proof.GONE:
            await self.judge_gone(node.node_id, node.incarnation)
        return proof

    async def _prove(self, node: Node) -> Proof:
        proof, found = await probe(
            self._channels,
            node.address,
            node.node_id,
            node.incarnation,
            timeout_s=self.section.probe_timeout_s,
        )
        if found:
            self.state.confirm(node.node_id, found, self.now_s)
        return proof

    async def look_around(self) -> None:
        """Judge whoever is due; end the bootstrap grace when it is over."""
        async with self.lock:
            await self.judge_due()
            is_grace_over = self.now_s - self.state.started_s > self.section.node_failed_after_s
            if self.info.is_bootstrapping and is_grace_over:
                await self.publish(Change(), is_bootstrapping=False)

    # ---- loops ---------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Publish a routing version of this reign's own, and judge who has ended by now;
        raises FsError(NOT_PRIMARY).

        Before anybody is answered: else whoever starts a cluster would be told
        that those serve who have ended.
        """
        async with self.lock:
            await self.publish(Change())
        with trio.move_on_after(FIRST_LOOK_S):
            async with trio.open_nursery() as nursery:
                for node in self._watched():
                    nursery.start_soon(self._look_at, node)
        async with self.lock:
            await self.judge_due()

    async def _look_at(self, node: Node) -> None:
        if await self._prove(node) is Proof.GONE:
            self.state.note_ended(node.node_id, node.incarnation)

    async def run(self) -> None:
        """Run the loops until cancelled or the reign is over."""
        async with trio.open_nursery() as nursery:
            scan_s = self.section.chain_scan_interval_s
            nursery.start_soon(self._every, scan_s, _Scan(self).scan)
            nursery.start_soon(self._every, WATCH_INTERVAL_S, partial(self._watch, nursery))
            nursery.start_soon(self._every, SOFT_INTERVAL_S, self._publish_soft)
            nursery.start_soon(self._every, SESSION_INTERVAL_S, self._expire_sessions)
            nursery.start_soon(self._every, WATERMARK_INTERVAL_S, self.write_watermarks)
            nursery.start_soon(self.mover.run)
            nursery.start_soon(self._rotator.run)
            await self.lost.wait()
            nursery.cancel_scope.cancel()

    async def _every(self, interval_s: float, action: Callable[[], Awaitable[None]]) -> None:
        while True:
            if self.is_acting:  # else what is due stays due
                try:
                    await action()
                except FsError as error:
                    logger.warning("not done: %s", error)
            else:  # no heartbeats are taken now; that nobody is heard will say nothing
                self.excuse(self.now_s)
            await trio.sleep(interval_s)

    def excuse(self, seconds: float) -> None:
        """Forgive nodes and clients so much of their silence, because they were not listened to."""
        self.state.excuse(seconds, self.now_s)
        self.sessions.excuse(seconds, self.now_s)

    async def _watch(self, nursery: trio.Nursery) -> None:
        """Begin a probe of every watched node that is not being probed still."""
        for node in self._watched():
            if node.node_id not in self._probing:
                self._probing.add(node.node_id)
                nursery.start_soon(self._watch_node, node)

    def _watched(self) -> list[Node]:
        others = [n for n in self.info.nodes.values() if n.node_id != self._election.me.node_id]
        return [n for n in others if n.incarnation and n.roles & WATCHED_ROLES]

    async def _watch_node(self, node: Node) -> None:
        try:
            await self.probe_node(node)
        except FsError as error:
            logger.warning("node %d: not judged: %s", node.node_id, error)
        finally:
            self._probing.discard(node.node_id)

    async def _publish_soft(self) -> None:
        async with self.lock:
            await self._give_births()
            if self.state.has_soft_changes:
                await self.publish(Change())

    async def _give_births(self) -> None:
        """Give chains of a release that noted no birth one,
        so that their disks are known as theirs.
        """
        info = self.info
        if all(chain.birth_ns for chain in info.chains.values()):
            return
        local = {t: self._local_state_of(t) for t in info.targets}
        chains = given_births(info, self.state.standings, local, self.wall_ns)
        if chains:
            await self.settle(Change(chains=chains), why="the store's birth was noted")

    async def write_watermarks(self) -> None:
        """Keep what was told; a write that fails is made again,
        since nobody acts on it in this reign.  Raises FsError.
        """
        records = self.state.watermarks.unwritten()
        if records:
            await self._store.write_apart(self._election.me, self._epoch, records)
            self.state.watermarks.note_written(records)

    async def _expire_sessions(self) -> None:
        for client_id in self.sessions.expire(self.now_s):
            logger.info("client %s: session expired", client_id)


class _Scan:
    """The chain scan, which knows when it should have run."""

    def __init__(self, primary: Primary) -> None:
        self._primary = primary
        self._planned_s = primary.now_s

    async def scan(self) -> None:
        """Judge, after excusing everybody for the time in which this process could not hear."""
        primary = self._primary
        excused = excused_s(self._planned_s, primary.now_s)
        if excused:
            logger.warning("this manager was stopped for %.1f s: nobody is blamed", excused)
            primary.excuse(excused)
        self._planned_s = primary.now_s + primary.section.chain_scan_interval_s
        await primary.look_around()
