"""A primary that is stopped at any of its awaits on the store,
for shorter or longer than its lease, and goes on then.

Every step is tried: before and after each read, commit and flush from a failure on until its
consequences are published. What is checked, at every commit: one content per routing version, one
step per chain version, one owner per epoch (`RoutingWatch`); and that a primary which was replaced
answers NOT_PRIMARY, and changes nothing.

`EMBER_PAUSES=all` tries every pause at every step, by default only some at each.
"""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import itertools
import os

import pytest
import trio

from fs.mgmtd.store import LEASE_KEY, ROUTING_VERSION_KEY, unpack_lease
from fs.runtime.simulated import SimulatedClock
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.status import FsError, Status
from tests.examples import some_of
from tests.mgmtd.harness import O, S, cluster_of
from tests.sim.store import RoutingWatch, WatchedStore

STEP_COUNT = 14
"""So many steps at least lie between a failure and the published consequences,
elections included.
"""


class PausingEngine:
    """A store at one step of which its user is stopped;
    as SIGSTOP does, it does not ask whether that suits.
    """

    def __init__(self, engine) -> None:
        self.engine = engine
        self.step_count = 0
        self.pause_at = 0
        self.is_before = True
        self.pause_s = 0.0
        self.paused = trio.Event()
        self.resumed = trio.Event()

    async def step(self, call):
        self.step_count += 1
        if self.step_count != self.pause_at:
            if self.paused.is_set():  # nothing of a stopped process goes on
                await self.resumed.wait()
            return await call()
        with trio.CancelScope(shield=True):
            if self.is_before:
                await self.stop()
                return await call()
            result = await call()
            await self.stop()
            return result

    async def stop(self) -> None:
        self.paused.set()
        await trio.sleep(self.pause_s)
        self.resumed.set()

    def transaction(self):
        return PausingTransaction(self, self.engine.transaction())

    async def sync(self) -> None:
        await self.step(self.engine.sync)


class PausingTransaction:
    def __init__(self, engine, transaction) -> None:
        self._engine, self._transaction = engine, transaction

    def __getattr__(self, name):
        return getattr(self._transaction, name)

    async def get(self, key, **options):
        return await self._engine.step(lambda: self._transaction.get(key, **options))

    async def commit(self):
        return await self._engine.step(self._transaction.commit)


async def ask(cluster, manager, seen) -> None:
    """Ask one manager directly all the time: what it answers is true and its own to say."""
    while True:
        await trio.sleep(0.05)
        record = unpack_lease(cluster.engine.current(LEASE_KEY))
        try:
            reply = await manager.mgmtd.service.get_routing_info(None, pb.GetRoutingInfoReq())
        except FsError as error:
            assert error.status is Status.NOT_PRIMARY  # noqa: PT017
            seen["refused"] += 1
            continue
        assert record.node_id == manager.node.node_id
        assert record.epoch == manager.mgmtd.service.primary._epoch
        committed = int.from_bytes(cluster.engine.current(ROUTING_VERSION_KEY), "big")
        # One may be on its way to memory.
        assert reply.routing_version in {committed, committed - 1}
        seen["answered"] += 1


async def one_acts(cluster) -> None:
    while True:
        await trio.sleep(0.02)
        assert len(cluster.primaries) <= 1


PAUSES = list(itertools.product([True, False], [3.0, 9.0, 30.0], [True, False]))


def cases():
    if os.environ.get("EMBER_PAUSES") == "all":
        return [(step, *pause) for step in range(1, STEP_COUNT + 1) for pause in PAUSES]
    found = []
    for step in range(1, STEP_COUNT + 1):
        some = {PAUSES[(5 * step) % len(PAUSES)], (step % 2 == 0, 9.0, True)}
        found += [(step, *pause) for pause in sorted(some)]
    return some_of(found, 14)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "is_before", "pause_s", "is_cut"), cases())
async def test_a_primary_stopped_at_any_step_does_no_harm(
    autojump_clock, step, is_before, pause_s, is_cut
):
    seen = {"refused": 0, "answered": 0}
    async with cluster_of(manager_count=2, seed=step) as cluster:
        cluster.engine = WatchedStore(SimulatedClock())
        cluster.engine.watch = RoutingWatch()
        await cluster.up()
        (first,) = cluster.primaries
        engine = first.mgmtd._store._engine = PausingEngine(cluster.engine)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, cluster, first, seen)
            nursery.start_soon(one_acts, cluster)
            engine.pause_at, engine.is_before, engine.pause_s = step, is_before, pause_s
            await cluster.storages[11].kill()
            with trio.move_on_after(20):
                await engine.paused.wait()
            assert engine.paused.is_set()
            if is_cut:  # a stopped process answers nobody, and hears what was said to it later
                name = first.name
                others = [p.name for p in (*cluster.managers.values(), *cluster.storages.values())]
                others = [other for other in others if other != name]
                cluster.network.partition([name], [*others, "observer"])
                await trio.sleep(pause_s)
                cluster.network.heal()
            await cluster.until(lambda i: cluster.states(i) == cluster.states(i, 2) == [S, S, O])
            if pause_s > cluster.section.primary_lease_s:
                await trio.sleep(pause_s)
                assert unpack_lease(cluster.engine.current(LEASE_KEY)).epoch > 1
            await cluster.start_storage(11)
            await cluster.until(lambda i: cluster.states(i) == cluster.states(i, 2) == [S, S, S])
            await trio.sleep(3)
            nursery.cancel_scope.cancel()
    history = [v[1] for v in cluster.engine.watch.chain_history.values() if 1 in v]
    versions = {chain.chain_version for chain in history}
    assert versions == set(range(min(versions), max(versions) + 1))
    assert max(versions) <= 5  # out, waiting, syncing, serving: nothing twice
    assert seen["answered"]
    if pause_s > cluster.section.primary_lease_s:
        assert seen["refused"]
