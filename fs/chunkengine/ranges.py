"""Updates that put bytes at several places of a chunk: one new version, one copy of the old one.

Pure.

A range is (offset, length), bytes from the start of the chunk; `data` of such an update holds the
bytes of all of them, one after the other.  The new version is the old content with each range's
bytes put in their place, gaps behind the old end zero-filled.  It is always made in a block of its
own: whoever changes a chunk in many places keeps some of what is between them.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ..runtime.ports import Buffer
from .checksum import CHECKSUM_BYTES, packed_checksums
from .content import UpdatePlan, zeros

RANGE_COUNT_MAX: Final = 1024
"""Of one update."""

Range = tuple[int, int]


def fault_of(ranges: Sequence[Range], byte_count: int, size: int) -> str:
    """Return what is wrong with ranges that are to hold `byte_count` bytes,
    of a chunk of at most `size`; "" if nothing is.

    They are in order, not empty and not over each other; one may begin where another ends.
    """
    if not 0 < len(ranges) <= RANGE_COUNT_MAX:
        return f"{len(ranges)} ranges"
    end = total = 0
    for offset, length in ranges:
        if offset < end or length <= 0:
            return f"range {offset} + {length} behind {end}"
        end = offset + length
        total += length
    if end > size:
        return f"ranges up to {end} of {size}"
    return f"{byte_count} bytes for {total}" if total != byte_count else ""


def plan_ranges(old_length: int, ranges: Sequence[Range], block: int) -> UpdatePlan:
    """Return the plan of an update of a version of `old_length` bytes:
    read all of it, write all of the new one.
    """
    data_end = sum(ranges[-1])
    return UpdatePlan(
        old_length,
        max(old_length, data_end),
        ranges[0][0],
        data_end,
        is_in_place=False,
        block=block,
        head_from=0,
        head_to=old_length,
        tail_from=old_length,
    )


def ranged_content(
    plan: UpdatePlan,
    ranges: Sequence[Range],
    *,
    old_checksums: bytes,
    old: memoryview,
    data: Buffer,
) -> tuple[list[Buffer], bytes]:
    """Return (buffers to write one after the other, packed checksums of the new version).

    Args:
        plan: of the update, by `plan_ranges`.
        ranges: without `fault_of`.
        old_checksums: of the old version.
        old: the whole old version, verified, in writable memory of the caller's; is
            changed, and a part of the result.
        data: the bytes of the ranges; kept by reference in the result, as far as they
            lie behind the old version.
    """
    view, behind = memoryview(data), list[Buffer]()
    at, end = 0, plan.old_length
    for offset, length in ranges:
        inside = max(0, min(length, plan.old_length - offset))
        if inside:
            old[offset : offset + inside] = view[at : at + inside]
        if inside < length:
            start = offset + inside
            behind += [*zeros(start - end), view[at + inside : at + length]]
            end = offset + length
        at += length
    parts: list[Buffer] = [old] if len(old) else []
    return [*parts, *behind], _checksums(plan, ranges, old_checksums, old, behind)


def _checksums(
    plan: UpdatePlan,
    ranges: Sequence[Range],
    old_checksums: bytes,
    old: memoryview,
    behind: Sequence[Buffer],
) -> bytes:
    """Return the checksums of a new version: old ones, where nothing has changed."""
    block, length = plan.block, plan.old_length
    last = length // block if behind else -(-length // block)
    packed: list[bytes] = []
    done = 0
    for first, past in _blocks(ranges, block):
        if first >= last:
            break
        end = min(past, last)
        packed.append(old_checksums[done * CHECKSUM_BYTES : first * CHECKSUM_BYTES])
        packed.append(packed_checksums([old[first * block : end * block]], block))
        done = end
    packed.append(old_checksums[done * CHECKSUM_BYTES : last * CHECKSUM_BYTES])
    if behind:
        rest = old[last * block :]
        packed.append(packed_checksums([rest, *behind] if len(rest) else behind, block))
    return b"".join(packed)


def _blocks(ranges: Sequence[Range], block: int) -> Iterator[Range]:
    """Yield the checksum blocks that ranges touch, as runs first..end, in order and apart."""
    first = end = 0
    for offset, length in ranges:
        low, high = offset // block, -(-(offset + length) // block)
        if low > end:
            if end > first:
                yield first, end
            first = low
        end = high
    yield first, end
