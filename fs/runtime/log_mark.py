"""A lower bound for what a RocksDB store must hold, kept beside it.

RocksDB replays its log up to the first record whose checksum is wrong: that is how a log ends after a power loss.
One rotten byte in the middle looks the same, and everything behind it would be gone without a word, synced
changes too.  So after each sync of the log the number of the newest change it covers is written here (whatever the
store counts, as long as it only grows); a store that comes up with fewer has lost what was promised, and is refused.

The mark itself is synced only when the store is opened and closed: a power loss may leave an older one, which
demands less, never one that demands too much.  So it costs a pwrite(2) per sync of the log, and no flush.

Concurrency: thread-safe.
"""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_hexdigest

from .rocksdb_log import first_bad_byte

_log = logging.getLogger(__name__)

MARK_NAME: Final = "SYNCED"


class LogMark:
    """The file `SYNCED` in the directory of one store."""

    def __init__(self, directory: Path) -> None:
        """Open it, creating an empty one, durably; raises OSError."""
        self._lock = threading.Lock()
        self._sequence = -1
        self._fd = os.open(directory / MARK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def raise_to(self, sequence: int) -> None:
        """Record that everything up to `sequence` is durable; raises OSError."""
        with self._lock:
            if sequence > self._sequence:
                self._sequence = sequence
                os.pwrite(self._fd, _packed(sequence), 0)

    def sync(self) -> None:
        """Make the mark itself durable; raises OSError."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Make the mark durable and release the file; raises OSError."""
        try:
            self.sync()
        finally:
            os.close(self._fd)


def read_mark(directory: Path) -> int | None:
    """Return the sequence number a store must reach: 0 without a mark, None if the mark is damaged.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        line = (directory / MARK_NAME).read_bytes()
    except FileNotFoundError:
        return 0
    if not line:
        return 0  # a power loss came before the first one
    try:
        sequence = int(line.split()[0])
    except (ValueError, IndexError):
        return None
    return sequence if line == _packed(sequence) else None


def missing_changes(directory: Path, measure: Callable[[], int]) -> str | None:
    """Return which synced changes the store lacks and why, None if it lacks none; nothing is written.

    `measure` returns the newest change that RocksDB finds; it must open the store read-only, because an
    ordinary opening deletes the log that it could not read.  A damaged mark demands nothing.

    Raises:
        OSError: the mark or a log cannot be read; and what `measure` raises.
    """
    wanted = read_mark(directory)
    if wanted is None:
        _log.warning(
            "%s is damaged, the length of the log cannot be checked", directory / MARK_NAME
        )
    if not wanted:
        return None
    found = measure() if (directory / "CURRENT").exists() else 0
    if found >= wanted:
        return None
    return f"{_cause(directory)}: synced changes {found + 1} to {wanted} are missing"


def _cause(directory: Path) -> str:
    current = directory / "CURRENT"
    if not current.exists():
        return f"{current} is lost"
    for path in sorted(directory.glob("*.log")):
        bad = first_bad_byte(path.read_bytes())
        if bad is not None:
            return f"{path} is damaged at byte {bad}"
    return f"{directory} has lost a log"


def _packed(sequence: int) -> bytes:
    number = b"%020d" % sequence
    return number + b" " + xxh3_64_hexdigest(number).encode() + b"\n"
