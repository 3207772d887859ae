"""A whole cluster in one trio run: real services on simulated network, disks, threads and store.

The processes are built by the same composition functions as real ones (fs/app); only their runtime,
their key-value engine and their disks are simulated.  What a crash leaves behind is the store and
the disks: each start of a process sees them through views that its death severs (life.py).
"""

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import trio

import fs.mgmtd.election as election_module
import fs.mgmtd.primary as primary_module
from fs.app.control import serve_control
from fs.app.process.compose import Process, new_identity
from fs.app.process.kept_settings import begin_by_asking, begin_from_store
from fs.app.storage import make_calls, serve_storage
from fs.chunkengine.api import ChunkEngine
from fs.chunkengine.factory import memory_engine
from fs.chunkengine.simulated_disk import SimulatedCrash, SimulatedDisk
from fs.client.connect import connect
from fs.client.native import EmberFs, Identity
from fs.node.kept_settings import KeptSettings
from fs.rpc.channel import open_channels
from fs.rpc.server import Server
from fs.rpc.slabs import SlabShelf
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.ports import Runtime
from fs.runtime.settings import Settings
from fs.runtime.simulated import SimulatedClock, run_inline, simulated_runtime
from fs.runtime.tracing import Tracer
from fs.schema import services
from fs.schema.config import (
    CLOCK_DRIFT_MAX,
    ClientSection,
    DiskSection,
    MetaSection,
    MgmtdSection,
    ProcessConfig,
    ProcessSection,
    StorageSection,
)
from fs.schema.ids import NodeId
from fs.schema.proto import common_pb2, mgmtd_pb2
from fs.schema.routing import LocalState, PublicState, Role, RoutingInfo, routing_info_from_pb
from fs.schema.status import FsError, Status
from fs.storage.disk_calls import watched

from .determinism import OWNER, CheapAlarm
from .life import (
    DiskErrors,
    DiskView,
    EndpointView,
    Life,
    MachineClock,
    ProcessDead,
    SlowThreads,
    StoreView,
)
from .shape import STORAGE_ID_BASE, Shape
from .store import RoutingWatch, WatchedStore
from .trace import Trace

CLUSTER_ID = "sim"
CHUNK_BYTES = 65536
MEMORY_NODE = "mem:node-{}"
RESYNC_INTERVAL_S = 0.5
"""Longer than usual, as `PROBE_INTERVALS_S`:
asking for nothing to do costs more than all the rest.
"""
PROBE_INTERVALS_S = ((primary_module, 1.0), (election_module, 0.5))
"""How often managers ask others whether they live."""
RESTART_S = 1.0
"""From the end of a process that cannot open its disk to its next start,
by whoever keeps it running.
"""
DRIFTS = (1.0, 1.0, 1.0, 0.999, 1.001, 0.98, 1.02, 1 - CLOCK_DRIFT_MAX, 1 + CLOCK_DRIFT_MAX)
"""How fast a machine's monotonic clock runs."""


@dataclass(slots=True)
class WatchedProcess(Process):
    """What a composition root is given here; shows its services to the checkers."""

    services: dict[str, Any] = field(default_factory=dict)
    bugs: list[str] = field(default_factory=list)
    """Assertions that failed inside methods."""

    def server(
        self,
        targets: Mapping[str, object],
        shelf: SlabShelf | None = None,
        *,
        finish: Callable[[str], Awaitable[None]] | None = None,
    ) -> Server:
        self.services.update(targets)
        if "Storage" in targets:
            watch_updates(targets["Storage"], self.bugs)
        server = Process.server(self, targets, shelf, finish=finish)
        server.on_bug = lambda where, error: self.bugs.append(f"{where}: {error!r}")
        return server


@contextmanager
def _probing_less() -> Iterator[None]:
    usual = [module.WATCH_INTERVAL_S for module, _ in PROBE_INTERVALS_S]
    for module, interval_s in PROBE_INTERVALS_S:
        module.WATCH_INTERVAL_S = interval_s  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for (module, _), interval_s in zip(PROBE_INTERVALS_S, usual, strict=True):
            module.WATCH_INTERVAL_S = interval_s  # type: ignore[attr-defined]


