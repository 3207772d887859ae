"""When a chain counts a loss: its last server's machine was started anew, or was given up;
never for a process.
"""
# ruff: noqa: ARG001 - the clock fixture acts by being asked for

import pytest

from fs.schema import services
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.routing import LocalState
from tests.mgmtd.harness import L, S, cluster_of

pytestmark = pytest.mark.thorough


def all_serve(cluster):
    """Return the condition that every process of now has been heard and serves."""
    wanted = [S] * len(cluster.storage_ids)

    def is_met(info):
        are_heard = all(
            info.node(n).incarnation == s.incarnation for n, s in cluster.storages.items()
        )
        return are_heard and all(cluster.states(info, c) == wanted for c in (1, 2))

    return is_met


async def restart(cluster, node_ids, boot):
    """Let processes die and start again, all at once;
    under another boot id where `boot` is given.
    """
    for node_id in node_ids:
        await cluster.storages[node_id].kill()
        if boot:
            cluster.boot_ids[node_id] = f"{boot}-{node_id}"
    for node_id in node_ids:
        await cluster.start_storage(node_id)


async def counts(cluster):
    info = await cluster.until(all_serve(cluster))
    return [info.chain(c).loss_count for c in (1, 2)]


async def begin(cluster):
    cluster.boot_ids = {node_id: f"first-{node_id}" for node_id in cluster.storage_ids}
    await cluster.up()


async def test_only_the_power_of_all_replicas_takes_anything(autojump_clock):
    async with cluster_of() as cluster:
        await begin(cluster)
        everybody = cluster.storage_ids
        await restart(cluster, everybody, "")
        assert await counts(cluster) == [0, 0]
        for node_id in everybody:  # one machine after the other
            await restart(cluster, [node_id], "rolling")
            assert await counts(cluster) == [0, 0]
        await restart(cluster, everybody, "second")
        found = await counts(cluster)
        assert min(found) >= 1
        await restart(cluster, everybody, "")
        assert await counts(cluster) == found


async def test_replicas_that_fail_one_after_the_other(autojump_clock):
    async with cluster_of() as cluster:
        await begin(cluster)
        for node_id in cluster.storage_ids:
            await cluster.storages[node_id].kill()
            await cluster.until(lambda i, n=node_id: cluster.state_of(i, n) is not S)
        last = next(t for t in (await cluster.info()).chain(1).targets if t.public_state is L)
        last_id = last.target_id // 100
        for node_id in cluster.storage_ids:  # all but the last lost their power as well
            if node_id != last_id:
                cluster.boot_ids[node_id] = "other"
            await cluster.start_storage(node_id)
        assert await counts(cluster) == [0, 0]


async def test_managers_that_lose_their_memory_remember_the_boot(autojump_clock):
    async with cluster_of() as cluster:
        await begin(cluster)
        for process in [*cluster.storages.values(), *cluster.managers.values()]:
            await process.kill()
        cluster.boot_ids = dict.fromkeys(cluster.storage_ids, "second")
        await cluster.start_manager(1)
        for node_id in cluster.storage_ids:
            await cluster.start_storage(node_id)
        assert min(await counts(cluster)) >= 1


@pytest.mark.parametrize(("first", "second"), [("", "x"), ("x", "")])
async def test_what_is_not_known_is_no_loss(autojump_clock, first, second):
    async with cluster_of() as cluster:
        cluster.boot_ids = dict.fromkeys(cluster.storage_ids, first)
        await cluster.up()
        for node_id in cluster.storage_ids:
            await cluster.storages[node_id].kill()
            cluster.boot_ids[node_id] = second
        for node_id in cluster.storage_ids:
            await cluster.start_storage(node_id)
        assert await counts(cluster) == [0, 0]
        await restart(cluster, cluster.storage_ids, "y")
        assert min(await counts(cluster)) >= 1


async def test_who_waits_for_the_last_server_is_told_of_its_reboot_at_once(autojump_clock):
    async with cluster_of(storages=1) as cluster:
        await begin(cluster)
        await cluster.storages[11].kill()
        await cluster.until(lambda i: cluster.states(i) == [L])
        before = await cluster.info()
        request = pb.HeartbeatReq(heartbeat_version=1)
        request.node.node_id, request.node.address = 11, "mem:n11"
        request.node.incarnation, request.node.boot_id = "new", "second"
        await cluster.call(services.MGMTD_HEARTBEAT, request)  # its disk is not open yet
        info = await cluster.info()
        assert cluster.states(info) == [L]
        assert info.chain(1).loss_count == 1
        assert info.chain(1).chain_version == before.chain(1).chain_version + 1
        cluster.boot_ids[11] = "second"
        await cluster.start_storage(11)
        assert await counts(cluster) == [1, 1]


