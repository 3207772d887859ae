"""Inode ids: many per transaction, from a sharded counter, fetched before they are needed.

Ids are never reused: a block taken by a process that dies, or by a commit whose outcome stayed
unknown, is lost, which 2**62 ids can bear.

Concurrency: any number of tasks may call `take`; one of them fetches, the others wait for it.
"""

import logging
from collections import deque
from typing import Final

import trio

from ..kv.api import KvEngine, Transaction
from ..kv.transact import transact
from ..runtime.ports import Runtime
from ..runtime.until_wait import in_task
from ..schema.ids import FIRST_INODE_ID, VIRTUAL_INODE_ID_MIN, InodeId
from ..schema.status import FsError, Status
from . import records
from .damage import damaged, number

log = logging.getLogger(__name__)

SHARD_COUNT: Final = 32
BLOCK_COUNT: Final = 4096
"""Ids per transaction."""

NEW_STORE_BLOCK: Final = records.TOGETHER_ID_MIN // (SHARD_COUNT * BLOCK_COUNT)
"""Of each shard, the first block of a store that is made now: the keys of its ids lie together."""

LOW_COUNT: Final = BLOCK_COUNT // 4
"""The prefetcher fetches a block when fewer ids are left."""

BLOCK_MAX: Final = (VIRTUAL_INODE_ID_MIN - FIRST_INODE_ID) // (SHARD_COUNT * BLOCK_COUNT) - 1
"""How many blocks each shard has."""


def block_ids(shard: int, block: int) -> range:
    """Return the ids of one block of one shard; blocks of all shards tile the id space."""
    first = FIRST_INODE_ID + (block * SHARD_COUNT + shard) * BLOCK_COUNT
    assert first + BLOCK_COUNT <= VIRTUAL_INODE_ID_MIN, (shard, block)
    return range(first, first + BLOCK_COUNT)


def begin_ids(tr: Transaction) -> None:
    """Have the ids of a new store be those whose keys lie together."""
    for shard in range(SHARD_COUNT):
        tr.set(records.inode_ids_key(shard), records.pack_u64(NEW_STORE_BLOCK))


async def take_block(tr: Transaction, shard: int) -> range:
    """Take the next block of a shard; raises FsError(METADATA_DAMAGED)."""
    key = records.inode_ids_key(shard)
    block = number(key, await tr.get(key))
    if block >= BLOCK_MAX:
        raise damaged(key, f"{block} blocks of inode ids, of {BLOCK_MAX} that there are")
    tr.set(key, records.pack_u64(block + 1))
    return block_ids(shard, block)


class InodeIds:
    """The ids a process holds."""

    def __init__(self, engine: KvEngine, runtime: Runtime, retry_time_s_max: float) -> None:
        self._engine = engine
        self._runtime = runtime
        self._retry_time_s_max = retry_time_s_max
        self._blocks: deque[range] = deque()
        self._next = 0
        self._end = 0
        self._lock = trio.Lock()
        self._is_low = trio.Event()

    @property
    def left_count(self) -> int:
        """How many ids can be taken without a transaction."""
        return self._end - self._next + sum(map(len, self._blocks))

    async def take(self) -> InodeId:
        """Return an id that nobody else ever gets; raises FsError when the store stays away."""
        while self._next == self._end:
            if self._blocks:
                block = self._blocks.popleft()
                self._next, self._end = block.start, block.stop
            else:
                await self._fetch_if_empty()
        taken = self._next
        self._next += 1
        if not self._blocks and self._end - self._next < LOW_COUNT:
            self._is_low.set()
        return InodeId(taken)

    async def _fetch_if_empty(self) -> None:
        await in_task()
        async with self._lock:
            if self._next == self._end and not self._blocks:
                await self._fetch()

    async def _fetch(self) -> None:
        block = await self._take_any()
        # Chunks may reach their disks before the next flush here: were the block lost with the
        # power, another file would get the id of one whose bytes are still there.
        await self._engine.sync()
        self._blocks.append(block)

    async def _take_any(self) -> range:
        """Take a block of a shard of chance.

        A damaged counter keeps nobody from making files: the next shard is as good.
        """
        first = self._runtime.random.randrange(SHARD_COUNT)
        for shard in range(first, first + SHARD_COUNT - 1):
            try:
                return await self._take(shard % SHARD_COUNT)
            except FsError as error:
                if error.status is not Status.METADATA_DAMAGED:
                    raise
                log.warning("its inode ids are not used: %s", error)
        return await self._take((first - 1) % SHARD_COUNT)

    async def _take(self, shard: int) -> range:
        return await transact(
            self._engine,
            lambda tr: take_block(tr, shard),
            runtime=self._runtime,
            retry_time_s_max=self._retry_time_s_max,
        )

    async def prefetch_when_low(self) -> None:
        """Wait until ids run low, then fetch a block; raises FsError as `take`."""
        await self._is_low.wait()
        async with self._lock:
            if self.left_count < LOW_COUNT:
                await self._fetch()
        self._is_low = trio.Event()
