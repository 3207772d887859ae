"""What a storage process does to the rows of many reads;
reads_twin.py says what each function promises.
"""

from typing import Final

from .choice import serves

__all__ = ["IS_COMPILED", "read_row", "read_rows", "row_checksums"]

INTERFACE: Final = 7
"""Counts the changes of what the compiled functions take and return;
the same number stands in reads.c.
"""

IS_COMPILED: Final = serves("_reads", INTERFACE)

if IS_COMPILED:
    from ._reads import read_row, read_rows, row_checksums
else:
    from .reads_twin import read_row, read_rows, row_checksums
