"""Machines that come back one by one, or not at all,
after everything had stopped or lost its power.
"""
# ruff: noqa: ARG001 - the clock fixture acts by being asked for

import itertools

import pytest
import trio

from fs.mgmtd import together
from fs.schema.config import MgmtdSection
from tests.examples import first_quick, some_of
from tests.mgmtd.harness import L, O, S, cluster_of

pytestmark = pytest.mark.thorough

JUDGED_S = 9.0
"""After this a node that was never heard in a reign counts as failed,
and what follows has been done.
"""
MINUTES_S = 180.0


async def stop_in_order(cluster):
    """Stop all storage processes under a manager that is told, then the manager."""
    for manager in cluster.managers.values():
        manager.mgmtd.be_quiet(30)
    for node_id in cluster.storage_ids:
        await cluster.storages[node_id].stop()
        await trio.sleep(1)
    await cluster.managers[1].stop()


def lose_power(cluster, *node_ids):
    """Machines fall silent at once, and will have been started anew."""
    for node_id in node_ids:
        cluster.network.switch_off(f"n{node_id}")
        cluster.boot_ids[node_id] = f"{cluster.boot_ids.get(node_id, 'boot')}+"


async def end(cluster, *node_ids):
    """End what ran on machines that are off already, so that it can be started anew."""
    for node_id in node_ids:
        process = cluster.storages.get(node_id) or cluster.managers[node_id]
        process.scope.cancel()
        await process.ended.wait()


async def switch_on(cluster, node_id):
    cluster.network.switch_on(f"n{node_id}")
    await cluster.start_storage(node_id)


@pytest.fixture
def boots(monkeypatch):
    """Machines have boot ids from the beginning, so that losses are counted."""

    def with_boots(cluster):
        cluster.boot_ids |= dict.fromkeys(cluster.storage_ids, "boot")
        return cluster

    return with_boots


@pytest.mark.parametrize("away", [11, 12, 13])
async def test_a_machine_that_does_not_answer_after_an_orderly_stop_is_not_waited_for(
    autojump_clock, boots, away
):
    async with cluster_of() as cluster:
        await boots(cluster).up()
        await trio.sleep(5)
        await stop_in_order(cluster)
        lose_power(cluster, *cluster.storage_ids)
        await cluster.start_manager(1)
        for node_id in cluster.storage_ids:
            if node_id != away:
                await switch_on(cluster, node_id)
        info = await cluster.until(
            lambda i: all(cluster.states(i, c) == [S, S, O] for c in (1, 2)), JUDGED_S
        )
        assert cluster.state_of(info, away) is O
        assert [c.losses for c in info.chains.values()] == [0, 0]  # all had been flushed
        await switch_on(cluster, away)
        await cluster.until(lambda i: all(cluster.states(i, c) == [S, S, S] for c in (1, 2)))


@pytest.mark.parametrize("order", some_of(first_quick(itertools.permutations([11, 12, 13])), 3))
async def test_after_a_loss_of_all_power_whoever_is_there_first_serves(
    autojump_clock, boots, order
):
    async with cluster_of() as cluster:
        await boots(cluster).up()
        await trio.sleep(5)
        await cluster.managers[1].kill()
        lose_power(cluster, *cluster.storage_ids)
        await end(cluster, *cluster.storage_ids)
        await trio.sleep(MINUTES_S)
        await cluster.start_manager(1)
        first, second, third = order
        await switch_on(cluster, first)
        info = await cluster.until(lambda i: cluster.states(i) == [S, O, O], JUDGED_S)
        assert cluster.state_of(info, first) is S
        # What had not been synced is gone.
        assert [c.losses for c in info.chains.values()] == [1, 1]
        for others, states in ((second, [S, S, O]), (third, [S, S, S])):
            await trio.sleep(MINUTES_S)
            await switch_on(cluster, others)
            await cluster.until(lambda i, s=states: cluster.states(i) == s)
        assert [c.losses for c in (await cluster.info()).chains.values()] == [1, 1]


@pytest.mark.parametrize("first", first_quick([11, 12, 13]))
async def test_under_a_manager_that_went_on_all_are_judged_together(autojump_clock, boots, first):
    """Their last heartbeats came at different times,
    so they have been silent for too long one after the other.
    """
    async with cluster_of() as cluster:
        await boots(cluster).up()
        await trio.sleep(5)
        for node_id in cluster.storage_ids:
            await trio.sleep(0.4)
            cluster.storages[node_id].member.trigger()
        await trio.sleep(0.3)
        lose_power(cluster, *cluster.storage_ids)
        await end(cluster, *cluster.storage_ids)
        await trio.sleep(MINUTES_S)
        info = await cluster.info()
        assert len(info.chain(1).candidates) == 3
        await switch_on(cluster, first)
        info = await cluster.until(lambda i: cluster.states(i) == [S, O, O], JUDGED_S)
        assert cluster.state_of(info, first) is S


