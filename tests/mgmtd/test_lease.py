"""Primary election: the decision table, and that no two managers ever act at once."""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import random

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from fs.kv.memory import MemoryEngine
from fs.kv.transact import snapshot_read
from fs.mgmtd.election import Election
from fs.mgmtd.lease import (
    NOBODY,
    Candidate,
    Held,
    LeaseRecord,
    Observation,
    Verdict,
    decide,
    extended,
    is_owned,
    may_act,
    observe,
    released,
    taken,
)
from fs.mgmtd.store import Store
from fs.runtime.ports import Runtime
from fs.runtime.simulated import SimulatedClock, run_inline
from fs.schema.config import CLOCK_DRIFT_MAX, KvSection, MgmtdSection, certain_s
from fs.schema.ids import NodeId
from fs.schema.status import FsError, Status

ME = Candidate(NodeId(1), "mem:n1", "one")
RIVAL = LeaseRecord(NodeId(2), "mem:n2", "two", 100, 200, 5)
MINE = LeaseRecord(NodeId(1), "mem:n1", "one", 100, 200, 5)


def judge(record, *, held=None, observation=None, now_s=100.0):
    return decide(
        record,
        ME,
        held=held,
        observation=observation,
        now_s=now_s,
        lease_s=6.0,
        extend_interval_s=1.0,
    )


@pytest.mark.parametrize(
    ("record", "held", "observation", "expected"),
    [
        (LeaseRecord(), None, None, Verdict.TAKE_OVER),
        (released(RIVAL), None, None, Verdict.TAKE_OVER),
        (RIVAL, None, None, Verdict.FOLLOW),
        (RIVAL, None, Observation(RIVAL, 94.1), Verdict.FOLLOW),
        (RIVAL, None, Observation(RIVAL, 94.0), Verdict.TAKE_OVER),
        (RIVAL, None, Observation(extended(RIVAL, now_ns=0, lease_s=6), 1.0), Verdict.FOLLOW),
        (RIVAL, None, Observation(RIVAL, 99.9, is_owner_gone=True), Verdict.TAKE_OVER),
        (MINE, Held(5, 99.5), None, Verdict.KEEP),
        (MINE, Held(5, 99.0), None, Verdict.EXTEND),
        (MINE, Held(5, 1.0), None, Verdict.EXTEND),  # lapsed, but nobody acted meanwhile
        (MINE, Held(4, 99.5), None, Verdict.GIVE_UP),
        (RIVAL, Held(5, 99.5), None, Verdict.GIVE_UP),
        (LeaseRecord(NodeId(1), "mem:n1", "older", 1, 2, 4), None, None, Verdict.TAKE_OVER),
    ],
)
def test_decision_table(record, held, observation, expected):
    assert judge(record, held=held, observation=observation) is expected


def test_the_owner_stops_acting_before_the_end_and_without_a_lease():
    held = Held(1, 10.0)
    assert may_act(held, now_s=10.0 + certain_s(6.0) - 0.01, lease_s=6.0)
    assert not may_act(held, now_s=10.0 + certain_s(6.0), lease_s=6.0)
    assert not may_act(None, now_s=0.0, lease_s=6.0)


@given(
    st.floats(0.6, 86_400.0),
    st.floats(1 - CLOCK_DRIFT_MAX, 1 + CLOCK_DRIFT_MAX),
    st.floats(1 - CLOCK_DRIFT_MAX, 1 + CLOCK_DRIFT_MAX),
)
def test_a_lease_ends_before_others_have_waited_for_it(watched_s, owner_speed, other_speed):
    assert certain_s(watched_s) / owner_speed <= watched_s / other_speed + 1e-9
    assert certain_s(watched_s) < watched_s


@given(st.integers(-(2**62), 2**62), st.integers(0, 2**61))
def test_every_write_differs_whatever_the_wall_clock_says(now_ns, end_ns):
    record = LeaseRecord(NodeId(2), "a", "b", 0, end_ns, 7)
    after = extended(record, now_ns=now_ns, lease_s=6.0)
    assert after != record
    assert after.epoch == 7
    mine = taken(record, ME, now_ns=now_ns, lease_s=6.0)
    assert mine.end_ns > end_ns
    assert is_owned(mine, ME, 8)
    assert released(mine).node_id == NOBODY
    assert released(mine).epoch == 8


def test_an_observation_begins_anew_with_every_change():
    first = observe(None, RIVAL, 1.0)
    assert observe(first, RIVAL, 5.0) is first
    assert observe(first, extended(RIVAL, now_ns=0, lease_s=6.0), 5.0).since_s == 5.0


