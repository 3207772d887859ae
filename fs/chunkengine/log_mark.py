"""A lower bound for what the metadata log must hold, kept beside it.

RocksDB replays its log up to the first record whose checksum is wrong: that is how a log ends after a power loss.
One rotten byte in the middle looks the same, and everything behind it would be gone without a word, synced
batches too.  So after each sync of the log the sequence number it covers is written here; a store that comes up
with fewer has lost what was promised, and is refused.

The mark itself is synced only when the store is opened and closed: a power loss may leave an older one, which
demands less, never one that demands too much.

Concurrency: thread-safe.
"""

import os
import threading
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_hexdigest

MARK_NAME: Final = "SYNCED"


class LogMark:
    """The file `SYNCED` in the directory of one metadata store."""

    def __init__(self, directory: Path) -> None:
        """Open it, creating an empty one, durably; raises OSError."""
        self._lock = threading.Lock()
        self._sequence = 0
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


def _packed(sequence: int) -> bytes:
    number = b"%020d" % sequence
    return number + b" " + xxh3_64_hexdigest(number).encode() + b"\n"
