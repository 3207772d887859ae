"""What an update reads, writes and checksums: arithmetic over one chunk.  Pure.

A new version is the old content with data put at an offset, gaps zero-filled.  It is
written either in place behind the old bytes (append that fits the block) or copied to
another block.  Either way each new byte is written once, only checksum blocks that are
changed in part are read back for checksumming, and what is read or copied is always whole
checksum blocks, so that it can be verified.

Invariants:
    - In place, no byte below the old length is written.
    - Bytes that the data covers are never read; a full replace reads nothing.
"""

from dataclasses import dataclass
from typing import Final

from ..runtime.ports import Buffer
from .checksum import CHECKSUM_BYTES, packed_checksums

_ZEROS: Final = memoryview(bytes(1 << 20))


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """One update, in bytes of the chunk."""

    old_length: int
    new_length: int
    offset: int
    data_end: int
    is_in_place: bool
    block: int
    """Checksum block size."""
    head_from: int
    head_to: int
    """Old bytes to read at the front; empty if head_to <= head_from."""
    tail_from: int
    """Old bytes to read from here to the old length; old_length if none."""

    @property
    def kept(self) -> int:
        """Old bytes in front of the data."""
        return min(self.offset, self.old_length)


def plan_update(
    old_length: int, capacity: int, offset: int, data_length: int, block: int, *, may_append: bool
) -> UpdatePlan:
    """Decide how to put `data_length` bytes at `offset` of a chunk of `old_length` bytes.

    Args:
        old_length: of the committed version, 0 for none.
        capacity: bytes of its block, 0 for none.
        offset: bytes from the start of the chunk; may lie behind the old length.
        data_length: bytes.
        block: checksum block size.
        may_append: False forbids writing into the old block.
    """
    data_end = offset + data_length
    new_length = max(old_length, data_end)
    is_in_place = may_append and offset >= old_length and new_length <= capacity
    kept = min(offset, old_length)
    head_to = min(_up(kept, block), old_length)
    tail_from = min(data_end // block * block, old_length) if data_end < old_length else old_length
    if not is_in_place and tail_from < head_to:
        head_to, tail_from = old_length, old_length
    head_from = kept // block * block if is_in_place else 0
    return UpdatePlan(
        old_length,
        new_length,
        offset,
        data_end,
        is_in_place,
        block,
        head_from,
        head_to,
        tail_from,
    )


def new_content(
    plan: UpdatePlan, old_checksums: bytes, head: memoryview, tail: memoryview, data: Buffer
) -> tuple[list[Buffer], bytes]:
    """Return (buffers to write one after the other, packed checksums of the new version).

    The buffers go to `plan.old_length` of the old block in place, else to the start of the new one.

    Args:
        plan: the update.
        old_checksums: of the old version.
        head: the old bytes head_from..head_to, verified.
        tail: the old bytes tail_from..old_length, verified; empty when all is in `head`.
        data: the new bytes; kept by reference in the result.
    """
    block, kept = plan.block, plan.kept
    changed_from = kept // block * block
    changed_to = min(_up(plan.data_end, block), plan.new_length)
    if plan.data_end >= plan.old_length:
        changed_to = plan.new_length
        behind: memoryview = tail[:0]
    elif len(tail):
        behind = tail[plan.data_end - plan.tail_from :]
    else:
        behind = head[plan.data_end :]
    middle = zeros(plan.offset - kept)
    if len(data):
        middle.append(data)
    first = head[changed_from - plan.head_from : kept - plan.head_from]
    last = behind[: max(0, changed_to - plan.data_end)]
    checksums = (
        old_checksums[: changed_from // block * CHECKSUM_BYTES]
        + packed_checksums(_filled([first, *middle, last]), block)
        + old_checksums[-(-changed_to // block) * CHECKSUM_BYTES :]
    )
    if plan.is_in_place:
        return middle, checksums
    return _filled([head[:kept], *middle, behind]), checksums


def cut_content(
    head: memoryview, old_checksums: bytes, length: int, block: int
) -> tuple[list[Buffer], bytes]:
    """Return the same for a version cut to `length`;
    `head` holds whole checksum blocks up to there.
    """
    whole = length // block
    checksums = old_checksums[: whole * CHECKSUM_BYTES]
    if length % block:
        checksums += packed_checksums([head[whole * block : length]], block)
    return _filled([head[:length]]), checksums


def _filled(parts: list[Buffer]) -> list[Buffer]:
    return [part for part in parts if len(part)]


def zeros(length: int) -> list[Buffer]:
    """Return so many zeros, in buffers that are not to be changed; none if it is not positive."""
    parts: list[Buffer] = []
    while length > 0:
        parts.append(_ZEROS[:length])
        length -= len(_ZEROS)
    return parts


def _up(value: int, block: int) -> int:
    return -(-value // block) * block
