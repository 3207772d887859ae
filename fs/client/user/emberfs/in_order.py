"""Large reads by several calls at a time, handed over part by part in the order
in which they were asked for: `read_in_order`.

    with closing(read_in_order(client, transfers)) as parts:
        for part in parts:
            digest.update(part.buffer)  # while what lies behind it is on its way

Purpose: a call ends when its last byte is there, and the next one begins with none, so between two
calls of one thread the disk rests.  Two at a time get out of step and leave no such gap; and
whoever looks at the bytes does so while others come.

Invariants:
    - Transfers are taken one by one, in the caller's thread, when they are about to be read:
      what the caller makes for them is bounded by what is under way, some batches of
      BATCH_BYTES and one transfer more.
    - No read is under way any more when the iteration has ended, however it did; who leaves it
      early closes it (`contextlib.closing`).

What this module does not do: retry; know what the bytes should be.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from typing import Final, NamedTuple

from .apart import begin
from .batch import BatchClient, Transfer

BATCH_BYTES: Final = 16 << 20
"""Read by one call: as much as the stage of a ring holds.

Larger transfers are cut where their file has a multiple of it.
"""
AT_ONCE: Final = 2
"""Calls under way while the caller looks at what another one has read."""


class Part(NamedTuple):
    """Some bytes of a transfer, all those before them having been handed over."""

    buffer: memoryview
    """What was read: less than was asked for only at the end of the file."""
    is_last: bool
    """Of its transfer."""


def read_in_order(
    client: BatchClient, transfers: Iterable[Transfer]
) -> Generator[Part, None, None]:
    """Yield what is read, each transfer in one part or several.

    Args:
        client: any; its calls may come from several threads.
        transfers: their buffers are left alone until they have been yielded.

    Raises:
        OSError, TypeError, ValueError: as `BatchClient.read`, in place of the parts that were read
            by the same call; nothing is yielded after.
    """
    under_way: deque[tuple[list[_Cut], Future[list[int]]]] = deque()
    try:
        for batch in _batches(transfers):
            done: Future[list[int]] = Future()
            under_way.append((batch, done))
            begin(partial(client.read, [cut.transfer for cut in batch]), done)
            if len(under_way) > AT_ONCE:
                yield from _end_oldest(under_way)
        while under_way:
            yield from _end_oldest(under_way)
    finally:
        wait([read for _, read in under_way])


class _Cut(NamedTuple):
    """A part before it is read."""

    transfer: Transfer
    is_last: bool


def _end_oldest(under_way: "deque[tuple[list[_Cut], Future[list[int]]]]") -> Iterator[Part]:
    batch, read = under_way[0]
    wait([read])  # interrupted, it stays among those that are waited for
    del under_way[0]
    for cut, count in zip(batch, read.result(), strict=True):
        yield Part(cut.transfer.buffer[:count], cut.is_last)


def _batches(transfers: Iterable[Transfer]) -> Iterator[list[_Cut]]:
    """Yield what one call is to read, about BATCH_BYTES, up to a multiple of it in the file."""
    batch: list[_Cut] = []
    room = BATCH_BYTES
    for file, offset, buffer in transfers:
        start, end = 0, len(buffer)
        while start < end or not end:
            count = min(BATCH_BYTES - (offset + start) % BATCH_BYTES, end - start)
            part = Transfer(file, offset + start, buffer[start : start + count])
            start += count
            batch.append(_Cut(part, start == end))
            room -= count
            if room <= 0 or (offset + start) % BATCH_BYTES == 0:
                yield batch
                batch, room = [], BATCH_BYTES
            if not end:
                break
    if batch:
        yield batch
