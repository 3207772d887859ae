"""Reads of a batch that are all plain, done by rows: no object is made for each.

They are plain when all go into one mapped memory, between few files that may be read, and
are relaxed or not alike. Everything else is sorted out and done by
`fs.client.batchio.jobs`, which costs more for each.

Invariant: an entry passes here exactly if `sort_out` lets it through, with at least one byte.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from emberfs.protocol import LENGTH_MAX

from ...kernels.batches import COMPLETION, completions_of, kinds_of
from ...schema.layout import MAX_FILE_LENGTH_BYTES
from ..read_table import ReadTable
from ..vfs.batches import Batches, BatchIo
from .checks import READ, UNKNOWN_FLAGS, Share
from .jobs import RELAXED, result_of
from .memory import Memory

_KEY: Final = struct.Struct("<IIII")
"""File, memory, operation, flags: what rows of one kind have in common."""
_KEY_OFFSET: Final = 32
_KINDS_MAX: Final = 64
_RESULT: Final = struct.Struct("<q")
_RESULT_OFFSET: Final = COMPLETION.size - _RESULT.size


Others = Sequence[tuple[int, BatchIo]]
"""Some rows, by position, and what has become of them."""


class RowWork:
    """As `fs.client.batchio.jobs.Work`, of plain reads."""

    op = READ

    def __init__(self, table: ReadTable, handles: Mapping[bytes, int], *, is_relaxed: bool) -> None:
        self.table = table
        self.handles = handles
        self.is_relaxed = is_relaxed
        self.others: Others = ()
        """Rows of which more is to be said than that all is there."""

    async def do(self, batches: Batches) -> None:
        """Do them all."""
        self.others = await batches.read_table(self.table, self.handles, is_relaxed=self.is_relaxed)

    def results(self) -> bytes:
        """Return the completions of all."""
        packed = completions_of(self.table.entries)
        if not self.others:
            return packed
        changed = bytearray(packed)
        for position, io in self.others:
            key, _, _ = self.table.window(position)
            result = result_of(io, _KEY.unpack(key)[3])
            _RESULT.pack_into(changed, position * COMPLETION.size + _RESULT_OFFSET, result)
        return bytes(changed)

    def failures(self, error_number: int) -> bytes:
        """Return completions that say of all that they failed."""
        changed = bytearray(completions_of(self.table.entries))
        for place in range(_RESULT_OFFSET, len(changed), COMPLETION.size):
            _RESULT.pack_into(changed, place, -error_number)
        return bytes(changed)


def plain_reads(
    copied: bytes, files: Mapping[int, Share], memories: Mapping[int, Memory]
) -> RowWork | None:
    """Return the work that entries are, if all of them are plain reads;
    the window of memory is taken at once.

    Args:
        copied: a whole number of entries, at least one.
        files: the program's, by id.
        memories: the program's, by id.
    """
    _, memory_id, _, flags = _KEY.unpack_from(copied, _KEY_OFFSET)
    memory = memories.get(memory_id)
    if memory is None or not memory.mapped_bytes:
        return None
    keys = kinds_of(
        copied,
        memory_id,
        memory.size,
        memory.block_size,
        LENGTH_MAX,
        MAX_FILE_LENGTH_BYTES,
        _KINDS_MAX,
    )
    if keys is None:
        return None
    is_relaxed = bool(flags & RELAXED)
    handles: dict[bytes, int] = {}
    for key in keys:
        file_id, _, op, flags = _KEY.unpack(key)
        share = files.get(file_id)
        if op != READ or flags & UNKNOWN_FLAGS or bool(flags & RELAXED) != is_relaxed:
            return None
        if share is None or not share.can_read:
            return None
        handles[key] = share.handle_id
    table = ReadTable(copied, memory.window(0, memory.size))
    return RowWork(table, handles, is_relaxed=is_relaxed)
