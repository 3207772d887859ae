"""A whole cluster in one trio run: real services on simulated network, disks and store.

The processes are built by the same composition functions as real ones (fs/app); only their runtime, their
key-value engine and their disks are simulated.  What a crash leaves behind is the store and the disks.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from fs.app.compose import Process, new_identity
from fs.app.control import serve_control
from fs.app.storage import serve_storage
from fs.chunkengine.factory import memory_engine
from fs.chunkengine.simulated_disk import SimulatedDisk
from fs.client.connect import connect
from fs.client.native import EmberFs, Identity
from fs.kv.memory import MemoryEngine
from fs.rpc.channel import open_channels
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.simulated import SimulatedClock, simulated_runtime
from fs.schema import services
from fs.schema.config import (
    ClientSection,
    DiskSection,
    MetaSection,
    ProcessConfig,
    ProcessSection,
    StorageSection,
)
from fs.schema.ids import NodeId
from fs.schema.proto import common_pb2, mgmtd_pb2
from fs.schema.routing import PublicState, Role, RoutingInfo, routing_info_from_pb
from fs.schema.status import FsError

from .trace import Trace

CLUSTER_ID = "sim"
CONTROL_ID = 1
STORAGE_ID_BASE = 100
CHUNK_BYTES = 65536
MEMORY_NODE = "mem:node-{}"


@dataclass
class SimProcess:
    """One process that can be started, killed and started again."""

    name: str
    node_id: int
    config: ProcessConfig
    body: Callable[[Process], Awaitable[None]]
    on_killed: Callable[[], None] = field(default=lambda: None)
    scope: trio.CancelScope | None = None
    ended: trio.Event = field(default_factory=trio.Event)
    start_count: int = 0

    @property
    def is_running(self) -> bool:
        return self.scope is not None


class SimCluster:
    """The cluster; `start` it in a nursery, then use `connect_client` and the faults."""

    def __init__(self, seed: int, *, storage_count: int = 3, replica_count: int = 3) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.trace = Trace()
        self.network = MemoryNetwork(self.random.getrandbits(32))
        self.clock = SimulatedClock()
        self.kv = MemoryEngine(self.clock)
        self.chain_count = storage_count
        self.storage_count = storage_count
        self.replica_count = replica_count
        self.disks = {
            STORAGE_ID_BASE + i: SimulatedDisk(capacity_bytes=1 << 34)
            for i in range(1, storage_count + 1)
        }
        self.chains = self._plan_chains()
        self.processes: dict[str, SimProcess] = {}
        self._nursery: trio.Nursery | None = None
        self._add_process("control", CONTROL_ID, self._control)
        for node_id in self.disks:
            self._add_process(
                f"storage-{node_id - STORAGE_ID_BASE}", node_id, partial(self._storage, node_id)
            )
            self.processes[f"storage-{node_id - STORAGE_ID_BASE}"].on_killed = self.disks[
                node_id
            ].crash

    def _plan_chains(self) -> dict[int, list[tuple[int, int]]]:
        """Chain c: (target id, node id) head first, heads going round."""
        nodes = list(self.disks)
        return {
            c: [
                (node_id * 1000 + c, node_id)
                for r in range(self.replica_count)
                for node_id in [nodes[(c - 1 + r) % len(nodes)]]
            ]
            for c in range(1, self.chain_count + 1)
        }

    def targets_of(self, node_id: int) -> list[int]:
        return [t for chain in self.chains.values() for t, n in chain if n == node_id]

    def _add_process(
        self, name: str, node_id: int, body: Callable[[Process], Awaitable[None]]
    ) -> None:
        disks = (
            [DiskSection(path=f"/{name}", target_ids=self.targets_of(node_id))]
            if node_id in self.disks
            else []
        )
        config = ProcessConfig(
            process=ProcessSection(
                cluster_id=CLUSTER_ID,
                node_id=node_id,
                listen=MEMORY_NODE.format(node_id),
                mgmtd_addresses=[MEMORY_NODE.format(CONTROL_ID)],
            ),
            meta=MetaSection(
                gc_delay_s=2.0,
                chunk_size_bytes=CHUNK_BYTES,
                stripe_size=self.chain_count,
            ),
            storage=StorageSection(disks=disks),
        )
        self.processes[name] = SimProcess(name, node_id, config, body)

    # ---- bodies of processes -----------------------------------------------------------------------

    async def _control(self, process: Process) -> None:
        await serve_control(process, frozenset({Role.MGMTD, Role.META}), self.kv)

    async def _storage(self, node_id: int, process: Process) -> None:
        engine = memory_engine(
            self.disks[node_id],
            cluster_id=CLUSTER_ID,
            node_id=node_id,
            section=process.config.storage,
        )
        await serve_storage(process, [engine])

    # ---- life and death ----------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a process that is not running."""
        process = self.processes[name]
        assert not process.is_running and self._nursery is not None
        process.start_count += 1
        process.scope = trio.CancelScope()
        process.ended = trio.Event()
        self.trace.add("start", name)
        self._nursery.start_soon(self._run, process)

    async def _run(self, process: SimProcess) -> None:
        seed = f"{self.seed}/{process.name}/{process.start_count}"
        runtime = simulated_runtime(
            self.network.endpoint(process.name), random.Random(seed).getrandbits(64)
        )
        identity = new_identity(process.config, runtime)
        assert process.scope is not None
        with process.scope:
            async with open_channels(runtime, identity, process.config.rpc) as channels:
                await process.body(
                    Process(process.config, runtime, identity, channels, trio.Event())
                )
        assert process.scope.cancelled_caught, f"{process.name} ended by itself"
        process.scope = None
        process.ended.set()

    async def kill(self, name: str) -> None:
        """Kill a process: its connections break, its memory is gone, its disk stays."""
        process = self.processes[name]
        assert process.scope is not None
        self.trace.add("kill", name)
        self.network.kill(name)
        process.scope.cancel()
        await process.ended.wait()
        self.network.kill(name)
        process.on_killed()

    async def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Start everything, make the chains, run the scenario, stop everything."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for name in self.processes:
                self.start(name)
            await self._initialise()
            await self.wait_healthy()
            await scenario()
            self.trace.add("end", "")
            nursery.cancel_scope.cancel()

    # ---- asking the manager ------------------------------------------------------------------------

    async def _call_manager(self, *calls):
        runtime = simulated_runtime(self.network.endpoint("observer"), 1)
        identity = new_identity(
            ProcessConfig(process=ProcessSection(cluster_id=CLUSTER_ID)), runtime
        )
        async with open_channels(
            runtime, identity, self.processes["control"].config.rpc
        ) as channels:
            channel = channels.get(MEMORY_NODE.format(CONTROL_ID))
            return [await self._retry(channel, method, request) for method, request in calls]

    async def _retry(self, channel, method, request):
        while True:
            try:
                return (await channel.call(method, request, timeout_s=5)).message
            except FsError:
                await trio.sleep(0.2)

    async def _initialise(self) -> None:
        roles = {CONTROL_ID: [common_pb2.MGMTD, common_pb2.META]}
        nodes = [
            mgmtd_pb2.RegisterNodeReq(
                node=common_pb2.NodePb(
                    node_id=p.node_id,
                    roles=roles.get(p.node_id, [common_pb2.STORAGE]),
                    address=p.config.process.listen,
                )
            )
            for p in self.processes.values()
        ]
        new_chains = [
            mgmtd_pb2.NewChainPb(
                chain_id=c,
                targets=[
                    mgmtd_pb2.NewTargetPb(target_id=t, node_id=n, disk_index=0) for t, n in members
                ],
            )
            for c, members in self.chains.items()
        ]
        await self._call_manager(
            *((services.MGMTD_REGISTER_NODE, node) for node in nodes),
            (services.MGMTD_SET_CHAINS, mgmtd_pb2.SetChainsReq(chains=new_chains)),
            (
                services.MGMTD_SET_CHAIN_TABLE,
                mgmtd_pb2.SetChainTableReq(table_id=1, chain_ids=list(self.chains)),
            ),
        )

    async def routing(self) -> RoutingInfo:
        (reply,) = await self._call_manager(
            (services.MGMTD_GET_ROUTING_INFO, mgmtd_pb2.GetRoutingInfoReq())
        )
        return routing_info_from_pb(reply.routing_info)

    async def wait_healthy(self, timeout_s: float = 120) -> None:
        """Wait until every target of every chain serves."""
        with trio.move_on_after(timeout_s):
            while True:
                info = await self.routing()
                states = [t.public_state for c in info.chains.values() for t in c.targets]
                if states and all(s is PublicState.SERVING for s in states):
                    return
                await trio.sleep(0.5)
        raise AssertionError(f"chains do not heal: {(await self.routing()).chains}")

    # ---- clients -----------------------------------------------------------------------------------

    async def connect_client(self, number: int, use: Callable[[EmberFs], Awaitable[None]]) -> None:
        """Connect native client `number` and run `use` with it."""
        seed = f"{self.seed}/client-{number}"
        runtime = simulated_runtime(
            self.network.endpoint(f"client-{number}"), random.Random(seed).getrandbits(64)
        )
        config = ProcessConfig(client=ClientSection(retry_time_s_max=300.0))
        async with connect(
            [MEMORY_NODE.format(CONTROL_ID)],
            CLUSTER_ID,
            runtime=runtime,
            config=config,
            identity=Identity(0, 0),
        ) as fs:
            await use(fs)

    def node_name(self, node_id: int) -> str:
        return next(p.name for p in self.processes.values() if p.node_id == NodeId(node_id))
