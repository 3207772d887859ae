"""SIGKILL of a process that works on a real disk, or on a key-value store (tests.kv.kills),
again and again.

    python -m tests.chunkengine.kills [--count N] [--seed S] [--jobs J]

After each kill the disk is checked as it lies there, opened, and every chunk must hold the last
acknowledged content or the one that was being committed.
"""

import argparse
import random
from collections import Counter
from functools import partial
from pathlib import Path

from .campaign import run_campaign
from .witness import Witness, child, lines_of, listen

LOT = 10


def run_lot(
    seed: int, directory: Path, *, kills: int = LOT, spoil=None, witness_type=Witness
) -> Counter[str]:
    """Kill the workers of one disk; return counts."""
    witness, rng, outcome = witness_type(), random.Random(seed), Counter[str]()
    for number in range(kills):
        threads = rng.choice((1, 1, 3))
        path, life = directory / "disk", seed * 1000 + number
        with child(witness.work, path, life, threads=threads, spoil=spoil) as (process, pipe):
            assert listen(witness, pipe, rng.randint(1, 300)), witness.failure
            process.kill()
            for line in lines_of(pipe):
                witness.hear(line)
        witness.check(path, is_power=False)
        outcome["kills"] += 1
    return outcome + witness.counts()


def main(program: str = "tests.chunkengine.kills", witness_type=Witness) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {program}")
    parser.add_argument("--count", type=int, default=500, help="kills")
    parser.add_argument("--seed", type=int, default=0, help="first disk")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    lots = -(-arguments.count // LOT)
    trial = partial(run_lot, witness_type=witness_type)
    outcome = run_campaign(trial, arguments.seed, lots, arguments.jobs, "disks")
    return 1 if outcome["FAILED"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
