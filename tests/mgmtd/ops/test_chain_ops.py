"""Operations on chains and nodes by hand, on whole managers: what they do, and what they refuse."""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import pytest
import trio

from fs.schema import services
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.routing import NodeState
from fs.schema.status import FsError, Status
from tests.mgmtd.harness import L, O, S, W, Y, cluster_of


async def refused(status, call):
    with pytest.raises(FsError) as caught:
        await call
    assert caught.value.status is status, caught.value
    return caught.value


def update(cluster, chain_id, target_id, kind, **options):
    request = pb.UpdateChainReq(chain_id=chain_id, target_id=target_id, update=kind, **options)
    return cluster.call(services.MGMTD_UPDATE_CHAIN, request)


async def with_a_spare_node(cluster):
    """Start a fourth node with target 1401, in no chain."""
    request = pb.RegisterNodeReq(node={"node_id": 14, "roles": [3], "address": "mem:n14"})
    await cluster.call(services.MGMTD_REGISTER_NODE, request)
    storage = await cluster.start_storage(14)
    await storage.member.wait_joined()
    await cluster.until(lambda i: 1401 in i.targets)
    return storage


async def test_a_target_is_added_resyncs_and_another_is_removed(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        storage = await with_a_spare_node(cluster)
        storage.resync_s = 2.0
        await update(cluster, 1, 1401, pb.ADD_MEMBER)
        info = await cluster.until(lambda i: cluster.states(i) == [S, S, S, Y])
        assert (info.chain(1).replica_count, info.target(1401).chain_id) == (4, 1)
        version = info.chain(1).chain_version
        assert (await update(cluster, 1, 1401, pb.ADD_MEMBER)).chain_version == version
        await cluster.until(lambda i: cluster.states(i) == [S, S, S, S])
        await refused(Status.UNSAFE_CHANGE, update(cluster, 1, 1101, pb.REMOVE_MEMBER))
        began_s = trio.current_time()
        await update(cluster, 1, 1101, pb.REMOVE_MEMBER, accept_fewer_replicas=True)
        assert trio.current_time() - began_s < 1
        info = await cluster.info()
        assert [t.target_id for t in info.chain(1).targets] == [1201, 1301, 1401]
        assert info.target(1101).chain_id == 0
        await update(cluster, 1, 1101, pb.REMOVE_MEMBER)  # done already
        assert ("offline", 1101) in cluster.storages[11].orders
        assert await cluster.set_chains() == 0  # what it was made of is remembered
        request = pb.ListOrphanTargetsReq()
        reply = await cluster.call(services.MGMTD_LIST_ORPHAN_TARGETS, request)
        assert [t.target_id for t in reply.targets] == [1101, 1402]


async def test_a_removed_target_serves_no_more_before_its_chain_goes_on(autojump_clock):
    """Its node is told to stop, so that nobody reads there while the others take writes."""
    async with cluster_of() as cluster:
        await cluster.up()
        cluster.network.partition(["n11"], ["n1"])  # it cannot hear that it is to stop
        lease = cluster.storages[11].member.lease
        async with trio.open_nursery() as nursery:
            options = {"accept_fewer_replicas": True}
            nursery.start_soon(lambda: update(cluster, 1, 1101, pb.REMOVE_MEMBER, **options))
            while lease.is_valid():
                assert cluster.state_of(await cluster.info(), 11) is S
                await trio.sleep(0.05)
        assert 1101 not in (await cluster.info()).chain(1).serving
        cluster.network.heal()


async def test_unsafe_and_senseless_updates_are_refused(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await with_a_spare_node(cluster)
        before = await cluster.info()
        await refused(Status.CHAIN_UNKNOWN, update(cluster, 77, 1101, pb.ADD_MEMBER))
        await refused(Status.TARGET_UNKNOWN, update(cluster, 1, 7777, pb.ADD_MEMBER))
        await refused(Status.TARGET_UNKNOWN, update(cluster, 1, 7777, pb.REMOVE_MEMBER))
        await refused(Status.TARGET_UNKNOWN, update(cluster, 1, (1 << 64) - 1, pb.ADD_MEMBER))
        await refused(Status.RPC_BAD_REQUEST, update(cluster, 1, 1401, pb.CHAIN_UPDATE_NONE))
        await refused(Status.RPC_BAD_REQUEST, update(cluster, 1, 1401, 99))
        await refused(Status.CONFLICTING_CHANGE, update(cluster, 1, 1102, pb.ADD_MEMBER))
        assert (await cluster.info()).chains == before.chains
        await update(cluster, 1, 1401, pb.ADD_MEMBER)
        # 1402 is free, but its node holds 1401 of chain 1.
        await refused(Status.CONFLICTING_CHANGE, update(cluster, 1, 1402, pb.ADD_MEMBER))
        await update(cluster, 1, 1401, pb.REMOVE_MEMBER)  # never served: nobody minds


@pytest.mark.thorough
async def test_a_chain_of_one_grows_and_shrinks(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await with_a_spare_node(cluster)
        made = [pb.NewTargetPb(target_id=1401, node_id=14)]
        chains = pb.SetChainsReq(chains=[pb.NewChainPb(chain_id=9, targets=made)])
        await cluster.call(services.MGMTD_SET_CHAINS, chains)
        await cluster.until(lambda i: cluster.states(i, 9) == [S])
        shrink = {"accept_fewer_replicas": True}
        remove = pb.REMOVE_MEMBER
        await refused(Status.UNSAFE_CHANGE, update(cluster, 9, 1401, remove, **shrink))
        await update(cluster, 1, 1301, remove, **shrink)
        await cluster.until(lambda i: i.target(1301).local_state.name == "ONLINE")
        await update(cluster, 9, 1301, pb.ADD_MEMBER)
        await cluster.until(lambda i: cluster.states(i, 9) == [S, S])
        await update(cluster, 9, 1401, remove, **shrink)
        info = await cluster.until(lambda i: cluster.states(i, 9) == [S])
        assert info.chain(9).targets[0].target_id == 1301


async def test_rotation_brings_a_chain_into_its_preferred_order(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()

        async def prefer(*order):
            request = pb.SetPreferredOrderReq(chain_id=1, target_ids=order)
            return await cluster.call(services.MGMTD_SET_PREFERRED_ORDER, request)

        async def rotate(chain_id=1):
            request = pb.RotateAsPreferredOrderReq(chain_id=chain_id)
            reply = await cluster.call(services.MGMTD_ROTATE_AS_PREFERRED_ORDER, request)
            return reply.target_id

        assert await rotate() == 0
        await refused(Status.CHAIN_UNKNOWN, rotate(5))
        await refused(Status.CONFLICTING_CHANGE, prefer(1101, 1201))
        await refused(Status.CONFLICTING_CHANGE, prefer(*range(1000)))
        version = (await prefer(1301, 1101, 1201)).chain_version
        assert (await prefer(1301, 1101, 1201)).chain_version == version
        assert await rotate() == 1101
        await cluster.until(lambda i: cluster.states(i)[-1] is not S)
        await refused(Status.UNSAFE_CHANGE, rotate())
        await cluster.until(lambda i: cluster.states(i) == [S, S, S])
        assert await rotate() == 1201
        await cluster.until(lambda i: cluster.states(i)[-1] is not S)
        info = await cluster.until(lambda i: cluster.states(i) == [S, S, S])
        assert info.chain(1).serving == (1301, 1101, 1201)
        assert await rotate() == 0


async def test_a_lost_last_server_is_given_up_only_when_the_loss_is_accepted(
    autojump_clock, caplog
):
    async with cluster_of() as cluster:
        await cluster.up()
        for node_id in (11, 12, 13):
            await cluster.storages[node_id].kill()
            await cluster.until(lambda i, n=node_id: cluster.state_of(i, n) in {L, O})
        await cluster.start_storage(11)
        await cluster.until(lambda i: cluster.states(i) == [L, W, O])

        async def rotate(lost, **options):
            request = pb.RotateLastServingReq(chain_id=1, lost_target_id=lost, **options)
            return await cluster.call(services.MGMTD_ROTATE_LAST_SERVING, request)

        unsafe = Status.UNSAFE_CHANGE
        await refused(unsafe, rotate(1301))
        await refused(unsafe, rotate(1201, accept_data_loss=True))
        wrong = rotate(1301, accept_data_loss=True, chosen_target_id=77)
        await refused(Status.CONFLICTING_CHANGE, wrong)
        assert cluster.states(await cluster.info()) == [L, W, O]
        reply = await rotate(1301, accept_data_loss=True)
        assert reply.chosen_target_id == 1101
        assert (await rotate(1301, accept_data_loss=True)).chosen_target_id == 1101
        (said,) = [r.getMessage() for r in caplog.records if "DATA MAY BE LOST" in r.getMessage()]
        assert "chain 1 gives up target 1301" in said
        await cluster.until(lambda i: cluster.states(i) == [S, O, O])
        await cluster.start_storage(13)  # what it held beyond the others is void
        info = await cluster.until(lambda i: cluster.states(i) == [S, S, O])
        assert info.chain(1).serving == (1101, 1301)


async def node_op(cluster, method, node_id, **options):
    name = {"enable": "Enable", "disable": "Disable", "unregister": "Unregister"}[method]
    request = getattr(pb, f"{name}NodeReq")(node_id=node_id, **options)
    return await cluster.call(getattr(services, f"MGMTD_{method.upper()}_NODE"), request)


@pytest.mark.thorough
async def test_a_disabled_node_stops_serving_before_it_is_judged(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await node_op(cluster, "disable", 12)
        await node_op(cluster, "disable", 12)
        disabled = cluster.storages[12]
        while disabled.member.lease.is_valid():
            assert cluster.state_of(await cluster.info(), 12) is S
            await trio.sleep(0.05)
        await cluster.until(lambda i: cluster.state_of(i, 12) is O)
        await trio.sleep(20)
        info = await cluster.info()
        assert (cluster.state_of(info, 12), info.node(12).state) == (O, NodeState.DISABLED)
        await cluster.managers[1].kill()
        await cluster.start_manager(1)
        await trio.sleep(10)
        assert (await cluster.info()).node(12).state is NodeState.DISABLED
        await node_op(cluster, "enable", 12)
        await cluster.until(lambda i: cluster.states(i) == [S, S, S])
        assert (await cluster.info()).node(12).state is NodeState.CONNECTED


async def test_a_node_is_not_disabled_where_that_would_cost_the_newest_data(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        for node_id in (11, 12):
            await cluster.storages[node_id].kill()
        await cluster.until(lambda i: cluster.states(i) == [S, O, O])
        await refused(Status.UNSAFE_CHANGE, node_op(cluster, "disable", 13))
        await refused(Status.NODE_UNKNOWN, node_op(cluster, "disable", 99))
        await refused(Status.NODE_UNKNOWN, node_op(cluster, "enable", 99))
        await refused(Status.NOT_SUPPORTED, node_op(cluster, "disable", 1))
        await node_op(cluster, "disable", 13, accept_unavailable_chains=True)
        await cluster.until(lambda i: cluster.states(i)[0] is L)


async def test_only_a_node_without_members_that_is_gone_is_unregistered(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        spare = await with_a_spare_node(cluster)
        conflict = Status.CONFLICTING_CHANGE
        await refused(conflict, node_op(cluster, "unregister", 14))  # lives
        await cluster.storages[13].kill()
        await cluster.until(lambda i: cluster.state_of(i, 13) is O)
        await refused(conflict, node_op(cluster, "unregister", 13))  # holds members
        await spare.kill()
        await cluster.until(lambda i: i.node(14).state is NodeState.FAILED)
        drain = pb.StartDrainReq(drain=pb.DrainPb(node_id=14))
        await cluster.call(services.MGMTD_START_DRAIN, drain)
        await node_op(cluster, "unregister", 14)
        assert not (await cluster.call(services.MGMTD_LIST_MOVES, pb.ListMovesReq())).drains
        info = await cluster.info()
        assert 14 not in info.nodes
        assert not {1401, 1402} & set(info.targets)
        await refused(Status.NODE_UNKNOWN, node_op(cluster, "unregister", 14))
        await cluster.start_storage(14)
        await trio.sleep(10)
        assert 14 not in (await cluster.info()).nodes
        await cluster.managers[1].kill()
        await cluster.start_manager(1)
        assert 14 not in (await cluster.info()).nodes
