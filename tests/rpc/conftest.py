"""What several tests of the remote calls need: networks of every kind, an echoing process."""

import itertools
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio

from fs.rpc.api import Identity
from fs.rpc.channel import open_channels
from fs.rpc.core_service import CoreService
from fs.rpc.server import Server
from fs.rpc.transport import SocketNetwork
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime import readiness
from fs.runtime.simulated import simulated_runtime
from fs.schema.config import RpcSection

from .lent_reads import AtOnce, Waiting

CLUSTER = "test-cluster"


class WatchedNetwork(SocketNetwork):
    """Sockets as the processes of a cluster have them: looked after by the event loop itself."""

    async def connect(self, address, **options):
        readiness.install()
        return await super().connect(address, **options)

    async def serve(self, address, handler, *, task_status=trio.TASK_STATUS_IGNORED):
        readiness.install()
        await super().serve(address, handler, task_status=task_status)


@pytest.fixture(params=[pytest.param("tcp", marks=pytest.mark.thorough), "unix", "memory"])
def net(request, tmp_path):
    """Two views of one network (`a` serves, `b` calls) and a maker of addresses to listen at."""
    numbers = itertools.count()
    if request.param == "memory":
        memory = MemoryNetwork(seed=1)
        return SimpleNamespace(
            kind="memory",
            a=memory.endpoint("a"),
            b=memory.endpoint("b"),
            address=lambda: f"mem:a{next(numbers)}",
        )
    network = SocketNetwork() if request.param == "tcp" else WatchedNetwork()
    address = (
        (lambda: "tcp:127.0.0.1:0")
        if request.param == "tcp"
        else (lambda: f"unix:{tmp_path}/s{next(numbers)}")
    )
    return SimpleNamespace(kind=request.param, a=network, b=network, address=address)


@pytest.fixture
def process():
    """Return `process(net, **options)`: an async context with a server and channels to it."""

    @asynccontextmanager
    async def make(
        net,
        *,
        limits=None,
        caller_limits=None,
        services=(),
        identity=None,
        caller=None,
        node_id=0,
        secrets=(),
        **server_options,
    ):
        limits = limits or RpcSection()
        identity = identity or Identity(CLUSTER, 7, "incarnation-7")
        runtime = simulated_runtime(net.b, 1)
        server = Server(identity, limits, **server_options)
        server.add_service("Core", CoreService(identity, runtime.clock, server.service_names))
        for name, target in services:
            server.add_service(name, target)
        streams = []

        async def connect():
            streams.append(await net.b.connect(address))
            return streams[-1]

        async with trio.open_nursery() as nursery:
            address = await nursery.start(server.run, net.a, net.address())
            caller = caller or Identity(CLUSTER, client_id="client-1")
            async with open_channels(
                runtime, caller, caller_limits or RpcSection(), secrets=secrets
            ) as channels:
                yield SimpleNamespace(
                    server=server,
                    channels=channels,
                    address=address,
                    channel=channels.get(address, node_id=node_id),
                    nursery=nursery,
                    connect=connect,
                )
            for stream in streams:
                await stream.aclose()
            nursery.cancel_scope.cancel()

    return make


@pytest.fixture(params=[Waiting, AtOnce])
def storage(request):
    """What answers reads, in both ways."""
    return request.param()


@pytest.fixture
def unix(tmp_path):
    """A network as `net` has it, of Unix sockets."""
    network = SocketNetwork()
    return SimpleNamespace(a=network, b=network, address=lambda: f"unix:{tmp_path}/s")
