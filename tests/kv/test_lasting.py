"""One state for longer than a transaction lives, on every engine;
and what holds up changes where there is none.
"""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import pytest
import trio

from fs.kv import remote_server
from fs.kv.api import TRANSACTION_AGE_S_MAX
from fs.kv.foundationdb import FoundationDbEngine
from fs.kv.lasting import (
    DISTANT_PAGE_BYTES,
    DISTANT_PAGE_ROWS,
    PAGE_ROWS,
    TransactionSnapshot,
    open_snapshot,
    rows_of,
)
from fs.kv.memory import MemoryEngine
from fs.kv.pause import PAUSE_KEY, PAUSE_S, PausableEngine, Pause
from fs.kv.transact import snapshot_read, transact
from fs.runtime.real import RealClock
from fs.runtime.simulated import SimulatedClock, simulated_runtime
from fs.schema.status import FsError, Status
from tests.kv.harness import Served, inline_runtime

ROWS = {b"k%04d" % n: b"v%d" % n for n in range(450)}


@pytest.fixture
def memory():
    return MemoryEngine(SimulatedClock())


async def put(engine, rows) -> None:
    async def body(tr) -> None:
        for key, value in rows.items():
            tr.set(key, value)

    await transact(engine, body, runtime=inline_runtime())


async def refused(status: Status, awaitable) -> str:
    with pytest.raises(FsError) as caught:
        await awaitable
    assert caught.value.status is status, caught.value
    return caught.value.detail


async def test_all_pages_show_one_state_for_longer_than_a_transaction_lives(autojump_clock, lab):
    engine = lab.engine
    await put(engine, ROWS)
    others = PausableEngine(engine, RealClock())
    seen = {}
    async with open_snapshot(engine, inline_runtime(), may_pause=True) as snapshot:
        async for page in rows_of(snapshot, b"k", b"l"):
            seen |= dict(page)
            await trio.sleep(TRANSACTION_AGE_S_MAX / 2)
            if not isinstance(engine, FoundationDbEngine):
                await put(others, {b"k0300": b"new", b"k0310x": b"new"})
        assert seen == ROWS
        await trio.sleep(2 * TRANSACTION_AGE_S_MAX)
        whole = await snapshot.page(b"k", b"l", is_whole=True)
        assert dict(whole) == ROWS
        assert await snapshot.page(b"l", b"m") == []
    assert await snapshot_read(engine, lambda tr: tr.get(PAUSE_KEY)) is None


@pytest.mark.fdb
@pytest.mark.slow
@pytest.mark.parametrize("lab", ["foundationdb"], indirect=True)
async def test_without_a_pause_foundationdb_says_what_to_do(autojump_clock, lab):
    await put(lab.engine, ROWS)
    async with open_snapshot(lab.engine, inline_runtime()) as snapshot:
        assert dict(await snapshot.page(b"k", b"l", is_whole=True)) == ROWS
        await trio.sleep(TRANSACTION_AGE_S_MAX + 0.1)
        assert "--pause" in await refused(Status.KV_TOO_OLD, snapshot.page(b"k", b"l"))


