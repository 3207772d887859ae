"""A transaction that hands everything to another one; base of those that change one thing about it.

Concurrency: as the transaction below.
"""

from collections.abc import Iterable, Sequence

from .api import KeyValue, Transaction


class ForwardingTransaction:
    """See fs.kv.api.Transaction; `_has_written` says whether the commit will change anything."""

    def __init__(self, inner: Transaction) -> None:
        self._inner = inner
        self._has_written = False

    async def get(self, key: bytes, *, snapshot: bool = False) -> bytes | None:
        """See Transaction.get."""
        return await self._inner.get(key, snapshot=snapshot)

    async def get_many(
        self, keys: Sequence[bytes], *, snapshot: bool = False
    ) -> list[bytes | None]:
        """See Transaction.get_many."""
        return await self._inner.get_many(keys, snapshot=snapshot)

    async def prefetch(self, keys: Iterable[bytes]) -> None:
        """See Transaction.prefetch."""
        await self._inner.prefetch(keys)

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
        return await self._inner.get_range(
            begin, end, limit=limit, reverse=reverse, snapshot=snapshot
        )

    def set(self, key: bytes, value: bytes) -> None:
        """See Transaction.set."""
        self._has_written = True
        self._inner.set(key, value)

    def clear(self, key: bytes) -> None:
        """See Transaction.clear."""
        self._has_written = True
        self._inner.clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """See Transaction.clear_range."""
        self._has_written = True
        self._inner.clear_range(begin, end)

    def atomic_add(self, key: bytes, delta: int) -> None:
        """See Transaction.atomic_add."""
        self._has_written = True
        self._inner.atomic_add(key, delta)

    def atomic_max(self, key: bytes, value: bytes) -> None:
        """See Transaction.atomic_max."""
        self._has_written = True
        self._inner.atomic_max(key, value)

    def set_versionstamped_value(self, key: bytes, prefix: bytes, suffix: bytes = b"") -> None:
        """See Transaction.set_versionstamped_value."""
        self._has_written = True
        self._inner.set_versionstamped_value(key, prefix, suffix)

    def set_versionstamped_key(self, prefix: bytes, suffix: bytes, value: bytes) -> None:
        """See Transaction.set_versionstamped_key."""
        self._has_written = True
        self._inner.set_versionstamped_key(prefix, suffix, value)

    def add_read_conflict_key(self, key: bytes) -> None:
        """See Transaction.add_read_conflict_key."""
        self._inner.add_read_conflict_key(key)

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        """See Transaction.add_read_conflict_range."""
        self._inner.add_read_conflict_range(begin, end)

    def add_write_conflict_key(self, key: bytes) -> None:
        """See Transaction.add_write_conflict_key."""
        self._has_written = True
        self._inner.add_write_conflict_key(key)

    def mark_freeing(self) -> None:
        """See Transaction.mark_freeing."""
        self._inner.mark_freeing()

    async def commit(self) -> bytes | None:
        """See Transaction.commit."""
        return await self._inner.commit()

    def close(self) -> None:
        """See Transaction.close."""
        self._inner.close()
