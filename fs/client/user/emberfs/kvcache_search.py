"""One look for the blocks of many keys of a `KVCache`:
what is wanted where, what was found, and which copies were bad.
"""

from collections.abc import Sequence

from .batch import Transfer
from .kvcache_format import block_checksum
from .kvcache_index import Place
from .kvcache_segments import Segment, Segments, release_all


class Search:
    """Of one thread; `found` says by position what the buffers have."""

    def __init__(self, digests: Sequence[bytes], buffers: Sequence[memoryview]) -> None:
        """Begin with nothing found.

        Args:
            digests: of keys.
            buffers: the caller's, for each digest one of the length of a block.

        Raises:
            ValueError: not as many of both.
        """
        if len(digests) != len(buffers):
            raise ValueError(f"{len(digests)} keys, {len(buffers)} buffers")
        self.digests = digests
        self.buffers = buffers
        self.found = [False] * len(digests)
        self.used: dict[str, Segment] = {}
        """Segments that blocks were found in, by name."""
        self.damaged_count = 0
        """Copies that were bad, of all rounds."""

    def read_round(self, segments: Segments, after_ms: int) -> int:
        """Read, in one batch, what is missing and known to lie somewhere,
        put after `after_ms` (since 1970).

        Returns:
            How many blocks were bad: those copies are doubted, so that
            another round tries others.

        Raises:
            OSError: a segment that is there cannot be read.
        """
        with segments.lock:
            looked = [
                (i, segments.index.find(self.digests[i], after_ms))
                for i, is_found in enumerate(self.found)
                if not is_found
            ]
            places = [(i, place) for i, place in looked if place is not None]
            held = segments.hold(place for _, place in places)
        try:
            transfers = [
                Transfer(
                    segment.reader.file,
                    segment.header.geometry.block_offset(place.slot),
                    self.buffers[i],
                )
                for (i, place), segment in zip(places, held, strict=True)
            ]
            counts = segments.read(transfers)
        finally:
            release_all(segment.reader for segment in held)
        good: list[Place] = []
        bad: list[Place] = []
        for (i, place), count, segment in zip(places, counts, held, strict=True):
            buffer = self.buffers[i]
            if count == buffer.nbytes and block_checksum(buffer) == place.checksum:
                self.found[i] = True
                self.used[segment.name] = segment
                good.append(place)
            else:
                bad.append(place)
        with segments.lock:
            for place in bad:
                segments.index.doubt(place.segment, place.slot)
            segments.index.trust(good)
        self.damaged_count += len(bad)
        return len(bad)
