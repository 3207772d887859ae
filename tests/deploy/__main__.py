"""`python -m tests.deploy [--from CHECKOUT] [STAGE ...]`: the life of a cluster on five hosts, by hand."""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from .hosts import Hosts, copy_code, trouble
from .stages import STAGES, Life


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--from", dest="source", type=Path, help="a checkout to begin with")
    parser.add_argument("stages", nargs="*", choices=[*STAGES, []], metavar="STAGE")
    given = parser.parse_args()
    source, wanted = given.source, given.stages or [*STAGES]
    if problem := trouble():
        sys.exit(problem)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="embertest-") as folder:
        hosts = Hosts(Path(folder))
        if source is not None:
            shutil.rmtree(hosts.code)
            copy_code(source, hosts.code)
        life = Life(hosts)
        try:
            for name in wanted:
                STAGES[name](life)
        finally:
            life.close()
            hosts.close()
    print(f"all stages in {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
