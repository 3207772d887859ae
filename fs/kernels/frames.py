"""What every process does to the headers of frames;
frames_twin.py says what each function promises.
"""

from typing import Final

from .choice import serves

__all__ = ["IS_COMPILED", "make_header", "take_header"]

INTERFACE: Final = 1
"""Counts the changes of what the compiled functions take and return;
the same number stands in frames.c.
"""

IS_COMPILED: Final = serves("_frames", INTERFACE)

if IS_COMPILED:
    from ._frames import make_header, take_header
else:
    from .frames_twin import make_header, take_header
