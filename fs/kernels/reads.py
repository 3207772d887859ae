"""What a storage process does to the rows of many reads; reads_twin.py says what each function promises."""

from types import ModuleType
from typing import Final

from .choice import serves

__all__ = ["IS_COMPILED", "read_rows", "row_checksums"]

INTERFACE: Final = 6
"""Counts the changes of what the compiled functions take and return; the same number stands in reads.c."""


def _load() -> ModuleType:
    from . import _reads  # noqa: PLC0415 - only where it is wanted and whole

    return _reads


IS_COMPILED: Final = serves("_reads", _load, INTERFACE)

if IS_COMPILED:
    from ._reads import read_rows, row_checksums
else:
    from .reads_twin import read_rows, row_checksums
