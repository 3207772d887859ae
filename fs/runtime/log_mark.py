"""A lower bound for what a RocksDB store must hold, kept beside it.

RocksDB replays its log up to the first record whose checksum is wrong: that is how a log ends
after a power loss.  One rotten byte in the middle looks the same, and everything behind it would
be gone without a word, synced changes too.  So after each sync of the log the number of the
newest change it covers is written here (whatever the store counts, as long as it only grows), and
the segment of the log that it is in (log_segments.py); a store that comes up with fewer has lost
what was promised, and is refused.

The mark itself is synced only when the store is opened and closed: a power loss may leave an
older one, which demands less, never one that demands too much.  So it costs a pwrite(2) per
sync of the log, and no flush.

Concurrency: thread-safe.
"""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from xxhash import xxh3_64_hexdigest

from .log_segments import NOTHING_HELD, Held
from .rocksdb_log import first_bad_byte, trap

_log = logging.getLogger(__name__)

MARK_NAME: Final = "SYNCED"


class Mark(NamedTuple):
    """What a store must hold."""

    change: int
    segment: int = 0


class LogMark:
    """The file `SYNCED` in the directory of one store."""

    def __init__(self, directory: Path) -> None:
        """Open it, creating an empty one, durably; raises OSError."""
        self._lock = threading.Lock()
        self._mark = Mark(-1)
        self._fd = os.open(directory / MARK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def raise_to(self, change: int, segment: int) -> None:
        """Record that everything up to `change` is durable, in segments up to `segment`;
        raises OSError.
        """
        with self._lock:
            mark = Mark(max(change, self._mark.change), max(segment, self._mark.segment))
            if mark != self._mark:
                self._mark = mark
                os.pwrite(self._fd, _packed(mark), 0)

    def sync(self) -> None:
        """Make the mark itself durable; raises OSError."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Make the mark durable and release the file; raises OSError."""
        try:
            self.sync()
        finally:
            os.close(self._fd)


def read_mark(directory: Path) -> Mark | None:
    """Return what a store must hold: nothing without a mark, None if the mark is damaged.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        line = (directory / MARK_NAME).read_bytes()
    except FileNotFoundError:
        return Mark(0)
    if not line:
        return Mark(0)  # a power loss came before the first one
    try:
        mark = Mark(*map(int, line.split()[:-1]))
    except (ValueError, TypeError):
        return None
    return mark if line in (_packed(mark), _sealed(b"%020d" % mark.change)) else None


def missing_changes(directory: Path, measure: Callable[[], Held]) -> str | None:
    """Return which changes the store lacks and why, None if it lacks none; nothing is written.

    `measure` returns what RocksDB finds; it must open the store read-only, because an ordinary
    opening deletes the log that it could not read.  A missing or damaged mark demands nothing.

    Raises:
        OSError: the mark or a log cannot be read; and what `measure` raises.
    """
    wanted = read_mark(directory)
    if wanted is None:
        _log.warning(
            "%s is damaged, the length of the log cannot be checked", directory / MARK_NAME
        )
    if wanted is None or not wanted.change:
        return None
    found = measure() if (directory / "CURRENT").exists() else NOTHING_HELD
    lack = what_lacks(found, wanted)
    return f"{_cause(directory)}: {lack}" if lack else None


def what_lacks(found: Held, wanted: Mark) -> str:
    """Return what a store lacks, empty if nothing.  Pure."""
    if found.gap is not None:
        return f"changes between {found.gap[0]} and {found.gap[1]} are missing"
    if found.change < wanted.change:
        return f"synced changes {found.change + 1} to {wanted.change} are missing"
    if found.segment < wanted.segment:
        return f"synced changes up to {wanted.change}, in segment {wanted.segment}, are missing"
    return ""


def manifest_damage(directory: Path) -> tuple[Path, int] | None:
    """Return the current MANIFEST and where its first bad record begins;
    None if it is whole or not there.

    One that is cut short, or all zeros from there on, RocksDB takes for one that was being written,
    and goes without it; any other it refuses.

    Raises:
        OSError: it cannot be read.
    """
    manifest = _manifest(directory)
    bad = None if manifest is None else first_bad_byte(manifest.read_bytes())
    return None if manifest is None or bad is None else (manifest, bad)


def find_trap(directory: Path) -> tuple[Path, int] | None:
    """Return a file at whose opening RocksDB would never end, and where in it;
    to be asked before every opening.

    Raises:
        OSError: a log or the MANIFEST cannot be read.
    """
    paths = sorted(directory.glob("*.log"))
    manifest = _manifest(directory)
    for path in paths if manifest is None else [manifest, *paths]:
        at = trap(path.read_bytes())
        if at is not None:
            return path, at
    return None


def _manifest(directory: Path) -> Path | None:
    try:
        path = directory / (directory / "CURRENT").read_text("ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return path if path.is_file() else None


def _cause(directory: Path) -> str:
    current = directory / "CURRENT"
    if not current.exists():
        return f"{current} is lost"
    found = manifest_damage(directory)
    if found is not None:
        return f"{found[0]} is damaged at byte {found[1]}"
    for path in sorted(directory.glob("*.log")):
        bad = first_bad_byte(path.read_bytes())
        if bad is not None:
            return f"{path} is damaged at byte {bad}"
    return f"{directory} has lost a log or a table"


def _packed(mark: Mark) -> bytes:
    return _sealed(b"%020d %020d" % mark)


def _sealed(numbers: bytes) -> bytes:
    return numbers + b" " + xxh3_64_hexdigest(numbers).encode() + b"\n"
