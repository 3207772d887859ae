"""A file written from its beginning to its end, out of memory that goes round: `Appender`.

    with client.open(path, "x") as file, Appender(client, file) as stream:
        stream.append(memoryview(head))
        stream.append(tensor_bytes)
        stream.finish()

Purpose: what is written once, from many buffers of any size.  Each of them by itself would be an
update of its own, and every update costs storage about the same, whatever its size.

Invariants:
    - What goes out are whole steps of the file, but for the last: no chunk is written in
      two parts unless it is larger.
    - Bytes are the caller's again when `append` returns; they are written some time
      later, until `finish` returns.
    - No write is under way any more at the end of the block, however that ends.

Concurrency: one caller at a time; writes are waited for in threads of its own,
while the next step is filled.
"""

from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Final, Self

from .apart import begin
from .batch import BatchClient, BatchFile, Transfer

STEP_BYTES: Final = 8 << 20
"""Of the file, written at a time."""
STEP_COUNT: Final = 4
"""One that is filled, and others that are written, to several chains;
not more, since memory that is used for the first time costs more than copying into it.
"""
_PIECE_BYTES: Final = 1 << 20
"""Copied at a time, and then looked at while the processor still has it at hand."""


class Appender:
    """See module head."""

    def __init__(self, client: BatchClient, file: BatchFile) -> None:
        """Begin at the start of a file that is empty.

        Raises:
            OSError: ENOMEM, ENOSPC: no memory to share.
        """
        self._client, self._file = client, file
        self._memory = client.allocate(STEP_BYTES * STEP_COUNT)
        self._under_way: list[Future[None]] = []
        self._step_start = 0
        """Where in the file the step begins that is being filled."""
        self._used = 0

    @property
    def offset(self) -> int:
        """Bytes appended so far."""
        return self._step_start + self._used

    def append(
        self, content: memoryview, seen: Callable[[memoryview], object] | None = None
    ) -> None:
        """Add bytes to the end.

        Args:
            content: contiguous bytes.
            seen: is given what was copied, in order and in pieces, each only until it returns.

        Raises:
            OSError: an earlier write failed.
        """
        done = 0
        while done < len(content):
            count = min(_PIECE_BYTES, len(content) - done, STEP_BYTES - self._used)
            start = self._step_start % len(self._memory.view) + self._used
            with self._memory.view[start : start + count] as place:
                place[:] = content[done : done + count]
                if seen is not None:
                    seen(place)
            self._used += count
            done += count
            if self._used == STEP_BYTES:
                self._write_step()

    def finish(self) -> None:
        """Write the rest; what was appended is durable after `fsync` or `close` of the file.

        Raises:
            OSError: a write failed.
        """
        if self._used:
            self._write_step()
        while self._under_way:
            self._end_oldest()

    def _write_step(self) -> None:
        offset, count = self._step_start, self._used
        self._step_start += STEP_BYTES
        self._used = 0
        if len(self._under_way) == STEP_COUNT - 1:
            self._end_oldest()  # whose place is filled next
        done: Future[None] = Future()
        self._under_way.append(done)
        begin(partial(self._write, offset, count), done)

    def _end_oldest(self) -> None:
        wait(self._under_way[:1])  # interrupted, the end of the block waits for it
        self._under_way.pop(0).result()

    def _write(self, offset: int, count: int) -> None:
        start = offset % len(self._memory.view)
        with self._memory.view[start : start + count] as step:
            self._client.write([Transfer(self._file, offset, step)])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        wait(self._under_way)
        self._under_way.clear()
        with suppress(BufferError):  # a traceback has some of it: it goes with that
            self._memory.close()
