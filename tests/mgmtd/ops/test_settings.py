"""Settings and tags through the managers: who hears what,
also while one manager takes over from another.
"""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import pytest
import trio

from fs.mgmtd.service import MgmtdService
from fs.mgmtd.settings_book import settings_key
from fs.node.client_session import ClientSessionKeeper
from fs.node.kept_settings import KeptSettings, ask_for_settings
from fs.rpc.api import Identity
from fs.runtime.settings import Settings
from fs.schema import services
from fs.schema.config import ProcessConfig
from fs.schema.ids import ClientId
from fs.schema.method import Access
from fs.schema.proto import common_pb2
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.proto.common_pb2 import NodeRole, SettingsStatePb
from fs.schema.routing import Role
from fs.schema.status import FsError, Status
from fs.schema.user import User
from tests.mgmtd.harness import cluster_of

NORMAL = SettingsStatePb.SETTINGS_NORMAL


@pytest.fixture
def autojump_clock():
    return trio.testing.MockClock(autojump_threshold=0)


def reads(count):
    return f"[storage]\nread_concurrency = {count}\n"


def setting(text, role=NodeRole.STORAGE, **fields):
    return pb.SetSettingsReq(role=role, text=text, **fields)


def follow(process, *roles):
    """Have a process take over what the managers keep."""
    settings = Settings(process.config, roles)
    settings.start()
    process.member.settings = KeptSettings(
        settings, process.runtime, trigger=process.member.trigger
    )
    return settings


async def until(condition, timeout_s=30.0):
    with trio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.05)


async def started(cluster, managers=1):
    for number in range(1, managers + 1):
        await cluster.start_manager(number)
    await cluster.register()
    for node_id in (11, 12):
        await cluster.start_storage(node_id)
    return [follow(cluster.storages[n], Role.STORAGE) for n in (11, 12)]


async def test_every_process_of_the_role_hears_of_it(autojump_clock):
    async with cluster_of() as cluster:
        found = await started(cluster)
        reply = await cluster.call(services.MGMTD_SET_SETTINGS, setting(reads(5), note="more"))
        assert reply.version == 1
        await until(lambda: all(s.config.storage.read_concurrency == 5 for s in found))
        again = await cluster.call(services.MGMTD_SET_SETTINGS, setting(reads(5)))
        assert again.version == 1
        with pytest.raises(FsError, match="line 2") as caught:
            await cluster.call(services.MGMTD_SET_SETTINGS, setting(reads(0)))
        assert caught.value.status is Status.BAD_CONFIG
        with pytest.raises(FsError):
            await cluster.call(services.MGMTD_SET_SETTINGS, setting("", role=NodeRole.ROLE_NONE))
        await trio.sleep(3.0)  # the next heartbeats say so
        listed = await cluster.call(services.MGMTD_LIST_SETTINGS, pb.ListSettingsReq())
        assert [(v.role, v.version, v.note) for v in listed.versions] == [
            (NodeRole.STORAGE, 1, "more")
        ]
        states = {one.node_id: one.settings.state for one in listed.nodes}
        assert states == {11: NORMAL, 12: NORMAL}
        request = pb.GetSettingsReq(role=NodeRole.STORAGE)
        kept = await cluster.call(services.MGMTD_GET_SETTINGS, request)
        assert kept.settings.text == reads(5)


async def test_a_process_that_takes_none_is_told_none(autojump_clock):
    async with cluster_of() as cluster:
        await started(cluster)
        member = cluster.storages[12].member
        member.settings = type(cluster.managers[1].member.settings)()
        heard = []
        member.settings.hear = heard.extend
        await cluster.call(services.MGMTD_SET_SETTINGS, setting(reads(5)))
        await trio.sleep(3.0)
        assert heard == []
        listed = await cluster.call(services.MGMTD_LIST_SETTINGS, pb.ListSettingsReq())
        assert [one.node_id for one in listed.nodes] == [11]


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
async def test_a_manager_dies_while_settings_are_on_their_way(autojump_clock, seed):
    """One process has them already or not; the answer to whoever set them may be lost;
    the next manager brings all home.
    """
    async with cluster_of(manager_count=3, seed=seed) as cluster:
        found = await started(cluster, managers=3)
        for count in (5, 6, 7):
            await cluster.wait_primary(*cluster.managers.values())
            (primary,) = cluster.primaries
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cluster.call, services.MGMTD_SET_SETTINGS, setting(reads(count)))
                await trio.sleep(cluster.random.uniform(0.0, 0.02))
                await primary.kill()
                await cluster.start_manager(primary.node.node_id)
            await until(lambda n=count: all(s.config.storage.read_concurrency == n for s in found))
        kept = await cluster.call(
            services.MGMTD_GET_SETTINGS, pb.GetSettingsReq(role=NodeRole.STORAGE)
        )
        assert (kept.settings.version, kept.settings.text) == (3, reads(7))
        assert [s.version(Role.STORAGE) for s in found] == [3, 3]
        assert [s.state for s in found] == [NORMAL, NORMAL]


