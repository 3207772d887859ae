"""Sorting more entries than fit into memory, with the help of a temporary file per run.

Each entry is (key, kind, value), all bytes; they come back sorted by key and kind.  Memory is
bounded by RUN_COUNT entries, and one for each run while they are merged.

Concurrency: one task; `add` blocks for the writing of a run, every RUN_COUNT entries.
"""

import heapq
import struct
import tempfile
from collections.abc import Iterator
from typing import IO, Final

RUN_COUNT: Final = 400_000
"""Entries of a run: some 100 MB of memory."""

Entry = tuple[bytes, bytes, bytes]

_HEAD: Final = struct.Struct("<HHL")


class Sorter:
    """Add, then read once in order; close gives the disk space back."""

    def __init__(self, run_count: int = RUN_COUNT) -> None:
        self._run_count = run_count
        self._entries: list[Entry] = []
        self._runs: list[IO[bytes]] = []

    def add(self, key: bytes, kind: bytes, value: bytes) -> None:
        """Take in an entry; raises OSError when no temporary file can be written."""
        self._entries.append((key, kind, value))
        if len(self._entries) >= self._run_count:
            self._write_run()

    def _write_run(self) -> None:
        self._entries.sort()
        run = tempfile.TemporaryFile(prefix="emberfs-")  # noqa: SIM115 - closed by `close`
        self._runs.append(run)
        for key, kind, value in self._entries:
            run.write(_HEAD.pack(len(key), len(kind), len(value)) + key + kind + value)
        self._entries = []

    def read(self) -> Iterator[Entry]:
        """Yield all entries in order; nothing may be added any more."""
        self._entries.sort()
        return heapq.merge(self._entries, *map(_read_run, self._runs))

    def close(self) -> None:
        """Remove what is on disk."""
        for run in self._runs:
            run.close()
        self._runs.clear()


def _read_run(run: IO[bytes]) -> Iterator[Entry]:
    run.seek(0)
    while head := run.read(_HEAD.size):
        key_length, kind_length, value_length = _HEAD.unpack(head)
        yield run.read(key_length), run.read(kind_length), run.read(value_length)
