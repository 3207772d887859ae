"""The life of a cluster on five hosts, by hand: all stages, or those that are named.

python -m tests.deploy [--systemd] [--from CHECKOUT] [STAGE ...]

Hosts are network namespaces; with --systemd they are machines whose process 1 is systemd,
which also has stages of its own.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from . import supervision
from .hosts import Hosts, copy_code, trouble
from .machines import Machines, missing
from .stages import STAGES, WITH_MANAGERS, Life


def stages(*, with_systemd):
    """The stages in order; those of systemd while the cluster is small."""
    if not with_systemd:
        return dict(STAGES)
    first, *rest = STAGES.items()
    return dict([first, *supervision.STAGES.items(), *rest])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--from", dest="source", type=Path, help="a checkout to begin with")
    parser.add_argument("--systemd", action="store_true", help="machines with systemd and sshd")
    parser.add_argument(
        "--tree", type=Path, help="their common root, kept; made if it is not there"
    )
    parser.add_argument(
        "stages", nargs="*", metavar="STAGE", help=f"{', '.join(stages(with_systemd=True))}"
    )
    given = parser.parse_args()
    known = stages(with_systemd=given.systemd)
    wanted = given.stages or [*known]
    problem = trouble() or (missing() if given.systemd else "")
    problem = problem or next(
        (f"no stage {s}: {', '.join(known)}" for s in wanted if s not in known), ""
    )
    if problem:
        sys.exit(problem)
    # What begins in the background ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="embertest-") as folder:
        base = Path(folder)
        hosts = Machines(base, given.tree or base / "tree") if given.systemd else Hosts(base)
        life = Life(hosts, WITH_MANAGERS)
        try:
            if given.source is not None:
                shutil.rmtree(hosts.code)
                copy_code(given.source, hosts.code)
            for name in wanted:
                life.say(f"-- {name}")
                known[name](life)
        finally:
            life.close()
            hosts.close()
    print(f"all stages in {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
