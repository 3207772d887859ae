"""A node over a store that has no chains keeps what it knows of clients' updates.

So it is while the managers' own store is lost, and a backup of it is to be restored: who has the
newest data comes to light then.
"""
# ruff: noqa: ARG001 - the clock fixture acts by being asked for

from dataclasses import replace

import pytest
import trio

from fs.schema.ids import ChainId
from fs.schema.routing import Chain, ChainTarget, PublicState
from fs.storage.on_disk import load_updates

from .cluster import content, open_caller, open_cluster


async def without_its_chain(cluster, chains):
    """Have node 1 act on routing info that has other chains."""
    cluster.is_frozen = True
    cluster.cut_off.add(1)
    await trio.sleep(1)
    node, version = cluster.nodes[1], cluster.info.routing_version + 1
    node.routing.deliver(replace(cluster.info, routing_version=version, chains=chains))
    await trio.sleep(1)


async def test_an_update_is_executed_once_although_there_were_no_chains_meanwhile(mock_clock):
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        request = client.write_request(0, b"x")
        first = await client.update(request, b"x")
        await without_its_chain(cluster, {})
        cluster.cut_off.clear()
        cluster.is_frozen = False
        cluster.publish(replace(cluster.chain, chain_version=cluster.chain.chain_version + 1))
        cluster.publish(replace(cluster.chain, chain_version=cluster.chain.chain_version + 1))
        await cluster.wait_all_serving()
        again = await client.update(request, b"x")
        assert again.update_ver == first.update_ver


@pytest.mark.parametrize("chains", [{}, {ChainId(77): Chain(ChainId(77), 1, ())}])
async def test_who_left_its_chain_of_several_knows_nothing_any_more(mock_clock, chains):
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        await client.write(0, b"x")
        await without_its_chain(cluster, chains)
        assert len(load_updates(cluster.nodes[1].target)) == (0 if chains else 1)


async def test_who_is_brought_up_to_date_afterwards_forgets_what_its_chain_has_lost(mock_clock):
    """Else it would answer a repeat of what others have overwritten since as done."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await cluster.nodes[2].kill()
        await cluster.wait_judged(2)
        request = client.write_request(0, b"lost")
        await client.update(request, b"lost")
        await without_its_chain(cluster, {})
        given_up = (ChainTarget(102, PublicState.LASTSRV), ChainTarget(101, PublicState.OFFLINE))
        for chain_version in (9, 10):
            chain = replace(cluster.chain, chain_version=chain_version, targets=given_up)
            cluster.publish(chain)
        cluster.cut_off.clear()
        cluster.is_frozen = False
        await cluster.start_node(2)
        await cluster.wait_all_serving()
        async with open_caller(cluster, "client-b") as other:
            await other.write(0, b"one")
            await other.write(0, b"two")
        for node_id in (2, 1):
            await cluster.nodes[node_id].kill()
            await cluster.wait_judged(node_id)
        await cluster.start_node(1)
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        await client.update(request, b"lost")
        assert content(cluster, 1) == (3, 0, b"lost")
