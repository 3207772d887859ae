"""Versions whose bytes are bad or missing:
marked, found to be good again, put without their bytes, and repaired.

A marked version is never served; everything else of it is known, and undo
records carry the mark like the rest.

Concurrency: thread-safe; the caller serialises the updates of one chunk.
"""

from msgspec.structs import replace

from ..runtime.ports import Buffer
from .api import ChunkState
from .books import Books
from .checksum import digest_of, packed_checksums
from .format import NO_POSITION, ChunkKey, ChunkRecord, target_of_key
from .verified import VerifiedReader
from .version_writer import Sync, VersionWriter
from .versions import check_version, known_state


class Damage:
    """That of one disk."""

    def __init__(
        self,
        books: Books,
        reader: VerifiedReader,
        writer: VersionWriter,
        *,
        block: int,
        sync: Sync,
    ) -> None:
        """`block`: bytes of a checksum block; `sync` flushes the disk,
        to free blocks when it is full.
        """
        self._books = books
        self._reader = reader
        self._writer = writer
        self._block = block
        self._sync = sync

    def mark(self, key: ChunkKey, version: int) -> bool:
        """See `ChunkEngine.mark_damaged`."""
        with self._books as ledger:
            old = ledger.record(key)
            if old is None or not old.length or (version and old.version != version):
                return False
            if not old.is_damaged:
                ledger.change(key, replace(old, is_damaged=True), ledger.pendings.get(key))
        return True

    def end(self, key: ChunkKey, version: int) -> bool:
        """See `ChunkEngine.end_damage`."""
        with self._books as ledger:
            old = ledger.record(key)
            if old is None or old.version != version or old.position == NO_POSITION:
                return False
            ledger.readers.pin(old)
        try:
            whole = replace(old, is_damaged=False)
            if not self._reader.can_be_read(whole):
                return False
        finally:
            with self._books.lock:
                self._books.ledger.readers.unpin(old)
        with self._books as ledger:
            if ledger.record(key) != old:
                return False
            if old.is_damaged:
                ledger.change(key, whole, ledger.pendings.get(key))
        return True

    def put(self, key: ChunkKey, lost: ChunkRecord) -> ChunkState:
        """Make a version without its bytes the committed one; see `ChunkEngine.put_damaged`."""
        with self._books as ledger:
            ledger.check_target(target_of_key(key))
            old = ledger.record(key)
            check_version(key, old, lost.version, is_any=True)
            if old is not None and _is_same(old, lost):
                lost = replace(old, chain_version=lost.chain_version)
            ledger.change(key, lost, None)
            return known_state(key, lost, None)

    def repair(self, key: ChunkKey, version: int, data: Buffer) -> bool:
        """See `ChunkEngine.repair`."""
        with self._books as ledger:
            old = ledger.record(key)
            if old is None or old.version != version or key in ledger.pendings:
                return False
        checksums = packed_checksums([data], self._block)
        if len(data) != old.length or digest_of(checksums, old.length) != old.digest:
            return False
        position = self._writer.write_new(key, [data], old.length, is_create=False, sync=self._sync)
        is_changing = False
        try:
            whole = replace(old, position=position, checksums=checksums, is_damaged=False)
            with self._books as ledger:
                is_changing = True
                ledger.change(key, whole, None, has_written=True)
        except BaseException:
            if not is_changing:
                self._writer.free(position)
            raise
        return True


def _is_same(old: ChunkRecord, lost: ChunkRecord) -> bool:
    """Return whether what is here is that very version, and may have its bytes."""
    return (old.version, old.length, old.digest) == (lost.version, lost.length, lost.digest)
