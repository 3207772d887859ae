"""Who reads which block: it is used again only after the last one has left.

Part of fs/chunkengine/ledger.py, which says when a block that nobody reads may be used again.

Concurrency: the caller holds the engine's lock in every method.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .format import ChunkRecord, Position


@dataclass(slots=True)
class _Readers:
    count: int
    length_max: int
    """Of the versions that they read."""


class BlockReaders:
    """Those of one disk."""

    def __init__(self, reuse: Callable[[Position], None]) -> None:
        """`reuse` is told of each block that was left to its readers when the last one leaves."""
        self._reuse = reuse
        self._readers: dict[Position, _Readers] = {}
        self._left: set[Position] = set()
        """Blocks that are free but for their readers."""

    def __len__(self) -> int:
        """Return how many blocks are read."""
        return len(self._readers)

    def pin(self, record: ChunkRecord) -> None:
        """Keep the block of a version from being reused while it is read."""
        readers = self._readers.get(record.position)
        if readers is None:
            self._readers[record.position] = _Readers(1, record.length)
        else:
            readers.count += 1
            readers.length_max = max(readers.length_max, record.length)

    def pin_all(self, records: Sequence[ChunkRecord]) -> None:
        """Pin several, all or none."""
        count = 0
        try:
            for record in records:
                self.pin(record)
                count += 1
        except BaseException:  # no memory
            for record in records:
                if not count:
                    break
                count -= 1
                self.unpin(record)
            raise

    def unpin(self, record: ChunkRecord) -> None:
        """End of `pin`."""
        position = record.position
        readers = self._readers[position]
        readers.count -= 1
        if readers.count == 0:
            del self._readers[position]
            if position in self._left:
                self._left.remove(position)
                self._reuse(position)

    def unpin_all(self, records: Iterable[ChunkRecord]) -> None:
        """End of `pin_all`: of all, also where memory is short for some of them."""
        left, failure = iter(records), None
        while True:
            try:
                for record in left:
                    self.unpin(record)
                break
            except MemoryError as error:
                # The block of that one is not used again until the disk is opened anew.
                failure = error
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame

    def leave(self, position: Position) -> None:
        """Have a block used again that nothing names any more:
        now, or when its last reader leaves.
        """
        if position in self._readers:
            self._left.add(position)
        else:
            self._reuse(position)

    def may_look_beyond(self, record: ChunkRecord) -> bool:
        """Return whether somebody reads a longer version in the block of this one."""
        readers = self._readers.get(record.position)
        return readers is not None and readers.length_max > record.length