@pytest.mark.parametrize("length", [100, 60_000])
async def test_pages_from_afar_are_as_large_as_their_rows_allow(autojump_clock, memory, length):
    for prefix in (b"k", b"m"):
        for start in range(0, 3000 if length < 1000 else 300, 100):
            await put(memory, {b"%c%04d" % (prefix, start + n): bytes(length) for n in range(100)})
    tr = memory.transaction()
    snapshot = TransactionSnapshot(tr)
    for begin, end in ((b"k", b"l"), (b"m", b"n")):
        counts = [len(page) async for page in rows_of(snapshot, begin, end)]
        fitting = min(DISTANT_PAGE_ROWS, DISTANT_PAGE_BYTES // length)
        assert counts[0] == PAGE_ROWS, "nobody knows yet how large the rows of this range are"
        assert counts[1] == pytest.approx(fitting, abs=1)
        assert max(counts[1:]) <= fitting
    tr.close()


# ---- pauses ------------------------------------------------------------------------------------


async def test_changes_are_refused_while_held_up_and_go_on_afterwards(autojump_clock, memory):
    others = PausableEngine(memory, SimulatedClock())
    pause = Pause(memory, simulated_runtime(None, 1))
    before = others.transaction()
    await before.get(b"a")
    before.set(b"b", b"1")
    await pause.begin()
    await refused(Status.KV_CONFLICT, before.commit())
    blind = others.transaction()
    blind.set(b"b", b"1")
    assert "backup or check" in await refused(Status.KV_CONFLICT, blind.commit())
    reader = others.transaction()
    assert await reader.get(b"b") is None
    await reader.commit()
    await put(memory, {b"MGLS": b"1"})  # who does not heed it goes on
    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, others, {b"b": b"2"})
        await trio.sleep(1)
        assert await snapshot_read(memory, lambda tr: tr.get(b"b")) is None
        await pause.end()
    assert await snapshot_read(memory, lambda tr: tr.get(b"b")) == b"2"


async def test_a_reader_that_stands_still_loses_its_state_and_is_told(autojump_clock, memory):
    """Also when the clocks of the two disagree: who changes something removes the mark with it."""
    others = PausableEngine(memory, SimulatedClock())
    pause = Pause(memory, simulated_runtime(None, 1))
    await pause.begin()
    for _ in range(10):  # renewed as often as it is asked for
        await trio.sleep(PAUSE_S / 3)
        await pause.renew()
    await trio.sleep(PAUSE_S + 1)
    await pause.renew()  # nobody has changed anything: the state is still the same
    await trio.sleep(PAUSE_S + 1)
    await put(others, {b"b": b"2"})
    assert await snapshot_read(memory, lambda tr: tr.get(PAUSE_KEY)) is None
    await refused(Status.BUSY, pause.renew())
    await pause.end()


async def test_only_one_holds_up_changes(autojump_clock, memory):
    first, second = (Pause(memory, simulated_runtime(None, seed)) for seed in (1, 2))
    await first.begin()
    await refused(Status.BUSY, second.begin())
    await second.end()  # not its own
    await first.renew()
    await trio.sleep(PAUSE_S + 1)
    await second.begin()
    with pytest.raises(FsError):
        first.check(await snapshot_read(memory, lambda tr: tr.get(PAUSE_KEY)))


# ---- through the process that holds the store --------------------------------------------------


async def test_lasting_snapshots_of_others_are_few_and_end(autojump_clock, memory, nursery):
    await put(memory, ROWS)
    served = Served(memory)
    await served.start(nursery)
    async with served.client() as engine:
        runtime = inline_runtime()
        async with open_snapshot(engine, runtime) as first:
            assert await first.page(b"k", b"l")
            assert first.version == memory.version
            held = [open_snapshot(engine, runtime) for _ in range(remote_server.LASTING_MAX)]
            others = [await one.__aenter__() for one in held]
            for other in others[:-1]:
                await other.page(b"k", b"l")
            await refused(Status.KV_UNREACHABLE, others[-1].page(b"k", b"l"))
            for _ in range(3):
                await trio.sleep(remote_server.LASTING_IDLE_S_MAX - 5)
                assert dict(await first.page(b"k", b"l", is_whole=True)) == ROWS
            assert served.service.snapshot_count == 1
            await refused(Status.KV_TOO_OLD, others[0].page(b"k", b"l"))
            for one in held:
                await one.__aexit__(None, None, None)
        await snapshot_read(engine, lambda tr: tr.get(b"a"))
        assert served.service.snapshot_count == 1  # that transaction's own
        await trio.sleep(remote_server.SNAPSHOT_AGE_S_MAX + 2)
        assert served.service.snapshot_count == 0
        async with open_snapshot(engine, runtime) as last:
            await last.page(b"k", b"l")
            served.kill()
            await served.start(nursery)
            await refused(Status.KV_TOO_OLD, last.page(b"k", b"l"))
    served.kill()
