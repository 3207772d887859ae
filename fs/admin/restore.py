"""Restore: the records of a backup, written into an empty store, on whichever engine.

Invariants:
    - Nothing is written into a store that holds anything but an
      unfinished restore of the same cluster.
    - From the first write to the last the store's format records are of a version that no release
      serves; they become those of the backup in the last transaction, after everything else is
      durable and the backup was read and verified to its end.
    - A restore that was killed is run again: it clears what the first one wrote, and begins anew.
      Should the first one live on after all, it writes nothing more: every transaction reads the
      format records, which name their restore.

Does not open files: the caller gives a decoder.
"""

from collections.abc import Callable
from typing import Final

from ..kv.api import KeyValue, KvEngine, Transaction
from ..kv.buffer import KEY_END
from ..kv.transact import transact
from ..meta import records
from ..mgmtd import store as mgmtd_store
from ..runtime.ports import Runtime
from ..schema.status import FsError, Status
from .backup_format import BackupDecoder, bad_backup
from .rebase import FORMATS, Rebase, is_unfinished, unfinished_formats

BATCH_BYTES: Final = 1_000_000
BATCH_ROWS: Final = 2_000
"""Of one transaction: far below what any engine takes, for it also has to be sent and repeated."""


async def restore_backup(
    engine: KvEngine,
    runtime: Runtime,
    decoder: BackupDecoder,
    *,
    on_progress: Callable[[int], None] = lambda _rows: None,
) -> int:
    """Write everything that `decoder` reads; return the number of rows of the backup.

    Args:
        engine: an empty store, opened for the cluster of the backup; no service uses it.
        runtime: clock and randomness.
        decoder: the backup, of which only the head was read.
        on_progress: told the number of rows so far, once per transaction.

    Raises:
        FsError: KV_NOT_EMPTY with nothing changed; BUSY when another restore has begun since;
            BAD_BACKUP, or as the store, leaving an unfinished restore.
    """
    _check_formats(decoder)
    marks = await _claim(engine, runtime, decoder.head.cluster_id)
    rebase = Rebase(runtime.clock.wall_ns())
    batch: list[KeyValue] = []
    batch_bytes = 0
    for rows in decoder.blocks():
        for key, value in rows:
            if (new_value := rebase.row(key, value)) is None:
                continue
            batch.append((key, new_value))
            batch_bytes += len(key) + len(new_value)
            if batch_bytes >= BATCH_BYTES or len(batch) >= BATCH_ROWS:
                await _store(engine, runtime, marks, batch)
                batch, batch_bytes = [], 0
                on_progress(decoder.row_count)
    await _store(engine, runtime, marks, batch)
    await engine.sync()
    await _finish(engine, runtime, marks, rebase)
    on_progress(decoder.row_count)
    return decoder.row_count


def _check_formats(decoder: BackupDecoder) -> None:
    head = decoder.head
    for what, found, known in (
        ("metadata", head.meta_format, records.FORMAT_VERSION),
        ("manager", head.mgmtd_format, mgmtd_store.FORMAT_VERSION),
    ):
        if found > known:
            raise bad_backup(
                f"its {what} records have format {found}, this release knows {known}; use release "
                f"{head.release}"
            )


async def _claim(engine: KvEngine, runtime: Runtime, cluster_id: str) -> list[KeyValue]:
    """Make sure that the store is empty, or clear what an earlier restore left;
    mark it unfinished, and return the marks.
    """
    marks = unfinished_formats(cluster_id, runtime.random.randbytes(8).hex())

    async def body(tr: Transaction) -> None:
        row = await tr.get_range(b"", KEY_END, limit=1)
        found = await tr.get_many(FORMATS)
        if row and not all(is_unfinished(value, cluster_id) for value in found):
            raise FsError(
                Status.KV_NOT_EMPTY,
                "a restore goes into an empty store; wipe this one, or choose another, if it is "
                "not needed",
            )
        tr.clear_range(b"", KEY_END)
        for key, value in marks:
            tr.set(key, value)

    await transact(engine, body, runtime=runtime)
    await engine.sync()
    return marks


def _check_marks(found: list[bytes | None], marks: list[KeyValue]) -> None:
    if found != [value for _, value in marks]:
        raise FsError(Status.BUSY, "another restore into this store has begun; let that one finish")


async def _store(
    engine: KvEngine, runtime: Runtime, marks: list[KeyValue], batch: list[KeyValue]
) -> None:
    async def body(tr: Transaction) -> None:
        _check_marks(await tr.get_many(FORMATS), marks)
        for key, value in batch:
            tr.set(key, value)

    await transact(engine, body, runtime=runtime)


async def _finish(
    engine: KvEngine, runtime: Runtime, marks: list[KeyValue], rebase: Rebase
) -> None:
    rows = dict(rebase.last_rows())

    async def body(tr: Transaction) -> None:
        found = await tr.get_many(FORMATS)
        if found == [rows.get(key) for key in FORMATS]:
            return  # an earlier run of this has committed
        _check_marks(found, marks)
        for key in FORMATS:
            tr.clear(key)
        for key, value in rows.items():
            tr.set(key, value)

    await transact(engine, body, runtime=runtime)
    await engine.sync()
