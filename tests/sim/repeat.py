"""Does a seed decide everything?

Each runs twice, in fresh processes with different hash seeds; the traces must agree.

python -m tests.sim.repeat FIRST --count N [--seconds S]
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from .scenario import WORK_S

ROOT = Path(__file__).resolve().parents[2]


def digest_of(seed: int, seconds: float, hash_seed: str) -> str:
    """Return the hash of the trace of one seed, run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim", str(seed), "--seconds", f"{seconds:g}"],
        cwd=ROOT,
        env={"PYTHONHASHSEED": hash_seed, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"trace ([0-9a-f]+)", done.stdout)
    return found[1] if found else f"failed: {done.stderr.splitlines()[-1:]}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.repeat", description=__doc__)
    parser.add_argument("first", type=int, help="first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--seconds", type=float, default=WORK_S, help="simulated seconds of work")
    arguments = parser.parse_args()
    same = 0
    for seed in range(arguments.first, arguments.first + arguments.count):
        one, two = (digest_of(seed, arguments.seconds, text) for text in ("1", "2"))
        same += one == two and not one.startswith("failed")
        print(f"seed {seed}: {one} {two}", flush=True)
    print(f"{same} of {arguments.count} seeds gave the same trace twice")
    return 0 if same == arguments.count else 1


if __name__ == "__main__":
    sys.exit(main())
