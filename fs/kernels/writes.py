"""What a storage process does to the bytes of new versions; writes_twin.py says what each function promises."""

from types import ModuleType
from typing import Final

from .choice import serves

__all__ = ["IS_COMPILED", "block_checksums", "write_rows"]

INTERFACE: Final = 1
"""Counts the changes of what the compiled functions take and return; the same number stands in writes.c."""


def _load() -> ModuleType:
    from . import _writes  # noqa: PLC0415 - only where it is wanted and whole

    return _writes


IS_COMPILED: Final = serves("_writes", _load, INTERFACE)

if IS_COMPILED:
    from ._writes import block_checksums, write_rows
else:
    from .writes_twin import block_checksums, write_rows
