# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Links cut between nodes that both reach the manager."""

import pytest
import trio

from fs.schema.routing import PublicState
from fs.schema.status import FsError
from fs.storage.links import Suspect, judge_link
from fs.storage.local_state import Hold

from .cluster import content, open_caller, open_cluster

SERVING, SYNCING = PublicState.SERVING, PublicState.SYNCING


@pytest.mark.parametrize(
    ("public", "successor", "unanswered_s", "unheard_s", "suspect"),
    [
        (SERVING, SERVING, 11, 0, Suspect.SUCCESSOR),
        (SERVING, SERVING, 9, 99, Suspect.NOBODY),
        # Who serves does not leave for the sake of one that does not serve
        # yet, nor the tail for nobody.
        (SERVING, SYNCING, 99, 99, Suspect.NOBODY),
        (SERVING, None, 99, 99, Suspect.NOBODY),
        (SYNCING, None, 99, 11, Suspect.PREDECESSOR),
        (SYNCING, None, 99, 9, Suspect.NOBODY),
        (PublicState.WAITING, None, 99, 99, Suspect.NOBODY),
        (PublicState.LASTSRV, None, 99, 99, Suspect.NOBODY),
    ],
)
def test_the_rule(public, successor, unanswered_s, unheard_s, suspect):
    assert suspect is judge_link(
        public,
        successor,
        unanswered_s=unanswered_s,
        unheard_s=unheard_s,
        failed_after_s=10,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("is_one_way", [False, True])
@pytest.mark.parametrize("victim", [1, 2])
async def test_a_cut_link_is_a_pause(mock_clock, victim, is_one_way):
    async with open_cluster(3, forward_timeout_s=30.0) as cluster, open_caller(cluster) as client:
        await client.write(0, b"before")
        cluster.network.block(f"node-{victim}", f"node-{victim + 1}")
        if not is_one_way:
            cluster.network.block(f"node-{victim + 1}", f"node-{victim}")
        began_s = trio.current_time()
        await client.write(0, b"during")
        assert trio.current_time() - began_s < 20
        for _ in range(5):
            await client.write(0, b"during")
        await trio.sleep(30)
        serving = [n for n in cluster.nodes if cluster.states()[n] == "SERVING"]
        assert len(serving) >= 2
        for node_id in serving:
            assert (await client.read(node_id=node_id)) == b"during"
        cluster.network.heal()
        await cluster.wait_all_serving()
        assert {content(cluster, n) for n in cluster.nodes} == {(7, 0, b"during")}


@pytest.mark.slow
async def test_of_two_that_do_not_reach_each_other_one_goes_on(mock_clock):
    async with open_cluster(2, forward_timeout_s=30.0) as cluster, open_caller(cluster) as client:
        await client.write(0, b"before")
        cluster.network.partition(["node-1"], ["node-2"])
        await client.write(0, b"during")
        began_s = trio.current_time()
        for _ in range(100):
            await client.write(0, b"during")
            await trio.sleep(1)
        # It does not come back to stall the chain again while the link is cut.
        assert trio.current_time() - began_s < 130
        assert cluster.states() == {2: "SERVING", 1: "OFFLINE"}
        assert cluster.nodes[1].target.hold is Hold.CUT_OFF
        cluster.network.heal()
        await cluster.wait_all_serving()
        assert content(cluster, 1) == content(cluster, 2)


async def test_new_writes_hide_no_cut_link(mock_clock):
    """One that cannot even be sent says nothing of for how long nobody has answered."""
    async with open_cluster(3, forward_timeout_s=30.0) as cluster, open_caller(cluster) as client:
        for index in range(20):
            for _ in range(2):  # blocks of this size have space from then on
                await client.write(0, b"before", index)
        cluster.network.partition(["node-1"], ["node-2"])

        async def write(index):
            request = client.write_request(0, b"during", index)
            request.tag.channel_id = 100 + index
            await client.update(request, b"during")

        async with trio.open_nursery() as nursery:
            holds = set()
            for index in range(20):
                nursery.start_soon(write, index)
                await trio.sleep(1)
                holds.add(cluster.nodes[1].target.hold)
            assert Hold.CUT_OFF in holds
        cluster.network.heal()
        await cluster.wait_all_serving()
        for index in range(20):
            assert {content(cluster, n, index)[2] for n in cluster.nodes} == {b"during"}


async def test_a_link_cut_during_resync(mock_clock):
    async with open_cluster(2, forward_timeout_s=30.0) as cluster, open_caller(cluster) as client:
        await client.write(0, b"before")
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        cluster.network.partition(["node-1"], ["node-2"])
        await cluster.start_node(2)
        await trio.sleep(1)
        began_s = trio.current_time()
        await client.write(0, b"during")
        assert trio.current_time() - began_s < 20
        assert cluster.states() == {1: "SERVING", 2: "OFFLINE"}
        cluster.network.heal()
        await cluster.wait_all_serving()


async def test_a_stopped_or_slow_neighbour_is_no_cut_link(mock_clock):
    async with open_cluster(3, forward_timeout_s=30.0) as cluster, open_caller(cluster) as client:
        await client.write(0, b"before")
        limiter = cluster.nodes[3].target.disk.write_limiter
        while limiter.value:
            await limiter.take()
        with pytest.raises(FsError):
            await client.attempt(client.write_request(0, b"x"), b"x", timeout_s=25.0)
        assert len(cluster.history) == 1
        limiter.give_back()
        await client.write(0, b"after-")
        assert {content(cluster, n)[2] for n in cluster.nodes} == {b"after-"}
