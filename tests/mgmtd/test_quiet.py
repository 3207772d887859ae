"""A cluster that is stopped as a whole: whoever is there first when it starts again serves."""
# ruff: noqa: ARG001 - the clock fixture acts by being asked for

import pytest
import trio

from fs.mgmtd.primary import Primary
from tests.mgmtd.harness import L, O, S, cluster_of

pytestmark = pytest.mark.thorough


def tell(cluster, seconds):
    for manager in cluster.managers.values():
        manager.mgmtd.be_quiet(seconds)


async def stop_all(cluster):
    for node_id in cluster.storage_ids:
        await cluster.storages[node_id].stop()
        await trio.sleep(1)


@pytest.mark.parametrize("back", [11, 12, 13])
async def test_of_a_stopped_cluster_any_node_is_enough(autojump_clock, back):
    async with cluster_of() as cluster:
        await cluster.up()
        await trio.sleep(5)
        tell(cluster, 30)
        await stop_all(cluster)
        assert cluster.states(await cluster.info()) == [S, S, S]
        await cluster.managers[1].stop()
        await cluster.start_manager(1)
        await cluster.until(lambda i: cluster.states(i) == [L, O, O])
        await cluster.start_storage(back)
        info = await cluster.until(lambda i: cluster.states(i) == [S, O, O])
        assert info.chain(1).serving == (back * 100 + 1,)


async def test_without_being_told_the_last_to_stop_is_waited_for(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await trio.sleep(5)
        await stop_all(cluster)
        info = await cluster.until(lambda i: cluster.states(i) == [L, O, O])
        assert (info.chain(1).keepers, info.chain(1).stand_ins) == ((1301,), ())
        await cluster.start_storage(11)
        await trio.sleep(30)
        assert not (await cluster.info()).chain(1).serving


async def test_a_stop_that_does_not_come_is_forgotten(autojump_clock):
    async with cluster_of(manager_count=2) as cluster:
        await cluster.up()
        await trio.sleep(5)
        tell(cluster, 30)
        await cluster.storages[12].kill()
        await trio.sleep(20)
        assert cluster.states(await cluster.info()) == [S, S, S]
        await cluster.primaries[0].kill()  # the next one was told, too
        await trio.sleep(8)
        assert cluster.states(await cluster.info()) == [S, S, S]
        await cluster.until(lambda i: cluster.state_of(i, 12) is O)


async def test_a_reign_tells_nobody_that_those_serve_who_have_ended(autojump_clock, monkeypatch):
    begin, told = Primary.begin, []

    async def look(primary):
        await begin(primary)
        told.append(cluster.states(primary.info))  # from now on it answers

    async with cluster_of() as cluster:
        await cluster.up()
        await trio.sleep(5)
        for process in [*cluster.storages.values(), *cluster.managers.values()]:
            await process.kill()
        monkeypatch.setattr(Primary, "begin", look)
        manager = await cluster.start_manager(1)
        await cluster.wait_primary(manager)
        assert told == [[L, O, O]]


async def test_who_is_killed_with_all_others_is_judged_with_them(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await trio.sleep(5)
        for process in [*cluster.storages.values(), *cluster.managers.values()]:
            await process.kill()
        await cluster.start_manager(1)
        info = await cluster.until(lambda i: cluster.states(i) == [L, O, O])
        assert len(info.chain(1).candidates) == 3
