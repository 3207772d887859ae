"""Storage processes that know less than the metadata service's store may make them be asked for."""
# ruff: noqa: ARG001 - the clock fixture acts by being asked for

import pytest
import trio

from fs.mgmtd.levels import too_old
from fs.schema import services
from fs.schema.proto import common_pb2 as common
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.routing import LocalState, NodeState
from fs.schema.status import FsError, Status
from tests.mgmtd.harness import cluster_of

META = 21


async def beat(cluster, node_id, incarnation="a", *, version=1, level=0, level_min=0, **options):
    role = common.META if node_id == META else common.STORAGE
    reports = (
        []
        if node_id == META
        else [pb.TargetReportPb(target_id=node_id * 100, local_state=int(LocalState.ONLINE))]
    )
    request = pb.HeartbeatReq(
        node=common.NodePb(
            node_id=node_id,
            roles=[role],
            address=f"mem:n{node_id}",
            incarnation=incarnation,
            release="1.2",
            storage_level=level,
            storage_level_min=level_min,
        ),
        heartbeat_version=version,
        known_routing_version=1,
        targets=reports,
        **options,
    )
    return await cluster.call(services.MGMTD_HEARTBEAT, request)


async def refused(*args, **options):
    with pytest.raises(FsError) as caught:
        await beat(*args, **options)
    assert caught.value.status is Status.NOT_SUPPORTED
    return caught.value


async def begin(cluster):
    await cluster.start_manager(1)
    await cluster.register()
    node = common.NodePb(node_id=META, roles=[common.META], address=f"mem:n{META}")
    await cluster.call(services.MGMTD_REGISTER_NODE, pb.RegisterNodeReq(node=node))


async def test_one_that_knows_too_little_gets_no_lease_and_is_not_heard(autojump_clock, caplog):
    async with cluster_of() as cluster:
        await begin(cluster)
        await beat(cluster, META, level_min=1)
        for version in (1, 2):
            error = await refused(cluster, 11, version=version)
        assert "storage process, of release 1.2, is too old" in str(error)
        assert "it knows level 0, 1 is needed" in str(error)
        assert sum("is too old" in r.getMessage() for r in caplog.records) == 1
        assert (await cluster.info()).node(11).state is NodeState.STARTING
        assert (await beat(cluster, 12, level=1)).lease_duration_s > 0
        assert (await beat(cluster, 13, level=2)).lease_duration_s > 0  # of a later release
        assert (await beat(cluster, 11, "b", level=1)).lease_duration_s > 0


async def test_one_that_serves_already_ends_by_silence(autojump_clock):
    async with cluster_of() as cluster:
        await begin(cluster)
        storage = await cluster.start_storage(11)
        await storage.member.wait_joined()
        began_s = trio.current_time()
        await beat(cluster, META, level_min=1)
        await cluster.until(lambda i: i.node(11).state is NodeState.FAILED)
        assert trio.current_time() - began_s >= cluster.section.node_failed_after_s - 1.0
        assert not storage.member.lease.is_valid()
        await trio.sleep(15)
        assert (await cluster.info()).node(11).state is NodeState.FAILED


async def test_a_stop_is_heard_of_everybody(autojump_clock):
    async with cluster_of() as cluster:
        await begin(cluster)
        await beat(cluster, 11)
        await beat(cluster, META, level_min=1)
        await beat(cluster, 11, version=2, is_stopping=True)
        assert (await cluster.info()).node(11).state is NodeState.FAILED


async def test_what_is_needed_is_known_before_a_metadata_service_is_heard(autojump_clock):
    async with cluster_of() as cluster:
        await begin(cluster)
        await beat(cluster, META, level_min=1)
        await cluster.managers[1].stop()
        await cluster.start_manager(1)
        await cluster.wait_primary(cluster.managers[1])
        await refused(cluster, 11)
        await beat(cluster, META, "b", version=1)  # it serves another store now, or knows no levels
        await beat(cluster, 11)


async def test_others_than_storage_know_nothing_of_it(autojump_clock):
    async with cluster_of() as cluster:
        await begin(cluster)
        await beat(cluster, META, level_min=7)
        info = await cluster.info()
        assert info.node(META).storage_level_min == 7
        assert too_old(info, common.NodePb(node_id=5, roles=[common.META, common.MGMTD])) is None
        both = common.NodePb(node_id=5, roles=[common.META, common.STORAGE])
        assert "of release unknown" in str(too_old(info, both))
