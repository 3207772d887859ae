"""In which order an epoch visits its samples:
shuffled blocks, shared out evenly, from any position.

Purpose: loaders that shuffle well and read large neighbouring pieces, and resume at
exactly the next sample.  Samples are grouped into blocks of neighbours; the blocks are
shuffled; the samples of every `window` blocks in a row are shuffled among themselves.
Blocks of one sample are a perfect shuffle.

A permutation of n sorts 0 .. n-1 by 64-bit little-endian words of SHAKE-128 over a
label of seed, epoch and purpose, so that every machine, every version of Python and
every resumed run has the same one.

What this module does not do: read; count what has been consumed.
"""

import hashlib
import sys
from array import array
from collections.abc import Iterator


def permutation(count: int, label: str) -> list[int]:
    """Return 0 .. count-1 in the order that belongs to the label."""
    keys = array("Q")
    keys.frombytes(hashlib.shake_128(label.encode()).digest(8 * count))
    if sys.byteorder == "big":
        keys.byteswap()
    return sorted(range(count), key=keys.__getitem__)


def share(count: int, number: int, shares: int) -> tuple[int, int]:
    """Return begin and end of one share of `count` positions:
    all are equally long, up to shares-1 positions belong to none.

    Equal, so that all ranks do the same number of steps, and workers end at the same time.
    """
    each = count // shares
    return number * each, (number + 1) * each


def need_shares(count: int, number: int, shares: int) -> None:
    """Raise ValueError for a share that does not exist, or where each of them would be empty:
    a program that goes on until it has seen enough would never end.
    """
    if not 0 <= number < shares:
        raise ValueError(f"rank {number} of {shares}: ranks are 0 .. {shares - 1}")
    if 0 < count < shares:
        raise ValueError(
            f"{count} samples for {shares} ranks, or workers of all ranks together: "
            "an equal share of them is none"
        )


class EpochOrder:
    """The order of one epoch.

    Args:
        count: samples.
        block: neighbouring samples that stay together, >= 1.
        window: blocks whose samples are mixed, >= 1.
        seed: any number; None: no shuffling.
        epoch: >= 0.
    """

    def __init__(self, count: int, block: int, window: int, seed: int | None, epoch: int) -> None:
        if min(block, window) < 1:
            raise ValueError(f"block {block} and window {window} must be at least 1")
        self._count, self._block, self._window = count, block, window
        self._label = f"{seed}:{epoch}"
        self._is_shuffled = seed is not None
        blocks = -(-count // block)
        self._blocks = permutation(blocks, f"{self._label}:blocks") if self._is_shuffled else []
        self._gap = blocks * block - count  # by which the last block is shorter
        self._short_at = (
            self._blocks.index(blocks - 1) if self._gap and self._is_shuffled else blocks
        )

    def __len__(self) -> int:
        return self._count

    def between(self, begin: int, end: int) -> Iterator[int]:
        """Yield the samples at the positions begin .. end-1."""
        if not self._is_shuffled:
            yield from range(begin, min(end, self._count))
            return
        size = self._block * self._window
        number = begin // size
        while (at := self._begin_of(number)) < end and at < self._count:
            if self._begin_of(number + 1) > begin:
                yield from self._mixed(number)[max(begin - at, 0) : end - at]
            number += 1

    def _begin_of(self, number: int) -> int:
        """Return the position at which a window begins."""
        first = min(number * self._window, len(self._blocks))
        return first * self._block - (self._gap if first > self._short_at else 0)

    def _mixed(self, number: int) -> list[int]:
        blocks = self._blocks[number * self._window : (number + 1) * self._window]
        samples = [
            sample
            for block in blocks
            for sample in range(block * self._block, min((block + 1) * self._block, self._count))
        ]
        mixed = permutation(len(samples), f"{self._label}:{number}")
        return [samples[i] for i in mixed]
