"""What a storage process does to the bytes of new versions;
writes_twin.py says what each function promises.
"""

from typing import Final

from .choice import serves

__all__ = ["IS_COMPILED", "block_checksums", "write_rows"]

INTERFACE: Final = 1
"""Counts the changes of what the compiled functions take and return;
the same number stands in writes.c.
"""

IS_COMPILED: Final = serves("_writes", INTERFACE)

if IS_COMPILED:
    from ._writes import block_checksums, write_rows
else:
    from .writes_twin import block_checksums, write_rows
