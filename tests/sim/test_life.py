"""Nothing a dead process does has effect."""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import random

import pytest
import trio

from fs.chunkengine.format import FileId
from fs.chunkengine.simulated_disk import (
    SimulatedCrash,
    SimulatedDataFiles,
    SimulatedDisk,
    SimulatedMetaStore,
)
from fs.kv.faulty import CommitFault, ScriptedFaults
from fs.kv.memory import MemoryEngine
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.simulated import SimulatedClock
from fs.schema.status import FsError, Status

from .determinism import OWNER, freeze, is_frozen, run_deterministic, thaw
from .life import DiskErrors, DiskView, EndpointView, Life, ProcessDead, SlowThreads, StoreView


def make_life():
    deaths = []
    return Life("p", lambda: deaths.append(1)), deaths


async def test_a_dead_process_commits_nothing(autojump_clock):
    engine, (life, deaths) = MemoryEngine(SimulatedClock()), make_life()
    store = StoreView(engine, life)
    begun = store.transaction()
    begun.set(b"k", b"v")
    life.end()
    life.end()
    assert deaths == [1]
    with pytest.raises(ProcessDead):
        await begun.commit()
    with pytest.raises(ProcessDead):
        store.transaction()
    assert engine.dump() == {}


async def test_a_commit_that_waits_dies_with_its_process(autojump_clock):
    engine, (life, _) = MemoryEngine(SimulatedClock()), make_life()
    engine.faults = ScriptedFaults([CommitFault(delay_before_s=5.0)])
    tr = StoreView(engine, life).transaction()
    tr.set(b"k", b"v")

    async def commit() -> None:
        with pytest.raises(ProcessDead), trio.CancelScope(shield=True):
            await tr.commit()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        await trio.sleep(1)
        life.end()
        nursery.cancel_scope.cancel()
    assert trio.current_time() < 2
    assert engine.dump() == {}


@pytest.mark.parametrize(("dies_before", "content"), [(True, {}), (False, {b"k": b"v"})])
async def test_death_at_a_commit(dies_before, content, autojump_clock):
    engine, (life, deaths) = MemoryEngine(SimulatedClock()), make_life()
    life.dies_before_commit, life.commits_left = dies_before, 1
    tr = StoreView(engine, life).transaction()
    tr.set(b"k", b"v")
    with pytest.raises(ProcessDead):
        await tr.commit()
    assert deaths == [1] and engine.dump() == content


def test_death_in_a_disk_step():
    disk, (life, _) = SimulatedDisk(), make_life()
    meta = SimulatedMetaStore(DiskView(disk, life))
    life.steps_left = 2
    meta.write([(b"a", b"1")])
    with pytest.raises(SimulatedCrash):
        meta.write([(b"b", b"1")])
    with pytest.raises(ProcessDead):
        meta.write([(b"c", b"1")])
    assert dict(disk.records) == {b"a": b"1"}
    later = SimulatedMetaStore(DiskView(disk, make_life()[0]))
    later.write([(b"d", b"1")])
    assert set(disk.records) == {b"a", b"d"}


async def test_a_blocking_call_under_way_has_no_effect_after_death(autojump_clock):
    life, _ = make_life()
    threads, calls = SlowThreads(life, 1.0, random.Random(1)), []

    async def call_for_ever() -> None:
        while True:
            await threads(calls.append, trio.current_time())

    async def call() -> None:
        with pytest.raises(ProcessDead):
            await call_for_ever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.sleep(10)
        life.end()
    assert calls and max(calls) < 10


async def test_a_dead_process_connects_to_nobody(autojump_clock):
    network, (life, _) = MemoryNetwork(), make_life()
    endpoint = EndpointView(network.endpoint("p"), life)
    life.end()
    with pytest.raises(ProcessDead):
        await endpoint.connect("mem:other")


@pytest.mark.slow
def test_a_frozen_process_does_nothing_until_it_is_thawed():
    seen = []

    async def count(owner: str) -> None:
        OWNER.set(owner)
        while True:
            await trio.sleep(1)
            seen.append((owner, trio.current_time()))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count, "a")
            nursery.start_soon(count, "b")
            await trio.sleep(2.5)
            freeze("a")
            await trio.sleep(10)
            assert is_frozen("a") and not is_frozen("b")
            thaw("a")
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()

    run_deterministic(main, 1)
    assert [at_s for owner, at_s in seen if owner == "a"] == [1, 2, 12.5]
    assert len([at_s for owner, at_s in seen if owner == "b"]) == 12


def test_a_disk_that_loses_writes_and_one_that_reports_errors():
    disk, (life, _) = SimulatedDisk(), make_life()
    errors = DiskErrors(random.Random(1))
    files = SimulatedDataFiles(DiskView(disk, life, errors))
    file_id = FileId(0)
    files.write_at(file_id, 0, [b"old"])
    disk.place_write = lambda _file, _offset, _length: None
    files.write_at(file_id, 0, [b"new"])
    buffer = bytearray(3)
    files.read_at(file_id, 0, [memoryview(buffer)])
    assert buffer == b"old"
    errors.write_share = 1.0
    with pytest.raises(FsError) as raised:
        files.write_at(file_id, 0, [b"new"])
    assert raised.value.status is Status.IO_ERROR and errors.fired_count == 1


@pytest.mark.slow
def test_what_is_due_at_one_time_happens_in_an_order_that_the_seed_decides():
    """Whether a sleep or the scope around it ends first must not depend
    on where they lie in memory.
    """

    async def main():
        ended = []

        async def sleep(number):
            with trio.move_on_after(1):
                await trio.sleep(1)
                ended.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(sleep, number)
        return ended

    first = run_deterministic(main, 1)
    in_the_way = [trio.CancelScope() for _ in range(1, 999)][::2]
    assert run_deterministic(main, 1) == first != run_deterministic(main, 2)
    assert 0 < len(first) < 50 and in_the_way
