# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Chains whose members change by hand while clients write: added, removed, rotated;
chains of one to five.
"""

from dataclasses import replace

import pytest
import trio

from fs.schema.ids import TargetId
from fs.schema.routing import ChainTarget, LocalState, PublicState
from fs.storage.local_state import Hold

from .cluster import content, open_caller, open_cluster

ALL = range(8)


def change(cluster, *members):
    """Publish the chain with these members: (node id, state)."""
    chain = cluster.chain
    cluster.publish(
        replace(
            chain,
            chain_version=chain.chain_version + 1,
            targets=tuple(ChainTarget(TargetId(100 + n), state) for n, state in members),
        )
    )


async def keep_writing(cluster, client, values, until):
    count = 0
    while not until.is_set():
        count += 1
        index = count % len(ALL)
        await client.write(0, b"%06d" % count, index)
        values[index] = b"%06d" % count
        await trio.sleep(0.01)


def assert_equal(cluster, node_ids, values):
    for index, value in values.items():
        found = {content(cluster, node_id, index) for node_id in node_ids}
        assert len(found) == 1, (index, found)
        assert found.pop()[1:] == (0, value)


@pytest.mark.slow
@pytest.mark.parametrize("leaving", [1, 2, 3])
async def test_a_member_leaves_a_live_chain_and_another_joins(mock_clock, leaving):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        values, until = {}, trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_writing, cluster, client, values, until)
            await trio.sleep(1)
            staying = [n for n in cluster.nodes if n != leaving]
            change(cluster, *((n, PublicState.SERVING) for n in staying))
            await trio.sleep(2)
            left = cluster.nodes[leaving].target
            assert left.local_state is LocalState.ONLINE
            assert not left.inflight.count
            # What it still holds is old: it must not count when it joins again.
            change(
                cluster,
                *((n, PublicState.SERVING) for n in staying),
                (leaving, PublicState.OFFLINE),
            )
            await cluster.wait_all_serving()
            await trio.sleep(1)
            until.set()
        assert len(values) == len(ALL)
        assert_equal(cluster, cluster.nodes, values)


@pytest.mark.parametrize("node_count", [2, pytest.param(5, marks=pytest.mark.slow)])
async def test_the_order_is_turned_round_one_step_at_a_time(mock_clock, node_count):
    async with open_cluster(node_count) as cluster, open_caller(cluster) as client:
        values, until = {}, trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_writing, cluster, client, values, until)
            await trio.sleep(1)
            for _ in range(node_count - 1):
                first, *others = (t.target_id - 100 for t in cluster.chain.targets)
                change(
                    cluster,
                    *((n, PublicState.SERVING) for n in others),
                    (first, PublicState.OFFLINE),
                )
                await cluster.wait_all_serving()
                assert [t.target_id - 100 for t in cluster.chain.targets] == [*others, first]
            await trio.sleep(1)
            until.set()
        assert_equal(cluster, cluster.nodes, values)


@pytest.mark.slow
@pytest.mark.parametrize("node_count", [1, 2, 3, 4, 5])
async def test_every_member_may_die_and_return(mock_clock, node_count):
    async with open_cluster(node_count) as cluster, open_caller(cluster) as client:
        values, until = {}, trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_writing, cluster, client, values, until)
            for node_id in cluster.nodes:
                await trio.sleep(0.3)
                await cluster.nodes[node_id].kill()
                await cluster.wait_judged(node_id)
                await trio.sleep(0.3)
                await cluster.start_node(node_id)
                await cluster.wait_all_serving()
            await trio.sleep(1)
            until.set()
        assert_equal(cluster, cluster.nodes, values)


async def test_a_lost_last_server_is_replaced_by_hand(mock_clock):
    """The operator accepts the loss of what only the lost one had;
    what returns later must not mix in.
    """
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"both")
        await client.write(0, b"both", 1)
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        await client.write(0, b"only one")
        await client.write(0, b"only one", 2)
        await cluster.nodes[1].kill()
        await cluster.wait_judged(1)
        await cluster.start_node(2)
        await trio.sleep(2)
        assert cluster.states() == {1: "LASTSRV", 2: "WAITING"}
        change(cluster, (2, PublicState.LASTSRV), (1, PublicState.OFFLINE))
        await cluster.wait_states({2: "SERVING", 1: "OFFLINE"})
        assert await client.read(0) == b"both"
        client.channel_id = 2
        await client.write(0, b"B")
        await cluster.start_node(1)
        await cluster.wait_all_serving()
        for node_id in cluster.nodes:
            assert content(cluster, node_id, 0) == (2, 0, b"Both")
            assert content(cluster, node_id, 1) == (1, 0, b"both")
            assert content(cluster, node_id, 2) is None


@pytest.mark.parametrize("hold", [Hold.EVICTED, Hold.CUT_OFF, Hold.REQUESTED])
async def test_a_start_is_over_only_when_the_manager_has_seen_it(mock_clock, hold):
    """Whatever is asked of a target before its node knows its chain:
    it does not serve on as if it had never been away.
    """
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"before")
        cluster.is_frozen = True
        await cluster.nodes[2].kill()
        cluster.cut_off.add(2)
        await cluster.start_node(2)
        node = cluster.nodes[2]
        assert node.routing.info.routing_version == 0
        node.storage.targets.put_offline(node.target, hold, "test")
        node.storage.targets.release(node.target, Hold.REQUESTED)
        await trio.sleep(0.5)
        cluster.cut_off.discard(2)
        await trio.sleep(0.5)
        assert cluster.states()[2] == "SERVING"
        assert node.target.local_state is LocalState.OFFLINE
        cluster.is_frozen = False
        await client.write(0, b"after", 1)
        await cluster.wait_all_serving()
        assert_equal(cluster, (1, 2, 3), {0: b"before", 1: b"after"})
