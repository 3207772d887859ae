"""Lives of a simulated disk, each ended by a process kill or a power loss
at a random disk operation.

    python -m tests.chunkengine.crash [--count CASES] [--seed S] [--jobs J]

A case is one end and what follows: the disk is checked as it lies there (`fs/chunkengine/fsck.py`),
opened, checked again, and every chunk must hold its last synced content or one acknowledged later
(after a kill: the last one). The work is all that an engine can do: updates, removals, removed
targets, notes, marks of damage, repairs, compaction, syncs; a part of it runs inside flushes.
"""

import argparse
import random
from collections import Counter
from pathlib import Path

from fs.chunkengine import allocator
from fs.chunkengine.api import Note
from fs.chunkengine.checksum import digest_of, packed_checksums
from fs.chunkengine.engine import DiskEngine
from fs.chunkengine.factory import memory_engine
from fs.chunkengine.simulated_disk import (
    SimulatedCrash,
    SimulatedDataFiles,
    SimulatedDisk,
    SimulatedMetaStore,
)
from fs.schema.config import StorageSection

from .campaign import run_campaign
from .workload import (
    CHUNK_SIZE_BYTES,
    CHUNKS,
    Content,
    Damaged,
    Model,
    Workload,
    check_books,
    undo_count,
)

SECTION = StorageSection(
    checksum_block_bytes=4096, direct_write_bytes_min=4096, space_at_hand_bytes_max=0
)
KEEPING = StorageSection(checksum_block_bytes=4096, direct_write_bytes_min=4096)
"""With space at hand, as half of the runs have it;
without, groups that ran empty go, and compactions move more.
"""
LIVES = 10
SMALL_GROUP = 4
"""Blocks per group in every other run: so few chunks make sparse groups, too."""


def open_on(disk: SimulatedDisk, section: StorageSection = SECTION) -> DiskEngine:
    return memory_engine(disk, cluster_id="c", node_id=1, section=section)


class FullWorkload(Workload):
    """All that an engine can do."""

    def __init__(self, seed: int, chunks=CHUNKS) -> None:
        super().__init__(seed, chunks)
        self.good: dict[Damaged, bytes] = {}
        self.stamp = 0
        self.stamps: dict = {chunk: [] for chunk in self.chunks}
        """Per chunk (content, number of the commit that made it), as far back as the history."""
        self.removing = None
        self.counts: Counter[str] = Counter()

    def step(self, engine: DiskEngine) -> None:
        chunk = self.rng.choice(self.chunks)
        if chunk[0] == self.removing:
            return
        content = self.models[chunk].content
        if isinstance(content, Damaged):
            kinds = (self.repair, self.end_mark, self.replace, self.remove, self.compact, self.sync)
            kind = self.rng.choice(kinds)
        else:
            often = (self.write, self.append, self.replace, self.truncate, self.remove, self.sync)
            rare = (self.drop, self.mark, self.put_damaged, self.compact, self.remove_target)
            others = (self.commit_later, self.write_ranges)
            weights = (8, 8, 4, 4, 3, 4, 2, 2, 1, 2, 1, 4, 6)
            kind = self.rng.choices((*often, *rare, *others), weights)[0]
        self.counts[kind.__name__] += 1
        kind(engine, chunk)

    def note(self, chunk) -> Note:
        self.stamp += 1
        model = self.models[chunk]
        self.stamps[chunk] += [(content, self.stamp) for content in model.maybe]
        return Note(chunk[1].pack(), self.stamp.to_bytes(8, "big"))

    def compact(self, engine: DiskEngine, _chunk) -> None:
        engine.compact(self.rng.choice((1, 100_000, 1 << 30)))

    def mark(self, engine: DiskEngine, chunk) -> None:
        model = self.models[chunk]
        state = engine.get(*chunk)
        if state is None or not model.content:
            return
        bad = Damaged(state.length, state.checksum)
        self.good[bad] = model.content
        self._become(chunk, bad)
        assert engine.mark_damaged(*chunk)
        self._became(chunk, bad)

    def put_damaged(self, engine: DiskEngine, chunk) -> None:
        model, data = self.models[chunk], self.rng.randbytes(self.rng.randint(1, 40_000))
        version = model.version + self.rng.randint(1, 3)
        bad = Damaged(len(data), digest_of(packed_checksums([data], 4096), len(data)))
        self.good[bad] = data
        self._become(chunk, bad)
        model.synced_pending = None
        engine.put_damaged(
            *chunk, version=version, chain_version=5, length=len(data),
            checksum=bad.checksum, chunk_size_bytes=CHUNK_SIZE_BYTES,
        )  # fmt: skip
        self._became(chunk, bad)
        model.version, model.pending = version, None

    def repair(self, engine: DiskEngine, chunk) -> None:
        model = self.models[chunk]
        assert isinstance(model.content, Damaged)
        if model.pending is not None:
            return
        good = self.good[model.content]
        self._become(chunk, good)
        assert engine.repair(*chunk, version=model.version, data=good)
        self._became(chunk, good)

    def end_mark(self, engine: DiskEngine, chunk) -> None:
        """What was marked here has all its bytes; what was put as damaged has none."""
        model, bad = self.models[chunk], self.models[chunk].content
        assert isinstance(bad, Damaged)
        good = self.good[bad]
        self._become(chunk, good)
        self._became(chunk, good if engine.end_damage(*chunk, version=model.version) else bad)

    def remove_target(self, engine: DiskEngine, chunk) -> None:
        if self.removing is not None:
            return
        self.removing = target_id = chunk[0]
        mine = [other for other in self.chunks if other[0] == target_id]
        for other in mine:
            self.models[other].maybe = [None]
        engine.remove_target(target_id)
        for other in mine:
            self.models[other], self.stamps[other] = Model(), []
        self.removing = None

    def _become(self, chunk, content: Content) -> None:
        """A change without a note is beginning."""
        self.models[chunk].maybe = [content]
        self.stamps[chunk].append((content, self.stamps[chunk][-1][1] if self.stamps[chunk] else 0))

    def _became(self, chunk, content: Content) -> None:
        self.models[chunk].maybe = []
        self.models[chunk].history.append(content)

    def check_after_crash(self, engine: DiskEngine, *, is_power_loss: bool) -> None:
        if self.removing in engine.target_ids():
            # Its removal was not begun durably: nothing is gone.
            for chunk in self.chunks:
                if chunk[0] == self.removing:
                    self.models[chunk].maybe = []
        self.removing = None
        super().check_after_crash(engine, is_power_loss=is_power_loss)
        notes = {
            (target, note.key): int.from_bytes(note.value, "big")
            for target in {chunk[0] for chunk in self.chunks}
            for note in engine.notes(target)
        }
        for chunk in self.chunks:
            content = self.models[chunk].content
            made = [stamp for made, stamp in self.stamps[chunk] if made == content]
            stamp = min(made, default=0) if content is not None else 0
            assert notes.get((chunk[0], chunk[1].pack()), 0) >= stamp, (chunk, "lost its note")
            self.stamps[chunk] = [(content, stamp)]


