"""Backup: everything that is in the key-value store of a cluster, at one state,
as a stream of bytes.

Reads all records of metadata services and managers; what is not there, the bytes of files, stays on
the targets. Left out is only what holds up changes while a backup reads (fs/kv/pause.py).

Does not open files: the caller gives a function that takes the bytes, in order.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from ..kv.api import KeyValue, KvEngine, next_key, prefix_end
from ..kv.buffer import KEY_END
from ..kv.lasting import LastingSnapshot, open_snapshot, rows_of
from ..kv.pause import PAUSE_KEY
from ..meta import records
from ..mgmtd import store as mgmtd_store
from ..mgmtd.damage import decoded
from ..runtime.ports import Runtime
from ..schema.proto.backup_pb2 import BackupHeadPb
from ..schema.proto.record_pb2 import FormatRecordPb
from ..schema.status import FsError, Status
from .backup_format import BackupEncoder

Write = Callable[[bytes], Awaitable[None]]

MGMTD_BEGIN: Final = b"MG"
MGMTD_END: Final = b"MH"
"""The manager's keys: they change also while metadata stands still,
and fit into one transaction.
"""

UNFINISHED_VERSION: Final = 2**32 - 1
"""Format version of records that a restore has begun to write: no release ever serves it."""
UNFINISHED: Final = "the store holds a restore that was not finished; finish it first"

SPANS: Final = (
    (b"", records.INLINE),
    (records.INLINE, prefix_end(records.INLINE)),
    (prefix_end(records.INLINE), MGMTD_BEGIN),
    (MGMTD_END, PAUSE_KEY),
    (next_key(PAUSE_KEY), KEY_END),
)
"""Large rows have one of their own: where a store is far,
those before them say nothing of their size (fs/kv/lasting.py).
"""


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup holds."""

    row_count: int
    byte_count: int
    read_version: int


async def write_backup(
    engine: KvEngine,
    runtime: Runtime,
    write: Write,
    *,
    head: BackupHeadPb,
    may_pause: bool = False,
    on_progress: Callable[[int], None] = lambda _rows: None,
) -> BackupReport:
    """Write a backup of everything; the store is read only, but for the mark of a pause.

    Args:
        engine: the store of the cluster.
        runtime: clock and randomness.
        write: takes the bytes.
        head: cluster, engine and release; the rest is filled in.
        may_pause: whether changes of metadata may be held up where the store
            keeps no lasting snapshots.
        on_progress: told the number of rows so far, once per page.

    Raises:
        FsError: KV_BAD_FORMAT when the store holds no cluster, or a restore that was not finished;
            KV_TOO_OLD or BUSY when one state could not be read to the end; what `write` raises.
    """
    encoder = BackupEncoder()
    async with open_snapshot(engine, runtime, may_pause=may_pause) as snapshot:
        managers = await snapshot.page(MGMTD_BEGIN, MGMTD_END, is_whole=True)
        head.meta_format, head.mgmtd_format = await _formats(snapshot, dict(managers), head)
        head.read_version, head.started_ns = snapshot.version, runtime.clock.wall_ns()
        await write(encoder.head(head))
        for begin, end in SPANS:
            if begin == MGMTD_END:
                await _add(encoder, write, managers)
            async for rows in rows_of(snapshot, begin, end):
                await _add(encoder, write, rows)
                on_progress(encoder.row_count)
    await write(encoder.end())
    return BackupReport(encoder.row_count, encoder.byte_count, snapshot.version)


async def _add(encoder: BackupEncoder, write: Write, rows: list[KeyValue]) -> None:
    for row in rows:
        if made := encoder.add(row):
            await write(made)


async def _formats(
    snapshot: LastingSnapshot, managers: dict[bytes, bytes], head: BackupHeadPb
) -> tuple[int, int]:
    """Return the versions of the records of both services, 0 where there are none."""
    found = dict(await snapshot.page(records.FORMAT_KEY, next_key(records.FORMAT_KEY)))
    versions = []
    for key, among in ((records.FORMAT_KEY, found), (mgmtd_store.FORMAT_KEY, managers)):
        value = among.get(key)
        record = decoded(key, value or b"", FormatRecordPb.FromString)
        if value is not None and record.cluster_id != head.cluster_id:
            raise FsError(
                Status.KV_BAD_FORMAT,
                f"the store holds cluster {record.cluster_id}, not {head.cluster_id}",
            )
        versions.append(record.format_version)
    if not any(versions):
        raise FsError(Status.KV_BAD_FORMAT, "the store holds no cluster: nothing to back up")
    if UNFINISHED_VERSION in versions:
        raise FsError(Status.KV_BAD_FORMAT, UNFINISHED)
    return versions[0], versions[1]
