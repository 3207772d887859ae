"""Runs a storage process that tries a failed disk again soon:
`python -m tests.torture.sooner MODULE CONFIG`, for short forms.

EMBER_TORTURE_RECHECK_S says how soon; unset: as the product does.  Nothing else is changed.
"""

import importlib
import os
import sys
from typing import Final

from fs.app.process.compose import main
from fs.storage import failed_disks

MODULE: Final = "tests.torture.sooner"
VARIABLE: Final = "EMBER_TORTURE_RECHECK_S"

if __name__ == "__main__":
    if VARIABLE in os.environ:
        failed_disks.RECHECK_PAUSE_S_MIN = float(os.environ[VARIABLE])  # type: ignore[misc]
    module = importlib.import_module(sys.argv.pop(1))
    main(module.run)
