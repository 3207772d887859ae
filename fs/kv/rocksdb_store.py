r"""Opening and making the directory of a RocksDB store, and refusing one that is damaged,
foreign or newer.

A store that lacks synced commits is refused before anything is written, whatever took
them: a rotten byte in the log, a lost log, a list of files (MANIFEST) that is cut short
where it had been synced.  One whose MANIFEST ends in a record that the power loss cut
short lacks nothing, and is opened.

Reserved keys: \xff/format holds a FormatRecordPb, \xff/version the newest commit version (8 bytes,
big-endian), written in the batch of that commit; below \xff/segment/ are the rows of
fs/runtime/log_segments.py, which counts commit versions here.  \xff/log... is left from an earlier
release, and deleted.  User keys are below \xff.

rocksdict raises bare Exception for everything, which is why it is caught as such at each call.
"""

import fcntl
import logging
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from ..runtime.durable_file import sync_directory
from ..runtime.log_mark import MARK_NAME, LogMark, find_trap, manifest_damage, missing_changes
from ..runtime.log_segments import Held, LogSegments, held
from ..runtime.manifest_end import cut_torn_manifest
from ..schema.layout import KIB, MIB
from ..schema.proto import record_pb2
from ..schema.status import FsError, Status
from .api import KeyValue
from .local import VERSION_BYTES

log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
FORMAT_KEY: Final = b"\xff/format"
FORMAT_WHAT: Final = "kv"
VERSION_KEY: Final = b"\xff/version"
SEGMENT_PREFIX: Final = b"\xff/segment/"
NO_ROOM: Final = "No space left on device"
"""What RocksDB's errors say then."""

_FLOCK: Final = "hhqqi"
"""`struct flock` of fcntl(2): type, whence, start, length, process."""

FORMER_ROWS: Final = (b"\xff/log", b"\xff/log0")
"""Where an earlier release noted which logs there had been."""

WRITE_BUFFER_BYTES: Final = 256 * MIB
"""Never reached: the engine changes the log, RocksDB must not by itself."""

WAL_BYTES: Final = 64 * MIB
"""How much RocksDB sets aside for a log; with one column family it limits nothing else."""

BLOCK_CACHE_BYTES: Final = 64 * MIB

BLOCK_BYTES: Final = 2 * KIB
"""Of tables written from now on; older ones keep theirs until they are compacted.

A row that nobody remembers costs a whole block, read, checked and unpacked; see
specs/decisions/0105-small-blocks.md.
"""


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
    table.set_block_size(BLOCK_BYTES)
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options


def _opening_options() -> dict[str, Any]:
    """Arguments of Rdict: without the second it gives a store
    that exists the options it was made with.
    """
    options = _options()
    return {"options": options, "column_families": {"default": options}}


def reading_options() -> dict[str, Any]:
    """As `_opening_options`, for a store that belongs to another process:
    its files are open before it removes them.
    """
    found = _opening_options()
    found["options"].set_max_open_files(-1)
    return found


def open_store(path: str) -> Rdict:
    """Open or make the store in directory `path`; blocks.

    Raises:
        FsError: ALREADY_RUNNING when it is open elsewhere; KV_DAMAGED, with nothing written, when
            it lacks synced commits or RocksDB finds it damaged; IO_ERROR.
    """
    directory = Path(path)
    try:
        if not directory.is_dir():
            # What all users called their files stands in it.
            directory.mkdir(mode=0o700, parents=True)
            sync_directory(directory.parent)
        check_readable(directory)
        try:
            return _open_checked(directory)
        except Exception as error:
            if not _may_go_on(directory, str(error)):
                raise
            return _open_checked(directory)
    except FsError:
        raise
    except Exception as error:
        raise opening_error(path, error) from error


def holds_nothing(path: str) -> bool:
    """Return whether a directory is without anything that a store would have written,
    by a look at its files alone.

    Raises:
        FsError: IO_ERROR when it cannot be looked at.
    """
    try:
        found = {name: name.stat().st_size for name in Path(path).iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        raise opening_error(path, error) from error
    return not any(name.suffix in {".sst", ".log"} and size for name, size in found.items())


def _may_go_on(directory: Path, what: str) -> bool:
    """Return whether something was done about what opening has failed with,
    and it may be tried again.
    """
    if NO_ROOM in what:
        return _give_back(directory)
    return "Corruption" in what and cut_torn_manifest(directory, _held_by)


def _give_back(directory: Path) -> bool:
    """Give back what is set aside behind the ends of logs:
    whoever did so was killed, and opening needs it for tables.

    Returns whether there may be more room now.  Nothing is given back of a store
    that another process has open.
    """
    behind = logs(str(directory))
    if not behind:
        return False  # there may not even be a lock to be looked at
    lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with (directory / "LOCK").open("rb") as file:
        if struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, lock))[0] != fcntl.F_UNLCK:
            return False
    for path in behind:
        os.truncate(path, path.stat().st_size)
    return True


def _open_checked(directory: Path) -> Rdict:
    _check_mark(directory)
    return Rdict(str(directory), **_opening_options())


def opening_error(path: str, error: Exception) -> FsError:
    """Return what to raise for an error of RocksDB at opening or reading a store
    for the first time.
    """
    text = str(error)
    if "/LOCK" in text and "lock" in text.lower():
        return FsError(Status.ALREADY_RUNNING, f"key-value store {path}: {text}")
    if "Corruption" in text or "No such file" in text:
        return FsError(Status.KV_DAMAGED, f"key-value store {path}: {text}; {_remedy(Path(path))}")
    return FsError(Status.IO_ERROR, f"key-value store {path}: {text}")


