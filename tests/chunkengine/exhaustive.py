"""Every short sequence of engine operations, cut at every disk operation in it.

    python -m tests.chunkengine.exhaustive [--triples N] [--seed S] [--jobs J]

All sequences of one and two operations, from a disk that is synced and from one that is not, and N
sampled ones of three.  Each is run again and again, cut at the first, second, third ... disk
operation until it runs through; each cut is a process kill, a power loss that keeps nothing
unsynced, one that keeps everything, and one in between.  Afterwards everything that `crash.py`
checks holds.  A workload is one sequence from one beginning.
"""

import argparse
import itertools
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fs.chunkengine import allocator
from fs.chunkengine.engine import DiskEngine
from fs.chunkengine.simulated_disk import SimulatedCrash, SimulatedDisk
from fs.schema.ids import ChunkId, InodeId, TargetId

from .campaign import run_campaign
from .crash import FullWorkload, check_disk_of, open_on
from .workload import Damaged, in_pages

OLD = TargetId(1), ChunkId(InodeId(7), 0)
NEW = TargetId(1), ChunkId(InodeId(7), 1)
CHUNKS = [OLD, NEW, *((TargetId(2), ChunkId(InodeId(8), n)) for n in range(6))]
SCATTERED = [(100, 50), (4096, 4096), (9_000, 3_000), (20_000, 100)]
LOT = 20
"""Workloads of one process call."""


