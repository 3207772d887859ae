"""Having a disk read several places at once; direct_twin.py says what the function promises."""

from typing import Final

from .choice import serves

__all__ = ["IS_COMPILED", "read_places"]

INTERFACE: Final = 1
"""Counts the changes of what the compiled function takes and returns; the same number stands in direct.c."""

IS_COMPILED: Final = serves("_direct", INTERFACE)

if IS_COMPILED:
    from ._direct import read_places
else:
    from .direct_twin import read_places
