"""How blocks of a `KVCache` reach the segment that this process fills.

Invariants:
    - Blocks and their entries are one batch.  Who finds an entry before its block has arrived, or
      after the writer has died in between, finds a checksum that does not fit: a miss.
    - What failed is not known here, nor looked for: its slots count as deleted, and
      the segment is filled no further.

What this module does not do: say which blocks, and where (`kvcache`, `Segments.reserve`).
"""

from collections.abc import Sequence
from typing import Final

from .batch import BatchClient, Transfer
from .kvcache_format import DELETED, Entry, block_checksum, pack_entry
from .kvcache_segments import Reserved, Segments
from .rows import new_buffer

_CHUNK_BYTES: Final = 1 << 20
"""Of a file by default.  Two writes of one call to one chunk are made one after the other."""
_PIECE_BYTES: Final = 4 << 20
"""Blocks that share chunks are copied together, up to each multiple of this in the file."""


def write_blocks(
    segments: Segments,
    reserved: Reserved,
    blocks: Sequence[tuple[bytes, memoryview]],
    now_ms: int,
) -> None:
    """Write blocks, each with the digest of its key, to the slots that were reserved for them.

    Raises:
        OSError: some may have been written; whoever does not find them puts them again.
    """
    own, first = reserved.own, reserved.first
    header = own.segment.header
    known = [DELETED] * len(blocks)
    try:
        entries = [Entry(digest, block_checksum(block), now_ms) for digest, block in blocks]
        packed = bytearray().join(
            pack_entry(header.id, slot, entry) for slot, entry in enumerate(entries, first)
        )
        transfers = []
        offset = header.geometry.block_offset(first)
        for piece in _gathered(segments.client, [block for _, block in blocks], offset):
            transfers.append(Transfer(own.writer.file, offset, piece))
            offset += piece.nbytes
        offset = header.geometry.entry_offset(first)
        transfers.append(Transfer(own.writer.file, offset, memoryview(packed)))
        segments.client.write(transfers)
        known = entries
    finally:
        segments.end_write(reserved, known)


def _gathered(
    client: BatchClient, blocks: Sequence[memoryview], offset: int
) -> Sequence[memoryview]:
    """Return the bytes of neighbouring slots, the first of which begins at `offset`,
    in pieces of which hardly any two are for one chunk.

    A change of a chunk costs as much as copying megabytes, so blocks that do not fill chunks are
    copied together.
    """
    block_bytes = blocks[0].nbytes
    if len(blocks) == 1 or block_bytes % _CHUNK_BYTES == 0:
        return blocks
    pieces: list[memoryview] = []
    end = offset + len(blocks) * block_bytes
    left = memoryview(b"")
    for block in blocks:
        done = 0
        while done < block_bytes:
            if not left:
                left = new_buffer(client, min(_PIECE_BYTES - offset % _PIECE_BYTES, end - offset))
                pieces.append(left)
            count = min(len(left), block_bytes - done)
            left[:count] = block[done : done + count]
            left = left[count:]
            done += count
            offset += count
    return pieces
