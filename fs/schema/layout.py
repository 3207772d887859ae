"""Which chunk, on which chain, holds which bytes of a file: pure arithmetic.

Used by client, meta and checks alike; they must agree to the byte, for ever, so the
shuffle below is a specified algorithm with test vectors
(specs/decisions/0003-layout-shuffle.md), never a library's.

Invariants:
    - The extents of a range tile it exactly: no gap, no overlap, file order.
    - Chunk i of a file lies on stripe slot `i mod stripe_size`; the slots are a permutation of
      `stripe_size` consecutive chains of the chain table.

Source: deepseek-ai/3FS design notes, "File metadata" and "Chunk allocation"; the shuffle is ours.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from .ids import ChainTableId, InodeId
from .proto import common_pb2 as pb
from .status import FsError, Status
from .values import value

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
CHUNK_SIZE_BYTES_MIN: Final = 64 * KIB
CHUNK_SIZE_BYTES_MAX: Final = 64 * MIB
STRIPE_SIZE_MAX: Final = 1024
CHUNK_COUNT_MAX: Final = 2**32
"""Of a file: an index of a chunk has 32 bits."""
MAX_FILE_LENGTH_BYTES: Final = 2**46
"""64 TiB."""
assert MAX_FILE_LENGTH_BYTES // CHUNK_SIZE_BYTES_MIN <= CHUNK_COUNT_MAX

_MASK64: Final = 2**64 - 1


@value(frozen=True, slots=True)
class Layout:
    """How one file (or, as default, the files of one directory) is cut and spread."""

    table_id: ChainTableId
    table_version: int
    chunk_size_bytes: int
    stripe_size: int
    first_chain_index: int
    shuffle_seed: int

    def check(self) -> None:
        """Raise FsError(INVALID_ARGUMENT) unless every field is in its range."""
        size = self.chunk_size_bytes
        if not CHUNK_SIZE_BYTES_MIN <= size <= CHUNK_SIZE_BYTES_MAX or size & (size - 1):
            raise FsError(
                Status.INVALID_ARGUMENT, f"chunk size {size}: a power of two, 64 KiB to 64 MiB"
            )
        if not 1 <= self.stripe_size <= STRIPE_SIZE_MAX:
            raise FsError(
                Status.INVALID_ARGUMENT, f"stripe size {self.stripe_size}: 1 to {STRIPE_SIZE_MAX}"
            )


@value(frozen=True, slots=True)
class FileRef:
    """What is needed to find the chunks of a file."""

    inode_id: InodeId
    layout: Layout
    dyn_stripe: int
    """Stripe slots 0..dyn_stripe-1 may hold chunks; at least 1."""
    finished_cut: int = 0
    """The newest truncation of the file that is known to be over, by its `truncate_ver`;
    writes tell it to storage.
    """
    truncate_ver: int = 0
    """Of the file when its reader learnt its length:
    only as long as there is no later one, what is not there is a hole.
    """


@value(frozen=True, slots=True)
class Extent:
    """A byte range within one chunk."""

    chunk_index: int
    offset: int
    """Bytes from the start of the chunk."""
    length: int
    file_offset: int
    """Bytes from the start of the file."""


def extents(chunk_size_bytes: int, offset: int, length: int) -> Iterator[Extent]:
    """Split a byte range of a file into per-chunk extents, in file order.

    Args:
        chunk_size_bytes: a power of two.
        offset: bytes from the start of the file, >= 0; need not be aligned.
        length: bytes, >= 0.

    Yields:
        Extents that tile [offset, offset + length) exactly.

    Raises:
        FsError: FILE_TOO_LARGE if the range ends beyond MAX_FILE_LENGTH_BYTES.
    """
    assert offset >= 0 and length >= 0, (offset, length)
    end = offset + length
    if end > MAX_FILE_LENGTH_BYTES:
        raise FsError(Status.FILE_TOO_LARGE, f"byte {end} is beyond {MAX_FILE_LENGTH_BYTES}")
    while offset < end:
        index, in_chunk = divmod(offset, chunk_size_bytes)
        step = min(chunk_size_bytes - in_chunk, end - offset)
        yield Extent(index, in_chunk, step, offset)
        offset += step


def chunk_count(chunk_size_bytes: int, length: int) -> int:
    """Return how many chunks a file of `length` bytes has at the most."""
    return -(-length // chunk_size_bytes)


def _splitmix64(state: int) -> tuple[int, int]:
    """One step of SplitMix64 (Steele, Lea, Flood 2014): return (next state, 64-bit output)."""
    state = (state + 0x9E3779B97F4A7C15) & _MASK64
    mixed = state
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK64
    return state, mixed ^ (mixed >> 31)


@lru_cache(maxsize=4096)
def stripe_order(stripe_size: int, shuffle_seed: int) -> tuple[int, ...]:
    """Return the permutation of 0..stripe_size-1 that belongs to a seed.

    Fisher-Yates from the top; the swap partner of slot i is the high part of output * (i + 1), so
    that no division bias depends on the platform.
    """
    order = list(range(stripe_size))
    state = shuffle_seed & _MASK64
    for i in range(stripe_size - 1, 0, -1):
        state, output = _splitmix64(state)
        j = (output * (i + 1)) >> 64
        order[i], order[j] = order[j], order[i]
    return tuple(order)


def stripe_slot_to_table_index(layout: Layout, slot: int, table_length: int) -> int:
    """Return the index into the chain table of a stripe slot, 0 <= slot < stripe_size."""
    assert table_length > 0
    shuffled = stripe_order(layout.stripe_size, layout.shuffle_seed)[slot]
    return (layout.first_chain_index + shuffled) % table_length


def chain_of_chunk(layout: Layout, chunk_index: int, chain_ids: Sequence[int]) -> int:
    """Return the chain that holds chunk `chunk_index`; `chain_ids` is the layout's chain table."""
    slot = chunk_index % layout.stripe_size
    return chain_ids[stripe_slot_to_table_index(layout, slot, len(chain_ids))]


def chains_in_use(layout: Layout, dyn_stripe: int, chain_ids: Sequence[int]) -> list[int]:
    """Return the distinct chains of the first `dyn_stripe` stripe slots, in slot order."""
    slots = range(min(max(dyn_stripe, 1), layout.stripe_size))
    found = (chain_ids[stripe_slot_to_table_index(layout, s, len(chain_ids))] for s in slots)
    return list(dict.fromkeys(found))


def layout_to_pb(layout: Layout) -> pb.LayoutPb:
    """Return the wire and record form."""
    return pb.LayoutPb(
        table_id=layout.table_id,
        table_version=layout.table_version,
        chunk_size_bytes=layout.chunk_size_bytes,
        stripe_size=layout.stripe_size,
        first_chain_index=layout.first_chain_index,
        shuffle_seed=layout.shuffle_seed,
    )


def layout_from_pb(message: pb.LayoutPb) -> Layout:
    """Inverse of `layout_to_pb`."""
    return Layout(
        ChainTableId(message.table_id),
        message.table_version,
        message.chunk_size_bytes,
        message.stripe_size,
        message.first_chain_index,
        message.shuffle_seed,
    )
