"""One attempt of a transaction, for every engine that buffers writes on this side.

Keeps what was written and read (fs/kv/buffer.py) and merges reads with own writes.  A subclass says
how the snapshot is taken, how rows are fetched from it, and how the buffer is committed.

Invariants:
    - Every read of the store is recorded as a read conflict unless it was a snapshot read.
    - Nothing is sent or written before `commit`, and nothing after it.

Concurrency: one task at a time.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from .api import KeyValue
from .buffer import RangeRead, Unwritten, WriteBuffer


class BufferedTransaction(ABC):
    """See fs.kv.api.Transaction."""

    __slots__ = ("_buffer", "_is_open")

    def __init__(self) -> None:
        self._buffer = WriteBuffer()
        self._is_open = True

    @abstractmethod
    def _begin_read(self) -> None:
        """Check that the snapshot, if there is one, is young enough to be read;
        raises KV_TOO_OLD.
        """

    @abstractmethod
    def _pin(self) -> None:
        """Fix the snapshot, or one that is not newer, without waiting."""

    @abstractmethod
    async def _fetch(self, key: bytes) -> bytes | None:
        """Return the value at the snapshot."""

    @abstractmethod
    async def _fetch_ahead(self, keys: Sequence[bytes]) -> None:
        """Make the following `_fetch` of these keys cheap, where that is worth anything."""

    @abstractmethod
    async def _fetch_rows(
        self, begin: bytes, end: bytes, limit: int, reverse: bool
    ) -> list[KeyValue]:
        """Return the rows of begin <= key < end at the snapshot, at most `limit` if > 0."""

    @abstractmethod
    async def _commit(self) -> bytes:
        """Commit what the buffer holds; return the versionstamp."""

    async def get(self, key: bytes, *, snapshot: bool = False) -> bytes | None:
        """See Transaction.get."""
        self._begin_read()
        buffer = self._buffer
        written = buffer.written(key)
        if written is None or isinstance(written, bytes):
            return written
        if not snapshot:
            buffer.add_read_key(key)
        value = await self._fetch(key)
        return value if isinstance(written, Unwritten) else written.applied_to(value)

    async def get_many(
        self, keys: Sequence[bytes], *, snapshot: bool = False
    ) -> list[bytes | None]:
        """See Transaction.get_many."""
        self._begin_read()
        await self._fetch_ahead(keys)
        return [await self.get(key, snapshot=snapshot) for key in keys]

    async def prefetch(self, keys: Iterable[bytes]) -> None:
        """See Transaction.prefetch."""
        self._begin_read()
        await self._fetch_ahead(list(keys))

    async def get_range(
        self,
        begin: bytes,
        end: bytes,
        *,
        limit: int = 0,
        reverse: bool = False,
        snapshot: bool = False,
    ) -> list[KeyValue]:
        """See Transaction.get_range."""
        self._begin_read()
        read = RangeRead(self._buffer, begin, end, limit=limit, reverse=reverse)
        while (page := read.wanted()) is not None:
            read.feed(await self._fetch_rows(*page))
        if not snapshot:
            self._buffer.add_read_range(*read.looked_at())
        return read.rows

    def _writable(self) -> WriteBuffer:
        assert self._is_open, "the transaction is over"
        return self._buffer

    def set(self, key: bytes, value: bytes) -> None:
        """See Transaction.set."""
        assert self._is_open, "the transaction is over"
        self._buffer.set(key, value)

    def clear(self, key: bytes) -> None:
        """See Transaction.clear."""
        assert self._is_open, "the transaction is over"
        self._buffer.clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """See Transaction.clear_range."""
        self._writable().clear_range(begin, end)

    def atomic_add(self, key: bytes, delta: int) -> None:
        """See Transaction.atomic_add."""
        assert self._is_open, "the transaction is over"
        self._buffer.atomic_add(key, delta)

    def atomic_max(self, key: bytes, value: bytes) -> None:
        """See Transaction.atomic_max."""
        assert self._is_open, "the transaction is over"
        self._buffer.atomic_max(key, value)

    def set_versionstamped_value(self, key: bytes, prefix: bytes, suffix: bytes = b"") -> None:
        """See Transaction.set_versionstamped_value."""
        self._writable().set_versionstamped_value(key, prefix, suffix)

    def set_versionstamped_key(self, prefix: bytes, suffix: bytes, value: bytes) -> None:
        """See Transaction.set_versionstamped_key."""
        self._writable().set_versionstamped_key(prefix, suffix, value)

    def add_read_conflict_key(self, key: bytes) -> None:
        """See Transaction.add_read_conflict_key.  Pins the snapshot."""
        self._pin()
        self._buffer.add_read_key(key)

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        """See Transaction.add_read_conflict_range.  Pins the snapshot."""
        self._pin()
        self._buffer.add_read_range(begin, end)

    def add_write_conflict_key(self, key: bytes) -> None:
        """See Transaction.add_write_conflict_key."""
        self._writable().add_write_conflict_key(key)

    def mark_freeing(self) -> None:
        """See Transaction.mark_freeing."""
        self._buffer.is_freeing = True

    async def commit(self) -> bytes | None:
        """See Transaction.commit."""
        assert self._is_open, "the transaction is over"
        try:
            buffer = self._buffer
            return await self._commit() if buffer.points or not buffer.is_read_only else None
        finally:
            self.close()

    def close(self) -> None:
        """See Transaction.close."""
        self._is_open = False
