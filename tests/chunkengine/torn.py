"""Power cuts before and after every kind of call, with unsynced writes lost and torn at sectors.

    python -m tests.chunkengine.torn [--count N] [--seed S] [--fail]

The engine works on a disk inside `lossy_layer.py`.  The power is cut at the n-th write, fsync,
create, rename ... of a worker, also while it opens the disk; then the disk is checked as it lies
there, opened, and every chunk must hold what the last sync covered, or something later.  With
--fail single writes and fsyncs fail instead (EIO, ENOSPC), of data files and of RocksDB's, and the
power is cut when the worker has ended: what was acknowledged after a failed fsync would be lost.
"""

import argparse
import errno
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from .campaign import run_campaign
from .witness import Witness, child, lines_of
from .worker import open_disk

LOT = 10
ROOT = Path(__file__).parents[2]
KINDS = {
    "write": 300,
    "fsync": 40,
    "create": 6,
    "rename": 3,
    "unlink": 4,
    "fsyncdir": 4,
    "setattr": 2,
}
"""Kinds of calls, and up to which one the power is cut."""

WEIGHTS = (6, 5, 1, 1, 1, 1, 1)
"""Most kinds come with opening the disk alone."""


def missing() -> str:
    """Return why this cannot be run here, empty if it can."""
    return "" if os.access("/dev/fuse", os.W_OK) else "/dev/fuse is missing"


class Layer:
    def __init__(self, mount_point: Path) -> None:
        self.mount_point = mount_point
        self.control = mount_point / ".control"

    def tell(self, command: str) -> None:
        fd = os.open(self.control, os.O_WRONLY)
        try:
            os.write(fd, command.encode())
        finally:
            os.close(fd)

    def state(self) -> str:
        """Return `on`, `cut` or `failed`."""
        return self.control.read_text().split(" ")[0]


@contextmanager
def layer(directory: Path) -> Iterator[Layer]:
    """Mount one; unmount it at the end."""
    backing, mount_point = directory / "backing", directory / "mount"
    backing.mkdir()
    mount_point.mkdir()
    command = [
        sys.executable,
        "-m",
        "tests.chunkengine.lossy_layer",
        str(backing),
        str(mount_point),
    ]
    with subprocess.Popen(command, cwd=ROOT) as process:
        made = Layer(mount_point)
        try:
            for _ in range(600):
                if made.control.exists():
                    break
                assert process.poll() is None, "the layer has ended"
                time.sleep(0.05)
            yield made
        finally:
            subprocess.run(["umount", "-l", str(mount_point)], check=False)
            process.terminate()


def plan_cut(rng: random.Random) -> tuple[str, str]:
    """Return a command for the layer, and what it stands for."""
    (kind,) = rng.choices(list(KINDS), WEIGHTS)
    when = rng.choice(("before", "after"))
    return f"arm {kind} {rng.randint(1, KINDS[kind])} {when}", f"{when} {kind}"


def plan_failure(rng: random.Random) -> tuple[str, str]:
    """The same for a call that fails."""
    kind, error = rng.choice(("write", "fsync")), rng.choice((errno.EIO, errno.ENOSPC))
    number = rng.randint(1, KINDS[kind])
    return f"fail {kind} {number} {error}", f"{errno.errorcode[error]} at {kind}"


def run_lot(
    seed: int, directory: Path, *, cuts: int = LOT, plan=plan_cut, spoil=None
) -> Counter[str]:
    """Cut the power of one disk some times; return counts."""
    witness, rng, outcome = Witness(), random.Random(seed), Counter[str]()
    with layer(directory) as made:
        path = made.mount_point / "disk"
        open_disk(str(path)).close()
        for number in range(cuts):
            command, name = plan(rng)
            made.tell(command)
            how = {"threads": rng.choice((1, 2)), "steps": rng.choice((10, 60))}
            worker = child(witness.work, path, seed * 1000 + number, spoil=spoil, **how)
            with worker as (process, pipe):
                for line in lines_of(pipe):
                    witness.hear(line)
                process.join()
            outcome[name if made.state() != "on" else "at rest"] += 1
            outcome["cuts"] += 1
            made.tell("cut")
            made.tell(f"recover {rng.randrange(1 << 30)}")
            witness.check(path, is_power=True)
    return outcome + witness.counts()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chunkengine.torn")
    parser.add_argument("--count", type=int, default=300, help="cuts")
    parser.add_argument("--seed", type=int, default=0, help="first disk")
    parser.add_argument("--fail", action="store_true", help="calls fail instead")
    arguments = parser.parse_args()
    lots = -(-arguments.count // LOT)
    trial = partial(run_lot, plan=plan_failure if arguments.fail else plan_cut)
    outcome = run_campaign(trial, arguments.seed, lots, 1, "disks")
    return 1 if outcome["FAILED"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