class DriftingClock(SimulatedClock):
    """A clock of its own: offset, slightly wrong speed, and a wall clock that jumps."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        self._offset_s = source.uniform(0, 1e6)
        self._speed = source.uniform(1 - CLOCK_DRIFT_MAX, 1 + CLOCK_DRIFT_MAX)
        self._random = source

    def monotonic_s(self) -> float:
        return self._offset_s + trio.current_time() * self._speed

    def wall_ns(self) -> int:
        return self._random.randrange(2**61)


class PausingEngine:
    """A store whose every step may take long, as a paused or swapped-out process sees it."""

    def __init__(self, engine, source: random.Random) -> None:
        self._engine, self._random = engine, source

    async def pause(self) -> None:
        if self._random.random() < 0.3:
            await trio.sleep(self._random.choice([0.01, 0.5, 2.0, 4.0]))

    def transaction(self):
        return PausingTransaction(self._engine.transaction(), self)

    async def sync(self) -> None:
        await self.pause()
        await self._engine.sync()


class PausingTransaction:
    def __init__(self, inner, engine) -> None:
        self._inner, self._engine = inner, engine

    async def get(self, key, **options):
        await self._engine.pause()
        value = await self._inner.get(key, **options)
        await self._engine.pause()
        return value

    async def commit(self):
        await self._engine.pause()
        stamp = await self._inner.commit()
        await self._engine.pause()
        return stamp

    def __getattr__(self, name):
        return getattr(self._inner, name)


class SilentChannels:
    """Nobody can be reached, which proves nothing."""

    def get(self, address, **_options):
        raise FsError(Status.RPC_TIMEOUT, address)


async def stand(election: Election, source: random.Random) -> None:
    while True:
        try:
            await election.step()
        except FsError as error:
            if error.status not in {Status.KV_TOO_OLD, Status.KV_CONFLICT}:
                raise
        if source.random() < 0.05:
            await trio.sleep(source.uniform(0, 15))  # stopped altogether
        await trio.sleep(source.uniform(0.1, 1.0))


@pytest.mark.slow
@given(st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_no_two_managers_act_at_once(seed):
    epochs: list[int] = []

    async def main() -> None:
        source = random.Random(seed)
        shared = MemoryEngine(SimulatedClock())
        elections = []
        for number in (1, 2, 3):
            own = random.Random(source.random())
            runtime = Runtime(DriftingClock(own), None, run_inline, own)
            store = Store(PausingEngine(shared, own), runtime, KvSection(), "test")
            me = Candidate(NodeId(number), f"mem:n{number}", f"i{number}")
            elections.append(Election(me, store, runtime.clock, SilentChannels(), MgmtdSection()))
        async with trio.open_nursery() as nursery:
            for election in elections:
                nursery.start_soon(stand, election, source)
            for _ in range(1500):
                await trio.sleep(0.1)
                acting = [e for e in elections if e.may_act()]
                assert len(acting) <= 1, [e.me for e in acting]
                epochs.extend(e.epoch for e in acting)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert epochs == sorted(epochs)
    assert epochs, "somebody acted"


async def test_a_deposed_manager_cannot_write(autojump_clock, store_engine):
    clock = SimulatedClock()
    engine = store_engine
    runtime = Runtime(clock, None, run_inline, random.Random(1))
    store = Store(engine, runtime, KvSection(), "test")
    first, second = (
        Election(
            Candidate(NodeId(n), f"mem:n{n}", f"i{n}"),
            store,
            clock,
            SilentChannels(),
            MgmtdSection(),
        )
        for n in (1, 2)
    )
    assert await first.step() is Verdict.TAKE_OVER
    await store.write(first.me, first.epoch, 1, [(b"MGND1", b"x")])
    assert await second.step() is Verdict.FOLLOW
    await trio.sleep(6)
    assert await second.step() is Verdict.TAKE_OVER
    before = await snapshot_read(engine, lambda tr: tr.get_range(b"", b"\xff"))
    with pytest.raises(FsError) as caught:
        await store.write(first.me, first.epoch, 2, [(b"MGND1", b"y")])
    assert caught.value.status is Status.LEASE_LOST
    after = await snapshot_read(engine, lambda tr: tr.get_range(b"", b"\xff"))
    assert after == before
    assert await first.step() is Verdict.GIVE_UP
    await second.release()
    assert await first.step() is Verdict.TAKE_OVER
    assert first.epoch == 3


def test_an_extension_ends_a_lease_time_from_now():
    """For people: the right to act is judged by monotonic clocks."""
    assert extended(LeaseRecord(end_ns=5), now_ns=10**9, lease_s=6.0).end_ns == 7 * 10**9
