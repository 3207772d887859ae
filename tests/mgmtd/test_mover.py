"""Moves on whole managers over the network:
by themselves, by order, through changes of primaries, and what is refused.
"""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import pytest
import trio

from fs.schema import services
from fs.schema.config import MgmtdSection
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.status import FsError, Status
from tests.mgmtd.harness import L, O, S, Y, cluster_of

pytestmark = pytest.mark.thorough

SECTION = MgmtdSection(replace_after_s=10.0, move_stall_s=5.0)


async def refused(status, call):
    with pytest.raises(FsError) as caught:
        await call
    assert caught.value.status is status, caught.value


async def add_node(cluster, node_id=14, targets=()):
    """Start one more storage node, by default with room only."""
    request = pb.RegisterNodeReq(
        node={"node_id": node_id, "roles": [3], "address": f"mem:n{node_id}"}
    )
    await cluster.call(services.MGMTD_REGISTER_NODE, request)
    storage = await cluster.start_storage(node_id, targets)
    await storage.member.wait_joined()
    return storage


def moves(cluster):
    return cluster.call(services.MGMTD_LIST_MOVES, pb.ListMovesReq())


def drain(cluster, node_id, **disk):
    request = pb.StartDrainReq(drain=pb.DrainPb(node_id=node_id, **disk))
    return cluster.call(services.MGMTD_START_DRAIN, request)


def cancel_drain(cluster, node_id):
    request = pb.CancelDrainReq(drain=pb.DrainPb(node_id=node_id))
    return cluster.call(services.MGMTD_CANCEL_DRAIN, request)


def nodes_of(info, chain_id=1):
    return {info.target(t).node_id for t in info.chain(chain_id).serving}


async def until_moves(cluster, condition, timeout_s=60.0):
    with trio.move_on_after(timeout_s):
        while not condition(reply := await moves(cluster)):  # noqa: ASYNC110
            await trio.sleep(0.05)
        return reply
    raise AssertionError(await moves(cluster))


async def test_a_lost_node_is_replaced_without_anybody(autojump_clock):
    async with cluster_of(section=SECTION) as cluster:
        await cluster.up()
        await trio.sleep(7)  # the manager's grace
        spare = await add_node(cluster)
        await cluster.storages[12].kill()
        killed_s = trio.current_time()
        await until_moves(cluster, lambda r: r.moves)
        assert trio.current_time() - killed_s > SECTION.replace_after_s
        info = await cluster.until(lambda i: cluster.states(i) == cluster.states(i, 2) == [S, S, S])
        assert nodes_of(info) == nodes_of(info, 2) == {11, 13, 14}
        assert trio.current_time() - killed_s < SECTION.replace_after_s + 5
        assert sorted(spare.local) == [1303, 1304]
        reply = await moves(cluster)
        retiring = {(m.leaving_target_id, m.state, m.reason) for m in reply.moves}
        assert retiring == {(t, pb.MOVE_RETIRING, pb.MOVE_REPLACE) for t in (1201, 1202)}
        back = await cluster.start_storage(12)
        await until_moves(cluster, lambda r: not r.moves)
        assert back.local == {}
        assert not {1201, 1202} & set((await cluster.info()).targets)


async def test_without_a_place_a_lost_node_is_missed_and_said_so(autojump_clock, caplog):
    async with cluster_of(section=SECTION) as cluster:
        await cluster.up()
        await cluster.storages[12].kill()
        await trio.sleep(30)
        reply = await moves(cluster)
        assert not reply.moves
        assert any("target 1201 (replace) cannot be replaced" in p for p in reply.problems)
        said = [r for r in caplog.records if "target 1201 (replace) cannot" in r.getMessage()]
        assert len(said) == 1


