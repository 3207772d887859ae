"""Removes from the trash what has been there for as long as was asked for.

Every service looks; of two that find the same name one removes it (ops/trash.py).  Each name is a
transaction of its own, so the cleaner can be stopped anywhere.  What it removes goes to garbage
collection as after any removal.

Concurrency: one task runs `run`; tests call `step`.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from ..kv.api import KvEngine, prefix_end
from ..kv.transact import snapshot_read
from ..schema.config import MetaSection
from ..schema.status import FsError, Status
from . import records
from .ports import ChunkPort
from .shapes import require_shape

log = logging.getLogger(__name__)

FAILED_COUNT_MAX: Final = 3
"""A scan in which so many names could not be removed is given up."""


class TrashCleaner:
    """The cleaner of one service."""

    def __init__(
        self,
        engine: KvEngine,
        config: MetaSection,
        *,
        chunks: ChunkPort,
        expire: Callable[[bytes], Awaitable[bool]],
        now_ns: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._config = config
        self._chunks = chunks
        self._expire = expire
        self._now_ns = now_ns
        self._damaged: set[bytes] = set()
        """What is passed over until all others that are due have had their turn."""

    def adopt(self, section: MetaSection) -> None:
        """Go on with other settings."""
        self._config = section

    async def run(self) -> None:
        """Clean every trash_scan_interval_s until cancelled; while much is due, without pauses."""
        while True:
            done_count = 0
            try:
                done_count = await self.step()
            except FsError as error:
                log.warning("cleaning the trash: %s", error)
            if done_count < self._config.gc_batch_count:
                await trio.sleep(self._config.trash_scan_interval_s)
            else:
                await trio.lowlevel.checkpoint()

    async def step(self) -> int:
        """Remove what is due, gc_batch_count at most; return how many marks were done with.

        Raises:
            FsError: the key-value layer or the storage does not answer.
        """
        end = records.trash_key(self._now_ns() + 1, 0, b"")
        due = await self._first(end, self._config.gc_batch_count)
        is_all = len(due) < self._config.gc_batch_count
        if not due and await self._is_space_low():
            due = await self._first(prefix_end(records.TRASH), 1)
            if due:
                log.warning("space is low: the trash is emptied before its time")
        failed_count = damaged_count = 0
        for key in due:
            try:
                await self._remove(key)
            except FsError as error:
                # One that cannot be removed now must not hold up the others; but a
                # store that is away fails all.
                if error.status is Status.METADATA_DAMAGED:
                    self._damaged.add(key)
                    damaged_count += 1
                else:
                    failed_count += 1
                if failed_count == FAILED_COUNT_MAX:
                    raise
                log.warning("%r stays in the trash for now: %s", key, error)
        if is_all:
            self._damaged.clear()
        return len(due) - failed_count - damaged_count

    async def _remove(self, key: bytes) -> None:
        require_shape(key, b"")
        if await self._expire(key):
            _, parent_id, name = records.trash_parts(key)
            log.info("removed %r from the trash in directory %#x", name, parent_id)

    async def _first(self, end: bytes, limit: int) -> list[bytes]:
        pairs = await snapshot_read(
            self._engine,
            lambda tr: tr.get_range(
                records.TRASH, end, limit=limit + len(self._damaged), snapshot=True
            ),
        )
        return [key for key, _ in pairs if key not in self._damaged][:limit]

    async def _is_space_low(self) -> bool:
        if not self._config.trash_free_fraction_min:
            return False
        capacity_bytes, free_bytes = await self._chunks.space()
        return free_bytes < capacity_bytes * self._config.trash_free_fraction_min
