# ruff: noqa: ARG001 - a test that waits names the clock it wants
"""Who is cut off is found out by a connection of its own, asked through others meanwhile,
and straight again afterwards.
"""

import logging
import math
import random
from collections import Counter
from dataclasses import replace

import pytest
import trio

import fs.client.node_calls as node_calls_module
import fs.client.reach as reach_module
from fs.client.node_calls import NodeCalls
from fs.client.patience import PATIENT_S
from fs.client.reach import ANSWER_S, CALM_S, FREE_COUNT_MAX, TRY_AGAIN_S, TRY_S
from fs.client.relay_choice import (
    SHARED_S,
    SHUN_S,
    UNREACHED_S,
    RelayChoice,
    chains_shared,
    relays_to,
)
from fs.rpc.api import ConnectionRefused, Received
from fs.rpc.call_under_way import CallUnderWay, TimeUpError
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.simulated import simulated_runtime
from fs.schema import services
from fs.schema.config import ClientSection
from fs.schema.ids import ChainId, NodeId, TargetId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.proto.core_pb2 import GetInfoRsp
from fs.schema.routing import (
    Chain,
    ChainTarget,
    Node,
    NodeState,
    PublicState,
    Role,
    RoutingInfo,
    Target,
)
from fs.schema.status import FsError, Status

SECTION = ClientSection()
FOUND_OUT_S = ANSWER_S + TRY_S


def chain(number, *node_ids):
    members = [ChainTarget(TargetId(n * 1000 + number), PublicState.SERVING) for n in node_ids]
    return Chain(ChainId(number), 1, tuple(members))


