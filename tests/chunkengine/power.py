"""Power cuts of a real file system under a working engine, or key-value store (tests.kv.power),
again and again.

    python -m tests.chunkengine.power [--kind ext4|xfs] [--count N] [--seed S]

Three threads write and sync on a loop-mounted image; its file system is shut down at a random
instant, with or without its journal written first, unmounted and mounted again.  Then the disk is
checked as it lies there, opened, and every chunk must hold what the last sync covered, or something
acknowledged (or being committed) later.
"""

import argparse
import random
from collections import Counter
from functools import partial
from pathlib import Path

from .campaign import run_campaign
from .images import FLUSH_LOG, KEEP_LOG, image
from .witness import Witness, child, lines_of, listen

LOT = 10


def run_lot(
    kind: str, seed: int, directory: Path, *, cuts: int = LOT, spoil=None, witness_type=Witness
) -> Counter[str]:
    """Cut the power of one image some times; return counts."""
    witness, rng, outcome = witness_type(), random.Random(seed), Counter[str]()
    with image(kind, directory) as disk:
        path = disk.mount_point / "disk"
        for number in range(cuts):
            flags = rng.choice((FLUSH_LOG, KEEP_LOG))
            worker = child(witness.work, path, seed * 1000 + number, threads=3, spoil=spoil)
            with worker as (process, pipe):
                assert listen(witness, pipe, rng.randint(1, 400)), witness.failure
                disk.cut(flags)
                for line in lines_of(pipe):
                    witness.hear(line)
                process.join()
            assert witness.failure, "the worker has not noticed that its disk is gone"
            witness.failure = ""
            disk.unmount()
            disk.mount()
            witness.check(path, is_power=True)
            outcome["cuts"] += 1
            outcome["without the journal"] += flags == KEEP_LOG
    outcome["opens over 10 s"] = witness.slow_open_count
    return outcome + witness.counts()


def main(program: str = "tests.chunkengine.power", witness_type=Witness) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {program}")
    parser.add_argument("--kind", choices=("ext4", "xfs"), default="ext4")
    parser.add_argument("--count", type=int, default=100, help="cuts")
    parser.add_argument("--seed", type=int, default=0, help="first image")
    arguments = parser.parse_args()
    lots = -(-arguments.count // LOT)
    trial = partial(run_lot, arguments.kind, witness_type=witness_type)
    outcome = run_campaign(trial, arguments.seed, lots, 1, f"{arguments.kind} images")
    return 1 if outcome["FAILED"] + outcome["opens over 10 s"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
