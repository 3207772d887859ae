"""Whether a compiled kernel serves, or its twin."""

import os
from collections.abc import Callable
from types import ModuleType
from typing import Final

IS_WANTED: Final = os.environ.get("EMBER_KERNELS") != "python"
"""The environment does not ask for the twins."""


def serves(load: Callable[[], ModuleType], interface: int) -> bool:
    """Return whether the compiled module that `load` imports is wanted, there, and fits."""
    if not IS_WANTED:
        return False
    try:
        return fits(load(), interface)
    except ImportError:
        return False  # nothing to compile it with, or another machine's


def fits(module: ModuleType, interface: int) -> bool:
    """Return whether a compiled module is of the source that its caller was written for.

    One that was built from an older checkout, and never since, must not be called with arguments that it does not know.
    """
    return getattr(module, "INTERFACE", None) == interface
