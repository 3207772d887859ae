"""The key-value protocol: FoundationDB's semantics, whatever the engine.  No I/O here.

A transaction reads at one snapshot, buffers its writes (and sees them itself), and commits only if
nothing it read has changed since the snapshot.  Reads through `snapshot=True` do not count as read.

Invariants (every engine; tests/kv/test_contract.py):
    - Committed transactions are equivalent to some serial order, the commit order.
    - A commit is all or nothing, also across a crash; what is committed survives a
      process kill at once and a power loss after `KvEngine.sync` returned; power loss
      leaves a prefix of the commits.
    - Limits, the same everywhere: key 9,900 bytes, value 100,000 bytes, transaction
      10,000,000 bytes (counted as FoundationDB counts, fs/kv/buffer.py), age 5 s;
      exceeding one raises a definite FsError.  What a transaction has read already it may
      be given again, whatever its age.

Only `transact` (fs/kv/transact.py) commits; everybody else gets a Transaction as an argument.

Source: FoundationDB developer guide, "Transactions", "Conflict ranges", "Known limitations".
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

PREFIX_BYTES_MAX: Final = 100
"""Room on FoundationDB for what tells the clusters apart that share it."""
KEY_BYTES_MAX: Final = 10_000 - PREFIX_BYTES_MAX
VALUE_BYTES_MAX: Final = 100_000
TRANSACTION_BYTES_MAX: Final = 10_000_000
TRANSACTION_AGE_S_MAX: Final = 5.0
VERSIONSTAMP_BYTES: Final = 10
"""8 bytes commit version, 2 bytes order within it; big-endian, strictly growing."""

KeyValue = tuple[bytes, bytes]


class Transaction(Protocol):
    """One attempt.  Not safe for use by two tasks at once;
    dead after commit or an error from it.
    """

    async def get(self, key: bytes, *, snapshot: bool = False) -> bytes | None:
        """Return the value or None."""
        ...

    async def get_many(
        self, keys: Sequence[bytes], *, snapshot: bool = False
    ) -> list[bytes | None]:
        """Return what `get` would for each key, in order;
        one way there and back where the store is elsewhere.
        """
        ...

    async def prefetch(self, keys: Iterable[bytes]) -> None:
        """Read ahead what is about to be asked for, together;
        a key counts as read once `get` asks for it.

        Changes no result, only the time: reads that come one after the other cost a way there and
        back each. Where reads are cheap as they are, `keys` is not even looked at.
        """
        ...

    async def get_range(
        self,
        begin: bytes,
        end: bytes,
        *,
        limit: int = 0,
        reverse: bool = False,
        snapshot: bool = False,
    ) -> list[KeyValue]:
        """Return the pairs with begin <= key < end in key order (or reverse),
        at most `limit` if > 0.

        A read conflict covers what was really looked at: up to the last
        key returned if `limit` cut it.
        """
        ...

    def set(self, key: bytes, value: bytes) -> None:
        """Write a pair at commit."""
        ...

    def clear(self, key: bytes) -> None:
        """Remove a key at commit."""
        ...

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Remove begin <= key < end at commit."""
        ...

    def atomic_add(self, key: bytes, delta: int) -> None:
        """Add to a little-endian signed 64-bit value (absent:
        0) without reading it: no conflict.
        """
        ...

    def atomic_max(self, key: bytes, value: bytes) -> None:
        """Keep the larger of `value` and what is there (absent:
        `value`) without reading it: no conflict.

        Both are little-endian unsigned numbers as wide as `value`: what is there is cut or
        zero-filled to that. Not to be mixed with `atomic_add` of one key in one transaction.
        """
        ...

    def set_versionstamped_value(self, key: bytes, prefix: bytes, suffix: bytes = b"") -> None:
        """Write prefix + versionstamp of this commit + suffix as the value."""
        ...

    def set_versionstamped_key(self, prefix: bytes, suffix: bytes, value: bytes) -> None:
        """Write under the key prefix + versionstamp of this commit + suffix."""
        ...

    def add_read_conflict_key(self, key: bytes) -> None:
        """Conflict with later writes of `key` as if it had been read."""
        ...

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        """Conflict with later writes in [begin, end) as if it had been read."""
        ...

    def add_write_conflict_key(self, key: bytes) -> None:
        """Make readers of `key` conflict as if it had been written."""
        ...

    def mark_freeing(self) -> None:
        """Say that this commit frees space, or is needed for that:
        where the store's disk is full it goes on for longer than others.
        """
        ...

    async def commit(self) -> bytes | None:
        """Commit; return the versionstamp, None for a read-only transaction.

        Raises:
            FsError: KV_CONFLICT, KV_TOO_OLD, KV_TRANSACTION_TOO_LARGE (definite: nothing happened);
                KV_COMMIT_UNKNOWN (indefinite: it may have).
        """
        ...

    def close(self) -> None:
        """Give up without committing and release the snapshot; harmless after `commit`."""
        ...


class KvEngine(Protocol):
    """A store.  Safe for use by many tasks of one event loop."""

    @property
    def trouble(self) -> str:
        """What is wrong with the store and what to do about it, for people;
        empty: nothing that is known.
        """
        ...

    def transaction(self) -> Transaction:
        """Begin: the snapshot is taken at the first read."""
        ...

    async def sync(self) -> None:
        """Return when everything committed before the call would survive a power loss."""
        ...

    async def aclose(self) -> None:
        """Make everything durable and release the store; later use is a bug."""
        ...


def prefix_end(prefix: bytes) -> bytes:
    """Return the smallest key greater than every key that starts with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    assert stripped, "the whole key space has no end"
    return stripped[:-1] + bytes([stripped[-1] + 1])


def next_key(key: bytes) -> bytes:
    """Return the smallest key greater than `key`."""
    return key + b"\x00"