def watch_updates(service: Any, bugs: list[str]) -> None:
    """See that an update is accepted only under a chain version that its node had while it ran,
    be it alone or in a group.
    """

    def watched(
        real: Callable[..., Awaitable[Any]], updates_of: Callable[[Any], Sequence[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def run(call: Any, request: Any) -> Any:
            updates = updates_of(request)
            before = [_chain_version(service, one.chain_id) for one in updates]
            reply = await real(call, request)
            outcomes = getattr(reply, "outcomes", [None] * len(updates))
            for one, first, outcome in zip(updates, before, outcomes, strict=True):
                after = _chain_version(service, one.chain_id)
                is_accepted = outcome is None or not outcome.status
                if is_accepted and not first <= one.chain_version <= after:
                    bugs.append(
                        f"chain {one.chain_id}: accepted under version {one.chain_version},"
                        f" while it had {first} to {after}"
                    )
            return reply

        return run

    for name in ("write", "update", "write_ranges", "update_ranges"):
        setattr(service, name, watched(getattr(service, name), lambda request: [request]))
    for name in ("write_group", "update_group", "replace_group"):
        setattr(service, name, watched(getattr(service, name), lambda request: request.updates))


def _chain_version(service: Any, chain_id: int) -> int:
    chain = service._context.routing.info.chains.get(chain_id)
    return chain.chain_version if chain is not None else 0


async def _opened(open_disk: Callable[[int], Awaitable[ChunkEngine]]) -> ChunkEngine:
    """Open the disk of a process; while it fails, nobody has heard of the process,
    which ends and is started again.
    """
    while True:
        try:
            return await open_disk(0)
        except FsError as error:
            if error.status is not Status.IO_ERROR:
                raise
        await trio.sleep(RESTART_S)


@dataclass
class SimProcess:
    """One process that can be started, killed and started again."""

    name: str
    node_id: int
    config: ProcessConfig
    roles: tuple[Role, ...]
    body: Callable[["SimProcess", Process], Awaitable[None]]
    clock: MachineClock
    scope: trio.CancelScope | None = None
    ended: trio.Event = field(default_factory=trio.Event)
    start_count: int = 0
    boot_count: int = 0
    """How often its machine has lost its power."""
    life: Life = field(default_factory=lambda: Life("", lambda: None))
    services: dict[str, Any] = field(default_factory=dict)
    settings: Settings | None = None
    """Of the last start."""
    threads: SlowThreads | None = None
    stopping: trio.Event = field(default_factory=trio.Event)
    """Set: it is to stop in order."""

    @property
    def is_running(self) -> bool:
        return self.scope is not None and not self.life.is_over


CLIENT_SECTION: Final = ClientSection(retry_time_s_max=300.0, attr_timeout_s=0.0)
"""What an open has brought is not shown to later reads:
histories with registers in small files are linearizable, too.
"""


class SimCluster:
    """The cluster; `run` a scenario in it, which uses `connect_client` and the faults."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.seed = seed
        self.shape = shape
        self.random = random.Random(seed)
        self.trace = Trace()
        self.network = MemoryNetwork(self.random.getrandbits(32), make_alarm=CheapAlarm)
        self.kv = WatchedStore(SimulatedClock())
        self.kv.watch = self.watch = RoutingWatch()
        self.disk_pause_s_max = shape.disk_pause_s_max
        self.replica_count = shape.replica_count
        node_ids = [STORAGE_ID_BASE + i for i in range(1, shape.storage_count + 1)]
        self.disks = {node_id: SimulatedDisk(capacity_bytes=1 << 34) for node_id in node_ids}
        self.errors = {
            node_id: DiskErrors(random.Random(f"{seed}/errors-{node_id}")) for node_id in node_ids
        }
        self.chains = self._plan_chains()
        self.processes: dict[str, SimProcess] = {}
        self.storages = [f"storage-{node_id - STORAGE_ID_BASE}" for node_id in node_ids]
        self.controls = [*shape.roles]
        self.managers = [n for n, roles in shape.roles.items() if Role.MGMTD in roles]
        self.manager_addresses = [
            MEMORY_NODE.format(i) for i, name in enumerate(shape.roles, 1) if name in self.managers
        ]
        self.bugs: list[str] = []
        """What services themselves found impossible, or updates taken under a wrong picture."""
        self.clients: dict[str, Life] = {}
        """Those that run."""
        self.tear: Callable[[bytes], list[tuple[int, bytes]]] | None = None
        """What of a write in which a storage process dies reaches its disk."""
        self.make_tracer: Callable[[str, Runtime], Tracer | None] = lambda _name, _runtime: None
        """Who traces what a process or client does."""
        self._nursery: trio.Nursery | None = None
        for node_id, (name, roles) in enumerate(shape.roles.items(), start=1):
            self._add_process(name, node_id, partial(self._control, roles))
        for node_id, name in zip(node_ids, self.storages, strict=True):
            self._add_process(name, node_id, partial(self._storage, node_id))

    def _plan_chains(self) -> dict[int, list[tuple[int, int]]]:
        """Chain c: (target id, node id) head first, heads going round."""
        nodes = list(self.disks)
        return {
            c: [
                (node_id * 1000 + c, node_id)
                for r in range(self.replica_count)
                for node_id in [nodes[(c - 1 + r) % len(nodes)]]
            ]
            for c in range(1, self.shape.chain_count + 1)
        }

    def targets_of(self, node_id: int) -> list[int]:
        """The targets that a node was given at first."""
        return [t for chain in self.chains.values() for t, n in chain if n == node_id]

    def members_of(self, node_id: int) -> list[int]:
        """The targets of a node that are members of chains by what is published."""
        return [
            m.target_id
            for chain in self.watch.chains.values()
            for m in chain.targets
            if self.watch.node_of.get(m.target_id) == node_id
        ]

    def _add_process(
        self, name: str, node_id: int, body: Callable[[SimProcess, Process], Awaitable[None]]
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
                mgmtd_addresses=self.manager_addresses,
            ),
            mgmtd=MgmtdSection(
                replace_after_s=self.shape.replace_after_s,
                move_stall_s=self.shape.move_stall_s,
                rotate_after_s=self.shape.rotate_after_s,
            ),
            meta=MetaSection(
                gc_delay_s=2.0,
                chunk_size_bytes=CHUNK_BYTES,
                stripe_size=self.shape.chain_count,
                inline_bytes_max=self.shape.inline_bytes_max,
            ),
            storage=StorageSection(
                disks=disks,
                resync_interval_s=RESYNC_INTERVAL_S,
                resync_bytes_per_s_max=self.shape.resync_bytes_per_s_max,
                direct_write_bytes_min=self.shape.direct_write_bytes_min,
            ),
        )
        rate = self.random.choice(DRIFTS)
        all_roles = self.shape.roles.get(name, frozenset({Role.STORAGE}))
        roles = tuple(r for r in (Role.MGMTD, Role.META, Role.STORAGE) if r in all_roles)
        self.processes[name] = SimProcess(name, node_id, config, roles, body, MachineClock(rate))

    # ---- bodies of processes ---------------------------------------------------------------------

    async def _control(self, roles: frozenset[Role], this: SimProcess, process: Process) -> None:
        store = StoreView(self.kv, this.life)
        await begin_from_store(process, store)
        await serve_control(process, roles, store)

    async def _storage(self, node_id: int, this: SimProcess, process: Process) -> None:
        await begin_by_asking(process)
        if self.tear is not None:
            self.disks[node_id].tear = self.tear

        quick = random.Random(f"{self.seed}/{this.name}/{this.start_count}/quick")

        async def open_disk(_index: int) -> ChunkEngine:
            disk = self.disks[node_id]
            replaced = [] if disk.records else self.members_of(node_id)  # as an operator would
            return memory_engine(
                DiskView(  # type: ignore[arg-type]
                    disk, this.life, self.errors[node_id], lambda: quick.random() < 0.5
                ),
                cluster_id=CLUSTER_ID,
                node_id=node_id,
                section=process.config.storage,
                target_ids=sorted({*self.targets_of(node_id), *replaced}),
            )

        calls = make_calls(process)
        async with watched(calls, process.runtime):
            engine = await _opened(open_disk)
            await serve_storage(process, [engine], open_disk, calls)

    # ---- life and death --------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a process that is not running."""
        process = self.processes[name]
        assert process.scope is None and self._nursery is not None
        process.start_count += 1
        process.scope = scope = trio.CancelScope()
        process.ended, process.stopping = trio.Event(), trio.Event()

        def on_death() -> None:
            self.trace.add("death", name)
            self.network.kill(name)
            scope.cancel()

        process.life = Life(name, on_death)
        self.trace.add("start", name)
        self._nursery.start_soon(self._run, process)

    def _runtime(self, process: SimProcess, source: random.Random) -> Runtime:
        endpoint = EndpointView(self.network.endpoint(process.name), process.life)
        process.threads = SlowThreads(
            process.life, self.disk_pause_s_max, random.Random(source.getrandbits(64))
        )
        return Runtime(
            process.clock,
            endpoint,
            process.threads,
            random.Random(source.getrandbits(64)),
            f"{process.name}/{process.boot_count}",
            process.threads.begin,
        )

    async def _run(self, process: SimProcess) -> None:
        OWNER.set(process.name)
        source = random.Random(f"{self.seed}/{process.name}/{process.start_count}")
        runtime = self._runtime(process, source)
        identity = new_identity(process.config, runtime)
        assert process.scope is not None
        with process.scope:
            try:
                async with open_channels(runtime, identity, process.config.rpc) as channels:
                    watched = WatchedProcess(
                        process.config, runtime, identity, channels, process.stopping
                    )
                    watched.tracer = self.make_tracer(process.name, runtime)
                    process.settings = Settings(process.config, process.roles)
                    watched.kept = KeptSettings(process.settings, runtime)
                    process.services, watched.bugs = watched.services, self.bugs
                    await process.body(process, watched)
            except* (ProcessDead, SimulatedCrash):
                assert process.life.is_over
        is_stopped = self._nursery is None or self._nursery.cancel_scope.cancel_called
        is_stopped |= process.stopping.is_set()
        assert process.life.is_over or is_stopped, f"{process.name} ended by itself"
        self.network.kill(process.name)
        process.services, process.settings = {}, None
        process.scope = None
        process.ended.set()

    async def kill(self, *names: str) -> None:
        """Kill processes at one instant: connections break, memory is gone,
        disks and store stay.
        """
        for name in names:
            self.processes[name].life.end()
        for name in names:
            await self.processes[name].ended.wait()

    async def stop(self, *names: str) -> None:
        """Have processes end in order; one that dies meanwhile has ended as well."""
        for name in names:
            self.trace.add("stop", name)
            self.processes[name].stopping.set()
        for name in names:
            await self.processes[name].ended.wait()

    def lose_power(self, name: str, source: random.Random) -> None:
        """Let the machine of a process that was killed lose its power,
        and with it what is not durable.
        """
        process = self.processes[name]
        process.boot_count += 1
        if process.node_id in self.disks:
            self.disks[process.node_id].power_loss(source)
            self.watch.forget_versions(process.node_id)

    @property
    def acting(self) -> list[str]:
        """The processes that would answer as the primary manager at this moment."""
        found = []
        for name in self.managers:
            service = self.processes[name].services.get("Mgmtd")
            primary = service.primary if service is not None else None
            if primary is not None and primary.is_acting and not self.processes[name].life.is_over:
                found.append(name)
        return found

    @property
    def seen_version(self) -> int:
        """The newest routing version that a storage process knows at this moment."""
        found = [self.processes[name].services.get("Storage") for name in self.storages]
        return max((s._context.routing.info.routing_version for s in found if s), default=0)

    @property
    def stored_bytes(self) -> int:
        """What the chunks of all targets take, of those storage processes that run
        at this moment.
        """
        found = [self.processes[name].services.get("Storage") for name in self.storages]
        targets = [t for s in found if s for t in s._context.targets.targets.values()]
        return sum(t.disk.engine.used_bytes(t.target_id) for t in targets)

    async def run(
        self, scenario: Callable[[], Awaitable[None]], observe: Callable[[], Awaitable[None]]
    ) -> None:
        """Start everything, make the chains, run the scenario, stop everything."""
        with _probing_less():
            await self._run_all(scenario, observe)

    async def _run_all(
        self, scenario: Callable[[], Awaitable[None]], observe: Callable[[], Awaitable[None]]
    ) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for name in self.managers:
                self.start(name)
            await self._initialise()
            for name in self.processes:
                if name not in self.managers:
                    self.start(name)
            await self.wait_healthy()
            nursery.start_soon(observe)
            await scenario()
            self.trace.add("end", "")
            nursery.cancel_scope.cancel()

    # ---- asking the manager ----------------------------------------------------------------------

    async def _call_manager(self, *calls):
        runtime = simulated_runtime(self.network.endpoint("observer"), 1)
        identity = new_identity(
            ProcessConfig(process=ProcessSection(cluster_id=CLUSTER_ID)), runtime
        )
        async with open_channels(
            runtime, identity, self.processes[self.controls[0]].config.rpc
        ) as channels:
            return [await self._retry(channels, method, request) for method, request in calls]

    async def ask_manager(self, method: Any, request: Any) -> Any:
        """Ask each manager once; return the reply,
        None if nobody did it (or its answer was lost).
        """
        runtime = simulated_runtime(self.network.endpoint("observer"), self.random.getrandbits(32))
        identity = new_identity(
            ProcessConfig(process=ProcessSection(cluster_id=CLUSTER_ID)), runtime
        )
        async with open_channels(
            runtime, identity, self.processes[self.controls[0]].config.rpc
        ) as channels:
            for address in self.manager_addresses:
                with suppress(FsError):
                    return (await channels.get(address).call(method, request, timeout_s=2)).message
        return None

    async def _retry(self, channels, method, request):
        while True:
            for address in self.manager_addresses:
                try:
                    return (await channels.get(address).call(method, request, timeout_s=2)).message
                except FsError:
                    await trio.sleep(0.1)

    async def _initialise(self) -> None:
        pbs = {Role.MGMTD: common_pb2.MGMTD, Role.META: common_pb2.META}
        nodes = [
            mgmtd_pb2.RegisterNodeReq(
                node=common_pb2.NodePb(
                    node_id=p.node_id,
                    roles=sorted(pbs[role] for role in self.shape.roles[p.name])
                    if p.name in self.shape.roles
                    else [common_pb2.STORAGE],
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

    async def wait_healthy(self, timeout_s: float = 120, *, is_still: bool = False) -> None:
        """Wait until every target of every chain serves;
        with `is_still`, until nothing is being moved either.
        """
        with trio.move_on_after(timeout_s):
            while True:
                info = await self.routing()
                states = [t.public_state for c in info.chains.values() for t in c.targets]
                is_whole = bool(states) and all(s is PublicState.SERVING for s in states)
                is_whole = is_whole and self._do_members_serve(info)
                if is_whole and not (is_still and self.watch.moves):
                    return
                await trio.sleep(0.5)
        raise AssertionError(
            f"chains do not heal: {(await self.routing()).chains} {self.watch.moves}"
        )

    def _do_members_serve(self, info: RoutingInfo) -> bool:
        """Return whether each member of a chain says itself that it serves,
        also one whose new start nobody has noticed yet.
        """
        for chain in info.chains.values():
            for member in chain.targets:
                process = self.processes[self.node_name(info.target(member.target_id).node_id)]
                service = process.services.get("Storage") if process.is_running else None
                target = service and service._context.targets.targets.get(member.target_id)
                if target is None or target.local_state is not LocalState.UPTODATE:
                    return False
        return True

    async def wait_settings(self, timeout_s: float = 30) -> None:
        """Wait until every process has the newest settings of its roles."""
        with trio.move_on_after(timeout_s):
            while True:
                running = [p for p in self.processes.values() if p.is_running]
                if all(map(self._has_newest_settings, running)):
                    return
                await trio.sleep(0.5)
        told = {name: str(p.settings and p.settings.report()) for name, p in self.processes.items()}
        raise AssertionError(f"settings are not taken over: {told}")

    def _has_newest_settings(self, process: SimProcess) -> bool:
        if process.settings is None or process.settings.report().problem:
            return False
        return all(
            (stored.version, stored.text) == self.watch.settings.get(role, (0, ""))
            for role, stored in process.settings._stored.items()
        )

    # ---- clients ---------------------------------------------------------------------------------

    async def connect_client(self, name: str, use: Callable[[EmberFs], Awaitable[None]]) -> None:
        """Connect a native client and run `use` with it, until that ends or the client is killed.

        A name belongs to one client: who comes back is a new one.
        """
        source = random.Random(f"{self.seed}/{name}")
        with trio.CancelScope() as scope:

            def on_death() -> None:
                self.trace.add("death", name)
                self.network.kill(name)
                scope.cancel()

            owner = OWNER.set(name)
            life = self.clients[name] = Life(name, on_death)
            runtime = Runtime(
                MachineClock(),
                EndpointView(self.network.endpoint(name), life),
                run_inline,
                random.Random(source.getrandbits(64)),
            )
            try:
                async with connect(
                    self.manager_addresses,
                    CLUSTER_ID,
                    runtime=runtime,
                    config=ProcessConfig(client=CLIENT_SECTION),
                    identity=Identity(0, 0),
                    tracer=self.make_tracer(name, runtime),
                ) as fs:
                    await use(fs)
            except* ProcessDead:
                assert life.is_over
            finally:
                OWNER.reset(owner)
                del self.clients[name]

    def node_name(self, node_id: int) -> str:
        return next(p.name for p in self.processes.values() if p.node_id == NodeId(node_id))
