"""Whole managers with fake storage nodes: failures, recoveries, restarts, fail-over,
in virtual time.
"""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import pytest
import trio

from fs.schema import services
from fs.schema.config import MgmtdSection
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.routing import NodeState
from tests.mgmtd.harness import L, O, S, W, Y, cluster_of


async def test_chains_made_for_waiting_nodes_serve_at_once(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        info = await cluster.info()
        assert [info.chain(c).chain_version for c in (1, 2)] == [1, 1]
        assert info.chain_table(1).chain_ids == (1, 2)
        assert all(info.node(n).state is NodeState.CONNECTED for n in cluster.storage_ids)


async def test_nodes_that_start_after_their_chains_get_to_serve(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.start_manager(1)
        await cluster.register()
        assert await cluster.set_chains() == 2
        assert await cluster.set_chains() == 0
        for node_id in cluster.storage_ids:
            await cluster.start_storage(node_id)
        began_s = trio.current_time()
        await cluster.until(lambda i: cluster.states(i) == cluster.states(i, 2) == [S, S, S])
        assert trio.current_time() - began_s < 3


async def test_a_killed_node_is_judged_within_a_second_and_recovers(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await cluster.storages[11].kill()
        killed_s = trio.current_time()
        info = await cluster.until(lambda i: cluster.states(i) == [S, S, O])
        assert trio.current_time() - killed_s < 1
        assert cluster.state_of(info, 11) is O
        assert info.node(11).state is NodeState.FAILED
        await cluster.start_storage(11)
        info = await cluster.until(lambda i: cluster.states(i) == [S, S, S])
        assert [t.target_id for t in info.chain(1).targets] == [1201, 1301, 1101]


async def test_a_silent_node_is_judged_only_after_its_lease_has_run_out(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        silent = cluster.storages[12]
        cluster.network.partition(["n12"], ["n1", "n11", "n13", "observer"])
        cut_s = trio.current_time()
        while silent.member.lease.is_valid():
            await trio.sleep(0.04)
            assert S is cluster.state_of(await cluster.info(), 12)
        assert trio.current_time() - cut_s <= cluster.section.node_lease_s + 0.05
        await cluster.until(lambda i: cluster.state_of(i, 12) is O)
        took_s = trio.current_time() - cut_s
        assert 4.9 < took_s < cluster.section.node_failed_after_s + 1
        cluster.network.heal()
        # While it does not know that it was judged, it gets no lease.
        while not silent.member.lease.is_valid():
            assert cluster.state_of(silent.info, 12) in {S, O, Y, W}
            await trio.sleep(0.01)
        assert cluster.state_of(silent.info, 12) is not S
        await cluster.until(lambda i: cluster.states(i) == [S, S, S])
        assert (await cluster.info()).node(12).incarnation == silent.incarnation


async def test_nodes_with_a_slow_network_are_not_judged(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        before = await cluster.info()
        for _ in range(3):
            cluster.network.partition(["n1"], ["n11", "n12", "n13"])
            await trio.sleep(3.5)
            cluster.network.heal()
            await trio.sleep(2.0)
        after = await cluster.info()
        assert after.chains == before.chains


async def test_the_last_to_serve_is_waited_for(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        for node_id in (11, 12, 13):
            await cluster.storages[node_id].kill()
            await cluster.until(lambda i, n=node_id: cluster.state_of(i, n) in {L, O})
        info = await cluster.info()
        assert cluster.state_of(info, 13) is L
        await cluster.start_storage(11)
        await cluster.start_storage(12)
        await cluster.until(lambda i: cluster.states(i) == [L, W, W])
        await trio.sleep(20)
        assert cluster.states(await cluster.info()) == [L, W, W]
        await cluster.start_storage(13)
        await cluster.until(lambda i: cluster.states(i) == cluster.states(i, 2) == [S, S, S])


async def test_an_announced_stop_is_judged_at_once(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        storage = cluster.storages[11]
        began_s = trio.current_time()
        await storage.member.announce_stop()
        assert not storage.member.lease.is_valid()
        assert cluster.state_of(await cluster.info(), 11) is O
        assert trio.current_time() - began_s < 0.1
        await trio.sleep(10)
        assert not storage.member.lease.is_valid()
        assert cluster.state_of(await cluster.info(), 11) is O


async def test_a_process_that_restarted_between_two_probes_is_noticed(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await cluster.storages[11].kill()
        await cluster.start_storage(11)
        versions = {(await cluster.info()).chain(1).chain_version}
        await cluster.until(lambda i: versions.add(i.chain(1).chain_version) or max(versions) >= 4)
        info = await cluster.until(lambda i: cluster.states(i) == [S, S, S])
        assert info.chain(1).targets[-1].target_id == 1101  # it went through resync


async def test_a_report_of_an_unreachable_node_is_checked_first(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()

        async def report(node_id: int, incarnation: str) -> bool:
            request = pb.ReportUnreachableReq(node_id=node_id, incarnation=incarnation)
            return (await cluster.call(services.MGMTD_REPORT_UNREACHABLE, request)).judged_dead

        incarnation = cluster.storages[11].incarnation
        assert not await report(11, incarnation)
        assert cluster.states(await cluster.info()) == [S, S, S]
        assert await report(11, "an older one")
        assert cluster.states(await cluster.info()) == [S, S, S]
        await cluster.storages[11].kill()
        assert await report(11, incarnation)
        assert cluster.states(await cluster.info()) == [S, S, O]


async def test_a_restarted_manager_keeps_everything_and_blames_nobody(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        before = await cluster.info()
        await cluster.managers[1].kill()
        await trio.sleep(8)  # longer than any lease: nobody could be heard
        assert not cluster.storages[11].member.lease.is_valid()
        began_s = trio.current_time()
        await cluster.start_manager(1)
        after = await cluster.info()
        assert trio.current_time() - began_s < 0.5
        assert after.is_bootstrapping
        assert after.routing_version > before.routing_version
        assert after.chains == before.chains
        assert after.chain_tables == before.chain_tables
        assert {n.address for n in after.nodes.values()} == {
            n.address for n in before.nodes.values()
        }
        await trio.sleep(3)
        assert all(s.member.lease.is_valid() for s in cluster.storages.values())
        later = await cluster.until(lambda i: not i.is_bootstrapping)
        assert later.chains == before.chains


async def test_a_new_primary_judges_the_dead_at_once_but_the_silent_late(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await cluster.managers[1].kill()
        await cluster.storages[11].kill()
        cluster.network.switch_off("n12")
        await cluster.start_manager(1)
        began_s = trio.current_time()
        info = await cluster.until(lambda i: cluster.state_of(i, 11) is O)
        assert trio.current_time() - began_s < 2
        assert cluster.state_of(info, 12) is S
        await cluster.until(lambda i: cluster.state_of(i, 12) is O)
        assert trio.current_time() - began_s > cluster.section.node_failed_after_s


async def test_another_manager_takes_over_when_the_lease_of_a_silent_primary_ends(autojump_clock):
    async with cluster_of(manager_count=3) as cluster:
        await cluster.up()
        (first,) = cluster.primaries
        await trio.sleep(0.7)  # somewhere between two extensions
        cut_s = trio.current_time()
        first.mgmtd._step = trio.sleep_forever  # it lives and extends nothing
        others = [m for m in cluster.managers.values() if m is not first]
        await cluster.wait_primary(*others)
        took_s = trio.current_time() - cut_s
        section = cluster.section
        earliest_s = section.primary_lease_s - section.primary_extend_interval_s
        assert earliest_s - 0.1 < took_s < section.primary_lease_s + 0.5


async def test_another_manager_takes_over_from_a_killed_primary(autojump_clock):
    async with cluster_of(manager_count=3) as cluster:
        await cluster.up()
        (first,) = cluster.primaries
        before = await cluster.info()
        await first.kill()
        del cluster.managers[first.node.node_id]
        killed_s = trio.current_time()
        after = await cluster.until(lambda i: i.routing_version > before.routing_version)
        # Its host refuses connections: no lease is waited for.
        assert trio.current_time() - killed_s < 0.6
        assert after.chains == before.chains
        assert len(cluster.primaries) == 1
        await trio.sleep(10)
        assert (await cluster.info()).chains == before.chains
        assert all(s.member.lease.is_valid() for s in cluster.storages.values())


async def test_an_isolated_primary_stops_before_another_begins(autojump_clock):
    async with cluster_of(manager_count=3) as cluster:
        await cluster.up()
        (first,) = cluster.primaries
        others = [m for m in cluster.managers.values() if m is not first]
        # It still reaches the store; but nobody hears it, and it sees so
        # when the record changes hands.
        first.mgmtd._store._engine = Unavailable()
        while first.mgmtd.is_primary:
            await trio.sleep(0.05)
            assert not any(m.mgmtd.is_primary for m in others)
        await cluster.wait_primary(*others)
        info = await cluster.info()
        assert cluster.states(info) == [S, S, S]


class Unavailable:
    """A store that never answers."""

    def transaction(self):
        return self

    def close(self) -> None:
        pass

    async def get(self, _key, **_options):
        await trio.sleep_forever()


async def test_an_orderly_stop_hands_over_without_waiting(autojump_clock):
    async with cluster_of(manager_count=2) as cluster:
        await cluster.up()
        (first,) = cluster.primaries
        (second,) = (m for m in cluster.managers.values() if m is not first)
        first.scope.cancel()
        await first.ended.wait()
        began_s = trio.current_time()
        await cluster.wait_primary(second)
        assert trio.current_time() - began_s < 1.5


async def test_a_long_poll_returns_when_something_changes_or_time_is_up(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await trio.sleep(20)  # grace over, soft changes published
        info = await cluster.info()
        request = pb.GetRoutingInfoReq(known_routing_version=info.routing_version, wait_s=1.5)
        began_s = trio.current_time()
        reply = await cluster.call(services.MGMTD_GET_ROUTING_INFO, request)
        assert not reply.HasField("routing_info")
        assert 1.5 <= trio.current_time() - began_s < 1.7
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.storages[11].member.announce_stop)
            began_s = trio.current_time()
            reply = await cluster.call(services.MGMTD_GET_ROUTING_INFO, request)
            assert trio.current_time() - began_s < 0.1
            assert reply.routing_info.routing_version > info.routing_version


@pytest.mark.thorough
async def test_an_idle_cluster_publishes_nothing(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await trio.sleep(20)
        before = await cluster.info()
        await trio.sleep(60)
        assert (await cluster.info()).routing_version == before.routing_version


async def test_a_short_lease_works_too(autojump_clock):
    section = MgmtdSection(
        heartbeat_interval_s=0.2, node_lease_s=1.0, node_failed_after_s=1.6, probe_timeout_s=0.3
    )
    async with cluster_of(section=section) as cluster:
        await cluster.up()
        cluster.network.switch_off("n12")
        began_s = trio.current_time()
        await cluster.until(lambda i: cluster.state_of(i, 12) is O)
        assert trio.current_time() - began_s < 2.2
