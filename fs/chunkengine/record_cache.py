"""Committed versions of chunks in memory, as the metadata store has them.

Part of fs/chunkengine/ledger.py, which says what has changed.  Holds no pending
versions: those are all in memory.

Concurrency: the caller holds the engine's lock in every method.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from .format import CHUNK_PREFIX, ChunkKey, ChunkRecord
from .ports import MetaStore

CACHE_BYTES_MAX: Final = 32 << 20
"""Of decoded chunk records kept in memory."""

ABSENT_COUNT_MAX: Final = 1000
"""Keys of chunks remembered not to be there, oldest forgotten first."""

_RECORD_OVERHEAD_BYTES: Final = 400


class RecordCache:
    """Those of one disk that were used last."""

    def __init__(self, meta: MetaStore) -> None:
        self._meta = meta
        self._records: OrderedDict[ChunkKey, ChunkRecord] = OrderedDict()
        self._bytes = 0
        self._absent: dict[ChunkKey, None] = {}
        """Chunks known to have no committed version:
        the making of one asks for it half a dozen times.
        """

    def get(self, key: ChunkKey) -> ChunkRecord | None:
        """Return the committed version."""
        record = self._records.get(key)
        if record is not None:
            self._records.move_to_end(key)
            return record
        if key in self._absent:
            return None
        value = self._meta.get(CHUNK_PREFIX + key)
        if value is None:
            if len(self._absent) >= ABSENT_COUNT_MAX:
                del self._absent[next(iter(self._absent))]
            self._absent[key] = None
            return None
        record = ChunkRecord.unpack(value)
        self._remember(key, record)
        return record

    def get_all(self, keys: Sequence[ChunkKey]) -> list[ChunkRecord | None]:
        """Return the committed version of each."""
        records, found = self._records, list[ChunkRecord | None]()
        for key in keys:
            record = records.get(key)
            if record is None:
                record = self.get(key)
            else:
                records.move_to_end(key)
            found.append(record)
        return found

    def cached(self, key: ChunkKey) -> ChunkRecord | None:
        """Return the committed version if it is in memory; None: `get` may know it."""
        record = self._records.get(key)
        if record is not None:
            self._records.move_to_end(key)
        return record

    def replace(self, key: ChunkKey, record: ChunkRecord | None) -> None:
        """Note what is the committed version now; None: there is none."""
        self._forget(key)
        if record is not None:
            self._remember(key, record)

    def _remember(self, key: ChunkKey, record: ChunkRecord) -> None:
        self._absent.pop(key, None)
        self._records[key] = record
        self._bytes += len(record.checksums) + _RECORD_OVERHEAD_BYTES
        while self._bytes > CACHE_BYTES_MAX:
            self._forget(next(iter(self._records)))

    def _forget(self, key: ChunkKey) -> None:
        old = self._records.pop(key, None)
        if old is not None:
            self._bytes -= len(old.checksums) + _RECORD_OVERHEAD_BYTES