class Script(FullWorkload):
    """Operations by name, on two chunks, with data that depends on the seed alone."""

    pending_share = 0.0

    def __init__(self, seed: int) -> None:
        super().__init__(seed, CHUNKS)
        self.at_once_share = 0.0

    def begin(self, engine: DiskEngine) -> None:
        """A chunk with an own block, and sparse groups in another size class."""
        self.put(engine, OLD, 0, self.rng.randbytes(10_000))
        for chunk in CHUNKS[2:]:
            self.put(engine, chunk, 0, self.rng.randbytes(3_000))
        for chunk in CHUNKS[3:6]:
            self.remove(engine, chunk)

    def run(self, engine: DiskEngine, name: str) -> None:
        content = self.models[OLD].content
        is_bad = isinstance(content, Damaged)
        data, length = self.rng.randbytes(6_000), len(content or b"") if not is_bad else 0
        self.pending_share = float(name.startswith("prepare"))
        self.at_once_share = float(name.endswith("at once"))
        steps: dict[str, Callable[[], None]] = {
            "create": lambda: self.put(engine, NEW, 0, data),
            "replace": lambda: self.replace(engine, OLD),
            "rewrite": lambda: self.rewrite(engine, OLD),
            "prepare rewrite": lambda: self.rewrite(engine, OLD),
            "overwrite": lambda: self.put(engine, OLD, 2_000, data),
            "append": lambda: self.put(engine, OLD, length, data),
            "replace at once": lambda: self.replace(engine, OLD),
            "append at once": lambda: self.put(engine, OLD, length, data),
            "grow": lambda: self.put(engine, OLD, 70_000, data),
            "scatter": lambda: self.put_ranges(engine, OLD, SCATTERED),
            "scatter at once": lambda: self.put_ranges(engine, OLD, SCATTERED),
            "prepare scatter": lambda: self.put_ranges(engine, OLD, SCATTERED),
            "cut": lambda: self.truncate_to(engine, OLD, length // 2),
            "stretch": lambda: self.truncate_to(engine, OLD, length + 5_000),
            "remove": lambda: self.remove(engine, OLD),
            "prepare append": lambda: self.put(engine, OLD, length, data),
            "prepare remove": lambda: self.remove(engine, OLD),
            "commit": lambda: self.commit(engine, OLD),
            "drop": lambda: self.drop(engine, OLD),
            "mark damaged": lambda: self.mark(engine, OLD),
            "repair": lambda: self.repair(engine, OLD),
            "put damaged": lambda: self.put_damaged(engine, OLD),
            "remove target": lambda: self.remove_target(engine, OLD),
            "compact": lambda: self.compact(engine, OLD),
            "sync": lambda: self.sync(engine),
        }
        if (is_bad and name in NEEDS_BYTES) or (not is_bad and name == "repair"):
            return
        steps[name]()

    def rewrite(self, engine: DiskEngine, chunk) -> None:
        """As `replace`, by so much that it is written past the page cache, but for its end."""
        data, version = self.rng.randbytes(13_000), self.models[chunk].version + 1
        engine.prepare_write(
            *chunk,
            version=version,
            chunk_size_bytes=256 << 10,
            offset=0,
            data=in_pages(data),
            is_full_replace=True,
        )
        self._finish(engine, chunk, version, data)

    def truncate_to(self, engine: DiskEngine, chunk, length: int) -> None:
        """As `truncate`, to a length of ours."""
        content = self.models[chunk].content or b""
        assert isinstance(content, bytes)
        version = self.models[chunk].version + 1
        engine.prepare_truncate(*chunk, version=version, chunk_size_bytes=256 << 10, length=length)
        self._finish(engine, chunk, version, content[:length].ljust(length, b"\0"))

    def commit(self, engine: DiskEngine, chunk) -> None:
        """Commit what was left pending."""
        if self.models[chunk].pending is not None:
            self._finish(engine, chunk, *self.models[chunk].pending)


NEEDS_BYTES = (
    "overwrite", "append", "grow", "cut", "stretch", "append at once",
    "prepare append", "mark damaged", "scatter", "scatter at once", "prepare scatter",
)  # fmt: skip
NAMES = (
    "create",
    "replace",
    "rewrite",
    "overwrite",
    "append",
    "grow",
    "cut",
    "stretch",
    "remove",
    "prepare rewrite",
    "prepare append",
    "prepare remove",
    "commit",
    "drop",
    "mark damaged",
    "repair",
    "put damaged",
    "remove target",
    "compact",
    "sync",
    "replace at once",
    "append at once",
    "scatter",
    "scatter at once",
    "prepare scatter",
)


class Cut:
    """Stops the process at the n-th disk operation."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, name: str) -> None:
        self.left -= name != "read"
        if self.left <= 0:
            raise SimulatedCrash(name)


def keep(choice: float) -> random.Random:
    """Return a random source for a power loss that keeps all of the unsynced (1.0),
    or nothing (0.0).
    """
    rng = random.Random(0)
    rng.choice = lambda _: choice
    rng.randint = lambda low, high: high if choice else low
    return rng


ENDS: dict[str, Callable[[SimulatedDisk], None]] = {
    "kill": lambda disk: disk.crash(),
    "all is kept": lambda disk: disk.power_loss(keep(1.0)),
    "nothing is kept": lambda disk: disk.power_loss(keep(0.0)),
    "some is kept": lambda disk: disk.power_loss(random.Random(len(disk.unsynced_batches))),
}


def cut_once(names: tuple[str, ...], number: int, end: str, *, is_synced: bool) -> bool:
    """Run a sequence up to its n-th disk operation; return whether it was cut, or ran through."""
    disk, script, is_cut = SimulatedDisk(), Script(5), False
    engine = open_on(disk)
    script.begin(engine)
    if is_synced:
        script.sync(engine)
    disk.on_step = Cut(number)
    try:
        for name in names:
            script.run(engine, name)
    except SimulatedCrash:
        is_cut = True
    ENDS[end](disk)
    check_disk_of(disk)
    again = open_on(disk)
    script.check_after_crash(again, is_power_loss=end != "kill")
    check_disk_of(disk)
    script.run(again, "overwrite")  # and it goes on working
    again.close()
    check_disk_of(disk)
    return is_cut


def run_workload(names: tuple[str, ...], *, is_synced: bool) -> Counter[str]:
    """Cut one workload everywhere."""
    allocator.BLOCKS_PER_GROUP = 4
    outcome = Counter({"workloads": 1})
    try:
        for end in ENDS:
            number = 1
            while cut_once(names, number, end, is_synced=is_synced):
                number += 1
            outcome["cuts"] += number
    except Exception as error:
        error.add_note(f"workload {names}, synced first: {is_synced}, end: {end}, cut {number}")
        raise
    finally:
        allocator.BLOCKS_PER_GROUP = 256
    return outcome


def all_short() -> list[tuple[tuple[str, ...], bool]]:
    """Return all workloads of one and of two operations."""
    singles = [(name,) for name in NAMES]
    pairs = list(itertools.product(NAMES, repeat=2))
    return [(names, is_synced) for names in singles + pairs for is_synced in (True, False)]


def sampled(count: int, seed: int) -> list[tuple[tuple[str, ...], bool]]:
    """Return some workloads of three operations."""
    rng = random.Random(seed)
    return [(tuple(rng.choices(NAMES, k=3)), rng.random() < 0.5) for _ in range(count)]


def run_lot(
    workloads: list[tuple[tuple[str, ...], bool]], number: int, _directory: Path
) -> Counter[str]:
    """Run the `number`-th lot."""
    outcome: Counter[str] = Counter()
    for names, is_synced in workloads[number * LOT : (number + 1) * LOT]:
        outcome += run_workload(names, is_synced=is_synced)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chunkengine.exhaustive")
    parser.add_argument("--triples", type=int, default=500, help="workloads of three operations")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    workloads = all_short() + sampled(arguments.triples, arguments.seed)
    lots = -(-len(workloads) // LOT)
    outcome = run_campaign(partial(run_lot, workloads), 0, lots, arguments.jobs, "lots")
    return 1 if outcome["FAILED"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
