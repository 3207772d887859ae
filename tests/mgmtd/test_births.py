"""An empty store beside disks that served:
chains are made anew, and no disk of the store that is gone takes part in them.
"""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio

from fs.kv.memory import MemoryEngine
from fs.mgmtd.adoption import given_births
from fs.mgmtd.births import Births
from fs.mgmtd.ops import set_chains
from fs.mgmtd.restored import beyond, given_up, guarded, missing, outranked, settled
from fs.runtime.simulated import SimulatedClock
from fs.schema import services
from fs.schema.ids import ChainId, TargetId
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.routing import (
    RESTORED_LOSSES,
    Chain,
    ChainTarget,
    LocalState,
    chain_from_pb,
    chain_to_pb,
)
from fs.schema.standing import Standing, standing_to_pb
from fs.schema.status import FsError, Status
from tests.mgmtd.harness import O, S, cluster_of

pytestmark = pytest.mark.thorough

A, B = TargetId(1), TargetId(2)
SERVED_UNTIL_S = 1_700_000_000


async def _stop_all(cluster):
    for process in [*cluster.storages.values(), *cluster.managers.values()]:
        await process.kill()


async def _start_all(cluster):
    await cluster.start_manager(1)
    for node_id in cluster.storage_ids:
        await cluster.start_storage(node_id)


@pytest.mark.parametrize("are_chains_made_first", [False, True])
async def test_no_disk_serves_under_chains_of_another_store(autojump_clock, are_chains_made_first):
    async with cluster_of() as cluster:
        await cluster.up()
        before, standings = await cluster.info(), dict(cluster.standings)
        await _stop_all(cluster)
        store, cluster.engine = cluster.engine, MemoryEngine(SimulatedClock())
        if are_chains_made_first:
            await cluster.start_manager(1)
            await cluster.register()
            await cluster.set_chains()
            for node_id in cluster.storage_ids:
                await cluster.start_storage(node_id)
        else:
            await _start_all(cluster)
            await cluster.register()
            await cluster.set_chains()
        await cluster.until(
            lambda i: (
                all(
                    "another store" in i.target(m.target_id).trouble
                    for c in i.chains.values()
                    for m in c.targets
                )
                and not any(c.serving for c in i.chains.values())
            )
        )
        assert cluster.standings == standings  # as the store that is gone knows them
        await _stop_all(cluster)
        cluster.engine = store
        await _start_all(cluster)
        info = await cluster.until(lambda i: all(cluster.states(i, c) == [S, S, S] for c in (1, 2)))
        assert all(i.trouble == "" for i in info.targets.values())
        assert [c.birth_ns for c in info.chains.values()] == [
            c.birth_ns for c in before.chains.values()
        ]


