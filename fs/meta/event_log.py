"""The event log: one line of JSON for each change of names,
for audits and for programs that follow a cluster.

A line is queued when the change has been committed and before its client gets the answer, and
written by a task beside.  So what a client was told is in the log at least once, twice when the
answer was lost and asked for again (both lines have the same `request`), unless this process died
before it wrote, or the queue was full.  What the queue had no room for is counted, and the count is
written as soon as there is room.  Nothing ever waits for the log.

Invariants:
    - At most QUEUE_COUNT_MAX lines wait; at most event_log_file_count files of about
      event_log_bytes_max each are kept.
    - Lines are whole and in the order of the commits' answers of this service;
      services write files of their own.

Concurrency: one task runs `run`; `note` is called by any.
"""

import logging
from collections import deque
from pathlib import Path
from typing import Final

import msgspec
import trio

from ..runtime.ports import Runtime
from ..schema.config import ProcessConfig
from .events import Event

log = logging.getLogger(__name__)

QUEUE_COUNT_MAX: Final = 65_536
GATHER_S: Final = 0.1
"""Lines of so long are written together."""


class EventLog:
    """The log of one service; of one that is off nothing is kept."""

    def __init__(
        self, config: ProcessConfig, runtime: Runtime, *, queue_count_max: int = QUEUE_COUNT_MAX
    ) -> None:
        self._config = config.meta
        self._runtime = runtime
        self._queue_count_max = queue_count_max
        self.is_on = bool(self._config.event_log_directory)
        """Whether anything is logged."""
        self._directory = Path(self._config.event_log_directory)
        self._name = f"events-{config.process.node_id}"
        self._queue: deque[bytes] = deque()
        self._dropped_count = 0
        self.lost_count = 0
        """Lines that will never be in the log, since the start."""
        self._has_some = trio.Event()
        self._size: int | None = None
        """Of the newest file; None: not known."""

    def note(self, event: Event) -> None:
        """Queue a line, or count it when the queue is full."""
        if not self.is_on:
            return
        if len(self._queue) >= self._queue_count_max:
            self._dropped_count += 1
            self.lost_count += 1
            return
        self._queue.append(self._line(event))
        self._has_some.set()

    def _line(self, event: Event) -> bytes:
        return msgspec.json.encode({"time_ns": self._runtime.clock.wall_ns()} | event) + b"\n"

    async def run(self) -> None:
        """Write what is queued until cancelled; then, what is left."""
        while self.is_on:
            try:
                await self._has_some.wait()
                await trio.sleep(GATHER_S)
            finally:
                with trio.CancelScope(shield=True):
                    await self._write_all()

    async def _write_all(self) -> None:
        self._has_some = trio.Event()
        queued_count = len(self._queue)
        lines, count = self._take()
        if not lines:
            return
        try:
            await self._runtime.run_blocking(self._append, lines)
        except OSError as error:
            self._dropped_count += count
            self.lost_count += queued_count
            self._size = None
            log.warning("%d events are not in the log: %s: %s", count, self._path(0), error)

    def _take(self) -> tuple[bytes, int]:
        lines = list(self._queue)
        self._queue.clear()
        count = len(lines)
        if self._dropped_count:
            lines.insert(0, self._line({"event": "dropped", "count": self._dropped_count}))
            count += self._dropped_count
            self._dropped_count = 0
        return b"".join(lines), count

    def _path(self, age: int) -> Path:
        return self._directory / (f"{self._name}.{age}.jsonl" if age else f"{self._name}.jsonl")

    def _append(self, lines: bytes) -> None:
        if self._size is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._size = self._path(0).stat().st_size if self._path(0).exists() else 0
        if self._size >= self._config.event_log_bytes_max:
            self._rotate()
        with self._path(0).open("ab") as file:
            file.write(lines)
        self._size += len(lines)

    def _rotate(self) -> None:
        for age in range(self._config.event_log_file_count - 1, 0, -1):
            if self._path(age - 1).exists():
                self._path(age - 1).replace(self._path(age))
        self._path(0).unlink(missing_ok=True)  # when only one file is to be kept
        self._size = 0
