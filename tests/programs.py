"""Programs that tests run if they are there:
those of the tests' own environment, and of the machine.
"""

import os
import shutil
import sys
from pathlib import Path


def found(name: str) -> str | None:
    """Return the path of a program; None if there is none."""
    own = Path(sys.executable).parent
    return shutil.which(name, path=f"{own}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
