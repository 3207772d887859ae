"""What a mount daemon does to the rows of a batch of reads; `fs.kernels.batches_twin` says what each function promises."""

from types import ModuleType
from typing import Final

from . import batches_twin
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
from .choice import IS_WANTED, fits

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
    "windows_of",
]

INTERFACE: Final = 2
"""Counts the changes of what the compiled functions take and return; the same number stands in batches.c."""

_compiled: ModuleType | None = None
if IS_WANTED:
    try:
        from . import _batches as _compiled
    except ImportError:
        _compiled = None  # nothing to compile it with, or another machine's

IS_COMPILED: Final = fits(_compiled, INTERFACE)

are_within = batches_twin.are_within
completions_of = batches_twin.completions_of
have_come = batches_twin.have_come
kinds_of = batches_twin.kinds_of
plan_reads = batches_twin.plan_reads
windows_of = batches_twin.windows_of
if IS_COMPILED:
    from . import _batches

    are_within = _batches.are_within
    completions_of = _batches.completions_of
    have_come = _batches.have_come
    kinds_of = _batches.kinds_of
    plan_reads = _batches.plan_reads
    windows_of = _batches.windows_of