async def test_nobody_is_told_of_settings_before_those_that_are_lost(autojump_clock):
    async with cluster_of() as cluster:
        found = await started(cluster)
        for count in (5, 6):
            await cluster.call(services.MGMTD_SET_SETTINGS, setting(reads(count)))
        await until(lambda: all(s.version(Role.STORAGE) == 2 for s in found))
        tr = cluster.engine.transaction()
        tr.set(settings_key(NodeRole.STORAGE, 2), b"\xff")
        await tr.commit()
        await cluster.managers[1].kill()
        await cluster.start_manager(1)
        await cluster.wait_primary(*cluster.managers.values())
        assert await ask_for_settings(cluster.link, found[0]) == []
        await trio.sleep(5.0)  # heartbeats
        assert [s.config.storage.read_concurrency for s in found] == [6, 6]
        reply = await cluster.call(services.MGMTD_SET_SETTINGS, setting(reads(5)))
        assert reply.version == 3
        await until(lambda: all(s.config.storage.read_concurrency == 5 for s in found))


async def test_mounts_hear_with_their_sessions_and_their_hosts_have_tags(autojump_clock):
    async with cluster_of() as cluster:
        manager = await cluster.start_manager(1)
        settings = Settings(ProcessConfig(), [Role.CLIENT])
        assert await ask_for_settings(cluster.link, settings) is not None
        settings.start()
        kept = KeptSettings(settings, manager.runtime)
        keeper = ClientSessionKeeper(
            cluster.link, manager.runtime, ClientId("c" * 32), host_name="h", settings=kept
        )
        text = "[client]\nwrite_back_interval_s = 2.5\n"
        async with trio.open_nursery() as nursery:
            await nursery.start(keeper.run)
            await cluster.call(services.MGMTD_SET_SETTINGS, setting(text, role=NodeRole.CLIENT))
            await until(lambda: settings.config.client.write_back_interval_s == 2.5)
            await trio.sleep(1.0)
            change = pb.SetTagsReq(host_name="h", change=pb.TAGS_ADD, tags={"zone": "west"})
            assert dict((await cluster.call(services.MGMTD_SET_TAGS, change)).tags) == {
                "zone": "west"
            }
            listed = await cluster.call(
                services.MGMTD_LIST_CLIENT_SESSIONS, pb.ListClientSessionsReq()
            )
            (session,) = listed.sessions
            assert dict(session.tags) == {"zone": "west"}
            assert [v.version for v in session.settings.versions] == [1]
            nursery.cancel_scope.cancel()


async def test_tags_of_nodes_outlive_heartbeats_and_managers(autojump_clock):
    async with cluster_of() as cluster:
        await started(cluster)
        change = pb.SetTagsReq(node_id=11, change=pb.TAGS_SET, tags={"rack": "r1"})
        for _ in range(2):
            await cluster.call(services.MGMTD_SET_TAGS, change)
        await cluster.managers[1].kill()
        await cluster.start_manager(1)
        await trio.sleep(5.0)
        info = await cluster.info()
        assert dict(info.nodes[11].tags) == {"rack": "r1"}
        for wrong in (pb.SetTagsReq(), pb.SetTagsReq(node_id=11, host_name="h")):
            with pytest.raises(FsError):
                await cluster.call(services.MGMTD_SET_TAGS, wrong)
        with pytest.raises(FsError) as caught:
            await cluster.call(
                services.MGMTD_SET_TAGS, pb.SetTagsReq(node_id=99, change=pb.TAGS_ADD)
            )
        assert caught.value.status is Status.NODE_UNKNOWN


def test_users_are_told_the_settings_of_mounts_only():
    service, peer = MgmtdService(None), Identity("c", client_id="c" * 32)
    alice, root = User(1000, "alice", 100), User(0, "root", 0, is_admin=True)
    service.admit(alice, peer, pb.GetSettingsReq(role=NodeRole.CLIENT))
    service.admit(root, peer, pb.GetSettingsReq(role=NodeRole.STORAGE))
    with pytest.raises(FsError) as caught:
        service.admit(alice, peer, pb.GetSettingsReq(role=NodeRole.STORAGE))
    assert caught.value.status is Status.RPC_NOT_ALLOWED
    methods = (
        services.MGMTD_SET_SETTINGS,
        services.MGMTD_LIST_SETTINGS,
        services.MGMTD_SET_TAGS,
        services.MGMTD_LIST_HOST_TAGS,
        services.CORE_TRY_SETTINGS,
        services.CORE_CHANGE_SETTINGS,
    )
    assert {method.access for method in methods} == {Access.ADMIN}


async def test_registering_again_leaves_the_tags_that_were_given_by_hand(autojump_clock):
    async with cluster_of() as cluster:
        await started(cluster)
        tags = {"owner": "vision", "rack": "r1"}
        change = pb.SetTagsReq(node_id=11, change=pb.TAGS_SET, tags=tags)
        await cluster.call(services.MGMTD_SET_TAGS, change)
        node = common_pb2.NodePb(
            node_id=11, roles=[NodeRole.STORAGE], address="mem:n11", tags={"rack": "r2"}
        )
        await cluster.call(services.MGMTD_REGISTER_NODE, pb.RegisterNodeReq(node=node))
        info = await cluster.info()
        assert dict(info.nodes[11].tags) == {"owner": "vision", "rack": "r2"}
