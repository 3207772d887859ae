"""A MANIFEST of RocksDB whose end was being written when the power failed:
cut off, if nothing synced goes with it.

RocksDB goes without a last record that is cut short or all zeros, but refuses one of which only
some pages reached the disk, although nothing that it names is needed yet: the logs behind a new
table are deleted after the MANIFEST is synced. So the file is cut before the first bad record when
no whole record follows it, and what the store holds then is measured first, on a copy of the names:
a store that would lack synced changes (log_mark.py) stays as it is.

The mark of what was synced may be an older one after a power loss, and a record that
was synced may rot.  So a record counts as torn only where a sector of it ends in zeros,
as what was never written does.

Not for stores that are open; whoever calls has seen RocksDB refuse this one.
"""

import fcntl
import logging
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

from .durable_file import write_durable
from .log_mark import manifest_damage, read_mark, what_lacks
from .log_segments import Held
from .rocksdb_log import has_whole_record

_log = logging.getLogger(__name__)

TORN_BYTES_MAX: Final = 64 << 10
"""More than RocksDB writes to a MANIFEST between two syncs;
a longer damaged end was not being written.
"""

SECTOR_BYTES: Final = 512
"""What disks write as a whole, at least."""

UNWRITTEN: Final = bytes(16)
"""More zeros than are in a record in a row: of its numbers of eight bytes few are large."""

KEPT_PREFIX: Final = "torn-"
"""Before the name of the file as it was found."""

_FLOCK: Final = struct.Struct("hhqqi4x")


def cut_torn_manifest(directory: Path, measure: Callable[[Path], Held]) -> bool:
    """Cut off the torn end of the MANIFEST of a store that is not open;
    return whether that was done.

    `measure` opens a store in a directory read-only and returns what it holds, or raises.  The
    file as it was stays beside it as torn-MANIFEST-*; the cut is durable when this returns, and
    happens as a whole or not at all.

    Raises:
        OSError: the directory cannot be read or written.
    """
    found = manifest_damage(directory)
    if found is None:
        return False
    manifest, bad = found
    data = manifest.read_bytes()
    if len(data) - bad > TORN_BYTES_MAX or not _is_torn(data, bad):
        return False
    with _locked(directory) as is_ours:
        if not is_ours or not _is_enough(directory, manifest, data[:bad], measure):
            return False
        _replace(manifest, data[:bad])
    _log.warning(
        "%s: its end was being written when the power failed, cut at byte %d; nothing that was "
        "synced is missing",
        manifest,
        bad,
    )
    return True


def _is_torn(data: bytes, start: int) -> bool:
    """Tell whether only a part of what begins at `start` was written,
    and nothing was written after it.
    """
    edges = [start, *range(start - start % SECTOR_BYTES + SECTOR_BYTES, len(data), SECTOR_BYTES)]
    sectors = (data[a:b] for a, b in pairwise([*edges, len(data)]))
    is_part_missing = any(sector.endswith(UNWRITTEN) for sector in sectors)
    return is_part_missing and not has_whole_record(data, start + 1)


@contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Hold RocksDB's lock of the store; false if somebody has it open.

    A lock of the open file, so that this process, too, is refused while it has the store open
    itself.  Then the file stays open for good: RocksDB's lock is one of the process, which goes
    when any descriptor of the file is closed.
    """
    fd = os.open(directory / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    is_open_here = False
    wish = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wish)
        except (BlockingIOError, PermissionError):
            *_, holder_pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, wish))
            is_open_here = holder_pid == os.getpid()
            yield False
            return
        yield True
    finally:
        if not is_open_here:
            os.close(fd)


def _is_enough(
    directory: Path, manifest: Path, data: bytes, measure: Callable[[Path], Held]
) -> bool:
    """Tell whether the store with this MANIFEST opens and has everything that was synced."""
    wanted = read_mark(directory)
    if wanted is None:
        return False
    with tempfile.TemporaryDirectory(prefix="ember-manifest-") as scratch:
        copy = Path(scratch)
        for entry in directory.iterdir():
            if entry != manifest and entry.name != "LOCK" and not entry.name.startswith("LOG"):
                (copy / entry.name).symlink_to(entry.resolve())
        (copy / manifest.name).write_bytes(data)
        try:
            lack = what_lacks(measure(copy), wanted)
        except Exception as error:  # noqa: BLE001 - of any kind: then it is refused as it was
            lack = str(error)
    if lack:
        _log.error("%s: without its damaged end the store is not whole: %s", manifest, lack)
    return not lack


def _replace(manifest: Path, data: bytes) -> None:
    kept = manifest.with_name(KEPT_PREFIX + manifest.name)
    kept.unlink(missing_ok=True)
    os.link(manifest, kept)
    write_durable(manifest, data)