async def test_an_emptied_disk_begins_anew(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await _stop_all(cluster)
        cluster.engine = MemoryEngine(SimulatedClock())
        for target_id in (1101, 1102):
            del cluster.standings[target_id]
        await _start_all(cluster)
        await cluster.register()
        await cluster.set_chains()
        info = await cluster.until(lambda i: i.chain(1).serving == (1101,))
        assert info.target(1101).trouble == ""
        assert "another store" in info.target(1201).trouble


async def _lose_store(cluster):
    """Managers lose their store; chains are made anew over disks
    of which the first missed something.
    """
    cluster.watermarks = {n * 100 + c: SERVED_UNTIL_S for n in cluster.storage_ids for c in (1, 2)}
    await cluster.up()
    before = await cluster.info()
    await cluster.storages[11].kill()
    await cluster.until(lambda i: cluster.states(i) == [S, S, O])
    await trio.sleep(5)
    await _stop_all(cluster)
    cluster.engine = MemoryEngine(SimulatedClock())
    await _start_all(cluster)
    await cluster.register()
    await cluster.set_chains()
    await cluster.until(
        lambda i: all("another store" in i.target(t).trouble for t in (1101, 1201, 1301))
    )
    return before


async def _ask(cluster, age_s, **more):
    request = pb.AcceptDisksReq(namespace_birth_ns=(SERVED_UNTIL_S - age_s) * 10**9, **more)
    return await cluster.call(services.MGMTD_ACCEPT_DISKS, request)


async def test_a_person_accepts_disks_under_names_that_are_older(autojump_clock):
    async with cluster_of() as cluster:
        before = await _lose_store(cluster)
        young = await _ask(cluster, 60)
        assert len(young.disks) == 6
        (why,) = young.obstacles
        assert "its names are not those of their chunks" in why
        with pytest.raises(FsError) as e:
            await _ask(cluster, 60, accept=True)
        assert e.value.status is Status.UNSAFE_CHANGE
        told = await _ask(cluster, 7200)
        assert not told.obstacles
        assert {(d.birth_ns, d.watermark) for d in told.disks} == {
            (before.chain(1).birth_ns, SERVED_UNTIL_S)
        }
        assert not any(c.serving for c in (await cluster.info()).chains.values())
        await _ask(cluster, 7200, accept=True)
        # Whoever asks again before the disks have said anything is not to empty them.
        assert (await _ask(cluster, 7200)).obstacles == ["no disk of another store has been heard"]
        info = await cluster.until(lambda i: bool(i.chain(1).serving))
        assert info.chain(1).serving[0] != 1101  # it missed something
        info = await cluster.until(lambda i: all(cluster.states(i, c) == [S, S, S] for c in (1, 2)))
        assert info.chain(1).birth_ns == before.chain(1).birth_ns
        assert info.chain(1).loss_count >= RESTORED_LOSSES
        assert (await _ask(cluster, 7200)).obstacles == ["no disk of another store has been heard"]


async def test_disks_that_served_other_chains_are_not_accepted(autojump_clock):
    async with cluster_of() as cluster:
        await _lose_store(cluster)
        noted = cluster.standings[1101]
        cluster.standings[1101] = replace(noted, chain_id=ChainId(2))
        await trio.sleep(5)
        assert "target 1101 served chain 2" in (await _ask(cluster, 7200)).obstacles[0]
        cluster.standings[1101] = replace(noted, birth_ns=noted.birth_ns + 1)
        await trio.sleep(5)
        assert "of several stores" in (await _ask(cluster, 7200)).obstacles[0]
        cluster.standings[1101] = (await cluster.info()).chain(1).standing
        await trio.sleep(5)
        found = (await _ask(cluster, 7200)).obstacles
        assert any("target 1101 has served under the chains of now" in why for why in found)
        assert any("chain 1 serves already" in why for why in found)


def _without_birth(monkeypatch):
    made = set_chains._chain
    monkeypatch.setattr(set_chains, "_chain", lambda a, ns: replace(made(a, ns), birth_ns=0))


async def test_chains_of_an_earlier_release_get_a_birth_once(autojump_clock, monkeypatch):
    _without_birth(monkeypatch)
    async with cluster_of() as cluster:
        for node_id in cluster.manager_ids:
            await cluster.start_manager(node_id)
        await cluster.register()
        for node_id in (11, 12):
            await cluster.start_storage(node_id)
        await cluster.set_chains()
        await trio.sleep(30)
        assert {c.birth_ns for c in (await cluster.info()).chains.values()} == {0}  # one is away
        await cluster.start_storage(13)
        info = await cluster.until(lambda i: all(c.birth_ns for c in i.chains.values()))
        (birth_ns,) = {c.birth_ns for c in info.chains.values()}
        await cluster.until(
            lambda _i: {s.birth_ns for s in cluster.standings.values()} == {birth_ns}
        )
        await trio.sleep(30)
        info = await cluster.info()
        assert [cluster.states(info, c) for c in (1, 2)] == [[S, S, S]] * 2
        assert {c.birth_ns for c in info.chains.values()} == {birth_ns}


def test_disks_of_several_births_are_left_alone():
    chain = _chain(0)
    info = SimpleNamespace(chains={chain.chain_id: chain})
    local = dict.fromkeys((A, B), LocalState.UPTODATE)
    heard = {A: _chain(5).standing, B: _chain(6).standing}
    assert given_births(info, heard, local, 9) == {}
    heard[B] = None
    (after,) = given_births(info, heard, local, 9).values()
    assert (after.birth_ns, after.chain_version) == (5, chain.chain_version + 1)
    assert given_births(info, {A: None}, local, 9) == {}
    assert given_births(info, heard, local | {B: LocalState.ONLINE}, 9) == {}


def _chain(birth_ns):
    members = tuple(ChainTarget(t, S) for t in (A, B))
    return Chain(ChainId(7), 5, members, (A, B), birth_ns=birth_ns)


def _report(birth_ns):
    return pb.TargetReportPb(target_id=A, standing=standing_to_pb(_chain(birth_ns).standing))


@pytest.mark.parametrize(
    ("noted", "known", "is_refused"),
    [(5, 5, False), (5, 6, True), (6, 5, True), (0, 5, False), (5, 0, False)],
)
def test_a_birth_that_is_not_known_refuses_nobody(noted, known, is_refused):
    births = Births()
    assert births.hear(_chain(known), _report(noted)) is is_refused
    assert (births.refusal(A) is not None) is is_refused
    assert births.hear(_chain(known), _report(noted)) is False
    assert births.hear(_chain(known), pb.TargetReportPb(target_id=A)) is is_refused
    assert births.refusal(A) is None


def test_a_birth_far_off_is_told_all_the_same():
    births = Births()
    assert births.hear(_chain(1), _report(2**62))
    assert births.refusal(A) is not None


def test_a_birth_is_kept_with_its_chain():
    assert chain_from_pb(chain_to_pb(_chain(5))) == _chain(5)


def _noted(version, birth_ns, *keepers):
    return Standing(ChainId(7), 0, version, keepers, None, birth_ns)


def test_what_was_noted_under_another_store_says_nothing_of_a_restored_chain():
    """A disk that was emptied served under the chains made anew,
    before the backup of the store that was lost was restored.
    """
    chain = guarded(_chain(5), 10**18)
    heard = {A: _noted(9, 6, A), B: _noted(5, 5, A, B)}
    assert not outranked(chain, heard[A])
    assert list(missing(chain, heard)) == [A], (
        "as for an emptied disk: a person says that it is lost"
    )
    assert settled(chain, heard) is chain
    after = given_up(chain, heard, A, None)
    assert after.keepers == (B,)


def test_what_was_noted_under_another_store_lifts_no_numbers():
    chain = _chain(5)
    heard = {A: _noted(9, 6, A)}
    assert not outranked(chain, heard[A])
    assert beyond(chain, heard) is chain


async def test_who_acts_on_a_picture_of_another_store_gets_no_lease(autojump_clock):
    """It would serve by what that one said last,
    and tell ever later times until which its disk served.
    """
    async with cluster_of() as cluster:
        await cluster.up()
        for _ in range(10):
            await cluster.storages[11].kill()
            await cluster.until(lambda i: cluster.states(i) == [S, S, O])
            await cluster.start_storage(11)
            await cluster.until(lambda i: cluster.states(i) == [S, S, S])
        await cluster.managers[1].kill()
        cluster.engine = MemoryEngine(SimulatedClock())
        await cluster.start_manager(1)
        await cluster.register()
        await cluster.set_chains()
        await trio.sleep(20)
        leases = [cluster.storages[n].member.lease for n in cluster.storage_ids]
        assert not any(lease.is_valid() for lease in leases)
        for node_id in cluster.storage_ids:
            await cluster.storages[node_id].kill()
            await cluster.start_storage(node_id)
        await trio.sleep(20)
        assert all(cluster.storages[n].member.lease.is_valid() for n in cluster.storage_ids)
