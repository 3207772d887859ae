"""Calls to a node end when the manager says that it is gone, and the manager hears of refusals."""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import math
from dataclasses import replace

import pytest
import trio

from fs.client.node_calls import NodeCalls
from fs.client.patience import SlowPeerError
from fs.rpc.api import ConnectionRefused, Received
from fs.rpc.call_under_way import CallUnderWay
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.simulated import simulated_runtime
from fs.schema import services
from fs.schema.config import ClientSection
from fs.schema.ids import NodeId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.proto.core_pb2 import GetInfoRsp
from fs.schema.routing import Node, NodeState, Role, RoutingInfo
from fs.schema.status import FsError, Status

NODE = Node(NodeId(1), frozenset({Role.STORAGE}), "mem:one", "first", NodeState.CONNECTED)


class Routing:
    def __init__(self):
        self.info = RoutingInfo(1, nodes={NodeId(1): NODE})
        self._changed = trio.Event()

    def publish(self, **changes):
        version = self.info.routing_version + 1
        node = replace(self.info.nodes[NodeId(1)], **changes)
        self.info = RoutingInfo(version, nodes={NodeId(1): node})
        self._changed.set()
        self._changed = trio.Event()

    async def wait_newer(self, routing_version):
        while self.info.routing_version <= routing_version:
            await self._changed.wait()
        return self.info


async def _never():
    await trio.sleep_forever()


class Peers:
    """Channels to nodes that are silent, or refuse."""

    def __init__(self, error=None):
        self.error = error
        self.reported = []

    def get(self, _address, *, node_id):
        assert node_id == 1
        return self

    async def call(self, method, request, *, under_way=None, **_options):
        if method is services.MGMTD_REPORT_UNREACHABLE:
            self.reported.append((request.node_id, request.incarnation))
            return method.reply_type()
        if self.error is not None:
            raise self.error
        call = CallUnderWay(math.inf)
        under_way.add(call)
        try:
            return await call.within(_never())
        finally:
            under_way.remove(call)


def calls(routing, peers, **section):
    network = MemoryNetwork(seed=1)
    return NodeCalls(
        channels=peers,
        routing=routing,
        mgmtd=peers,
        section=ClientSection(**section),
        runtime=simulated_runtime(network.endpoint("client"), 1),
    )


