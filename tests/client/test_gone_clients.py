"""What is asked of whom before a client that is gone is freed."""
# ruff: noqa: ARG001 - the clock fixture acts by being asked for

import pytest
import trio

from fs.client.gone_clients import CALL_TIMEOUT_S, TRY_S_MAX, GoneClients, may_hold_requests
from fs.rpc.api import ConnectionRefused, Received
from fs.schema import services
from fs.schema.ids import NodeId
from fs.schema.proto.core_pb2 import EndClientRsp
from fs.schema.routing import Node, NodeState, Role, RoutingInfo
from fs.schema.status import FsError, Status

META, STORAGE, MGMTD = ({role} for role in (Role.META, Role.STORAGE, Role.MGMTD))
SILENT = FsError(Status.RPC_TIMEOUT, "no reply")
EARLIER = FsError(Status.RPC_UNKNOWN_METHOD, "service 1 method 7")


def node(number, roles, state=NodeState.CONNECTED):
    return Node(NodeId(number), frozenset(roles), f"mem:{number}", "i", state)


class FakeCluster:
    """Nodes, a manager and metadata services, which say what they are asked."""

    def __init__(self, *nodes):
        self.info = RoutingInfo(1, "c", nodes={one.node_id: one for one in nodes})
        self.answers = {}
        """By node id: what it raises, or a list of that, time by time."""
        self.said = []
        self.is_managed = True

    def get(self, _address, *, node_id):
        cluster = self

        class Channel:
            async def call(self, method, request, *, timeout_s):
                assert timeout_s == CALL_TIMEOUT_S
                await cluster.answer(node_id, method, request)
                return Received(EndClientRsp())

        return Channel()

    async def answer(self, node_id, method, request):
        assert method is services.CORE_END_CLIENT and request.client_id == "dead"
        await trio.lowlevel.checkpoint()
        answer = self.answers.get(node_id)
        if isinstance(answer, list):
            answer = answer.pop(0) if answer else None
        self.said.append((node_id, answer is None))
        if answer is not None:
            raise answer

    async def call(self, method, request, *, timeout_s):
        assert request.client_id == "dead" and timeout_s == CALL_TIMEOUT_S
        self.said.append(method.name)
        if method is services.MGMTD_CLOSE_CLIENT_SESSION and not self.is_managed:
            raise SILENT

    async def free(self):
        clients = GoneClients(channels=self, routing=self, mgmtd=self, meta=self)
        return await clients.free("dead")


def test_those_may_hold_requests_that_do_not_need_a_lease_or_have_one():
    nodes = [
        node(1, MGMTD), node(2, META), node(3, META, NodeState.FAILED), node(4, STORAGE),
        node(5, STORAGE, NodeState.FAILED), node(6, MGMTD | META), node(7, STORAGE,
        NodeState.DISABLED),
    ]  # fmt: skip
    info = FakeCluster(*nodes).info
    assert sorted(n.node_id for n in may_hold_requests(info)) == [2, 3, 4, 6, 7]


@pytest.mark.parametrize("is_managed", [True, False])
async def test_all_refuse_it_before_anything_is_freed(autojump_clock, is_managed):
    cluster = FakeCluster(node(1, META), node(2, STORAGE), node(3, STORAGE))
    cluster.is_managed = is_managed
    assert await cluster.free()
    assert set(cluster.said[:3]) == {(n, True) for n in (1, 2, 3)}
    assert cluster.said[3:] == ["FreeClient", "CloseClientSession"]


async def test_one_that_is_silent_is_waited_for(autojump_clock):
    cluster = FakeCluster(node(1, META), node(2, STORAGE))
    cluster.answers[2] = [SILENT, SILENT]
    assert await cluster.free()
    assert cluster.said.count((2, False)) == 2
    assert cluster.said[-2:] == ["FreeClient", "CloseClientSession"]


async def test_while_one_is_silent_nothing_is_freed(autojump_clock):
    cluster = FakeCluster(node(1, META), node(2, META, NodeState.FAILED))
    cluster.answers[2] = SILENT
    assert not await cluster.free()
    assert trio.current_time() == pytest.approx(TRY_S_MAX)
    assert "FreeClient" not in cluster.said


async def test_beside_an_earlier_release_nothing_is_freed_nor_tried_again(autojump_clock):
    cluster = FakeCluster(node(1, META), node(2, STORAGE), node(3, STORAGE))
    cluster.answers = {1: SILENT, 2: EARLIER}
    assert not await cluster.free()
    assert trio.current_time() == 0 and "FreeClient" not in cluster.said


async def test_what_the_dead_have_passed_on_is_asked_for_again(autojump_clock):
    """A storage process that died passed its last updates on to another one, after that had
    been asked.
    """
    cluster = FakeCluster(node(1, META), node(2, STORAGE), node(3, STORAGE))
    cluster.answers[2] = ConnectionRefused("gone")
    assert await cluster.free()
    assert cluster.said.count((3, True)) == cluster.said.count((1, True)) == 2
    assert cluster.said.count((2, False)) == 1


async def test_where_nobody_is_left_nothing_is_under_way(autojump_clock):
    cluster = FakeCluster(node(1, META), node(2, STORAGE))
    cluster.answers = {n: ConnectionRefused("gone") for n in (1, 2)}
    assert await cluster.free()
