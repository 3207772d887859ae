"""Opening a disk that no engine has open, for the check of fs/chunkengine/fsck.py;
and repairing it.

A check changes no byte of the disk and holds RocksDB's own lock meanwhile, so that no engine opens
it; a disk in use is refused.  A repair rewrites what can be derived from the rest (bitmaps, owners
of blocks, counters) and marks chunks whose bytes are bad as damaged, so that they are replaced from
other replicas.  It deletes no version.

Concurrency: none.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..runtime.log_mark import MARK_NAME, Mark, read_mark, what_lacks
from ..runtime.rocksdb_log import first_bad_byte
from ..schema.status import FsError, Status
from .data_files import LocalDataFiles
from .findings import Finding, Kind
from .format import FILES_PER_SIZE, SIZE_CLASS_COUNT, FileId, file_name
from .fsck import check_disk
from .fsck_data import Tally
from .meta_rocksdb import META_DIRECTORY, RocksMetaStore

_FILE_NAMES: Final = frozenset(
    file_name(FileId(size_class << 8 | index))
    for size_class in range(SIZE_CLASS_COUNT)
    for index in range(FILES_PER_SIZE)
)


def check_path(
    path: Path,
    *,
    has_data: bool = True,
    tally: Tally | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Iterator[Finding]:
    """Yield what is wrong with the disk below `path`; the parameters are those of `check_disk`.

    Raises:
        FsError: FOREIGN_DISK if this is no disk of EmberFS; ALREADY_RUNNING if a
            process has it open; IO_ERROR.
    """
    with _locked(path):
        try:
            yield from _check_log(path / META_DIRECTORY)
            meta = RocksMetaStore(path / META_DIRECTORY, is_read_only=True)
        except FsError as error:
            if error.status is not Status.IO_ERROR:
                raise
            yield Finding(Kind.BAD_STORE, error.detail)
            return
        files = LocalDataFiles(path, is_read_only=True)
        try:
            yield from _check_names(path)
            yield from check_disk(meta, files, has_data=has_data, tally=tally, on_step=on_step)
        finally:
            files.close()
            meta.close()


def repair_path(path: Path, findings: Iterable[Finding]) -> int:
    """Apply what the findings of a check of this disk carry, durably;
    return how many had something.

    Raises:
        FsError: as `check_path`.
    """
    fixable = [finding for finding in findings if finding.fix]
    if not fixable:
        return 0
    meta = RocksMetaStore(path / META_DIRECTORY)
    try:
        for finding in fixable:
            meta.write(finding.fix)
        meta.write_synced([])
    finally:
        meta.close()
    return len(fixable)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep engines away: RocksDB locks this file for writing, which a reader's lock prevents."""
    lock = path / META_DIRECTORY / "LOCK"
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise FsError(
            Status.FOREIGN_DISK, f"{path}: not a disk of EmberFS, {lock} is missing"
        ) from error
    except OSError as error:
        raise FsError(Status.IO_ERROR, f"{lock}: {error.strerror}") from error
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise FsError(
            Status.ALREADY_RUNNING, f"{path}: in use; stop the storage process of this disk first"
        ) from error
    finally:
        os.close(fd)


def _check_log(directory: Path) -> Iterator[Finding]:
    """Is everything there that was synced, and where does the log end?"""
    try:
        wanted = read_mark(directory)
    except OSError as error:
        raise FsError(Status.IO_ERROR, f"{directory / MARK_NAME}: {error.strerror}") from error
    if wanted is None:
        yield Finding(
            Kind.BAD_MARK, "wrong checksum; the next open writes it anew", None, MARK_NAME
        )
    for manifest in sorted(directory.glob("MANIFEST-*")):
        bad = first_bad_byte(manifest.read_bytes())
        if bad is not None:
            name = f"{META_DIRECTORY}/{manifest.name}"
            yield Finding(Kind.TORN_LOG, "the list of files ends in a torn record", None, name, bad)
    store = RocksMetaStore(directory, is_read_only=True)
    try:
        found = store.held()
    finally:
        store.close()
    lack = what_lacks(found, wanted or Mark(0))
    if lack:
        yield Finding(Kind.LOST_LOG, lack)
        return
    try:
        RocksMetaStore(directory, is_read_only=True, is_strict=True).close()
    except FsError as error:
        yield Finding(
            Kind.TORN_LOG, f"unsynced changes after {found.change} are lost: {error.detail}"
        )


def _check_names(path: Path) -> Iterator[Finding]:
    """Are only data files where data files belong?"""
    for folder in sorted({name.split("/")[0] for name in _FILE_NAMES}):
        if not (path / folder).is_dir():
            continue
        for entry in sorted((path / folder).iterdir()):
            name = f"{folder}/{entry.name}"
            if name not in _FILE_NAMES or not entry.is_file():
                yield Finding(Kind.FOREIGN_FILE, "not a data file", None, name)
