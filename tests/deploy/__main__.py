"""`python -m tests.deploy [FOLDER]`: the life of a cluster on five hosts, by hand."""

import sys
import tempfile
import time
from pathlib import Path

from .hosts import Hosts, trouble
from .stages import Life, long_life


def main() -> None:
    if problem := trouble():
        sys.exit(problem)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="embertest-", dir=sys.argv[1] if sys.argv[1:] else None
    ) as folder:
        hosts = Hosts(Path(folder))
        life = Life(hosts)
        try:
            long_life(life)
        finally:
            life.close()
            hosts.close()
    print(f"all stages in {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
