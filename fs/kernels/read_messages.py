"""Messages about reads, between bytes as they go over the wire and columns;
read_messages_twin.py says what each function promises.
"""

from typing import Final

from .choice import serves

__all__ = ["IS_COMPILED", "chunk_keys", "one_reply", "one_row", "rows_reply", "take_rows"]

INTERFACE: Final = 2
"""Counts the changes of what the compiled functions take and return;
the same number stands in read_messages.c.
"""

IS_COMPILED: Final = serves("_read_messages", INTERFACE)

if IS_COMPILED:
    from ._read_messages import chunk_keys, one_reply, one_row, rows_reply, take_rows
else:
    from .read_messages_twin import chunk_keys, one_reply, one_row, rows_reply, take_rows
