"""Listing the chunks of a target, committed and pending ones together, in the order of their ids.

Concurrency: thread-safe; each call holds the books for its one scan.
"""

from ..schema.ids import ChunkId, InodeId, TargetId
from .api import ChunkState
from .books import Books
from .format import CHUNK_PREFIX, ChunkKey, ChunkRecord, chunk_key, target_prefix
from .ports import MetaStore
from .versions import state_of


class Listing:
    """The chunks of one disk."""

    def __init__(self, meta: MetaStore, books: Books) -> None:
        self._meta = meta
        self._books = books

    def list_chunks(
        self, target_id: TargetId, *, after: bytes = b"", limit: int = 1024
    ) -> list[ChunkState]:
        """See `ChunkEngine`."""
        prefix = target_prefix(target_id)
        start = prefix + after + b"\x00" if after else prefix
        return self._list(start, prefix + b"\xff" * 13, limit)

    def list_file(
        self,
        target_id: TargetId,
        inode_id: int,
        *,
        first_index: int = 0,
        end_index: int = 2**32,
        limit: int = 1024,
    ) -> list[ChunkState]:
        """See `ChunkEngine`."""
        if first_index >= end_index:
            return []
        first = chunk_key(target_id, ChunkId(InodeId(inode_id), first_index))
        last = chunk_key(target_id, ChunkId(InodeId(inode_id), min(end_index, 2**32) - 1))
        return self._list(first, last + b"\x00", limit)

    def last_chunk(self, target_id: TargetId, inode_id: int) -> ChunkState | None:
        """See `ChunkEngine`."""
        first = chunk_key(target_id, ChunkId(InodeId(inode_id), 0))
        last = chunk_key(target_id, ChunkId(InodeId(inode_id), 2**32 - 1))
        start, end = CHUNK_PREFIX + first, CHUNK_PREFIX + last + b"\x00"
        with self._books as ledger:
            if next(iter(self._meta.scan(start, end)), None) is None:
                # backwards a cursor would look for the last chunk of an earlier file,
                # past all that were removed
                return None
            for stored_key, value in self._meta.scan(start, end, is_reverse=True):
                record = ChunkRecord.unpack(value)
                if record.length:
                    key = ChunkKey(stored_key[1:])
                    return state_of(key, record, ledger.pendings.get(key))
        return None

    def _list(self, start: bytes, end: bytes, limit: int) -> list[ChunkState]:
        """Merge committed and pending versions with start <= chunk key < end."""
        with self._books as ledger:
            records: dict[ChunkKey, ChunkRecord] = {}
            for stored_key, value in self._meta.scan(CHUNK_PREFIX + start, CHUNK_PREFIX + end):
                records[ChunkKey(stored_key[1:])] = ChunkRecord.unpack(value)
                if len(records) >= limit:
                    break
            pendings = {k: p for k, p in ledger.pendings.items() if start <= k < end}
        keys = sorted({**records, **pendings})[:limit]
        states = (state_of(key, records.get(key), pendings.get(key)) for key in keys)
        return [state for state in states if state is not None]
