"""What every process does to the headers of frames; frames_twin.py says what each function promises."""

from types import ModuleType
from typing import Final

from .choice import serves

__all__ = ["IS_COMPILED", "make_header", "take_header"]

INTERFACE: Final = 1
"""Counts the changes of what the compiled functions take and return; the same number stands in frames.c."""


def _load() -> ModuleType:
    from . import _frames  # noqa: PLC0415 - only where it is wanted and whole

    return _frames


IS_COMPILED: Final = serves("_frames", _load, INTERFACE)

if IS_COMPILED:
    from ._frames import make_header, take_header
else:
    from .frames_twin import make_header, take_header
