"""What a mount daemon does to the rows of a batch of reads;
`fs.kernels.batches_twin` says what each function promises.
"""

from typing import Final

from .batches_twin import (
    CHAIN_NODES,
    COMPLETION,
    ENTRY,
    FILE_END,
    FILE_LAYOUT,
    REPLICAS_MAX,
    ROW,
    SLOT,
    Request,
)
from .choice import serves

__all__ = [
    "CHAIN_NODES",
    "COMPLETION",
    "ENTRY",
    "FILE_END",
    "FILE_LAYOUT",
    "IS_COMPILED",
    "REPLICAS_MAX",
    "ROW",
    "SLOT",
    "Request",
    "are_within",
    "completions_of",
    "have_come",
    "kinds_of",
    "plan_reads",
    "put_reply",
    "windows_of",
]

INTERFACE: Final = 4
"""Counts the changes of what the compiled functions take and return;
the same number stands in batches.c.
"""

IS_COMPILED: Final = serves("_batches", INTERFACE)

if IS_COMPILED:
    from ._batches import (
        are_within,
        completions_of,
        have_come,
        kinds_of,
        plan_reads,
        put_reply,
        windows_of,
    )
else:
    from .batches_twin import (
        are_within,
        completions_of,
        have_come,
        kinds_of,
        plan_reads,
        put_reply,
        windows_of,
    )