@pytest.mark.parametrize("change", [{"state": NodeState.FAILED}, {"incarnation": "second"}])
async def test_a_call_ends_when_its_node_is_judged(autojump_clock, change):
    routing = Routing()
    nodes = calls(routing, Peers(), requests_per_node_max=1)
    errors = []

    async def call():
        try:
            await nodes.call(NodeId(1), services.STORAGE_SPACE_INFO, pb.SpaceInfoReq())
        except FsError as error:
            errors.append((trio.current_time(), error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(nodes.run)
        nursery.start_soon(call)
        await trio.sleep(1.0)
        routing.publish(tags={"rack": "a"})  # says nothing about its life
        await trio.sleep(1.0)
        assert not errors
        began_s = trio.current_time()
        routing.publish(**change)
        await trio.sleep(0.01)
        ((ended_s, error),) = errors
        assert ended_s - began_s < 0.01
        assert error.status is Status.RPC_CONNECTION_LOST
        assert not error.definite
        nursery.cancel_scope.cancel()


async def test_who_is_cancelled_while_he_reports_leaves_it_to_others(autojump_clock):
    """Was: nobody told the manager any more, which then waits for the lease of a dead node."""

    class Slow(Peers):
        async def call(self, method, request, **options):
            reply = await super().call(method, request, **options)
            if len(self.reported) == 1:
                await trio.sleep_forever()
            return reply

    peers = Slow(ConnectionRefused("mem:one: connection refused"))
    nodes = calls(Routing(), peers)
    with trio.move_on_after(1.0) as scope:
        await nodes.call(NodeId(1), services.STORAGE_SPACE_INFO, pb.SpaceInfoReq())
    assert scope.cancelled_caught
    for _ in range(2):
        with pytest.raises(ConnectionRefused):
            await nodes.call(NodeId(1), services.STORAGE_SPACE_INFO, pb.SpaceInfoReq())
    assert peers.reported == [(1, "first")] * 2


async def test_a_refusal_is_reported_once(autojump_clock):
    peers = Peers(ConnectionRefused("nobody listens"))
    nodes = calls(Routing(), peers)
    for _ in range(2):
        with pytest.raises(ConnectionRefused):
            await nodes.call(NodeId(1), services.STORAGE_SPACE_INFO, pb.SpaceInfoReq())
    assert peers.reported == [(1, "first")]


async def test_what_waits_for_a_turn_does_not_call_a_node_judged_failed(autojump_clock):
    """Nor does a repetition that still sees the old chain:
    both would wait for a silent node's timeout.
    """
    routing = Routing()
    nodes = calls(routing, Peers(), requests_per_node_max=1)
    ended = []

    async def call():
        with pytest.raises(FsError) as caught:
            await nodes.call(NodeId(1), services.STORAGE_SPACE_INFO, pb.SpaceInfoReq())
        ended.append((trio.current_time(), caught.value.status))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(nodes.run)
        for _ in range(3):
            nursery.start_soon(call)
        await trio.sleep(1.0)
        began_s = trio.current_time()
        routing.publish(state=NodeState.FAILED)
        await trio.sleep(0.01)
        await call()
        assert len(ended) == 4
        assert ended[-1][0] - began_s < 0.1
        assert {status for _, status in ended[1:]} == {Status.RPC_CONNECT_FAILED}
        nursery.cancel_scope.cancel()


class Beginning:
    """A channel that begins whatever it is asked for."""

    def __init__(self):
        self.ends = []

    def get(self, _address, *, node_id):
        assert node_id == 1
        return self

    def begin(self, _method, _request, on_end, **_options):
        self.ends.append(on_end)
        return CallUnderWay(math.inf)


async def test_a_node_that_was_never_waited_for_can_be_asked_at_once():
    peers = Beginning()
    nodes = calls(Routing(), peers, requests_per_node_max=2)
    ended = []

    def begin():
        return nodes.begin(
            NodeId(1), services.STORAGE_SPACE_INFO, b"", lambda *end: ended.append(end)
        )

    assert begin() is not None
    assert begin() is not None
    assert begin() is None  # its turn has to be waited for
    peers.ends.pop(0)(None, None)
    assert ended == [(None, None)]
    assert begin() is not None


class SlowDisk:
    """Channels to a node of which one disk needs minutes, and the other nothing."""

    def get(self, _address, *, node_id):
        assert node_id in {0, 1}
        return self

    async def call(self, method, request, *, timeout_s, **_options):
        if method is services.CORE_GET_INFO:
            return Received(GetInfoRsp(incarnation=NODE.incarnation))
        with trio.move_on_after(timeout_s):
            await trio.sleep(200.0 if request == b"slow disk" else 0.0)
            return Received(method.reply_type())
        raise FsError(Status.RPC_TIMEOUT, "no reply")


async def test_calls_that_wait_for_a_slow_disk_leave_their_places_to_others(autojump_clock):
    nodes = calls(Routing(), SlowDisk(), requests_per_node_max=2, call_timeout_s=10.0)
    ended = []

    async def call(request):
        try:
            await nodes.call(NodeId(1), services.STORAGE_SPACE_INFO, request)
        except SlowPeerError:
            await nodes.call(NodeId(1), services.STORAGE_SPACE_INFO, request)
        ended.append((request, trio.current_time()))

    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(call, b"slow disk")
        await trio.sleep(25.0)
        nursery.start_soon(call, b"other disk")
    assert [request for request, _ in ended] == [b"other disk", *[b"slow disk"] * 4]
    assert ended[0][1] - began_s < 60.0
    limiters = nodes._limiters.values()
    assert [limiter.value for limiter in limiters] == [2]
