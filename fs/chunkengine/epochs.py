"""Ending epochs: flushes of one disk, and when there has to be one.

What a flush does, and why in this order, is at the head of engine.py.

Concurrency: thread-safe.  One flush at a time; who comes while one is under way waits for the
next, which serves all of them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ..schema.status import FsError
from .books import Books
from .ports import DataFiles
from .space import BlockSpace

QUARANTINE_BYTES_MAX: Final = 512 << 20
"""More freed and not yet durable blocks than this, and the next update flushes first."""

UNDO_COUNT_MAX: Final = 100_000
"""The same for chunks changed since the last flush."""

_NO_MEMORY: Final = "no memory for a flush: nobody knows how far it has come"
"""Made beforehand, when there is memory."""


class Epochs:
    """See module head."""

    def __init__(self, books: Books, files: DataFiles, space: BlockSpace) -> None:
        self._books = books
        self._files = files
        self._space = space
        self._flush_done = threading.Condition(books.lock)
        self._begun = 0
        self.ended = 0
        """Flushes that ended well."""

    def flush(self) -> None:
        """End the epoch: return when all that was changed
        before the call would survive a power loss; see `ChunkEngine.sync`.
        """
        with self._waking_others():
            with self._books.lock:
                self._books.check()
                wanted = self._begun + 1
                while self.ended < wanted and self._begun > self.ended:
                    self._flush_done.wait()
                    self._books.check()
                if self.ended >= wanted or not self._books.ledger.epoch.has_batches:
                    return
                closing = self._books.ledger.begin_flush()
                self._begun += 1
            with self._books.poison_on_failure("making room for a flush"):
                self._space.help_store()
            with self._books.poison_on_failure("flush of data", is_metadata=False):
                self._files.flush(closing.dirty)
            with self._books.poison_on_failure("flush"):
                self._books.ledger.write_durable(closing)
            with self._books.poison_on_failure("end of a flush"), self._books.lock:
                emptied = self._books.ledger.end_flush(closing)
                self.ended += 1
                self._flush_done.notify_all()
        self._space.give_back(emptied)

    def limit(self) -> None:
        """Flush if the epoch is full."""
        if self.is_full():
            self.flush()

    def is_full(self) -> bool:
        """Return whether the next update is to flush first."""
        epoch = self._books.ledger.epoch
        return epoch.quarantined_bytes > QUARANTINE_BYTES_MAX or len(epoch.undone) > UNDO_COUNT_MAX

    @contextmanager
    def _waking_others(self) -> Iterator[None]:
        """Around a flush: those who wait for it learn of its failure."""
        try:
            yield
        except FsError:
            self._wake_others()
            raise
        except MemoryError:  # at the beginning, or between two steps
            self._books.give_up(_NO_MEMORY)
            self._wake_others()
            raise

    def _wake_others(self) -> None:
        with self._books.lock:
            self._flush_done.notify_all()