def _remedy(directory: Path) -> str:
    """Say what to do about a store that RocksDB refuses."""
    copy = f"put back a copy of {directory}"
    try:
        damage = manifest_damage(directory)
    except OSError:
        damage = None
    if damage is None:
        return copy
    manifest, bad = damage
    return (
        f"{manifest} is damaged at byte {bad}: {copy}, or, if the power failed while its end was "
        f"written, cut it there: truncate -s {bad} {manifest}; what is missing then is refused"
    )


def check_readable(directory: Path) -> None:
    """Refuse what RocksDB would read for ever; raises FsError(KV_DAMAGED), OSError."""
    found = find_trap(directory)
    if found is not None:
        path, at = found
        raise FsError(
            Status.KV_DAMAGED,
            f"{path} is damaged at byte {at}, nothing behind it can be read; put back a copy of "
            f"{directory}, or, if the power failed while its end was written, cut it there: "
            f"truncate -s {at} {path}; what is missing then is refused",
        )


def _check_mark(directory: Path) -> None:
    missing = missing_changes(directory, lambda: _held_by(directory))
    if missing is not None:
        raise FsError(
            Status.KV_DAMAGED,
            f"{missing}; put back a copy of {directory}, or, to go on without these commits,"
            f" remove {directory / MARK_NAME}",
        )


def _held_by(directory: Path) -> Held:
    """Return what a store holds, changing nothing."""
    db = Rdict(str(directory), **_opening_options(), access_type=AccessType.read_only(False))
    try:
        return held(SEGMENT_PREFIX, _segment_rows(db), stored_version(db))
    finally:
        db.close()


def _segment_rows(db: Rdict) -> list[KeyValue]:
    return _rows_from(db, SEGMENT_PREFIX, SEGMENT_PREFIX + b"\xff")


def _rows_from(db: Rdict, begin: bytes, end: bytes) -> list[KeyValue]:
    rows: list[KeyValue] = []
    cursor = db.iter()
    cursor.seek(begin)
    while cursor.valid() and cursor.key() < end:
        rows.append((cursor.key(), cursor.value()))
        cursor.next()
    cursor.status()
    return rows


def check_format(db: Rdict, path: str, cluster_id: str) -> int:
    """Return the newest commit version, after writing the records of a new store.

    Raises:
        FsError: KV_BAD_FORMAT, naming what was found; KV_DAMAGED, IO_ERROR.
    """
    try:
        is_new = db.get(FORMAT_KEY) is None and next(iter(db.keys()), None) is None
    except Exception as error:
        raise opening_error(path, error) from error
    if is_new:
        _write_format(db, cluster_id)
        return 0
    return check_known(db, path, cluster_id)


def check_known(db: Rdict, path: str, cluster_id: str) -> int:
    """As `check_format`, of a store that is not new; writes nothing."""
    try:
        packed = db.get(FORMAT_KEY)
        version = stored_version(db)
    except Exception as error:
        raise opening_error(path, error) from error
    if packed is None:
        raise FsError(Status.KV_BAD_FORMAT, f"{path}: not empty, and no format record")
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
    return version


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


def open_segments(db: Rdict, path: str, cost_max: int) -> LogSegments:
    """Return the segments of a store that has just been opened;
    deletes what an earlier release kept in their place.

    Raises:
        FsError: KV_DAMAGED; IO_ERROR.
    """
    try:
        former = _rows_from(db, *FORMER_ROWS)
        if former:
            batch = WriteBatch(raw_mode=True)
            for key, _ in former:
                batch.delete(key)
            db.write(batch)
        return LogSegments(SEGMENT_PREFIX, _segment_rows(db), cost_max)
    except Exception as error:
        raise opening_error(path, error) from error


def open_mark(path: str, version: int, segment: int) -> LogMark:
    """Open the mark of a store that has just been opened,
    whose recovery wrote all it found to synced tables.

    Raises:
        FsError: IO_ERROR.
    """
    try:
        mark = LogMark(Path(path))
        mark.raise_to(version, segment)
        mark.sync()
        sync_directory(Path(path))
    except OSError as error:
        raise FsError(Status.IO_ERROR, f"{path}/{MARK_NAME}: {error.strerror}") from error
    return mark


def discard(db: Rdict, path: str) -> None:
    """Release a store that is refused; what cannot be written then is in its log."""
    try:
        db.close()
    except Exception as error:  # noqa: BLE001 - the reason of the refusal matters more
        log.warning("key-value store %s: closing after a refusal: %s", path, error)


def logs(path: str) -> list[Path]:
    """Return the log files, oldest first."""
    return sorted(Path(path).glob("*.log"))


def sizes(path: str) -> tuple[int, int]:
    """Return the bytes of all files of a store, and of its log files alone;
    those that go meanwhile do not count.
    """
    store_bytes = log_bytes = 0
    for file in Path(path).iterdir():
        with suppress(FileNotFoundError):
            size = file.stat().st_size
            store_bytes += size
            log_bytes += size if file.suffix == ".log" else 0
    return store_bytes, log_bytes


def sync_path(path: Path) -> None:
    """Make a file or directory durable; blocks."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
