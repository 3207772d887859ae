"""Holding up garbage collection for a time:
one record, which the metadata services heed (fs/meta/gc.py).
"""

from ..kv.api import KvEngine, Transaction
from ..kv.transact import snapshot_read, transact
from ..meta.damage import number
from ..meta.records import GC_PAUSE_KEY, pack_u64
from ..runtime.ports import Runtime


async def paused_until_ns(engine: KvEngine) -> int:
    """Return until when, by the wall clock, in nanoseconds;
    0: it was never held up, or goes on since somebody said so; raises FsError(METADATA_DAMAGED).
    """
    stored = await snapshot_read(engine, lambda tr: tr.get(GC_PAUSE_KEY, snapshot=True))
    return number(GC_PAUSE_KEY, stored)


async def pause_until(engine: KvEngine, runtime: Runtime, until_ns: int) -> None:
    """Hold it up until then, however long an earlier pause was to last; 0: let it go on.

    Durable on return.

    Raises:
        FsError: as `transact` and `KvEngine.sync`.
    """

    async def body(tr: Transaction) -> None:
        if until_ns:
            tr.set(GC_PAUSE_KEY, pack_u64(until_ns))
        else:
            tr.clear(GC_PAUSE_KEY)

    await transact(engine, body, runtime=runtime)
    await engine.sync()
