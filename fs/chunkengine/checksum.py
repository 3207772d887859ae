"""Checksums of chunk content: xxh3-64 per checksum block, and one digest over them.  Pure.

Invariants:
    - The packed checksums depend on the content and the checksum block size alone, never on how the
      content was cut into buffers or in which steps it was written.
    - The digest covers the packed checksums and the length: equal digests mean equal content.
"""

from collections.abc import Sequence
from typing import Final

from xxhash import xxh3_64, xxh3_64_digest, xxh3_64_intdigest

from ..kernels.writes import block_checksums
from ..runtime.ports import Buffer

CHECKSUM_BYTES: Final = 8


def digest_of(checksums: bytes, length: int) -> int:
    """Return the digest of a version from its packed checksums and its length in bytes."""
    return xxh3_64_intdigest(checksums + length.to_bytes(8, "big"))


def packed_checksums(parts: Sequence[Buffer], block: int) -> bytes:
    """Return the checksums of the joined `parts`, cut every `block` bytes;
    the last may be shorter.
    """
    if len(parts) == 1:
        size = len(parts[0])
        if size <= block:
            return xxh3_64_digest(parts[0]) if size else b""
        return block_checksums(parts[0], block)
    packed: list[bytes] = []
    filled = 0
    state = xxh3_64()
    for part in parts:
        view = memoryview(part)
        at = 0
        while at < len(view):
            step = min(block - filled, len(view) - at)
            if step == block:
                whole = (len(view) - at) // block * block
                packed.append(block_checksums(view[at : at + whole], block))
                at += whole
                continue
            state.update(view[at : at + step])
            at += step
            filled += step
            if filled == block:
                packed.append(state.digest())
                state.reset()
                filled = 0
    if filled:
        packed.append(state.digest())
    return b"".join(packed)
