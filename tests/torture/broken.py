"""Runs a storage process that is broken on purpose:
`python -m tests.torture.broken MODULE CONFIG`, for negative controls.

EMBER_TORTURE_MUTANT names what is broken: one of tests/sim/mutants.py.
"""

import importlib
import os
import sys

from fs.app.process.compose import main
from tests.sim.mutants import MUTANTS

if __name__ == "__main__":
    MUTANTS[os.environ["EMBER_TORTURE_MUTANT"]]()
    module = importlib.import_module(sys.argv.pop(1))
    main(module.run)
