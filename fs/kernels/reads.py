"""What a storage process does to the rows of many reads; reads_twin.py says what each function promises."""

from types import ModuleType
from typing import Final

from . import reads_twin
from .choice import IS_WANTED, fits

INTERFACE: Final = 4
"""Counts the changes of what the compiled functions take and return; the same number stands in reads.c."""

_compiled: ModuleType | None = None
if IS_WANTED:
    try:
        from . import _reads as _compiled
    except ImportError:
        _compiled = None  # nothing to compile it with, or another machine's

IS_COMPILED: Final = fits(_compiled, INTERFACE)

row_checksums = reads_twin.row_checksums
distinct_pairs = reads_twin.distinct_pairs
chunk_keys = reads_twin.chunk_keys
read_rows = reads_twin.read_rows
one_row = reads_twin.one_row
one_reply = reads_twin.one_reply
if IS_COMPILED:
    from . import _reads

    row_checksums = _reads.row_checksums
    distinct_pairs = _reads.distinct_pairs
    chunk_keys = _reads.chunk_keys
    read_rows = _reads.read_rows
    one_row = _reads.one_row
    one_reply = _reads.one_reply
