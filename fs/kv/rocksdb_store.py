r"""A RocksDB directory: opening it, its format, and one state of it to read from.

What the engine (fs/kv/rocksdb.py) stands on; knows nothing of transactions and conflicts.

Reserved keys: \xff/format holds a FormatRecordPb, \xff/version the newest commit version (8 bytes,
big-endian), written in the batch of that commit.  User keys are below \xff.

rocksdict raises bare Exception for everything, which is why it is caught as such at each call.
"""

import os
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError
from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    Snapshot,
    WriteBatch,
    WriteOptions,
)

from ..schema.layout import KIB, MIB
from ..schema.proto import record_pb2
from ..schema.status import FsError, Status
from .api import KeyValue
from .local import VERSION_BYTES

FORMAT_VERSION: Final = 1
FORMAT_KEY: Final = b"\xff/format"
FORMAT_WHAT: Final = "kv"
VERSION_KEY: Final = b"\xff/version"
WRITE_BUFFER_BYTES: Final = 256 * MIB
"""Never reached: the engine changes the log, RocksDB must not by itself."""

WAL_BYTES: Final = 64 * MIB
"""How much RocksDB sets aside for a log; with one column family it limits nothing else."""

BLOCK_CACHE_BYTES: Final = 64 * MIB
ROW_MISSING: Final = ("key not found",)
"""Arguments of the exception by which a snapshot reports an absent key."""


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(6)
    options.set_max_total_wal_size(WAL_BYTES)
    options.set_max_background_jobs(2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 * MIB)
    options.set_max_open_files(512)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    table.set_block_size(8 * KIB)
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options


class RocksDbView:
    """One state of the store; shared by the transactions that begin between two commits.

    The cursor is made together with the snapshot, because the binding's `Snapshot.iter` reads the
    newest state instead of the snapshot's; a plain cursor stays at the state in which it was made.
    """

    __slots__ = ("__weakref__", "_cursor", "_snapshot", "version")

    def __init__(self, db: Rdict, version: int) -> None:
        self._snapshot: Snapshot | None = db.snapshot()
        self._cursor: RdictIter | None = db.iter()
        self.version = version

    def release(self) -> None:
        """Let go of the store; later reads are a bug."""
        self._snapshot = None
        self._cursor = None

    def get(self, key: bytes) -> bytes | None:
        """See View.get."""
        snapshot = self._snapshot
        assert snapshot is not None, "the engine is closed"
        try:
            value: bytes = snapshot[key]
        except Exception as error:
            if error.args == ROW_MISSING:
                return None
            raise FsError(Status.IO_ERROR, f"key-value store: get {key!r}: {error}") from error
        return value

    def scan(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        """See View.scan."""
        cursor = self._cursor
        assert cursor is not None, "the engine is closed"
        collect = _backward if reverse else _forward
        try:
            rows = collect(cursor, begin, end, limit)
            cursor.status()  # a cursor that failed looks like one at its end
        except Exception as error:
            raise FsError(
                Status.IO_ERROR, f"key-value store: scan {begin!r}..{end!r}: {error}"
            ) from error
        return rows


def _forward(cursor: RdictIter, begin: bytes, end: bytes, limit: int) -> list[KeyValue]:
    rows: list[KeyValue] = []
    cursor.seek(begin)
    while cursor.valid() and (key := cursor.key()) < end:
        rows.append((key, cursor.value()))
        if len(rows) == limit:
            break
        cursor.next()
    return rows


def _backward(cursor: RdictIter, begin: bytes, end: bytes, limit: int) -> list[KeyValue]:
    rows: list[KeyValue] = []
    cursor.seek_for_prev(end)
    if cursor.valid() and cursor.key() >= end:
        cursor.prev()
    while cursor.valid() and (key := cursor.key()) >= begin:
        rows.append((key, cursor.value()))
        if len(rows) == limit:
            break
        cursor.prev()
    return rows


def open_store(path: str) -> Rdict:
    """Open or make the store in directory `path`; blocks.

    Raises:
        FsError: ALREADY_RUNNING when it is open elsewhere, IO_ERROR.
    """
    try:
        directory = Path(path)
        if not directory.is_dir():
            directory.mkdir(parents=True)
            sync_path(directory.parent)
        return Rdict(path, options=_options())
    except Exception as error:
        is_locked = "/LOCK" in str(error) and "lock" in str(error).lower()
        status = Status.ALREADY_RUNNING if is_locked else Status.IO_ERROR
        raise FsError(status, f"key-value store {path}: {error}") from error


def logs(path: str) -> list[Path]:
    """Return the log files, oldest first."""
    return sorted(Path(path).glob("*.log"))


def sync_path(path: Path) -> None:
    """Make a file or directory durable; blocks."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_format(db: Rdict, path: str, cluster_id: str) -> int:
    """Return the newest commit version, after writing the records of a new store.

    Raises:
        FsError: KV_BAD_FORMAT, naming what was found.
    """
    packed = db.get(FORMAT_KEY)
    if packed is None:
        if next(iter(db.keys()), None) is not None:
            raise FsError(Status.KV_BAD_FORMAT, f"{path}: not empty, and no format record")
        _write_format(db, cluster_id)
        return 0
    try:
        record = record_pb2.FormatRecordPb.FromString(packed)
    except DecodeError as error:
        raise FsError(Status.KV_BAD_FORMAT, f"{path}: unreadable format record") from error
    if record.what != FORMAT_WHAT or not 1 <= record.format_version <= FORMAT_VERSION:
        raise FsError(
            Status.KV_BAD_FORMAT,
            f"{path}: {record.what!r} of format {record.format_version};"
            f" this program knows {FORMAT_WHAT!r} up to {FORMAT_VERSION}",
        )
    if record.cluster_id != cluster_id:
        raise FsError(
            Status.KV_BAD_FORMAT, f"{path}: of cluster {record.cluster_id!r}, not {cluster_id!r}"
        )
    return stored_version(db)


def _write_format(db: Rdict, cluster_id: str) -> None:
    record = record_pb2.FormatRecordPb(
        format_version=FORMAT_VERSION, cluster_id=cluster_id, what=FORMAT_WHAT
    )
    batch = WriteBatch(raw_mode=True)
    batch.put(FORMAT_KEY, record.SerializeToString())
    batch.put(VERSION_KEY, bytes(VERSION_BYTES))
    options = WriteOptions()
    options.sync = True
    db.write(batch, options)


def stored_version(db: Rdict) -> int:
    """Return the version of the newest commit in the store."""
    return int.from_bytes(db.get(VERSION_KEY) or b"", "big")
