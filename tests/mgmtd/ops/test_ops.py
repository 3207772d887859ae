"""What the operations refuse, what repeating them does, and how heartbeats are ordered."""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import pytest
import trio

from fs.mgmtd.ops.heartbeat import heartbeat
from fs.schema import services
from fs.schema.proto import common_pb2 as common
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.routing import LocalState, NodeState, node_from_pb
from fs.schema.status import FsError, Status
from tests.mgmtd.harness import L, O, S, W, cluster_of


@pytest.fixture
def autojump_clock():
    return trio.testing.MockClock(autojump_threshold=0)


def pb_node(**fields):
    return common.NodePb(node_id=5, address="mem:a", incarnation="i", **fields)


async def refused(status, call):
    with pytest.raises(FsError) as caught:
        await call
    assert caught.value.status is status, caught.value
    return caught.value


def chain_req(chain_id, *targets):
    made = [pb.NewTargetPb(target_id=t, node_id=n) for t, n in targets]
    return pb.SetChainsReq(chains=[pb.NewChainPb(chain_id=chain_id, targets=made)])


async def test_set_chains_all_or_none(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.start_manager(1)
        await cluster.register()
        assert await cluster.set_chains() == 2

        def set_chains(request):
            return cluster.call(services.MGMTD_SET_CHAINS, request)

        before = await cluster.info()
        conflict = Status.CONFLICTING_CHANGE
        same = chain_req(1, (1101, 11), (1201, 12), (1301, 13))
        assert (await set_chains(same)).created_count == 0
        await refused(conflict, set_chains(chain_req(1, (1201, 12), (1101, 11), (1301, 13))))
        await refused(conflict, set_chains(chain_req(3, (1101, 11))))
        await refused(Status.NODE_UNKNOWN, set_chains(chain_req(3, (1, 99))))
        await refused(Status.RPC_BAD_REQUEST, set_chains(chain_req(3)))
        await refused(Status.RPC_BAD_REQUEST, set_chains(chain_req(0, (1, 11))))
        await refused(Status.RPC_BAD_REQUEST, set_chains(chain_req(3, (1, 11), (1, 12))))
        await refused(Status.RPC_BAD_REQUEST, set_chains(chain_req(3, (2**63, 11))))
        twice = chain_req(3, (1, 11))
        twice.chains.extend(chain_req(4, (1, 12)).chains)
        await refused(conflict, set_chains(twice))
        assert await cluster.info() == before


async def test_set_chain_table_versions(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.start_manager(1)
        await cluster.register()
        await cluster.set_chains()
        await cluster.call(services.MGMTD_SET_CHAINS, chain_req(9, (1, 11)))

        async def set_table(*chain_ids):
            request = pb.SetChainTableReq(table_id=1, chain_ids=chain_ids)
            return (await cluster.call(services.MGMTD_SET_CHAIN_TABLE, request)).table_version

        assert await set_table(1, 2) == 1
        assert await set_table(2, 1) == 2
        assert await set_table(2, 1) == 2
        await refused(Status.CHAIN_UNKNOWN, set_table(1, 77))
        await refused(Status.CONFLICTING_CHANGE, set_table(1, 9))
        await refused(Status.RPC_BAD_REQUEST, set_table())
        await refused(Status.RPC_BAD_REQUEST, set_table(1, 1))
        info = await cluster.info()
        assert info.chain_table(1, 1).chain_ids == (1, 2)
        assert info.chain_table(1).chain_ids == (2, 1)


class Beat:
    """Hand-made heartbeats of one node."""

    def __init__(self, cluster, node_id=11):
        self.cluster, self.node_id = cluster, node_id
        self.extra: list[pb.TargetReportPb] = []

    async def __call__(self, incarnation, version, *reports, known=None, **options):
        if known is None:
            known = (await self.cluster.info()).routing_version
        request = pb.HeartbeatReq(
            node=common.NodePb(
                node_id=self.node_id,
                roles=[common.STORAGE],
                address=f"mem:n{self.node_id}",
                incarnation=incarnation,
            ),
            heartbeat_version=version,
            known_routing_version=known,
            targets=[
                pb.TargetReportPb(target_id=t, local_state=int(s), chain_version=v)
                for t, s, v in reports
            ]
            + self.extra,
            **options,
        )
        return await self.cluster.call(services.MGMTD_HEARTBEAT, request)


UP, ON, OFF = LocalState.UPTODATE, LocalState.ONLINE, LocalState.OFFLINE


async def test_heartbeats_are_ordered_by_incarnation_and_version(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.start_manager(1)
        beat = Beat(cluster)
        with pytest.raises(FsError, match="ember admin cluster init") as caught:
            await beat("a", 1)
        assert caught.value.status is Status.NODE_UNKNOWN
        await cluster.register()
        await refused(Status.RPC_BAD_REQUEST, beat("", 1))
        assert (await beat("a", 5)).lease_duration_s == cluster.section.node_lease_s
        assert (await beat("a", 5)).lease_duration_s > 0  # the same again
        await refused(Status.STALE_HEARTBEAT, beat("a", 4))
        await beat("b", 1)
        await refused(Status.NODE_FAILED, beat("a", 6))
        assert (await cluster.info()).node(11).incarnation == "b"


async def test_a_new_incarnation_restarts_from_what_it_reports(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.start_manager(1)
        await cluster.register()
        await cluster.set_chains()
        beat = Beat(cluster)
        await beat("a", 1, (1101, UP, 1), (1102, UP, 1))
        assert cluster.states(await cluster.info()) == [S, S, S]
        # Who else lives is not known.
        await refused(Status.NODE_FAILED, beat("b", 1, (1101, ON, 1)))
        await Beat(cluster, 12)("a", 1, (1201, UP, 1), (1202, UP, 1))
        await beat("b", 1, (1101, ON, 1))
        info = await cluster.info()
        assert cluster.state_of(info, 11) is S  # alive under the current version
        assert cluster.state_of(info, 11, 2) is O  # not reported at all


async def test_reports_under_an_old_chain_version_are_not_believed(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.start_manager(1)
        await cluster.register()
        await cluster.set_chains()
        beats = {n: Beat(cluster, n) for n in (11, 12, 13)}
        for node_id, beat in beats.items():
            await beat("a", 1, (node_id * 100 + 1, UP, 1))
        await beats[11]("a", 2, (1101, OFF, 1))
        assert cluster.states(await cluster.info()) == [S, S, O]
        await beats[11]("a", 3, (1101, UP, 1))
        info = await cluster.info()
        assert (cluster.state_of(info, 11), info.chain(1).chain_version) == (O, 2)
        await beats[11]("a", 4, (1101, UP, 2))
        assert cluster.state_of(await cluster.info(), 11) is W
        await refused(Status.CHAIN_UNKNOWN, cluster.call(
            services.MGMTD_SET_CHAIN_TABLE, pb.SetChainTableReq(table_id=3, chain_ids=[8])
        ))  # fmt: skip


async def test_no_lease_for_a_node_that_has_not_seen_its_demotion(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.start_manager(1)
        await cluster.register()
        await cluster.set_chains()
        beats = {n: Beat(cluster, n) for n in (11, 12, 13)}
        for node_id, beat in beats.items():
            await beat("a", 1, (node_id * 100 + 1, UP, 1))
        seen = (await cluster.info()).routing_version
        assert (await beats[12]("a", 2, (1201, UP, 1), known=seen)).lease_duration_s > 0
        answer = await beats[11]("a", 2, (1101, OFF, 1), known=seen)
        assert answer.lease_duration_s == 0
        assert answer.routing_version > seen
        answer = await beats[11]("a", 3, (1101, ON, 2), known=answer.routing_version)
        assert answer.lease_duration_s > 0
        assert (await beats[12]("a", 3, (1201, UP, 2), known=seen)).lease_duration_s > 0


async def test_a_target_moves_only_when_its_old_node_has_let_go(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.start_manager(1)
        await cluster.register()
        await cluster.set_chains()
        one, two = Beat(cluster, 11), Beat(cluster, 12)
        await one("a", 1, (1101, UP, 1))
        await two("a", 1, (1201, UP, 1), (1101, UP, 1))
        assert (await cluster.info()).target(1101).node_id == 11
        await one("a", 2, (1101, OFF, 1))
        await two("a", 2, (1201, UP, 1), (1101, ON, 2), (7777, ON, 0))
        info = await cluster.info()
        assert info.target(1101).node_id == 12
        assert info.target(7777).chain_id == 0


async def test_silence_of_everybody_leaves_one_to_wait_for(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.start_manager(1)
        await cluster.register()
        await cluster.set_chains()
        info = await cluster.until(lambda i: cluster.states(i) == [L, O, O])
        assert info.chain(1).targets[0].target_id == 1101
        assert info.node(11).state is NodeState.FAILED


async def test_client_sessions(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.start_manager(1)

        async def extend(client_id):
            request = pb.ExtendClientSessionReq(client_id=client_id, host_name="h", pid=4)
            return await cluster.call(services.MGMTD_EXTEND_CLIENT_SESSION, request)

        async def listed():
            request = pb.ListClientSessionsReq()
            return await cluster.call(services.MGMTD_LIST_CLIENT_SESSIONS, request)

        await refused(Status.RPC_BAD_REQUEST, extend(""))
        assert (await extend("c1")).session_duration_s == 60
        await extend("c2")
        assert not (await listed()).is_complete
        await trio.sleep(40)
        await extend("c1")
        await cluster.call(
            services.MGMTD_CLOSE_CLIENT_SESSION, pb.CloseClientSessionReq(client_id="unknown")
        )
        await trio.sleep(30)
        reply = await listed()
        assert reply.is_complete
        (session,) = reply.sessions
        assert (session.client_id, session.host_name, session.pid) == ("c1", "h", 4)
        assert session.age_s == pytest.approx(70, abs=1)
        assert session.idle_s == pytest.approx(30, abs=1)
        await cluster.call(
            services.MGMTD_CLOSE_CLIENT_SESSION, pb.CloseClientSessionReq(client_id="c1")
        )
        assert not (await listed()).sessions


async def test_a_manager_that_is_not_primary_names_who_is(autojump_clock):
    async with cluster_of(manager_count=2) as cluster:
        first = await cluster.start_manager(1)
        await cluster.wait_primary(first)
        second = await cluster.start_manager(2)
        await trio.sleep(0.1)
        error = await refused(
            Status.NOT_PRIMARY, second.mgmtd.service.heartbeat(None, pb.HeartbeatReq())
        )
        assert "mem:n1" in error.detail
        reply = await second.mgmtd.service.get_primary(None, pb.GetPrimaryReq())
        assert (reply.node_id, reply.address, reply.is_self) == (1, "mem:n1", False)


async def test_registering_again_keeps_what_a_running_node_said(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.start_manager(1)
        await cluster.register()
        await Beat(cluster)("a", 1)
        before = (await cluster.info()).node(11)
        await cluster.register()
        assert (await cluster.info()).node(11) == before
        await refused(
            Status.RPC_BAD_REQUEST,
            cluster.call(services.MGMTD_REGISTER_NODE, pb.RegisterNodeReq(node=common.NodePb())),
        )


async def test_progress_slowness_and_trouble_are_shown_and_not_kept(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.start_manager(1)
        await cluster.register()
        await cluster.set_chains()
        beats = {n: Beat(cluster, n) for n in (11, 12, 13)}
        for node_id, beat in beats.items():
            await beat("a", 1, (node_id * 100 + 1, UP, 1))
        await beats[13]("a", 2, (1301, OFF, 1))
        await beats[13]("a", 3, (1301, ON, 2))  # syncs, under version 3

        async def told(chain_version):
            report = pb.TargetReportPb(
                target_id=1201,
                local_state=int(UP),
                chain_version=3,
                is_slow=True,
                trouble="x" * 1000,
                resync=common.ResyncProgressPb(
                    target_id=1301, chain_version=chain_version, chunks_done=2, chunks_total=8
                ),
            )
            beats[12].extra = [report]
            await beats[12]("a", 10 + chain_version)
            node = common.NodePb(node_id=90 + chain_version, roles=[common.META])
            await cluster.call(services.MGMTD_REGISTER_NODE, pb.RegisterNodeReq(node=node))
            return await cluster.info()

        assert (await told(2)).target(1301).resync is None
        info = await told(3)
        assert (info.target(1301).resync.chunks_done, info.target(1201).is_slow) == (2, True)
        assert info.target(1201).trouble == "x" * 200
        await beats[13]("a", 4, (1301, UP, 3))
        assert (await cluster.info()).target(1301).resync is None
        await cluster.managers[1].kill()
        await cluster.start_manager(1)
        assert (await cluster.info()).target(1201).trouble == ""


@pytest.mark.parametrize("node", [pb_node(roles=[77]), pb_node(roles=[1], state=77)])
async def test_unknown_roles_and_states_are_bad_requests(autojump_clock, node):
    """Found by tests/rpc/fuzz.py: they were internal errors."""
    with pytest.raises(FsError) as caught:
        node_from_pb(node)
    assert caught.value.status is Status.RPC_BAD_REQUEST


@pytest.mark.parametrize(("target_id", "state"), [(1, 77), (0, 1), (2**63, 1), (2**64 - 1, 1)])
async def test_a_heartbeat_with_impossible_numbers_changes_nothing(
    autojump_clock, target_id, state
):
    report = pb.TargetReportPb(target_id=target_id, local_state=state)
    request = pb.HeartbeatReq(node=pb_node(roles=[2]), targets=[report])
    with pytest.raises(FsError) as caught:
        await heartbeat(None, request)  # refused before the primary is looked at
    assert caught.value.status is Status.RPC_BAD_REQUEST
