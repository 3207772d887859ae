"""A process that checks are forked from: it is small, and so a fork of it takes little.

    python -m tests.posix

Each line of its input names a check and a directory; it answers what was noted, as a line.
"""

import json
import sys
from pathlib import Path

from . import acl, allocation, births, copies, data, handles, names, paths, rights  # noqa: F401 - they fill the table
from .calls import CHECKS, run_child

if __name__ == "__main__":
    for line in sys.stdin:
        name, directory = json.loads(line)
        print(json.dumps(run_child(CHECKS[name], Path(directory))), flush=True)
