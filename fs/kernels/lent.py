"""Reading memory and files that another process of this machine has lent;
`lent_twin` says what each function promises.
"""

from typing import Final

from .choice import serves
from .lent_twin import NONCE_BYTES, PIECE, PIECE_COUNT_MAX, RANGE

__all__ = [
    "IS_COMPILED",
    "NONCE_BYTES",
    "PIECE",
    "PIECE_COUNT_MAX",
    "RANGE",
    "pieces_of",
    "read_files",
    "read_lent",
]

INTERFACE: Final = 2
"""Counts the changes of what the compiled functions take and return;
the same number stands in lent.c.
"""

IS_COMPILED: Final = serves("_lent", INTERFACE)

if IS_COMPILED:
    from ._lent import pieces_of, read_files, read_lent
else:
    from .lent_twin import pieces_of, read_files, read_lent