async def test_a_node_is_drained_at_no_moment_with_fewer_replicas(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await trio.sleep(7)
        await add_node(cluster)
        assert (await drain(cluster, 13)).target_count == 2
        assert (await drain(cluster, 13)).target_count == 2
        with trio.fail_after(60):
            while (reply := await moves(cluster)).moves or reply.drains[0].target_count:
                info = await cluster.info()
                assert all(len(info.chain(c).serving) >= 3 for c in (1, 2))
                await trio.sleep(0.02)
        info = await cluster.info()
        assert nodes_of(info) == nodes_of(info, 2) == {11, 12, 14}
        assert cluster.storages[13].local == {}
        (listed,) = reply.drains
        assert (listed.drain.node_id, listed.target_count) == (13, 0)
        await cancel_drain(cluster, 13)
        await cancel_drain(cluster, 13)
        assert not (await moves(cluster)).drains


async def test_a_cancelled_drain_leaves_nothing_behind(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await trio.sleep(7)
        spare = await add_node(cluster)
        spare.resync_s = 1000.0
        before = await cluster.info()
        await drain(cluster, 13)
        await cluster.until(lambda i: cluster.states(i) == [S, S, S, Y])
        await cancel_drain(cluster, 13)
        await until_moves(cluster, lambda r: not r.moves)
        info = await cluster.info()
        assert info.chain(1).targets == before.chain(1).targets
        assert spare.local == {}


@pytest.mark.parametrize("state", [pb.MOVE_CREATING, pb.MOVE_JOINING, pb.MOVE_RETIRING])
async def test_a_move_goes_on_under_another_primary(autojump_clock, state):
    async with cluster_of(manager_count=2) as cluster:
        await cluster.up()
        await trio.sleep(7)
        spare = await add_node(cluster)
        spare.resync_s = 3.0
        if state == pb.MOVE_CREATING:
            spare.create_target = None
            cluster.network.partition(["n14"], ["n1"])
        elif state == pb.MOVE_RETIRING:
            cluster.network.partition(["n13"], ["n1"])
            cluster.network.heal()
        await drain(cluster, 13)
        await until_moves(cluster, lambda r: any(m.state == state for m in r.moves))
        (first,) = cluster.primaries
        await first.kill()
        cluster.network.heal()
        await cluster.until(lambda i: nodes_of(i) == nodes_of(i, 2) == {11, 12, 14}, 120)
        reply = await until_moves(cluster, lambda r: not r.moves)
        assert reply.drains[0].target_count == 0
        assert cluster.storages[13].local == {}


async def test_a_dead_destination_is_given_up_for_another(autojump_clock):
    async with cluster_of(section=SECTION) as cluster:
        await cluster.up()
        await trio.sleep(7)
        spare = await add_node(cluster, 14)
        spare.resync_s = 1000.0
        await drain(cluster, 13)
        await cluster.until(lambda i: cluster.states(i)[-1] is Y)
        await add_node(cluster, 15)
        await spare.kill()
        await cluster.until(lambda i: nodes_of(i) == nodes_of(i, 2) == {11, 12, 15}, 60)
        left = {1303, 1304}  # until node 14 comes back
        await until_moves(cluster, lambda r: {m.leaving_target_id for m in r.moves} == left)
        await cluster.start_storage(14)
        await until_moves(cluster, lambda r: not r.moves)


async def test_moves_are_throttled(autojump_clock):
    section = MgmtdSection(moves_max=1)
    async with cluster_of(section=section) as cluster:
        await cluster.up()
        await trio.sleep(7)
        spare = await add_node(cluster)
        spare.resync_s = 2.0
        await drain(cluster, 13)
        seen = set()
        with trio.fail_after(60):
            while nodes_of(await cluster.info(), 2) != {11, 12, 14}:
                reply = await moves(cluster)
                working = [m for m in reply.moves if m.state != pb.MOVE_RETIRING]
                assert len(working) <= 1
                seen |= {m.move_id for m in working}
                await trio.sleep(0.05)
        assert seen == {1, 2}


async def test_rebalancing_uses_a_new_node(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await trio.sleep(7)
        await add_node(cluster, 14)
        await add_node(cluster, 15)
        for _ in range(2):
            await cluster.call(services.MGMTD_START_REBALANCE, pb.StartRebalanceReq())
        reply = await until_moves(cluster, lambda r: not r.is_rebalancing and not r.moves)
        assert not reply.problems
        info = await cluster.info()
        per_node = dict.fromkeys((11, 12, 13, 14, 15), 0)
        for chain in info.chains.values():
            for target_id in chain.serving:
                per_node[info.target(target_id).node_id] += 1
        assert sorted(per_node.values()) == [1, 1, 1, 1, 2]
        await cluster.call(services.MGMTD_CANCEL_REBALANCE, pb.CancelRebalanceReq())


async def test_a_chain_that_moves_is_not_changed_by_hand(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await trio.sleep(7)
        spare = await add_node(cluster, 14, (7,))
        spare.used[1407] = 1  # so that it is not taken
        spare.resync_s = 1000.0
        await drain(cluster, 13)
        info = await cluster.until(lambda i: cluster.states(i) == [S, S, S, Y])
        (joining,) = [t.target_id for t in info.chain(1).targets if t.public_state is Y]
        conflict = Status.CONFLICTING_CHANGE
        for update in (
            pb.UpdateChainReq(chain_id=1, target_id=1407, update=pb.ADD_MEMBER),
            pb.UpdateChainReq(chain_id=1, target_id=joining, update=pb.REMOVE_MEMBER),
        ):
            await refused(conflict, cluster.call(services.MGMTD_UPDATE_CHAIN, update))
        order = pb.SetPreferredOrderReq(chain_id=1, target_ids=[1301, 1201, 1101])
        await refused(conflict, cluster.call(services.MGMTD_SET_PREFERRED_ORDER, order))
        rotate = pb.RotateAsPreferredOrderReq(chain_id=1)
        await refused(conflict, cluster.call(services.MGMTD_ROTATE_AS_PREFERRED_ORDER, rotate))
        await spare.kill()
        await cluster.until(lambda i: i.node(14).state.name == "FAILED")
        unregister = pb.UnregisterNodeReq(node_id=14)
        await refused(conflict, cluster.call(services.MGMTD_UNREGISTER_NODE, unregister))


async def test_senseless_requests_are_refused(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        bad = Status.RPC_BAD_REQUEST
        await refused(Status.NODE_UNKNOWN, drain(cluster, 99))
        await refused(Status.NODE_UNKNOWN, drain(cluster, 0))
        await refused(bad, drain(cluster, 1))
        await refused(bad, drain(cluster, 11, is_one_disk=True, disk_index=7))
        await refused(bad, drain(cluster, 11, is_one_disk=True, disk_index=2**32 - 1))
        await cancel_drain(cluster, 99)
        for move_id in (0, 1, 2**64 - 1):
            request = pb.CancelMoveReq(move_id=move_id)
            await refused(Status.MOVE_UNKNOWN, cluster.call(services.MGMTD_CANCEL_MOVE, request))
        assert not (await moves(cluster)).drains


async def test_a_cancelled_move_is_undone(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await trio.sleep(7)
        spare = await add_node(cluster)
        spare.resync_s = 1000.0
        await cluster.call(services.MGMTD_START_REBALANCE, pb.StartRebalanceReq())
        reply = await until_moves(
            cluster, lambda r: any(m.state == pb.MOVE_JOINING for m in r.moves)
        )
        await cluster.call(services.MGMTD_CANCEL_REBALANCE, pb.CancelRebalanceReq())
        await until_moves(cluster, lambda r: not r.moves)
        request = pb.CancelMoveReq(move_id=reply.moves[0].move_id)
        await refused(Status.MOVE_UNKNOWN, cluster.call(services.MGMTD_CANCEL_MOVE, request))
        info = await cluster.info()
        assert cluster.states(info) == cluster.states(info, 2) == [S, S, S]
        assert cluster.state_of(info, 11) is not O


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_joining_target_that_may_stand_in_is_not_dropped(autojump_clock, is_cancelled):
    """It served already, and failed together with all others:
    its copy may be the only one that comes back.
    """

    async def stay(*_):
        raise FsError(Status.BUSY, "not now")

    async with cluster_of(section=SECTION) as cluster:
        await cluster.up()
        await trio.sleep(7)
        await add_node(cluster)
        cluster.storages[13].offline_target = stay  # the leaving one
        await drain(cluster, 13)
        await cluster.until(lambda i: cluster.states(i) == cluster.states(i, 2) == [S, S, S, S])
        for node_id in cluster.storages:
            cluster.network.switch_off(f"n{node_id}")
        info = await cluster.until(
            lambda i: len(i.chain(1).candidates) == 4 and L in cluster.states(i)
        )
        (joining,) = (t for t in info.chain(1).candidates if info.target(t).node_id == 14)
        if is_cancelled:
            await cancel_drain(cluster, 13)
        await trio.sleep(2 * SECTION.move_stall_s)
        assert joining in (await cluster.info()).chain(1).candidates
        for storage in cluster.storages.values():
            await storage.kill()
        cluster.network.switch_on("n14")
        await cluster.start_storage(14)
        info = await cluster.until(lambda i: i.chain(1).serving == (joining,))
        assert joining in cluster.storages[14].local
        if is_cancelled:  # it serves: the move goes on to its end
            for node_id in (11, 12, 13):
                cluster.network.switch_on(f"n{node_id}")
                await cluster.start_storage(node_id)
            await until_moves(cluster, lambda r: not r.moves)
            info = await cluster.until(lambda i: cluster.states(i) == [S, S, S])
            assert 14 in nodes_of(info)
