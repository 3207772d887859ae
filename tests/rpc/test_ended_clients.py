"""A client whose process is gone: what it has sent is not carried out any more, nor what comes."""
# ruff: noqa: ARG001 - the clock fixture acts by being asked for

import pytest
import trio

from fs.rpc.api import Identity
from fs.rpc.channel import open_channels
from fs.rpc.core_service import CoreService
from fs.rpc.server import ENDED_CLIENT_COUNT_MAX, Server
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.simulated import simulated_runtime
from fs.schema import services
from fs.schema.config import RpcSection
from fs.schema.proto import core_pb2 as core
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import FsError, Status


class SlowMeta:
    """A method that takes its time, and is then busy for a while with its own end."""

    def __init__(self):
        self.begun, self.done, self.ended = [], [], []

    async def sync_meta(self, call, _request):
        who = call.peer.client_id
        self.begun.append(who)
        try:
            await trio.sleep(10)
            self.done.append(who)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)
            self.ended.append(who)
        return meta.SyncMetaRsp()


class Scene:
    def __init__(self):
        self.network = MemoryNetwork(seed=1)
        self.runtime = simulated_runtime(self.network.endpoint("b"), 2)
        self.server = Server(Identity("c", 7), RpcSection())
        self.meta = SlowMeta()
        self.server.add_service([services.META_SYNC_META], self.meta)
        end = self.server.end_client
        core_service = CoreService(Identity("c", 7), self.runtime.clock, [], end_client=end)
        self.server.add_service("Core", core_service)

    async def call(self, who, method, request=None):
        """Call as a client; return the status."""
        async with open_channels(
            self.runtime, Identity("c", client_id=who), RpcSection()
        ) as channels:
            try:
                request = method.request_type() if request is None else request
                await channels.get("mem:a").call(method, request, timeout_s=60)
            except FsError as error:
                return error.status
        return Status.OK

    async def run(self, scenario):
        async with trio.open_nursery() as nursery:
            await nursery.start(self.server.run, self.network.endpoint("a"), "mem:a")
            await scenario(nursery)
            nursery.cancel_scope.cancel()


async def test_what_is_under_way_has_ended_before_the_answer(autojump_clock):
    scene = Scene()

    async def scenario(nursery):
        for who in ("dead", "alive"):
            nursery.start_soon(scene.call, who, services.META_SYNC_META)
        await trio.sleep(1)
        assert sorted(scene.meta.begun) == ["alive", "dead"]
        began_s = trio.current_time()
        request = core.EndClientReq(client_id="dead")
        assert await scene.call("next", services.CORE_END_CLIENT, request) is Status.OK
        assert scene.meta.ended == ["dead"] and scene.meta.done == []
        assert trio.current_time() - began_s == pytest.approx(2, abs=0.5)
        assert await scene.call("dead", services.META_SYNC_META) is Status.RPC_CONNECTION_LOST
        assert await scene.call("dead", services.CORE_GET_INFO) is Status.RPC_CONNECTION_LOST
        assert await scene.call("next", services.CORE_END_CLIENT, request) is Status.OK
        await trio.sleep(20)
        assert scene.meta.done == ["alive"] and "dead" not in scene.meta.begun[2:]

    await scene.run(scenario)


async def test_nobody_ends_itself_or_nobody(autojump_clock):
    scene = Scene()

    async def scenario(_nursery):
        for named in ("me", ""):
            request = core.EndClientReq(client_id=named)
            found = await scene.call("me", services.CORE_END_CLIENT, request)
            assert found is Status.RPC_BAD_REQUEST
        assert await scene.call("me", services.CORE_GET_INFO) is Status.OK

    await scene.run(scenario)


async def test_as_many_are_remembered_as_matter(autojump_clock):
    server = Scene().server
    for number in range(ENDED_CLIENT_COUNT_MAX + 5):
        await server.end_client(f"{number}")
    assert len(server.ended_clients) == ENDED_CLIENT_COUNT_MAX
    assert "4" not in server.ended_clients and "5" in server.ended_clients


async def test_one_in_the_middle_of_its_handshake_is_refused(autojump_clock):
    scene = Scene()

    async def scenario(nursery):
        statuses = []

        async def late():
            statuses.append(await scene.call("dead", services.META_SYNC_META))

        scene.network.block("b", "a")  # what it has sent is still on its way
        nursery.start_soon(late)
        await trio.sleep(0.5)
        await scene.server.end_client("dead")
        scene.network.heal()
        await trio.sleep(30)
        assert statuses == [Status.RPC_CONNECTION_LOST] and not scene.meta.begun

    await scene.run(scenario)
