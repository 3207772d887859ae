"""The metadata client and services that fail:
one request id, made elsewhere when its service is judged.
"""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import random
from dataclasses import replace

import pytest
import trio

from fs.client.meta_client import _HARMLESS, SILENT_S, MetaClient
from fs.rpc.api import Lending, Received
from fs.rpc.call_under_way import CallUnderWay, TimeUpError
from fs.runtime.ports import Runtime
from fs.schema import services
from fs.schema.config import OUTCOMES_KEPT_S, ClientSection
from fs.schema.ids import ClientId, NodeId
from fs.schema.method import Method
from fs.schema.proto import meta_pb2
from fs.schema.proto.core_pb2 import GetInfoRsp
from fs.schema.routing import Node, NodeState, Role, RoutingInfo
from fs.schema.services import CORE_GET_INFO, META_GET_ATTR, META_SET_ATTR, META_SYNC
from fs.schema.status import FsError, Status

from .fakes import FakeClock, run_inline


class Routing:
    """A RoutingView that the test moves on."""

    def __init__(self, info: RoutingInfo) -> None:
        self.info = info
        self._newer = trio.Event()

    def publish(self, info: RoutingInfo) -> None:
        self.info = replace(info, routing_version=self.info.routing_version + 1)
        self._newer.set()
        self._newer = trio.Event()

    async def wait_newer(self, routing_version: int) -> RoutingInfo:
        while self.info.routing_version <= routing_version:
            await self._newer.wait()
        return self.info

    async def refresh(self) -> RoutingInfo:
        return self.info