async def test_a_process_is_not_heard_before_those_who_may_have_gone_on_without_its_last_one(
    autojump_clock,
):
    async with cluster_of() as cluster:
        await cluster.up()
        await trio.sleep(5)
        await cluster.managers[1].kill()
        for node_id in (12, 13):  # alive, and cut off from the manager alone
            cluster.network.block("n1", f"n{node_id}")
            cluster.network.block(f"n{node_id}", "n1")
        await cluster.storages[11].kill()
        await cluster.start_manager(1)
        await cluster.wait_primary(cluster.managers[1])
        await cluster.start_storage(11)
        await trio.sleep(2)
        assert cluster.states(await cluster.info()) == [S, S, S]
        cluster.network.heal()
        info = await cluster.until(lambda i: cluster.state_of(i, 11) is O, 3.0)
        assert info.chain(1).serving == (1201, 1301)
        await cluster.until(lambda i: cluster.states(i) == [S, S, S])


async def test_who_dies_beside_others_that_live_is_judged_at_once(autojump_clock):
    async with cluster_of(manager_count=2) as cluster:
        await cluster.up()
        await trio.sleep(5)
        await cluster.storages[12].kill()
        await cluster.until(lambda i: cluster.state_of(i, 12) is O, 1.0)
        await cluster.start_storage(12)
        await cluster.until(lambda i: cluster.states(i) == [S, S, S])
        await cluster.storages[13].kill()  # together with the manager
        (primary,) = cluster.primaries
        await primary.kill()
        others = [m for m in cluster.managers.values() if m is not primary]
        await cluster.wait_primary(*others)
        await cluster.until(lambda i: cluster.state_of(i, 13) is O, 1.0)


async def test_one_of_two_that_died_while_the_other_hung_serves_when_it_is_back(autojump_clock):
    async with cluster_of(storages=2) as cluster:
        await cluster.up()
        await trio.sleep(5)
        lose_power(cluster, 12)
        await trio.sleep(4)
        await cluster.storages[11].kill()
        await cluster.start_storage(11)
        info = await cluster.until(lambda i: cluster.states(i) == [S, O], JUDGED_S)
        assert info.chain(1).serving == (1101,)


@pytest.mark.thorough
async def test_who_served_on_alone_is_waited_for(autojump_clock):
    """Those that failed before may lack what was written since."""
    async with cluster_of() as cluster:
        await cluster.up()
        for node_id in (11, 12):
            await trio.sleep(5)
            await cluster.storages[node_id].kill()
            await cluster.until(lambda i, n=node_id: cluster.state_of(i, n) is O)
        await trio.sleep(5)
        await cluster.managers[1].kill()
        lose_power(cluster, 13)
        await cluster.start_manager(1)
        for node_id in (11, 12):
            await cluster.start_storage(node_id)
        await trio.sleep(MINUTES_S)
        info = await cluster.info()
        assert not info.chain(1).serving
        assert info.chain(1).candidates == (1301,)


async def test_a_chain_that_is_held_up_holds_up_those_of_its_nodes_at_most_until_silence_is_judged(
    autojump_clock,
):
    """Of a node that two chains share: one whose other member answers,
    one whose other member does not.
    """
    async with cluster_of() as cluster:
        await cluster.up()
        await trio.sleep(5)
        primary = cluster.managers[1].mgmtd.service.primary
        state, now_s = primary.state, primary.now_s
        for node_id in (11, 12, 13):
            state.health[node_id].alive_s = now_s
        state.note_ended(11, state.info.node(11).incarnation)
        assert together.due(state, now_s) == {11}
        for node_id in (12, 13):
            state.health[node_id].alive_s = now_s - 4
        assert together.due(state, now_s) == frozenset()
        state.health[12].heard_s = now_s - 7
        assert together.due(state, now_s) == frozenset()
        state.health[13].heard_s = now_s - 7
        assert together.due(state, now_s) == {11, 12, 13}
        state.health[13].alive_s = state.health[13].heard_s = now_s
        assert together.due(state, now_s) == {11, 12}


async def test_all_that_have_ended_are_judged_before_a_successor_of_one_is_heard(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        primary = cluster.managers[1].mgmtd.service.primary
        state = primary.state
        for node_id in (12, 13):  # no look has judged them yet
            state.note_ended(node_id, state.info.node(node_id).incarnation)
        async with primary.lock:
            await primary.make_way(state.info.node(11))
            assert cluster.states(state.info) == [L, O, O]
        assert len(state.info.chain(1).stand_ins) == 2


def test_half_of_the_silence_is_longer_than_a_few_heartbeats():
    section = MgmtdSection()
    assert together.FRESH_PART * section.node_failed_after_s > 2 * section.heartbeat_interval_s