class CrashPlan:
    """Stops the process at the n-th disk operation;
    runs a few operations inside a flush now and then.
    """

    def __init__(self, rng: random.Random, workload: Workload, operations_max: int = 160) -> None:
        self.left = rng.randint(1, operations_max)
        self.rng = rng
        self.workload = workload
        self.engine: DiskEngine | None = None
        self.is_inside = False
        self.at = ""

    def __call__(self, name: str) -> None:
        if name == "read":
            return
        self.left -= 1
        if self.left <= 0:
            self.at = name
            raise SimulatedCrash(name)
        if name in ("flush", "meta_sync") and self.engine and not self.is_inside:
            self.is_inside = True
            for _ in range(self.rng.randint(0, 3)):
                chunk = self.rng.choice(self.workload.chunks)
                is_bad = isinstance(self.workload.models[chunk].content, Damaged)
                if chunk[0] != getattr(self.workload, "removing", None) and not is_bad:
                    self.rng.choice((self.workload.append, self.workload.write))(self.engine, chunk)
            self.is_inside = False


def live(
    disk: SimulatedDisk,
    workload: Workload,
    plan: CrashPlan,
    *,
    is_power: bool,
    section: StorageSection = SECTION,
) -> bool:
    """Open, check, work until the planned crash; return whether the check was reached."""
    is_checked = False
    disk.on_step = plan
    try:
        engine = open_on(disk, section)
        disk.on_step = None
        workload.check_after_crash(engine, is_power_loss=is_power)
        check_disk_of(disk)
        assert undo_count(SimulatedMetaStore(disk)) == 0
        is_checked = True
        disk.on_step = plan
        plan.engine = engine
        while True:
            workload.step(engine)
    except SimulatedCrash:
        return is_checked


def check_disk_of(disk: SimulatedDisk) -> None:
    """Nothing is wrong with the disk as it lies there."""
    hook, disk.on_step = disk.on_step, None
    check_books(SimulatedMetaStore(disk), SimulatedDataFiles(disk))
    disk.on_step = hook


def end(disk: SimulatedDisk, rng: random.Random) -> bool:
    """End a life; return whether by a power loss."""
    is_loss = rng.random() < 0.7
    if is_loss:
        disk.power_loss(rng)
    else:
        disk.crash()
    if disk.records:
        check_disk_of(disk)
    return is_loss


def run_seed(seed: int, _directory: Path | None = None, lives: int = LIVES) -> Counter[str]:
    """Run the lives of one disk; return how many ended how, and what was done."""
    allocator.BLOCKS_PER_GROUP = SMALL_GROUP if seed % 2 else 256
    try:
        return _run_seed(seed, lives)
    finally:
        allocator.BLOCKS_PER_GROUP = 256


def _run_seed(seed: int, lives: int) -> Counter[str]:
    rng = random.Random(seed)
    disk, workload, outcome = SimulatedDisk(), FullWorkload(seed), Counter[str]()
    is_power, section = False, KEEPING if seed // 2 % 2 else SECTION
    for _ in range(lives):
        plan = CrashPlan(rng, workload)
        is_checked = live(disk, workload, plan, is_power=is_power, section=section)
        is_loss = end(disk, rng)
        is_power = is_loss or (is_power and not is_checked)
        outcome["cases"] += 1
        outcome["power losses"] += is_loss
        outcome[f"at {plan.at}"] += 1
    engine = open_on(disk, section)
    workload.check_after_crash(engine, is_power_loss=is_power)
    check_disk_of(disk)
    return outcome + workload.counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chunkengine.crash")
    parser.add_argument("--count", type=int, default=1000, help="cases")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    runs = -(-arguments.count // LIVES)
    outcome = run_campaign(run_seed, arguments.seed, runs, arguments.jobs, "disks")
    return 1 if outcome["FAILED"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
