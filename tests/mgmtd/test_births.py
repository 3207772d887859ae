"""An empty store beside disks that served: chains are made anew, and no disk of the store that is gone takes part in them."""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import pytest

from fs.admin.rebase import guarded
from fs.kv.memory import MemoryEngine
from fs.mgmtd.births import Births
from fs.mgmtd.restored import beyond, given_up, missing, outranked, settled
from fs.runtime.simulated import SimulatedClock
from fs.schema.ids import ChainId, TargetId
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.routing import Chain, ChainTarget, chain_from_pb, chain_to_pb
from fs.schema.standing import Standing, standing_to_pb
from tests.mgmtd.harness import S, cluster_of

A, B = TargetId(1), TargetId(2)


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
    """A disk that was emptied served under the chains made anew, before the backup of the store that was lost was restored."""
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
