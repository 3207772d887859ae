"""The memory engine's own promises: power loss, bounded history, faults."""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import random

import pytest
import trio

from fs.kv.faulty import CommitFault, Fate, RandomFaults, ScriptedFaults
from fs.kv.memory import MemoryEngine
from fs.kv.transact import snapshot_read, transact
from fs.schema.status import FsError, Status
from tests.examples import first_quick
from tests.kv.harness import Model, inline_runtime


def new_engine(**options) -> MemoryEngine:
    return MemoryEngine(inline_runtime().clock, **options)


async def put(engine, key: bytes, value: bytes = b"x") -> None:
    tr = engine.transaction()
    tr.set(key, value)
    await tr.commit()


@pytest.mark.parametrize("seed", first_quick(range(30), 10))
async def test_power_loss_leaves_a_prefix_with_everything_synced(autojump_clock, seed):
    source = random.Random(seed)
    engine, model = new_engine(), Model()
    states = [{}]
    synced = 0
    for _ in range(60):
        tr = engine.transaction()
        for _ in range(source.randint(1, 3)):
            key = b"%d" % source.randrange(10)
            kind = source.randrange(3)
            if kind == 0:
                end = key + b"~"
                tr.clear_range(key, end)
                model.clear_range(key, end)
            elif kind == 1:
                tr.set(key, b"%d" % len(states))
                model.set(key, b"%d" % len(states))
            else:
                tr.atomic_add(key, 1)
                model.atomic_add(key, 1)
        await tr.commit()
        states.append(dict(model.rows))
        await trio.sleep(source.random() * 0.02)
        if source.random() < 0.1:
            synced = engine.version
            await engine.sync()
        if source.random() < 0.15:
            kept = engine.power_loss(source)
            assert synced <= kept <= len(states) - 1
            assert engine.dump() == states[kept]
            del states[kept + 1 :]
            synced = kept
            model.rows = dict(states[kept])
    assert engine.dump() == model.rows
    assert await snapshot_read(engine, lambda tr: tr.get_range(b"", b"\xff")) == sorted(
        model.rows.items()
    )


async def test_open_transactions_do_not_survive_a_power_loss(autojump_clock):
    engine = new_engine()
    await put(engine, b"a")
    tr = engine.transaction()
    await tr.get(b"a")
    tr.set(b"b", b"x")
    engine.power_loss(random.Random(1))
    with pytest.raises(FsError) as caught:
        await tr.commit()
    assert caught.value.status is Status.KV_TOO_OLD
    assert await snapshot_read(engine, lambda tr: tr.get(b"b")) is None


async def test_old_commits_are_durable_by_themselves(autojump_clock):
    engine = new_engine(unsynced_s_max=0.1)
    await put(engine, b"a")
    assert engine.synced_version == 0
    await trio.sleep(0.11)
    assert engine.synced_version == 1


async def test_sync_interrupted_by_power_loss_does_not_claim_success(autojump_clock):
    engine = new_engine(sync_s=1.0, unsynced_s_max=10.0)
    await put(engine, b"a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_expect_unavailable, engine)
        await trio.sleep(0.5)
        engine.power_loss(random.Random(1))


async def _expect_unavailable(engine) -> None:
    with pytest.raises(FsError) as caught:
        await engine.sync()
    assert caught.value.status is Status.KV_UNAVAILABLE


async def test_history_is_collected(autojump_clock):
    engine = new_engine()
    for index in range(2000):
        tr = engine.transaction()
        tr.set(b"hot", b"%d" % index)
        tr.set(b"queue/%d" % index, b"x")
        tr.clear(b"queue/%d" % (index - 5))
        await tr.commit()
        await trio.sleep(0.02)
    revision_count = sum(len(revisions) for revisions in engine._revisions.values())
    assert revision_count < 3 * 400  # about 6 s of commits, 3 rows each
    assert len(engine._collectable) < 3 * 400
    assert len(engine.dump()) == 6


async def test_unavailable_engine_refuses_and_comes_back(autojump_clock):
    engine, runtime = new_engine(), inline_runtime()
    engine.set_available(False)

    async def write(tr):
        await tr.get(b"a")
        tr.set(b"a", b"1")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: transact(engine, write, runtime=runtime))
        await trio.sleep(1)
        assert engine.version == 0
        engine.set_available(True)
    assert engine.version == 1


async def test_delays_take_time_before_and_after_the_commit(autojump_clock):
    fault = CommitFault(Fate.OK, delay_before_s=1.0, delay_after_s=2.0)
    engine = new_engine(faults=ScriptedFaults([fault]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, engine, b"a")
        await trio.sleep(0.9)
        assert engine.version == 0
        await trio.sleep(0.2)
        assert engine.version == 1
        began_s = trio.current_time()
    assert trio.current_time() - began_s == pytest.approx(1.9)


async def test_counter_is_exact_under_random_faults(autojump_clock):
    faults = RandomFaults(
        random.Random(5),
        conflict=0.2,
        unknown_committed=0.2,
        unknown_lost=0.2,
        delay_before_s_max=0.01,
        delay_after_s_max=0.01,
    )
    engine, runtime = new_engine(faults=faults), inline_runtime()

    async def increment(index: int) -> None:
        async def fn(tr):
            if await tr.get(b"done/%d" % index) is None:
                tr.set(b"done/%d" % index, b"")
                tr.set(b"n", b"%d" % (int(await tr.get(b"n") or b"0") + 1))

        await transact(engine, fn, runtime=runtime, retry_time_s_max=1000)

    async with trio.open_nursery() as nursery:
        for index in range(60):
            nursery.start_soon(increment, index)
    assert engine.dump()[b"n"] == b"60"