class Services:
    """Channels to services that answer, or fall silent."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.asked: list[tuple[str, bytes]] = []
        self.repeats: list[bool] = []
        self.address = ""
        self.begun = []
        self.is_connected = True
        self.failures: list[tuple[FsError, float]] = []
        """Of the next calls, and for how long the machine sleeps meanwhile."""
        self.clock = None
        self.options: list[dict] = []
        self.payload = b""
        self.is_broken: list[bool] = []
        self.on_broken = lambda: None

    def get(self, address: str, **_: int) -> "Services":
        self.address = address
        return self

    async def call(self, method, request, *, timeout_s, under_way=None, into=None, **options):
        if method is CORE_GET_INFO:
            if self.address in self.silent:
                await trio.sleep(timeout_s)
                raise FsError(Status.RPC_CONNECT_FAILED, self.address)
            return Received(GetInfoRsp())
        self.options.append(options)
        call = CallUnderWay(trio.current_time() + timeout_s)
        under_way.add(call)
        try:
            received = await call.within(self._answer(request))
            if into is not None and self.payload:
                (buffer,) = into(received.message, len(self.payload))
                buffer[:] = self.payload
                if self.is_broken.pop(0):
                    self.on_broken()
                    raise FsError(Status.RPC_NOT_LENT, "a part of it")
        except TimeUpError:
            raise FsError(Status.RPC_TIMEOUT, self.address) from None
        else:
            return received
        finally:
            under_way.remove(call)

    def begin(self, _method, request, on_end, *, timeout_s, under_way):
        assert timeout_s > 0 and not under_way
        self.asked.append((self.address, request.caller.request_id))
        self.repeats.append(request.caller.is_repeat)
        self.begun.append(on_end)
        return object() if self.is_connected else None

    async def _answer(self, request):
        address = self.address
        self.asked.append((address, request.caller.request_id))
        self.repeats.append(request.caller.is_repeat)
        if address in self.silent:
            await trio.sleep_forever()
        if self.failures:
            failure, slept_s = self.failures.pop()
            self.clock.slept_s += slept_s
            raise failure
        await trio.sleep(0.01)
        return Received(meta_pb2.InodeRsp())


@pytest.fixture
async def parts(nursery):
    nodes = {
        NodeId(n): Node(NodeId(n), frozenset({Role.META}), f"mem:{n}", f"i{n}", NodeState.CONNECTED)
        for n in (201, 202)
    }
    routing, services = Routing(RoutingInfo(1, "c", nodes=nodes)), Services()
    runtime = Runtime(FakeClock(), None, run_inline, random.Random(1))
    client = MetaClient(
        ClientId("c"), channels=services, routing=routing, runtime=runtime, section=ClientSection()
    )
    await nursery.start(client.run)
    return client, routing, services


async def get_attr(client: MetaClient) -> None:
    await client.call(META_GET_ATTR, meta_pb2.GetAttrReq(caller={"uid": 0}))


@pytest.mark.parametrize("after_s", [6.0, 9.5])
async def test_a_call_leaves_a_service_that_is_declared_failed(autojump_clock, parts, after_s):
    client, routing, services = parts
    await get_attr(client)
    first = services.address
    services.silent.add(first)
    began_s = trio.current_time()

    async def judge() -> None:
        await trio.sleep(after_s)
        gone = {
            n.node_id: replace(n, state=NodeState.FAILED)
            for n in routing.info.nodes.values()
            if n.address == first
        }
        routing.publish(replace(routing.info, nodes={**routing.info.nodes, **gone}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(judge)
        await get_attr(client)
    # Not client.call_timeout_s; nor is it asked whether it lives.
    assert after_s <= trio.current_time() - began_s < after_s + 0.1
    (before, one), (after, two) = services.asked[-2:]
    assert (before, one) == (first, two)
    assert after != first
    assert services.repeats == [False, False, True]


async def test_a_call_leaves_a_failed_service_once_another_is_back(autojump_clock, parts):
    """One hangs, the other is started again: that it hangs is no news any more by then."""
    client, routing, services = parts
    first, second = client._servers()
    failed = {n.node_id: replace(n, state=NodeState.FAILED) for n in (first, second)}
    routing.publish(replace(routing.info, nodes=failed))
    await trio.sleep(0.1)
    services.silent |= {first.address, second.address}

    async def start_again() -> None:
        await trio.sleep(2.0)
        services.silent.remove(second.address)
        routing.publish(replace(routing.info, nodes={**failed, second.node_id: second}))

    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(start_again)
        await get_attr(client)
    assert trio.current_time() - began_s < 2.1
    assert [address for address, _ in services.asked] == [first.address, second.address]


@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_service_that_hangs_and_is_not_judged_costs_the_limit_of_one_call(
    autojump_clock, parts, is_begun
):
    """It cost half as much again until it was known that it does not live;
    and as much for each call that came after.
    """
    client, routing, services = parts
    third = replace(routing.info.node(NodeId(202)), node_id=NodeId(203), address="mem:203")
    routing.publish(replace(routing.info, nodes={**routing.info.nodes, NodeId(203): third}))
    first, second, third = (server.address for server in client._servers())
    services.silent |= {first, second}
    began_s, limit_s = trio.current_time(), ClientSection().call_timeout_s
    if is_begun:
        ended = []
        request = meta_pb2.GetAttrReq(caller={"uid": 0})
        assert client.begin(META_GET_ATTR, request, lambda *end: ended.append(end))
        await trio.sleep(limit_s)
        services.begun.pop()(None, FsError(Status.RPC_TIMEOUT, "no reply"))
        assert ended[0][1].status is Status.RPC_TIMEOUT
    await get_attr(client)
    assert trio.current_time() - began_s < 2 * limit_s + 1
    assert [address for address, _ in services.asked] == [first, second, third]
    for _ in range(3):
        began_s = trio.current_time()
        await get_attr(client)
        assert client.begin(META_GET_ATTR, meta_pb2.GetAttrReq(caller={"uid": 0}), lambda *_: None)
        assert trio.current_time() - began_s < 0.1
    assert {address for address, _ in services.asked[3:]} == {third}
    services.silent.clear()
    await trio.sleep(SILENT_S)
    await get_attr(client)
    assert services.asked[-1][0] == first


async def test_who_gave_a_begun_call_up_says_nothing_of_its_service(autojump_clock, parts):
    client, _, services = parts
    assert client.begin(META_GET_ATTR, meta_pb2.GetAttrReq(caller={"uid": 0}), lambda *_: None)
    services.begun.pop()(None, FsError(Status.RPC_CANCELLED, "a request was given up"))
    await get_attr(client)
    assert len({address for address, _ in services.asked}) == 1


async def test_another_news_ends_no_call(autojump_clock, parts):
    client, routing, services = parts
    await get_attr(client)
    services.silent.add(services.address)

    async def talk() -> None:
        for _ in range(5):
            await trio.sleep(1)
            routing.publish(routing.info)

    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk)
        await get_attr(client)
    assert trio.current_time() - began_s >= ClientSection().call_timeout_s


@pytest.mark.parametrize("size", [0, 10, 300_000])
async def test_a_payload_is_that_of_the_try_that_succeeds(autojump_clock, parts, size):
    client, _, services = parts
    services.payload, services.is_broken = b"y" * size, [True, False, False]
    request = meta_pb2.GetAttrReq(caller={"uid": 0})
    _, payload = await client.fetch(META_GET_ATTR, request)
    assert payload == services.payload
    assert len({request_id for _, request_id in services.asked}) == 1
    assert services.repeats == ([False, True] if size else [False])
    assert all(options["may_be_lent"] == Lending.MEMORY for options in services.options)
    # What is read of it is not overwritten by what comes next.
    services.payload = b"z" * size
    _, other = await client.fetch(META_GET_ATTR, request)
    assert (bytes(payload), bytes(other)) == (b"y" * size, b"z" * size)
    services.options.clear()
    await get_attr(client)
    assert services.options[0]["may_be_lent"] == Lending.NOT, "nobody compares it"


async def test_no_payload_is_that_of_a_try_that_failed(autojump_clock, parts):
    client, _, services = parts
    services.payload, services.is_broken = b"y" * 10, [True]
    services.on_broken = lambda: setattr(services, "payload", b"")  # moved to storage meanwhile
    _, payload = await client.fetch(META_GET_ATTR, meta_pb2.GetAttrReq(caller={"uid": 0}))
    assert services.repeats == [False, True]
    assert bytes(payload) == b""


async def test_a_begun_change_is_asked_again_under_its_id_elsewhere_first(autojump_clock, parts):
    client, _, services = parts
    request, told = meta_pb2.SyncReq(caller={"uid": 0}), []

    def end(reply, error):
        told.append((reply, error))

    assert client.begin_change(META_SYNC, request, end)
    services.begun[0](Received(meta_pb2.InodeRsp()), None)
    assert told == [(meta_pb2.InodeRsp(), None)]
    lost = FsError(Status.RPC_CONNECTION_LOST, "gone")
    services.begun[0](None, lost)
    assert told[1:] == [(None, lost)]
    await client.call_again(META_SYNC, request, lost, trio.current_time())
    (before, one), (after, two) = services.asked
    assert (one, len(one)) == (two, 16) and before != after
    assert services.repeats == [False, True]
    # What is final, or has taken its time, is not tried.
    final = FsError(Status.ACCESS_DENIED, "no")
    for error, began_s in ((final, trio.current_time()), (lost, -1e9)):
        with pytest.raises(FsError) as raised:
            await client.call_again(META_SYNC, request, error, began_s)
        assert (raised.value.status, raised.value.detail) == (error.status, error.detail)
    services.is_connected = False
    assert not client.begin_change(META_SYNC, meta_pb2.SyncReq(caller={"uid": 0}), end)
    assert len(services.asked) == 3 and len(told) == 2


async def test_a_begun_change_goes_on_with_who_is_asked_by_then_when_its_service_is_declared_failed(
    autojump_clock, parts
):
    """Not with a third one, which nobody has asked:
    it may be silent, too, and not be judged yet.
    """
    client, routing, services = parts
    third = replace(routing.info.nodes[NodeId(201)], node_id=NodeId(203), address="mem:203")
    routing.publish(replace(routing.info, nodes={**routing.info.nodes, NodeId(203): third}))
    first, second, silent = client._servers()
    services.silent.add(silent.address)
    request, told = meta_pb2.SyncReq(caller={"uid": 0}), []
    assert client.begin_change(META_SYNC, request, lambda *reply: told.append(reply))
    gone = {first.node_id: replace(first, state=NodeState.FAILED)}
    routing.publish(replace(routing.info, nodes={**routing.info.nodes, **gone}))
    lost = FsError(Status.RPC_CONNECTION_LOST, "declared failed")
    services.begun[0](None, lost)
    began_s = trio.current_time()
    await client.call_again(META_SYNC, request, lost, began_s)
    assert [address for address, _ in services.asked] == [first.address, second.address]
    assert trio.current_time() - began_s < 1


@pytest.mark.parametrize("slept_s", [OUTCOMES_KEPT_S - 60.0, OUTCOMES_KEPT_S])
@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_change_from_before_a_long_sleep_is_not_repeated(
    autojump_clock, parts, slept_s, is_begun
):
    """Services may have forgotten that they have done it,
    and others may have changed the same since.
    """
    client, _, services = parts
    clock, lost = client._runtime.clock, FsError(Status.RPC_CONNECTION_LOST, "asleep")
    request = meta_pb2.SetAttrReq(caller={"uid": 0}, length=0)

    async def change() -> None:
        if is_begun:
            assert client.begin_change(META_SET_ATTR, request, lambda *_: None)
            clock.slept_s += slept_s
            services.begun[0](None, lost)
            await client.call_again(META_SET_ATTR, request, lost, trio.current_time())
        else:
            services.failures.append((lost, slept_s))
            await client.call(META_SET_ATTR, request)

    services.clock = clock
    if slept_s < OUTCOMES_KEPT_S:
        await change()
        assert services.repeats == [False, True]
    else:
        with pytest.raises(FsError, match="nobody knows whether it was done") as raised:
            await change()
        assert raised.value.status is Status.RPC_CONNECTION_LOST
        assert services.repeats == [False]
    assert not client._begun
    services.failures.append((lost, slept_s))
    await get_attr(client)
    assert services.repeats[-2:] == [False, True]


async def test_a_service_without_memory_is_asked_for_longer_than_one_with_a_bug(
    autojump_clock, parts
):
    client, _, services = parts
    lack, bug = FsError(Status.OUT_OF_RESOURCES, "lack"), FsError(Status.INTERNAL_ERROR, "bug")
    services.clock = client._runtime.clock
    services.failures += [(lack, 0.0)] * 20
    await get_attr(client)
    assert len(services.repeats) == 21
    services.failures += [(bug, 0.0)] * 20
    with pytest.raises(FsError, match="bug"):
        await get_attr(client)


def test_what_may_always_be_repeated_are_methods_of_metadata():
    known = {name: m for name, m in vars(services).items() if isinstance(m, Method)}
    assert {m.name for name, m in known.items() if name.startswith("META_")} > _HARMLESS
