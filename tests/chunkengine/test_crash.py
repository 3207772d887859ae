"""Process kills and power losses at every kind of disk operation: nothing synced is lost, nothing is torn."""

import os
import random

import pytest

from fs.chunkengine.factory import memory_engine
from fs.chunkengine.simulated_disk import (
    SimulatedCrash,
    SimulatedDataFiles,
    SimulatedDisk,
    SimulatedMetaStore,
)
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId

from .workload import Workload, check_books, read, undo_count

SEEDS = int(os.environ.get("EMBERFS_CRASH_SEEDS", "120"))
SECTION = StorageSection(checksum_block_bytes=4096)


def open_on(disk: SimulatedDisk):
    return memory_engine(disk, cluster_id="c", node_id=1, section=SECTION)


class CrashPlan:
    """Stops the process at the n-th disk operation; runs a few operations inside a flush now and then."""

    def __init__(self, rng: random.Random, workload: Workload, disk: SimulatedDisk) -> None:
        self.left = rng.randint(1, 160)
        self.rng = rng
        self.workload = workload
        self.disk = disk
        self.engine = None
        self.is_inside = False

    def __call__(self, name: str) -> None:
        if name == "read":
            return
        self.left -= 1
        if self.left <= 0:
            raise SimulatedCrash(name)
        if name in ("flush", "meta_sync") and self.engine and not self.is_inside:
            self.is_inside = True
            for _ in range(self.rng.randint(0, 3)):
                chunk = self.rng.choice(self.workload.chunks)
                self.rng.choice((self.workload.append, self.workload.write))(self.engine, chunk)
            self.is_inside = False


def run_until_crash(disk: SimulatedDisk, workload: Workload, rng, *, is_power: bool) -> bool:
    """Open, check, work until the planned crash; return whether the check was reached."""
    is_checked = False
    plan = CrashPlan(rng, workload, disk)
    disk.on_step = plan
    try:
        engine = open_on(disk)
        disk.on_step = None
        workload.check_after_crash(engine, is_power_loss=is_power)
        check_books(SimulatedMetaStore(disk), SimulatedDataFiles(disk))
        assert undo_count(SimulatedMetaStore(disk)) == 0
        is_checked = True
        disk.on_step = plan
        plan.engine = engine
        while True:
            workload.step(engine)
    except SimulatedCrash:
        return is_checked


def lose(disk: SimulatedDisk, rng: random.Random, *, is_power: bool) -> None:
    if is_power:
        disk.power_loss(rng)
    else:
        disk.crash()


@pytest.mark.parametrize("lot", range(4))
def test_every_chunk_is_whole_and_not_older_than_its_last_sync(lot: int) -> None:
    for seed in range(lot, SEEDS, 4):
        rng = random.Random(seed)
        disk, workload = SimulatedDisk(), Workload(seed)
        is_power = False
        for _ in range(6):
            is_checked = run_until_crash(disk, workload, rng, is_power=is_power)
            is_loss = rng.random() < 0.7
            lose(disk, rng, is_power=is_loss)
            is_power = is_loss or (is_power and not is_checked)
        engine = open_on(disk)
        workload.check_after_crash(engine, is_power_loss=is_power)
        check_books(SimulatedMetaStore(disk), SimulatedDataFiles(disk))


def test_a_process_kill_loses_nothing_acknowledged() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        disk, workload = SimulatedDisk(), Workload(seed)
        for _ in range(4):
            run_until_crash(disk, workload, rng, is_power=False)
            disk.crash()
        workload.check_after_crash(open_on(disk), is_power_loss=False)


def test_a_kill_then_a_power_loss_do_not_add_up_to_reuse_of_a_freed_block() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        disk, workload = SimulatedDisk(), Workload(seed)
        run_until_crash(disk, workload, rng, is_power=False)
        disk.crash()
        engine = open_on(disk)
        workload.check_after_crash(engine, is_power_loss=False)
        for _ in range(15):
            workload.step(engine)
        disk.power_loss(rng)
        workload.check_after_crash(open_on(disk), is_power_loss=True)
        check_books(SimulatedMetaStore(disk), SimulatedDataFiles(disk))


def test_space_is_returned_only_once_that_is_durable() -> None:
    for seed in range(20):
        disk, chunk = SimulatedDisk(), (TargetId(1), ChunkId(InodeId(7), 0))
        engine = open_on(disk)
        engine.prepare_write(*chunk, version=1, chunk_size_bytes=1 << 16, offset=0, data=b"x" * 999)
        engine.commit(*chunk, version=1, chain_version=1)
        engine.sync()
        engine.remove_target(TargetId(1))
        disk.crash()
        crash_at(disk, "meta_sync")
        with pytest.raises(SimulatedCrash):
            open_on(disk)
        disk.power_loss(random.Random(seed))
        assert read(open_on(disk), chunk) in (None, b"x" * 999)


def test_a_flush_covers_what_came_before_it_and_only_that() -> None:
    """An update between the flush of the data and of the metadata is not vouched for."""
    for seed in range(20):
        disk, chunk = SimulatedDisk(), (TargetId(1), ChunkId(InodeId(7), 0))
        engine = open_on(disk)
        contents = [bytes([n]) * 5000 for n in range(4)]

        def put(version: int, *, on=engine, where=chunk, made=contents) -> None:
            on.prepare_write(
                *where, version=version, chunk_size_bytes=1 << 16, offset=0, data=made[version]
            )
            on.commit(*where, version=version, chain_version=1)

        put(1)
        disk.on_step = lambda name, disk=disk, put=put: (
            (setattr(disk, "on_step", None), put(2)) if name == "meta_sync" else None
        )
        engine.sync()
        put(3)
        disk.power_loss(random.Random(seed))
        assert read(open_on(disk), chunk) in contents[1:]


def crash_at(disk: SimulatedDisk, step: str) -> None:
    def hook(name: str) -> None:
        if name == step:
            raise SimulatedCrash(name)

    disk.on_step = hook
