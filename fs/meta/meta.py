"""The metadata service as a running thing: the RPC methods and the loops beside them."""

import logging

import trio

from ..kv.api import KvEngine
from ..kv.transact import snapshot_read
from ..node.api import MgmtdCaller, RoutingView
from ..runtime.figures import Figures
from ..runtime.ports import Runtime
from ..schema import metrics
from ..schema.config import MetaSection, ProcessConfig
from ..schema.status import FsError, Status
from . import records
from .damage import count
from .gc import GarbageCollector
from .init import require_format
from .layouts import RoutedLayouts
from .ports import ChunkPort
from .service import MetaService
from .sessions import SessionPruner
from .trash_cleaner import TrashCleaner

log = logging.getLogger(__name__)

PREFETCH_PAUSE_S = 0.5
"""After a failed attempt to fetch inode ids ahead."""
FORMAT_INTERVAL_S = 10.0
"""Between looks at the store's format.

A release that raises it waits for longer before it writes the first new record.
"""


class Meta:
    """One metadata service; stateless but for prefetched inode ids."""

    def __init__(  # noqa: PLR0917 - the composition root passes them all
        self,
        engine: KvEngine,
        runtime: Runtime,
        config: ProcessConfig,
        routing: RoutingView,
        chunks: ChunkPort,
        mgmtd: MgmtdCaller,
    ) -> None:
        self._engine = engine
        self._inline_bytes = 0
        """As last looked at."""
        self._cluster_id = config.process.cluster_id
        self.service = MetaService(
            engine,
            runtime,
            config,
            layouts=RoutedLayouts(routing, runtime.random),
            chunks=chunks,
        )
        """Serves the Meta RPCs; usable without `run`, then nothing is collected."""
        self.gc = GarbageCollector(
            engine,
            config.meta,
            chunks=chunks,
            driver=self.service.driver,
            ticks=self.service.ticks,
            make_context=self.service.own_context,
            asked_count=lambda: self.service.asked_count,
            events=self.service.events,
        )
        self.sessions = SessionPruner(
            engine,
            config.meta,
            mgmtd=mgmtd,
            end_session=self.service.end_session,
            end_locks=self.service.end_locks,
            end_lock_waits=self.service.end_lock_waits,
            end_directory_lock=self.service.end_directory_lock,
            now_ns=self.service.now_ns,
        )

        self.service.free_all_of = self.sessions.free_all_of
        self.trash = TrashCleaner(
            engine,
            config.meta,
            chunks=chunks,
            expire=self.service.expire,
            now_ns=self.service.now_ns,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the loops until cancelled; started when the store is known to be this cluster's.

        Raises:
            FsError: KV_BAD_FORMAT, also when a newer release has raised the format since; or the
                store does not answer at the start.
        """
        await require_format(self._engine, self._cluster_id)
        await self._look_at_inline()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.service.driver.serve)
            nursery.start_soon(self.gc.run)
            nursery.start_soon(self.sessions.run)
            nursery.start_soon(self.trash.run)
            nursery.start_soon(self.service.events.run)
            nursery.start_soon(self._prefetch_inode_ids)
            nursery.start_soon(self._watch_format)
            task_status.started()

    def adopt(self, section: MetaSection) -> None:
        """Go on with other settings; the event log keeps its own."""
        self.service.adopt(section)
        self.gc.adopt(section)
        self.sessions.adopt(section)
        self.trash.adopt(section)

    def say(self, figures: Figures) -> None:
        """Say what this service measures beside its requests."""
        self.gc.say(figures)
        self.service.driver.tally.say("meta", figures)
        figures.note(metrics.FILE_SESSIONS, self.sessions.seen_count)
        figures.note(metrics.INLINE_BYTES, self._inline_bytes)
        leases = self.service.name_leases
        figures.note(metrics.NAME_LEASES_ENDED, leases.ended_count)
        figures.note(metrics.NAME_LEASES_WAITED, leases.waited_count)
        figures.note(metrics.EVENTS_DROPPED, self.service.events.lost_count)

    async def _watch_format(self) -> None:
        """End when the store is no longer one that this release knows: nothing may be misread."""
        while True:
            await trio.sleep(FORMAT_INTERVAL_S)
            try:
                await require_format(self._engine, self._cluster_id)
                await self._look_at_inline()
            except FsError as error:
                if error.status is Status.KV_BAD_FORMAT:
                    raise
                log.warning("looking at the store's format: %s", error)

    async def _look_at_inline(self) -> None:
        key = records.INLINE_BYTES_KEY
        stored = await snapshot_read(self._engine, lambda tr: tr.get(key, snapshot=True))
        try:
            self._inline_bytes = max(0, count(key, stored))
        except FsError as error:  # it is a figure, and `inline.length_max` does without it
            log.warning("no file is made inline: %s", error)

    async def _prefetch_inode_ids(self) -> None:
        while True:
            try:
                await self.service.inode_ids.prefetch_when_low()
            except FsError as error:
                log.warning("fetching inode ids ahead: %s", error)
                await trio.sleep(PREFETCH_PAUSE_S)
