"""The property that reads rest on, under random cuts, crashes, restarts and a faulty store.

Whenever a storage process holds a valid lease and its own routing info says that a target
of it serves, that target serves in the newest committed routing info too.  (Its own reports
may demote it: then it knows.)
"""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import os
import random

import pytest
import trio
import trio.testing

from fs.kv.faulty import RandomFaults
from fs.mgmtd.store import CHAIN_PREFIX, ROUTING_VERSION_KEY
from fs.schema import services
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.proto.record_pb2 import ChainRecordPb
from fs.schema.routing import LocalState, chain_from_pb
from fs.schema.status import FsError, Status
from tests.mgmtd.harness import O, S, cluster_of

pytestmark = pytest.mark.thorough


def committed(cluster):
    rows = cluster.engine.dump()
    chains = [
        chain_from_pb(ChainRecordPb.FromString(value).chain)
        for key, value in rows.items()
        if key.startswith(CHAIN_PREFIX)
    ]
    version = int.from_bytes(rows[ROUTING_VERSION_KEY], "big")
    return version, {t.target_id: t.public_state for c in chains for t in c.targets}, chains


async def observe(cluster, seen) -> None:
    while True:
        await trio.sleep(0.02)
        version, states, chains = committed(cluster)
        assert version >= seen["version"]
        seen["version"] = version
        for chain in chains:
            old = seen.get(chain.chain_id)
            assert old is None or old == chain or chain.chain_version > old.chain_version
            seen[chain.chain_id] = chain
        assert len(cluster.primaries) <= 1
        for storage in list(cluster.storages.values()):
            if not storage.member.lease.is_valid() or storage.ended.is_set():
                continue
            for target_id, local in storage.local.items():
                if local is LocalState.UPTODATE and storage.public(target_id) is S:
                    seen["checked"] += 1
                    assert states[target_id] is S, (storage.name, target_id, trio.current_time())


async def trouble(cluster, source, count) -> None:
    """Do one random thing after the other, each healed some time later."""
    names = [f"n{n}" for n in [*cluster.manager_ids, *cluster.storage_ids]]
    for _ in range(count):
        await trio.sleep(source.uniform(0.0, 3.0))
        match source.choice(["cut", "oneway", "kill", "kill", "manager", "stop"]):
            case "cut":
                side = source.sample(names, source.randint(1, 2))
                cluster.network.partition(side, [n for n in names if n not in side])
                await trio.sleep(source.uniform(0.5, 10))
                cluster.network.heal()
            case "oneway":
                one, two = source.sample(names, 2)
                cluster.network.block(one, two)
                await trio.sleep(source.uniform(0.5, 10))
                cluster.network.heal()
            case "kill":
                node_id = source.choice(cluster.storage_ids)
                await cluster.storages[node_id].kill()
                await trio.sleep(source.choice([0.0, 0.1, 2.0, 8.0]))
                await cluster.start_storage(node_id)
            case "manager":
                node_id = source.choice(cluster.manager_ids)
                await cluster.managers[node_id].kill()
                await trio.sleep(source.choice([0.0, 0.1, 2.0, 8.0]))
                await cluster.start_manager(node_id)
            case "stop":
                node_id = source.choice(cluster.storage_ids)
                await cluster.storages[node_id].member.announce_stop()
                await cluster.storages[node_id].kill()
                await cluster.start_storage(node_id)


SEEDS = int(os.environ.get("EMBER_FENCING_SEEDS", "4"))


@pytest.mark.parametrize(
    ("seed", "count"),
    [(0, 5), *(pytest.param(s, 12, marks=pytest.mark.slow) for s in range(1, SEEDS))],
)
def test_whoever_may_serve_does_serve_in_the_committed_picture(seed, count):
    seen = {"version": 0, "checked": 0}

    async def main() -> None:
        source = random.Random(seed)
        async with cluster_of(manager_count=3, seed=seed) as cluster:
            await cluster.up()
            cluster.engine.faults = RandomFaults(
                random.Random(seed + 1),
                conflict=0.05,
                unknown_committed=0.05,
                unknown_lost=0.05,
                delay_before_s_max=0.02,
                delay_after_s_max=0.02,
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(observe, cluster, seen)
                await trouble(cluster, source, count)
                await cluster.until(
                    lambda i: cluster.states(i) == cluster.states(i, 2) == [S, S, S], 60
                )
                nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert seen["checked"] > 100


async def test_a_manager_that_was_stopped_blames_nobody(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        before = await cluster.info()
        manager = cluster.managers[1]
        manager.clock.jump_s += 8.0  # as after SIGSTOP: to itself, all was silent for 8 s
        assert not manager.mgmtd.is_primary
        await trio.sleep(5)
        after = await cluster.info()
        assert after.chains == before.chains
        cluster.network.switch_off("n11")
        await cluster.until(lambda i: cluster.state_of(i, 11) is O)


class Outage:
    """A store that answers only while there is no outage."""

    def __init__(self, engine) -> None:
        self.engine, self.is_out = engine, False

    def transaction(self):
        if self.is_out:
            raise FsError(Status.KV_UNAVAILABLE, "outage")
        return self.engine.transaction()

    async def sync(self) -> None:
        await self.engine.sync()


@pytest.mark.parametrize("outage_s", [3.0, 12.0, 58.0])
async def test_a_manager_that_could_not_answer_blames_nobody_for_it(autojump_clock, outage_s):
    """While its lease is in doubt it takes no heartbeats;
    that nobody was heard then says nothing.
    """
    async with cluster_of() as cluster:
        await cluster.up()
        await trio.sleep(20)  # nothing is left to be published
        before = await cluster.info()
        request = pb.ExtendClientSessionReq(client_id="c")
        await cluster.call(services.MGMTD_EXTEND_CLIENT_SESSION, request)
        store = cluster.managers[1].mgmtd._store
        store._engine = outage = Outage(store._engine)
        outage.is_out = True
        await trio.sleep(outage_s)
        outage.is_out = False
        await trio.sleep(15)
        assert (await cluster.info()).chains == before.chains
        assert await sessions_of(cluster) == ["c"]
        cluster.network.switch_off("n11")
        silent_s = trio.current_time()
        await cluster.until(lambda i: cluster.state_of(i, 11) is O)
        assert trio.current_time() - silent_s < cluster.section.node_failed_after_s + 1


async def sessions_of(cluster):
    request = pb.ListClientSessionsReq()
    reply = await cluster.call(services.MGMTD_LIST_CLIENT_SESSIONS, request)
    return [s.client_id for s in reply.sessions]