def info_of(states, chains=()):
    nodes = {
        NodeId(n): Node(NodeId(n), frozenset({Role.STORAGE}), f"mem:{n}", "first", state)
        for n, state in states.items()
    }
    targets = {
        member.target_id: Target(
            member.target_id, one.chain_id, NodeId(member.target_id // 1000), 0
        )
        for one in chains
        for member in one.targets
    }
    return RoutingInfo(1, nodes=nodes, targets=targets, chains={c.chain_id: c for c in chains})


UP = NodeState.CONNECTED
CHAINS = (chain(1, 1, 2), chain(2, 1, 2), chain(3, 1, 3))


@pytest.mark.parametrize("start", range(5))
def test_who_shares_most_chains_comes_first(start):
    info = info_of(dict.fromkeys((1, 2, 3, 4), UP), CHAINS)
    shared = chains_shared(info, NodeId(1))
    assert (shared[NodeId(2)], shared[NodeId(3)], shared[NodeId(4)]) == (2, 1, 0)
    assert [node.node_id for node in relays_to(info, NodeId(1), start, shared)] == [2, 3, 4]


def test_equals_take_turns():
    info = info_of(dict.fromkeys((1, 2, 3, 4), UP))
    firsts = [relays_to(info, NodeId(1), start, Counter())[0].node_id for start in range(6)]
    assert firsts == [2, 3, 4, 2, 3, 4]


def test_who_is_not_there_passes_nothing_on():
    info = info_of({1: UP, 2: NodeState.FAILED, 3: NodeState.DISABLED, 4: NodeState.STARTING})
    nodes = {**info.nodes, NodeId(5): Node(NodeId(5), frozenset({Role.META}), "mem:5", "")}
    found = relays_to(replace(info, nodes=nodes), NodeId(1), 0, Counter())
    assert [node.node_id for node in found] == [4]
    assert relays_to(info_of({1: UP}), NodeId(1), 7, Counter()) == []


class Routing:
    def __init__(self, info):
        self.info = info
        self._changed = trio.Event()

    def publish(self, node_id, **changes):
        nodes = dict(self.info.nodes)
        nodes[NodeId(node_id)] = replace(nodes[NodeId(node_id)], **changes)
        self.info = replace(self.info, nodes=nodes, routing_version=self.info.routing_version + 1)
        self._changed.set()
        self._changed = trio.Event()

    async def wait_newer(self, routing_version):
        while self.info.routing_version <= routing_version:
            await self._changed.wait()
        return self.info


async def test_chains_are_not_counted_whenever_routing_info_is_published(autojump_clock):
    """There may be tens of thousands, and who counts them on the event loop holds others up."""

    class Targets(dict):
        looks = 0

        def values(self):
            Targets.looks += 1
            return super().values()

    info = info_of(dict.fromkeys((1, 2, 3), UP), CHAINS)
    routing = Routing(replace(info, targets=Targets(info.targets)))
    choice, node = RelayChoice(routing, random.Random(1)), info.nodes[NodeId(1)]
    for version in range(10):
        routing.publish(3, release=str(version))
        assert choice.choose(node, set()).node_id == 2
    assert Targets.looks == 1
    routing.publish(2, state=NodeState.FAILED)
    assert choice.choose(node, set()).node_id == 3
    await trio.sleep(SHARED_S)
    routing.publish(2, state=UP)
    assert choice.choose(node, set()).node_id == 2
    assert Targets.looks == 2


class Cluster:
    """Nodes 1 to 3 as a client sees them: channels to them, over a network that may be cut."""

    def __init__(self):
        self.network = MemoryNetwork(seed=1)
        self.routing = Routing(info_of(dict.fromkeys((1, 2, 3), UP), CHAINS))
        self.took_s = {1: 0.01, 2: 0.01, 3: 0.01}
        self.cut = set()
        """Pairs that do not reach each other."""
        self.unable = set()
        self.strangers = set()
        self.refusing = set()
        self.troubles = {}
        """What relays answer by themselves, by node."""
        self.sent = []
        """Whom each request was sent to, and for whom."""
        self.closed = []
        self.open_calls = {}
        self.reported = []
        self.asked = []
        """Who was asked whether somebody lives."""
        self.lack = False
        endpoint = self.network.endpoint("client")
        runtime = simulated_runtime(endpoint, 1)
        self.tried = []
        self._endpoint = endpoint
        self.nodes = NodeCalls(
            channels=self,
            routing=self.routing,
            mgmtd=self,
            section=SECTION,
            runtime=replace(runtime, network=self),
        )

    async def connect(self, address, **_options):
        self.tried.append(address)
        if self.lack:
            raise FsError(Status.OUT_OF_RESOURCES, "no descriptor")
        return await self._endpoint.connect(address)

    async def listen(self, nursery):
        async def handle(stream):
            await stream.receive_into(memoryview(bytearray(1)))

        for n in (1, 2, 3):
            await nursery.start(self.network.endpoint(f"node-{n}").serve, f"mem:{n}", handle)

    def block(self, one, two):
        self.cut.add((one, two))
        self.network.partition([f"{'node-' if one else 'client'}{one or ''}"], [f"node-{two}"])

    def heal(self):
        self.cut.clear()
        self.network.heal()

    def get(self, address, *, node_id):
        return ToNode(self, int(address.removeprefix("mem:")), is_aside=not node_id)

    async def call(self, method, request, **_options):
        self.reported.append(request.node_id)
        return method.reply_type()

    async def ask(self, node_id=1, method=services.STORAGE_SYNC_CHAINS):
        await self.nodes.call(NodeId(node_id), method, method.request_type())


class ToNode:
    def __init__(self, cluster, node_id, *, is_aside):
        self._cluster = cluster
        self._node_id = node_id
        self._is_aside = is_aside

    async def aclose(self):
        key = self._node_id, self._is_aside
        self._cluster.closed.append(key)
        for call in self._cluster.open_calls.get(key, ()):
            call.fail(FsError(Status.RPC_CONNECTION_LOST, "closed"))

    async def call(self, method, request, *, timeout_s, under_way=None, **_options):
        call = CallUnderWay(trio.current_time() + timeout_s)
        under_way = set() if under_way is None else under_way
        under_way.add(call)
        open_calls = self._cluster.open_calls.setdefault((self._node_id, self._is_aside), set())
        open_calls.add(call)
        try:
            call.header = await call.within(self._answer(method, request, timeout_s))
        except TimeUpError:
            raise FsError(Status.RPC_TIMEOUT, "no reply") from None
        finally:
            under_way.discard(call)
            open_calls.discard(call)
        return call.header

    async def _answer(self, method, request, timeout_s):
        cluster, here = self._cluster, self._node_id
        is_relayed = method is services.STORAGE_RELAY
        number = request.service_number if is_relayed else method.service_number
        if number == services.CORE_GET_INFO.service_number:
            cluster.asked.append(here)
        else:
            cluster.sent.append((here, request.node_id if is_relayed else here))
        await self._way(0, here)
        if here in cluster.refusing:
            raise ConnectionRefused(f"mem:{here}: connection refused")
        if here in cluster.unable and is_relayed:
            raise FsError(Status.RPC_UNKNOWN_METHOD, "service 3 method 21")
        if not is_relayed:
            return Received(await self._reply(here, method))
        if here in cluster.strangers:
            return Received(pb.RelayRsp(status=Status.RPC_UNAUTHENTICATED))
        if here in cluster.troubles:
            raise FsError(cluster.troubles[here], "no room")
        if (here, request.node_id) in cluster.cut:
            await trio.sleep(2.5)
            return Received(pb.RelayRsp(status=Status.RPC_CONNECTION_LOST, is_silent=True))
        inner = services.CORE_GET_INFO
        if request.service_number != inner.service_number:
            inner = services.STORAGE_SYNC_CHAINS
        with trio.move_on_after(0.95 * timeout_s):
            reply = await self._reply(request.node_id, inner)
            return Received(pb.RelayRsp(message=reply.SerializeToString()))
        return Received(pb.RelayRsp(status=Status.RPC_TIMEOUT))

    async def _way(self, one, two):
        if (one, two) in self._cluster.cut:
            await trio.sleep_forever()

    async def _reply(self, node_id, method):
        if method is services.CORE_GET_INFO:
            return GetInfoRsp(incarnation="first")
        took_s = self._cluster.took_s[node_id]
        if isinstance(took_s, FsError):
            raise took_s
        await trio.sleep(took_s)
        return method.reply_type()


@pytest.fixture
async def cluster(nursery, autojump_clock):
    made = Cluster()
    await made.listen(nursery)
    nursery.start_soon(made.nodes.run)
    await trio.sleep(0.1)
    return made


async def ask_again(cluster, node_id=1):
    """As whoever repeats what fails, for as long as he does; return for how long."""
    began_s = trio.current_time()
    while trio.current_time() - began_s < SECTION.retry_time_s_max:
        try:
            await cluster.ask(node_id)
            return trio.current_time() - began_s
        except FsError as error:
            told = str(error)
        assert "\n" not in told
        await trio.sleep(0.02)
    return math.inf


async def cut_off(cluster, one=0, two=1):
    cluster.block(one, two)
    assert await ask_again(cluster) < FOUND_OUT_S + 0.3
    cluster.sent.clear()


async def test_nobody_is_tried_while_calls_end_soon(autojump_clock, cluster):
    for _ in range(30):
        await cluster.ask()
    assert not cluster.tried
    assert not cluster.nodes.unreached


async def test_who_is_cut_off_is_asked_through_another(autojump_clock, cluster):
    cluster.block(0, 1)
    assert await ask_again(cluster) < FOUND_OUT_S + 0.3
    assert cluster.nodes.unreached == {1}
    assert cluster.closed == [(1, False), (1, True)]
    assert cluster.sent == [(1, 1), (2, 1)]
    for _ in range(5):
        assert await ask_again(cluster) < 0.1  # nothing has to be found out again
    await cluster.ask(3)
    assert cluster.sent[2:] == [(2, 1)] * 5 + [(3, 3)]


async def test_all_calls_to_it_end_at_once(autojump_clock, cluster, nursery):
    cluster.block(0, 1)
    took = []

    async def one(after_s):
        await trio.sleep(after_s)
        took.append(await ask_again(cluster))

    async with trio.open_nursery() as several:
        for after_s in (0.0, 1.0, 2.0, 3.0, 3.9):
            several.start_soon(one, after_s)
    assert max(took) < FOUND_OUT_S + 0.3
    assert cluster.tried == ["mem:1"]


async def test_what_is_begun_without_a_task_ends_as_well(autojump_clock, cluster):
    assert cluster.nodes.begin(NodeId(9), services.STORAGE_SYNC_CHAINS, b"", print) is None
    await cut_off(cluster)
    assert cluster.nodes.begin(NodeId(1), services.STORAGE_SYNC_CHAINS, b"", print) is None
    assert not cluster.sent


@pytest.mark.parametrize("took_s", [ANSWER_S + 1.0, 9.0])
async def test_who_is_slow_is_not_cut_off(autojump_clock, cluster, took_s):
    cluster.took_s[1] = took_s
    for _ in range(4):
        await cluster.ask()
    assert not cluster.nodes.unreached
    assert cluster.sent == [(1, 1)] * 4
    assert 0 < len(cluster.tried) <= 4 * (took_s // TRY_AGAIN_S + 1)


async def test_who_answers_something_meanwhile_is_not_cut_off(autojump_clock, cluster, nursery):
    """Its packets get lost, and so have those of the connection that was to try it."""
    cluster.took_s[1] = 3.5
    cluster.network.partition(["client"], ["node-1"])  # new connections alone
    await cluster.ask()
    await trio.sleep(5.0)
    assert cluster.tried == ["mem:1"] and not cluster.nodes.unreached


async def test_straight_again_when_the_way_is_free(autojump_clock, cluster):
    await cut_off(cluster)
    await trio.sleep(40.0)
    assert cluster.nodes.unreached == {1}
    cluster.heal()
    await trio.sleep(TRY_AGAIN_S + ANSWER_S)
    assert not cluster.nodes.unreached
    await cluster.ask()
    assert cluster.sent == [(1, 1)]
    cluster.tried.clear()
    await trio.sleep(60.0)
    assert not cluster.tried


async def test_of_two_ways_that_are_cut_the_second_is_found_out_soon_as_well(
    autojump_clock, cluster
):
    await cut_off(cluster)
    cluster.block(0, 2)
    assert await ask_again(cluster) < FOUND_OUT_S + 0.3
    assert cluster.nodes.unreached == {1, 2}
    assert cluster.sent == [(2, 1), (3, 1)]


async def test_a_relay_that_does_not_reach_it_either_is_not_asked_again(autojump_clock, cluster):
    cluster.block(2, 1)
    cluster.block(0, 1)
    assert await ask_again(cluster) < 9.0
    assert cluster.sent == [(1, 1), (2, 1), (3, 1)]
    await ask_again(cluster)
    assert cluster.sent[3:] == [(3, 1)]
    await trio.sleep(SHUN_S)
    await ask_again(cluster)
    assert cluster.sent[4:] == [(3, 1)], "each question costs seconds"
    cluster.cut.discard((2, 1))
    cluster.troubles[3] = Status.RPC_OVERLOADED
    await ask_again(cluster)
    assert cluster.sent[5:] == [(3, 1), (2, 1)]
    cluster.troubles.clear()
    await trio.sleep(UNREACHED_S)
    await ask_again(cluster)
    assert cluster.sent[7:] == [(2, 1)]


async def test_a_relay_of_an_earlier_release_is_never_asked_again(autojump_clock, cluster):
    cluster.unable = {2}
    cluster.block(0, 1)
    assert await ask_again(cluster) < FOUND_OUT_S + 0.3
    await trio.sleep(2 * SHUN_S)
    await ask_again(cluster)
    assert cluster.sent == [(1, 1), (2, 1), (3, 1), (3, 1)]
    cluster.routing.publish(2, incarnation="upgraded")
    cluster.unable.clear()
    await ask_again(cluster)
    assert cluster.sent[4:] == [(2, 1)]


async def test_with_nobody_to_pass_on_the_node_itself_is_called(autojump_clock, cluster):
    cluster.unable = {2, 3}
    cluster.block(0, 1)
    with trio.move_on_after(30.0):
        await ask_again(cluster)
    assert [one for one in cluster.sent if one[0] != 1] == [(2, 1), (3, 1)]
    assert 1 < cluster.sent.count((1, 1)) < 6  # each waits for its limit
    cluster.heal()
    assert await ask_again(cluster) < FOUND_OUT_S + 0.3


async def test_who_reaches_nobody_asks_no_more_often_than_before(autojump_clock, cluster):
    for n in (1, 2, 3):
        cluster.block(0, n)
    with trio.move_on_after(60.0):
        async with trio.open_nursery() as several:
            for n in (1, 2, 3):
                several.start_soon(ask_again, cluster, n)
    assert cluster.nodes.unreached == {1, 2, 3}
    assert len(cluster.sent) < 3 * 10
    assert len(cluster.tried) < 3 * (60 / TRY_AGAIN_S + 2)
    cluster.heal()
    assert await ask_again(cluster) < FOUND_OUT_S + 0.3


@pytest.mark.parametrize("judged", [1, 2])
async def test_what_is_passed_on_ends_when_either_is_judged(
    autojump_clock, cluster, nursery, judged
):
    await cut_off(cluster)
    cluster.took_s[1] = math.inf
    errors = []

    async def one():
        with pytest.raises(FsError) as caught:
            await cluster.ask()
        errors.append((trio.current_time(), caught.value))

    nursery.start_soon(one)
    await trio.sleep(1.0)
    began_s = trio.current_time()
    cluster.routing.publish(judged, state=NodeState.FAILED)
    await trio.sleep(0.1)
    ((ended_s, error),) = errors
    assert ended_s - began_s < 0.01
    assert error.status is Status.RPC_CONNECTION_LOST and f"node {judged} was judged" in str(error)


async def test_who_is_judged_is_not_cut_off_any_more(autojump_clock, cluster):
    await cut_off(cluster)
    cluster.heal()
    cluster.routing.publish(1, incarnation="second")
    await cluster.ask()
    assert cluster.sent == [(1, 1)]
    await trio.sleep(ANSWER_S + 0.1)
    assert not cluster.nodes.unreached


async def test_a_slow_node_is_waited_for_through_another(autojump_clock, cluster):
    """What it is busy with takes longer than a call has:
    it lives, which is asked on the same way.
    """
    await cut_off(cluster)
    cluster.took_s[1] = 3.5 * SECTION.call_timeout_s
    took_s = await ask_again(cluster)
    assert took_s < 5 * SECTION.call_timeout_s < PATIENT_S
    assert len(cluster.asked) > 2
    assert {*cluster.asked, *(at for at, _ in cluster.sent)} == {2}


async def test_who_has_no_descriptor_to_try_with_cuts_nobody_off(autojump_clock, cluster):
    cluster.lack = True
    cluster.took_s[1] = 9.0
    await cluster.ask()
    assert cluster.tried and not cluster.nodes.unreached
    cluster.lack, cluster.took_s[1] = False, 0.01
    await trio.sleep(TRY_AGAIN_S)
    await cut_off(cluster)


async def test_who_refuses_though_it_lives_is_cut_off(autojump_clock, cluster):
    """A packet filter may say so in its place; the manager, who is told, finds that it lives."""
    cluster.took_s[1] = ConnectionRefused("mem:1: connection refused")
    cluster.network.kill("node-1")
    began_s = trio.current_time()
    while not cluster.nodes.unreached:
        with pytest.raises(ConnectionRefused):
            await cluster.ask()
        await trio.sleep(0.1)
    assert trio.current_time() - began_s < FOUND_OUT_S
    assert cluster.reported == [1]
    cluster.took_s[1] = 0.01
    cluster.sent.clear()
    await cluster.ask()
    assert cluster.sent == [(2, 1)]


async def test_a_relay_that_refuses_is_told_to_the_manager(autojump_clock, cluster):
    """Was: nobody heard of its death from who only has requests passed on by it."""
    await cut_off(cluster)
    cluster.refusing = {2}
    assert await ask_again(cluster) < 0.1
    assert cluster.reported == [2] and cluster.sent == [(2, 1), (3, 1)]


async def test_a_process_that_is_started_again_is_not_cut_off(autojump_clock, cluster):
    cluster.took_s[1] = ConnectionRefused("mem:1: connection refused")
    with pytest.raises(ConnectionRefused):
        await cluster.ask()
    cluster.took_s[1] = 0.01
    await trio.sleep(TRY_AGAIN_S)
    assert cluster.tried == ["mem:1"] and not cluster.nodes.unreached
    await cluster.ask()
    assert cluster.sent == [(1, 1)] * 2


async def test_what_nobody_passes_on_is_asked_straight(autojump_clock, cluster, nursery):
    await cut_off(cluster)
    nursery.start_soon(ask_method, cluster, services.STORAGE_LIST_CHUNKS)
    await trio.sleep(1.0)
    assert cluster.sent == [(1, 1)]


async def ask_method(cluster, method, node_id=1):
    with pytest.raises(FsError):
        await cluster.ask(node_id, method)


@pytest.mark.parametrize("limit_s", [1.0, 3.0])
async def test_it_is_found_out_also_where_calls_have_less_time(autojump_clock, cluster, limit_s):
    """They end while the node is tried, and have been answered by nobody."""
    cluster.nodes.adopt(ClientSection(call_timeout_s=limit_s))
    await trio.sleep(2 * ANSWER_S)  # until somebody looks, as every two seconds
    cluster.block(0, 1)
    assert await ask_again(cluster) < FOUND_OUT_S + 0.3


async def test_calls_that_are_given_up_hide_no_cut(autojump_clock, cluster, nursery):
    """Was: they counted as answered, so a program that gives up soon kept others waiting."""

    async def impatient():
        while True:
            with trio.move_on_after(0.7):
                await ask_again(cluster)

    nursery.start_soon(impatient)
    cluster.block(0, 1)
    assert await ask_again(cluster) < FOUND_OUT_S + 0.3


async def test_what_went_straight_goes_another_way_once_somebody_passes_on(autojump_clock, cluster):
    cluster.unable = {2, 3}
    cluster.block(0, 1)
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_again, cluster)
        await trio.sleep(8.0)
        assert cluster.sent[-1] == (1, 1)
        cluster.unable.clear()
        cluster.routing.publish(2, incarnation="upgraded")
    assert trio.current_time() - began_s < 8.0 + ANSWER_S + 0.1
    assert cluster.sent[-1] == (2, 1)


@pytest.mark.parametrize(
    "status",
    [
        Status.RPC_OVERLOADED,
        Status.RPC_UNCHECKED,
        Status.OUT_OF_RESOURCES,
        Status.INTERNAL_ERROR,
        Status.RPC_CONNECTION_LOST,
    ],
)
async def test_who_is_in_trouble_is_asked_after_others(autojump_clock, cluster, caplog, status):
    caplog.set_level(logging.INFO)
    cluster.troubles = {2: status}
    cluster.block(0, 1)
    assert await ask_again(cluster) < FOUND_OUT_S + 0.3
    await ask_again(cluster)
    assert cluster.sent == [(1, 1), (2, 1), (3, 1), (3, 1)]
    cluster.troubles[3] = status
    with trio.move_on_after(3.0):
        await ask_again(cluster)
    assert {at for at, _ in cluster.sent[4:]} == {2, 3}, "the way to node 1 is cut"
    del cluster.troubles[2]
    assert await ask_again(cluster) < 0.1
    told = [r.getMessage() for r in caplog.records if "go through" in r.getMessage()]
    assert len(told) == 2


async def test_a_relay_that_is_stranger_to_the_node_troubles_no_user(autojump_clock, cluster):
    """Another one may be none."""
    cluster.strangers = {2}
    cluster.block(0, 1)
    assert await ask_again(cluster) < FOUND_OUT_S + 0.3
    assert cluster.sent == [(1, 1), (2, 1), (3, 1)]


async def test_the_next_process_of_a_node_is_tried_before_somebody_waits(autojump_clock, cluster):
    """A pause for each process that is started while the same link is cut was one too many."""
    await cut_off(cluster)
    cluster.routing.publish(1, incarnation="second")
    await trio.sleep(ANSWER_S + TRY_S + 0.1)
    assert cluster.nodes.unreached == {1}
    assert await ask_again(cluster) < 0.1
    cluster.routing.publish(1, state=NodeState.FAILED)
    await trio.sleep(ANSWER_S + 0.1)
    assert not cluster.nodes.unreached
    await trio.sleep(60.0)
    cluster.heal()
    cluster.routing.publish(1, incarnation="third", state=UP)
    await trio.sleep(ANSWER_S + TRY_S + 0.1)
    assert not cluster.nodes.unreached
    assert await ask_again(cluster) < 0.1
    assert cluster.sent[-1] == (1, 1)


async def test_what_a_relay_did_not_reach_was_the_process_before(autojump_clock, cluster):
    cluster.block(2, 1)
    cluster.block(3, 1)
    cluster.block(0, 1)
    with trio.move_on_after(FOUND_OUT_S + 6.0):
        await ask_again(cluster)
    cluster.cut = {(0, 1)}
    cluster.routing.publish(1, incarnation="second")
    assert await ask_again(cluster) < FOUND_OUT_S + 0.3


async def test_a_process_that_is_judged_while_it_is_tried_is_not_cut_off(autojump_clock, cluster):
    cluster.block(0, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_again, cluster)
        await trio.sleep(ANSWER_S + TRY_S / 2)
        cluster.heal()
        cluster.network.partition(["client"], ["node-1"])  # new connections alone
        cluster.routing.publish(1, incarnation="second")
    await trio.sleep(TRY_S)
    assert not cluster.nodes.unreached and not cluster.closed


async def flap(cluster, count, down_s=12.0, up_s=12.0):
    """Cut the way and free it again, so often; return the pauses of who uses it."""
    pauses = []

    async def use():
        while True:
            pauses.append(await ask_again(cluster))
            await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(use)
        for _ in range(count):
            cluster.block(0, 1)
            await trio.sleep(down_s)
            cluster.heal()
            await trio.sleep(up_s)
        nursery.cancel_scope.cancel()
    return [pause for pause in pauses if pause > 1.0]


async def test_a_link_that_flaps_costs_ever_fewer_pauses(autojump_clock, cluster):
    """Was: one for each time, for as long as it flaps."""
    assert len(await flap(cluster, 10)) < 4
    cluster.heal()
    await trio.sleep(FREE_COUNT_MAX * TRY_AGAIN_S + ANSWER_S + TRY_S)
    assert not cluster.nodes.unreached
    await trio.sleep(CALM_S)
    await cut_off(cluster)  # as if it were for the first time
    cluster.heal()
    await trio.sleep(TRY_AGAIN_S + ANSWER_S)
    assert not cluster.nodes.unreached


# ---- without memory


class LackingDict(dict):
    """Looks empty, so that nobody makes another one of it."""

    def __bool__(self):
        return False

    def __setitem__(self, key, value):
        if self.pop("lack", None):
            raise MemoryError
        super().__setitem__(key, value)


class Lacking:
    """Something of which so often there is no memory for an attribute, or a call."""

    def __init__(self, real, count=2):
        self._real = real
        self.count = count

    def _take(self):
        if self.count:
            self.count -= 1
            raise MemoryError

    def __getattr__(self, name):
        self._take()
        return getattr(self._real, name)

    def __call__(self, *args):
        self._take()
        return self._real(*args)


LATER_S = FOUND_OUT_S + 2 * ANSWER_S + TRY_AGAIN_S + 0.3


async def test_who_has_no_memory_to_look_looks_later(autojump_clock, cluster):
    """Was: the task that looks ended, and with it the client, or mount."""
    reach = cluster.nodes._reach
    reach._routing = lacking = Lacking(cluster.routing)
    await trio.sleep(2 * ANSWER_S + 0.1)
    assert not lacking.count
    await cut_off(cluster)


async def test_who_has_no_memory_to_try_tries_later(autojump_clock, cluster):
    """Was: it counted as being tried for ever."""
    cluster.nodes._reach._tried_s = LackingDict(lack=True)
    cluster.block(0, 1)
    assert await ask_again(cluster) < LATER_S


async def test_who_has_no_memory_for_what_it_found_out_finds_it_out_again(
    autojump_clock, cluster, monkeypatch
):
    """Was: half of it was noted, so that requests went straight for as long as the cut lasted."""

    class LackingSet(frozenset):
        left = 1

        def __new__(cls, *args):
            if args and cls.left:
                cls.left -= 1
                raise MemoryError
            return super().__new__(cls, *args)

    monkeypatch.setattr(reach_module, "frozenset", LackingSet, raising=False)
    cluster.block(0, 1)
    assert await ask_again(cluster) < 2 * SECTION.call_timeout_s
    assert cluster.nodes.unreached == {1} and not LackingSet.left
    LackingSet.left = 1
    cluster.heal()
    await trio.sleep(2 * TRY_AGAIN_S + ANSWER_S)
    assert not cluster.nodes.unreached and not LackingSet.left


async def test_calls_that_there_was_no_memory_to_end_end_later(
    autojump_clock, cluster, monkeypatch
):
    ended = Lacking(node_calls_module._end)
    monkeypatch.setattr(node_calls_module, "_end", ended)
    cluster.block(0, 1)
    assert await ask_again(cluster) < LATER_S
    ended.count = 2
    cluster.took_s[2] = math.inf
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_method, cluster, services.STORAGE_SYNC_CHAINS, 2)
        await trio.sleep(0.1)
        cluster.routing.publish(2, state=NodeState.FAILED)
        with trio.fail_after(2 * node_calls_module.LACK_PAUSE_S + 0.1):
            while any(cluster.nodes._under_way.values()):  # noqa: ASYNC110 - polls
                await trio.sleep(0.01)


async def test_who_has_no_memory_to_ask_who_lives_asks_later(autojump_clock, cluster):
    patience = cluster.nodes._patience
    patience._asked = lacking = Lacking({}, 1)
    cluster.took_s[1] = 9.0
    await cluster.ask()
    assert not lacking.count
