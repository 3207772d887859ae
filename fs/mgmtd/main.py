"""The manager process: stands for election, reigns while it holds the lease, stands again.

Concurrency: one task elects and extends; the reign's loops run beside it and end with the lease.
"""

import logging
from collections.abc import Sequence

import trio

from ..kv.api import KvEngine
from ..rpc.api import Channels
from ..runtime.figures import Figures
from ..runtime.ports import Runtime
from ..schema import metrics
from ..schema.config import MgmtdSection, ProcessConfig, check_relations
from ..schema.proto.mgmtd_pb2 import ListMovesRsp, UserPb
from ..schema.routing import Node, RoutingInfo
from ..schema.status import FsError
from .election import Election
from .figures import say
from .lease import Candidate, Verdict
from .ops.list_moves import moves_of
from .primary import Primary
from .service import MgmtdService
from .store import Store

logger = logging.getLogger(__name__)

STORE_PAUSE_S = 0.25
"""After a store that did not answer, or refused, before it is asked again."""

TELL_INTERVAL_S = 10.0
"""Between two lines that say the same."""

RELEASE_S_MAX = 1.0
"""How long an orderly stop may take over giving the lease up."""


class Mgmtd:
    """A manager.  `service` is bound to an rpc server by whoever builds the process."""

    def __init__(
        self,
        engine: KvEngine,
        runtime: Runtime,
        config: ProcessConfig,
        node: Node,
        channels: Channels,
    ) -> None:
        """Put the parts together; nothing runs yet.

        Args:
            engine: the store, owned by the caller.
            runtime: clock and randomness.
            config: sections process (cluster_id), kv and mgmtd are used.
            node: this process: id, incarnation, and the address its rpc server listens at already.
            channels: to probe nodes with, owned by the caller.

        Raises:
            FsError: BAD_CONFIG.
        """
        check_relations(config)
        self._runtime = runtime
        self._section = config.mgmtd
        self._channels = channels
        self._told = ("", 0.0)
        """Why there was no election, and when that was said last."""
        self._store = Store(engine, runtime, config.kv, config.process.cluster_id)
        me = Candidate(node.node_id, node.address, node.incarnation)
        self._election = Election(me, self._store, runtime.clock, channels, config.mgmtd)
        self.service = MgmtdService(self._election)
        self._quiet_until_s = runtime.clock.monotonic_s()

    def adopt(self, section: MgmtdSection) -> None:
        """Go on with other settings; those of failure detection and election must be the same."""
        self._section = section
        if self.service.primary is not None:
            self.service.primary.adopt(section)
        self._election.adopt(section)

    async def find_tokens(self, token_ids: Sequence[bytes]) -> list[UserPb]:
        """Return whose tokens are, from the store; raises FsError."""
        return await self._store.find_tokens(token_ids)

    @property
    def is_primary(self) -> bool:
        """This manager is the acting primary at this moment."""
        primary = self.service.primary
        return primary is not None and primary.is_acting

    def known(self) -> tuple[RoutingInfo, ListMovesRsp] | None:
        """Return the cluster and its moves as the acting primary has them;
        None: this manager is not it.
        """
        primary = self.service.primary
        if primary is None or not primary.is_acting:
            return None
        return primary.info, moves_of(primary)

    def say(self, figures: Figures) -> None:
        """Say whether this manager rules; the acting primary also, how its cluster is."""
        figures.note(metrics.IS_PRIMARY, self.is_primary)
        self._store.tally.say("mgmtd", figures)
        primary = self.service.primary
        if primary is not None and primary.is_acting:
            figures.note(metrics.PRIMARY_LEASE_MARGIN, self._election.margin_s)
            say(primary, figures)

    def be_quiet(self, seconds: float) -> None:
        """The whole cluster is being stopped: judge nobody for so long, if this manager rules,
        or does by then.  May be called by a signal's handler.
        """
        self._quiet_until_s = self._runtime.clock.monotonic_s() + seconds
        if self.service.primary is not None:
            self.service.primary.be_quiet_until(self._quiet_until_s)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; then give the lease up.  Started means: standing for election."""
        task_status.started()
        try:
            while True:
                await self._stand()
                await self._reign()
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(RELEASE_S_MAX):
                await self._release()

    async def _stand(self) -> None:
        """Return when the lease has been taken."""
        while True:
            verdict = await self._step()
            if verdict is Verdict.TAKE_OVER:
                return
            if verdict is None:  # a store whose disk is full refuses at once, again and again
                await trio.sleep(STORE_PAUSE_S)
            await self._election.wait_turn()

    async def _step(self) -> Verdict | None:
        """Elect once; None when the store did not answer: what we hold lapses by itself."""
        try:
            with trio.fail_after(self._section.primary_lease_s):
                return await self._election.step()
        except (FsError, trio.TooSlowError) as error:
            reason = str(error) or "the key-value store did not answer in time"
            self._tell(reason)
            return None

    def _tell(self, reason: str) -> None:
        """Say why there is no election: at once, and then now and then,
        since the log may be on the disk that is full.
        """
        now_s = self._runtime.clock.monotonic_s()
        told, told_s = self._told
        if reason != told or now_s - told_s >= TELL_INTERVAL_S:
            self._told = reason, now_s
            logger.warning("node %d: no election: %s", self._election.me.node_id, reason)

    async def _reign(self) -> None:
        """Load, serve, and return when the lease is lost."""
        try:
            loaded = await self._store.load()
        except FsError as error:
            logger.error("node %d cannot load: %s", self._election.me.node_id, error)  # noqa: TRY400
            self._election.forget()
            await trio.sleep(self._section.primary_extend_interval_s)
            return
        primary = Primary(
            loaded,
            election=self._election,
            store=self._store,
            runtime=self._runtime,
            channels=self._channels,
            section=self._section,
        )
        logger.info(
            "node %d is primary, epoch %d, routing version %d",
            self._election.me.node_id, self._election.epoch, loaded.info.routing_version,
        )  # fmt: skip
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._extend, primary)
                await self._serve(primary)
                nursery.cancel_scope.cancel()
        finally:
            self.service.primary = None
        self._election.forget()  # not when cancelled: then it is released

    async def _serve(self, primary: Primary) -> None:
        primary.be_quiet_until(self._quiet_until_s)
        try:
            await primary.begin()
        except FsError as error:
            logger.warning("node %d: no reign: %s", self._election.me.node_id, error)
            return
        primary.adopt(self._section)  # it may be another one by now
        primary.be_quiet_until(self._quiet_until_s)  # as may this
        self.service.primary = primary
        await primary.run()

    async def _extend(self, primary: Primary) -> None:
        """Extend the lease for as long as it is ours, then end the reign."""
        while not primary.lost.is_set():
            await trio.sleep(self._section.primary_extend_interval_s)
            if await self._step() is Verdict.GIVE_UP:
                primary.lose()

    async def _release(self) -> None:
        try:
            await self._election.release()
        except FsError as error:
            logger.warning("node %d: lease not released: %s", self._election.me.node_id, error)
