"""The retry loop: what is run again, what is not, and what the caller is told in the end."""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import pytest
import trio

from fs.kv.api import TRANSACTION_AGE_S_MAX
from fs.kv.faulty import Fate, ScriptedFaults
from fs.kv.memory import MemoryEngine
from fs.kv.transact import BACKOFF_S_MAX, snapshot_read, transact, transact_stamped
from fs.schema.status import FsError, Status
from tests.kv.harness import inline_runtime


@pytest.fixture
def runtime():
    return inline_runtime()


@pytest.fixture
def engine(runtime):
    return MemoryEngine(runtime.clock, faults=ScriptedFaults())


def counting_writer():
    runs = []

    async def fn(tr):
        runs.append(1)
        tr.set(b"a", b"%d" % len(runs))
        return len(runs)

    return fn, runs


async def expect(status: Status, act) -> FsError:
    with pytest.raises(FsError) as caught:
        await act
    assert caught.value.status is status, caught.value
    return caught.value


async def test_retries_what_the_store_refuses(engine, runtime, autojump_clock):
    fn, runs = counting_writer()
    engine.faults.push(Fate.CONFLICT, Fate.UNKNOWN_LOST, Fate.UNKNOWN_COMMITTED)
    assert await transact(engine, fn, runtime=runtime) == 4
    assert len(runs) == 4
    assert engine.dump() == {b"a": b"4"}


async def test_errors_of_the_function_pass_and_commit_nothing(engine, runtime, autojump_clock):
    async def fn(tr):
        tr.set(b"a", b"1")
        raise FsError(Status.EXISTS, "b")

    await expect(Status.EXISTS, transact(engine, fn, runtime=runtime))
    assert engine.dump() == {}
    assert engine.faults.commit_count == 0


async def test_reads_that_are_too_old_are_run_again(engine, runtime, autojump_clock):
    pauses = [TRANSACTION_AGE_S_MAX + 1, 0.0]

    async def fn(tr):
        await tr.get(b"a")
        await trio.sleep(pauses.pop(0))
        return await tr.get(b"b")

    assert await transact(engine, fn, runtime=runtime) is None
    pauses.extend([TRANSACTION_AGE_S_MAX + 1, 0.0])
    assert await snapshot_read(engine, fn) is None
    pauses.extend([TRANSACTION_AGE_S_MAX + 1] * 3)
    await expect(Status.KV_TOO_OLD, snapshot_read(engine, fn))


async def test_gives_up_in_time_with_a_definite_conflict(engine, runtime, autojump_clock):
    fn, runs = counting_writer()
    engine.faults.push(*[Fate.CONFLICT] * 1000)
    error = await expect(
        Status.KV_CONFLICT, transact(engine, fn, runtime=runtime, retry_time_s_max=3.0)
    )
    assert error.definite
    assert 3.0 - BACKOFF_S_MAX <= trio.current_time() <= 3.0
    assert 10 < len(runs) < 1000


async def test_gives_up_indefinitely_after_an_unknown_outcome(engine, runtime, autojump_clock):
    fn, _ = counting_writer()
    engine.faults.push(Fate.UNKNOWN_COMMITTED, *[Fate.CONFLICT] * 1000)
    error = await expect(
        Status.KV_TIMED_OUT, transact(engine, fn, runtime=runtime, retry_time_s_max=3.0)
    )
    assert not error.definite


async def test_not_idempotent_gets_the_unknown_outcome(engine, runtime, autojump_clock):
    fn, runs = counting_writer()
    engine.faults.push(Fate.CONFLICT, Fate.UNKNOWN_COMMITTED)
    await expect(
        Status.KV_COMMIT_UNKNOWN, transact(engine, fn, runtime=runtime, is_idempotent=False)
    )
    assert len(runs) == 2


async def test_unavailable_while_reading_leaves_the_outcome_definite(
    engine, runtime, autojump_clock
):
    async def fn(tr):
        await tr.get(b"a")
        tr.set(b"a", b"1")

    engine.set_available(False)
    await expect(
        Status.KV_UNAVAILABLE,
        transact(engine, fn, runtime=runtime, retry_time_s_max=0.5),
    )


async def test_stamp_is_given_back(engine, runtime, autojump_clock):
    fn, _ = counting_writer()
    result, stamp = await transact_stamped(engine, fn, runtime=runtime)
    assert (result, stamp) == (1, (1).to_bytes(8, "big") + b"\0\0")
    assert await transact_stamped(engine, lambda tr: tr.get(b"a"), runtime=runtime) == (b"1", None)


async def test_read_only_transactions_are_not_committed(engine, runtime, autojump_clock):
    assert await transact(engine, lambda tr: tr.get(b"a"), runtime=runtime) is None
    assert engine.faults.commit_count == 0
    assert engine.version == 0


async def test_cancellation_passes_through(engine, runtime, autojump_clock):
    fn, _ = counting_writer()
    engine.faults.push(*[Fate.CONFLICT] * 1000)
    with trio.move_on_after(0.5) as scope:
        await transact(engine, fn, runtime=runtime)
    assert scope.cancelled_caught
    assert engine.dump() == {}
