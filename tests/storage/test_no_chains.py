"""A node over a store that has no chains keeps what it knows of clients' updates.

So it is while the managers' own store is lost, and a backup of it is to be restored: who has the newest data comes to light then.
"""
# ruff: noqa: ARG001 - the clock fixture acts by being asked for

from dataclasses import replace

import pytest
import trio

from fs.schema.ids import ChainId
from fs.schema.routing import Chain
from fs.storage.on_disk import load_updates

from .cluster import open_caller, open_cluster


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
