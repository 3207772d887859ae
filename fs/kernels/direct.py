"""Having a disk read several places at once; direct_twin.py says what the functions promise."""

from typing import Final

from .choice import serves

__all__ = ["IS_COMPILED", "new_line", "read_places"]

INTERFACE: Final = 2
"""Counts the changes of what the compiled functions take and return;
the same number stands in direct.c.
"""

IS_COMPILED: Final = serves("_direct", INTERFACE)

if IS_COMPILED:
    from ._direct import new_line, read_places
else:
    from .direct_twin import new_line, read_places
