"""Whether a compiled kernel serves, or its twin."""

import os
from types import ModuleType
from typing import Final

IS_WANTED: Final = os.environ.get("EMBER_KERNELS") != "python"
"""The environment does not ask for the twins."""


def fits(module: ModuleType | None, interface: int) -> bool:
    """Return whether a compiled module (None: there is none) is of the source that its caller was written for.

    One that was built from an older checkout, and never since, must not be called with arguments that it does not know.
    """
    return module is not None and getattr(module, "INTERFACE", None) == interface