async def stop_and_reboot(cluster, boot):
    """Stop all storage processes in order, start their machines anew, and then them."""
    for node_id in cluster.storage_ids:
        await cluster.storages[node_id].stop()
        cluster.boot_ids[node_id] = f"{boot}-{node_id}"
    for node_id in cluster.storage_ids:
        await cluster.start_storage(node_id)


@pytest.mark.parametrize("storages", [1, 3])
async def test_what_stopped_in_order_has_lost_nothing(autojump_clock, storages):
    async with cluster_of(storages=storages) as cluster:
        await begin(cluster)
        for boot in ("second", "third"):
            await stop_and_reboot(cluster, boot)
            assert await counts(cluster) == [0, 0]


async def test_a_stop_in_order_says_nothing_of_what_came_after_it(autojump_clock):
    async with cluster_of(storages=1) as cluster:
        await begin(cluster)
        await stop_and_reboot(cluster, "second")
        assert await counts(cluster) == [0, 0]
        await restart(cluster, cluster.storage_ids, "third")  # their disks still bear the notes
        assert min(await counts(cluster)) == 1
        await stop_and_reboot(cluster, "third")  # without a reboot in between
        await restart(cluster, cluster.storage_ids, "")
        assert await counts(cluster) == [1, 1]
        await restart(cluster, cluster.storage_ids, "fourth")
        assert await counts(cluster) == [2, 2]


async def test_who_was_not_heard_has_acknowledged_nothing(autojump_clock):
    async with cluster_of(storages=1) as cluster:
        await begin(cluster)
        await cluster.storages[11].stop()
        cluster.boot_ids[11] = "second"
        cluster.network.kill("n1")  # the manager does not hear the next process, which dies
        silent = cluster.storages[11]
        await cluster.managers[1].kill()
        await cluster.start_storage(11)
        await cluster.storages[11].kill()
        assert cluster.storages[11] is not silent
        await cluster.start_manager(1)
        await cluster.start_storage(11)
        assert await counts(cluster) == [0, 0]


@pytest.mark.parametrize(("is_noted", "loss_count"), [(True, 0), (False, 1)])
async def test_a_disk_that_comes_in_another_machine_is_believed_too(
    autojump_clock, is_noted, loss_count
):
    async with cluster_of(storages=1) as cluster:
        await begin(cluster)
        other = pb.RegisterNodeReq(node={"node_id": 12, "roles": [3], "address": "mem:n12"})
        await cluster.call(services.MGMTD_REGISTER_NODE, other)
        incarnation = cluster.storages[11].incarnation
        await cluster.storages[11].stop()
        await cluster.until(lambda i: cluster.states(i) == [L])
        request = pb.HeartbeatReq(heartbeat_version=1)
        request.node.node_id, request.node.address = 12, "mem:n12"
        request.node.incarnation, request.node.boot_id = "new", "other"
        note = incarnation if is_noted else "of an earlier one"
        request.targets.add(target_id=1101, local_state=int(LocalState.ONLINE), flushed_by=note)
        await cluster.call(services.MGMTD_HEARTBEAT, request)
        assert (await cluster.info()).chain(1).loss_count == loss_count


async def test_a_disk_that_lost_something_counts_where_nobody_else_has_it(autojump_clock):
    async with cluster_of() as cluster:
        await begin(cluster)
        everybody = cluster.storage_ids
        cluster.disk_loss_counts = {1101: 1}
        await restart(cluster, [11], "")
        assert await counts(cluster) == [0, 0]
        for node_id in everybody:
            await cluster.storages[node_id].kill()
            await cluster.until(lambda i, n=node_id: cluster.state_of(i, n) is not S)
        last = next(t for t in (await cluster.info()).chain(1).targets if t.public_state is L)
        cluster.disk_loss_counts[last.target_id] = 2
        for node_id in everybody:
            await cluster.start_storage(node_id)
        assert await counts(cluster) == [1, 0]
        # Nothing new, also for managers that begin anew.
        for process in [*cluster.storages.values(), *cluster.managers.values()]:
            await process.kill()
        for node_id in cluster.manager_ids:
            await cluster.start_manager(node_id)
        for node_id in everybody:
            await cluster.start_storage(node_id)
        assert await counts(cluster) == [1, 0]
