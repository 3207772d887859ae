"""Managers and fake storage nodes in one trio run:
real rpc over the memory network, real membership.

A fake storage node keeps to the local state machine (offline until none of its targets is in use,
then online, up to date once it serves or its resync is over) but holds no data.
"""

import itertools
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from fs.kv.memory import MemoryEngine
from fs.mgmtd.destinations import Disk
from fs.mgmtd.main import Mgmtd
from fs.node.membership import Membership
from fs.node.mgmtd_link import MgmtdLink
from fs.rpc.api import Identity
from fs.rpc.channel import open_channels
from fs.rpc.core_service import CoreService
from fs.rpc.server import Server
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.simulated import SimulatedClock, simulated_runtime
from fs.schema import services
from fs.schema.config import MgmtdSection, ProcessConfig, ProcessSection, RpcSection
from fs.schema.ids import NodeId, TargetId
from fs.schema.proto import common_pb2 as common
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.proto import storage_pb2 as storage
from fs.schema.routing import (
    LocalState,
    Node,
    PublicState,
    Role,
    RoutingInfo,
    routing_info_from_pb,
)
from fs.schema.standing import Standing, standing_to_pb
from fs.schema.status import FsError, Status

CLUSTER = "test"
S, L, Y, W, O = (  # noqa: E741
    PublicState.SERVING,
    PublicState.LASTSRV,
    PublicState.SYNCING,
    PublicState.WAITING,
    PublicState.OFFLINE,
)
IN_USE = {S, Y, W}


class JumpingClock(SimulatedClock):
    """Virtual time, ahead by what the process was stopped for."""

    jump_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.jump_s


class Process:
    """What every process has: an endpoint, an identity, a nursery that ends with it."""

    def __init__(self, cluster: "Cluster", node_id: int, roles: Iterable[Role]) -> None:
        self.cluster = cluster
        self.name = f"n{node_id}"
        number = next(cluster.numbers)
        self.incarnation = f"{self.name}-{number}"
        self.node = Node(
            NodeId(node_id),
            frozenset(roles),
            f"mem:{self.name}",
            self.incarnation,
            host_name="h",
            boot_id=cluster.boot_ids.get(node_id, ""),
        )
        self.network = cluster.network.endpoint(self.name)
        self.clock = JumpingClock()
        self.runtime = replace(simulated_runtime(self.network, number), clock=self.clock)
        self.config = ProcessConfig(
            process=ProcessSection(
                cluster_id=CLUSTER,
                node_id=node_id,
                mgmtd_addresses=[f"mem:n{m}" for m in cluster.manager_ids],
            ),
            mgmtd=cluster.section,
        )
        self.scope = trio.CancelScope()
        self.ended = trio.Event()

    async def run(self, task_status=trio.TASK_STATUS_IGNORED) -> None:
        identity = Identity(CLUSTER, self.node.node_id, self.incarnation)
        server = Server(identity, RpcSection())
        server.add_service("Core", CoreService(identity, self.runtime.clock, []))
        try:
            async with open_channels(self.runtime, identity, RpcSection()) as channels:
                with self.scope:
                    async with trio.open_nursery() as nursery:
                        self.build(channels, server)
                        await nursery.start(server.run, self.network, self.node.address)
                        await self.start(nursery)
                        task_status.started()
        finally:
            self.ended.set()

    def build(self, channels, server) -> None:
        raise NotImplementedError

    async def start(self, nursery) -> None:
        raise NotImplementedError

    async def kill(self) -> None:
        """End at once, as kill -9 does: nothing is said to anybody."""
        self.cluster.network.kill(self.name)
        self.scope.cancel()
        await self.ended.wait()

    async def stop(self) -> None:
        """End in order; a storage process notes that everything of its targets is durable."""
        await self.member.announce_stop()
        self.cluster.flushed_by |= dict.fromkeys(getattr(self, "local", ()), self.incarnation)
        await self.kill()


class Manager(Process):
    """A manager process."""

    def __init__(self, cluster: "Cluster", node_id: int) -> None:
        super().__init__(cluster, node_id, [Role.MGMTD])

    def build(self, channels, server) -> None:
        engine = self.cluster.engine
        self.mgmtd = Mgmtd(engine, self.runtime, self.config, self.node, channels)
        self.member = Membership(self.runtime, self.config, self.node, channels)
        server.add_service("Mgmtd", self.mgmtd.service)

    async def start(self, nursery) -> None:
        await nursery.start(self.mgmtd.run)
        nursery.start_soon(self.member.run)

    async def kill(self) -> None:
        async def nothing() -> None:
            """Be unable to release the lease."""

        self.mgmtd._release = nothing
        await super().kill()


class FakeStorage(Process):
    """A storage node without data."""

    def __init__(self, cluster: "Cluster", node_id: int, target_ids: Iterable[int]) -> None:
        super().__init__(cluster, node_id, [Role.STORAGE])
        self.local = {TargetId(t): LocalState.OFFLINE for t in target_ids}
        self.resync_s = 0.3
        self.has_checked_out = False
        self.disk_of: dict[int, int] = {}
        self.used: dict[int, int] = {}
        self.evicted: set[int] = set()
        self.orders: list[tuple[str, int]] = []
        self.disks = [Disk(0, 1000_000, 500_000, is_failed=False)]

    def build(self, channels, server) -> None:
        self.member = Membership(self.runtime, self.config, self.node, channels, self.report)
        self.member.report_disks = self.report_disks
        self.member.hear_images = self.hear_images
        server.add_service(
            [
                services.STORAGE_OFFLINE_TARGET,
                services.STORAGE_CREATE_TARGET,
                services.STORAGE_REMOVE_TARGET,
            ],
            self,
        )

    def hear_images(self, images) -> None:
        self.cluster.told |= {i.target_id: i.told_watermark for i in images}

    async def offline_target(self, _call, request):
        """Leave the chain, to come back through resync, as the real one does."""
        target_id = TargetId(request.target_id)
        assert request.is_for_resync
        self.orders.append(("offline", target_id))
        if target_id not in self.local:
            raise FsError(Status.TARGET_UNKNOWN, str(target_id))
        if self.public(target_id) is S:
            chain = self.info.chain(self.info.target(target_id).chain_id)
            if chain.serving == (target_id,):
                raise FsError(Status.BUSY, "the last serving one")
        self.local[target_id] = LocalState.OFFLINE
        self.evicted.add(target_id)
        self.member.trigger()
        return storage.OfflineTargetRsp()

    async def create_target(self, _call, request):
        """Make a target, once."""
        self.orders.append(("create", request.target_id))
        if request.target_id not in self.local:
            self.local[TargetId(request.target_id)] = LocalState.ONLINE
            self.used[request.target_id] = 0
            self.disk_of[request.target_id] = request.disk_index
            self.member.trigger()
        return storage.CreateTargetRsp()

    async def remove_target(self, _call, request):
        """Forget a target, unless a chain has it."""
        self.orders.append(("remove", request.target_id))
        if self.public(TargetId(request.target_id)) is not None:
            raise FsError(Status.BUSY, "in a chain")
        self.local.pop(TargetId(request.target_id), None)
        self.member.trigger()
        return storage.RemoveTargetRsp()

    def report_disks(self) -> list[pb.DiskReportPb]:
        return [
            pb.DiskReportPb(
                disk_index=d.disk_index,
                capacity_bytes=d.capacity_bytes,
                free_bytes=d.free_bytes,
                is_failed=d.is_failed,
            )
            for d in self.disks
        ]

    async def start(self, nursery) -> None:
        nursery.start_soon(self.member.run)
        nursery.start_soon(self.live)

    @property
    def info(self) -> RoutingInfo:
        return self.member.routing.info

    def public(self, target_id: TargetId) -> PublicState | None:
        target = self.info.targets.get(target_id)
        if target is None or not target.chain_id:
            return None
        return self.info.chain(target.chain_id).state_of(target_id)

    def report(self) -> list[pb.TargetReportPb]:
        return [
            pb.TargetReportPb(
                target_id=t,
                disk_index=self.disk_of.get(t, 0),
                local_state=common.LocalStatePb.ValueType(s),
                chain_version=self.chain_version(t),
                used_bytes=self.used.get(t, 100),
                flushed_by=self.cluster.flushed_by.get(t, ""),
                disk_loss_count=self.cluster.disk_loss_counts.get(t, 0),
                watermark=self.cluster.watermarks.get(t, 0),
                standing=standing_to_pb(noted)
                if (noted := self.cluster.standings.get(t))
                and not self.disks[self.disk_of.get(t, 0)].is_failed  # which cannot be opened
                else None,
            )
            for t, s in self.local.items()
        ]

    def chain_version(self, target_id: TargetId) -> int:
        target = self.info.targets.get(target_id)
        if target is None or not target.chain_id:
            return 0
        return self.info.chain(target.chain_id).chain_version

    async def live(self) -> None:
        """Follow the routing info."""
        version = 0
        async with trio.open_nursery() as nursery:
            while True:
                info = await self.member.routing.wait_newer(version)
                version = info.routing_version
                before = dict(self.local)
                publics = {t: self.public(t) for t in self.local}
                if not self.has_checked_out:
                    if IN_USE & set(publics.values()):
                        continue
                    self.has_checked_out = True
                    self.local = dict.fromkeys(self.local, LocalState.ONLINE)
                for target_id, public in publics.items():
                    if public is S:
                        chain = info.chain(info.target(target_id).chain_id)
                        noted = self.cluster.standings.get(target_id)
                        if noted is None or not noted.is_of_other_store(chain.birth_ns):
                            self.cluster.standings[target_id] = chain.standing
                    local = self.local[target_id]
                    if public is S and local is LocalState.ONLINE:
                        self.local[target_id] = LocalState.UPTODATE
                    elif public in {O, L, W, None} and (
                        local is LocalState.UPTODATE or target_id in self.evicted
                    ):
                        self.evicted.discard(target_id)
                        self.local[target_id] = LocalState.ONLINE
                    elif public is Y and local is LocalState.ONLINE:
                        nursery.start_soon(self.resync, target_id)
                if self.local != before:
                    self.member.trigger()

    async def resync(self, target_id: TargetId) -> None:
        version = self.chain_version(target_id)
        await trio.sleep(self.resync_s)
        chain = self.info.chain(self.info.target(target_id).chain_id)
        feeder = self.info.target(chain.serving[-1]).node_id if chain.serving else 0
        if not self.cluster.is_up(feeder):
            return
        self.used[target_id] = 100
        if self.public(target_id) is Y and self.chain_version(target_id) == version:
            self.local[target_id] = LocalState.UPTODATE
            self.member.trigger()


class Cluster:
    """A network, a store, and the processes on them."""

    def __init__(self, nursery, *, manager_count=1, section=None, seed=0, storages=3) -> None:
        self.nursery = nursery
        self.section = section or MgmtdSection()
        self.network = MemoryNetwork(seed=seed)
        self.random = random.Random(seed)
        self.engine = MemoryEngine(SimulatedClock())
        self.manager_ids = list(range(1, manager_count + 1))
        self.storage_ids = list(range(11, 11 + storages))
        self.numbers = itertools.count(1)
        self.managers: dict[int, Manager] = {}
        self.storages: dict[int, FakeStorage] = {}
        self.boot_ids: dict[int, str] = {}
        """Of the machines; what is missing is not known."""
        self.flushed_by: dict[int, str] = {}
        self.disk_loss_counts: dict[int, int] = {}
        """By target: which process stopped in order with everything durable."""
        self.standings: dict[int, Standing] = {}
        """By target: what its disk remembers."""
        self.watermarks: dict[int, int] = {}
        """By target: what its disk has; what is missing is not told."""
        self.told: dict[int, int] = {}
        """By target: what its node was told of other disks."""
        self.link: MgmtdLink

    async def start_manager(self, node_id: int) -> Manager:
        manager = self.managers[node_id] = Manager(self, node_id)
        await self.nursery.start(manager.run)
        return manager

    async def start_storage(self, node_id: int, targets=(1, 2)) -> FakeStorage:
        """Start a storage process with these targets: slots in the cluster's numbering."""
        held = self.storages.get(node_id)
        ids = list(held.local) if held else [node_id * 100 + c for c in targets]
        storage = self.storages[node_id] = FakeStorage(self, node_id, ids)
        if held is not None:
            storage.used, storage.disk_of, storage.disks = held.used, held.disk_of, held.disks
        await self.nursery.start(storage.run)
        return storage

    def is_up(self, node_id: int) -> bool:
        """Tell whether a storage process runs, on a machine that is on."""
        storage = self.storages.get(node_id)
        is_on = self.network.blocked_since_s("observer", f"n{node_id}") is None
        return storage is not None and not storage.scope.cancel_called and is_on

    def call(self, method, request, timeout_s=30.0):
        return self.link.call(method, request, timeout_s=timeout_s)

    async def register(self) -> None:
        for node_id in [*self.manager_ids, *self.storage_ids]:
            role = common.STORAGE if node_id in self.storage_ids else common.MGMTD
            node = common.NodePb(node_id=node_id, roles=[role], address=f"mem:n{node_id}")
            await self.call(services.MGMTD_REGISTER_NODE, pb.RegisterNodeReq(node=node))

    async def set_chains(self, chain_count: int = 2) -> int:
        chains = [
            pb.NewChainPb(
                chain_id=c,
                targets=[
                    pb.NewTargetPb(target_id=n * 100 + c, node_id=n) for n in self.storage_ids
                ],
            )
            for c in range(1, chain_count + 1)
        ]
        reply = await self.call(services.MGMTD_SET_CHAINS, pb.SetChainsReq(chains=chains))
        request = pb.SetChainTableReq(table_id=1, chain_ids=range(1, chain_count + 1))
        await self.call(services.MGMTD_SET_CHAIN_TABLE, request)
        return reply.created_count

    async def up(self) -> None:
        """Start everything: chains first have to be known to be served."""
        for node_id in self.manager_ids:
            await self.start_manager(node_id)
        await self.register()
        for node_id in self.storage_ids:
            storage = await self.start_storage(node_id)
            await storage.member.wait_joined()
            await self.until(lambda _, s=storage: s.has_checked_out)
        await trio.sleep(0.1)  # the triggered heartbeats arrive
        await self.set_chains()
        await self.until(lambda i: self.states(i) == [S] * len(self.storage_ids))

    async def info(self) -> RoutingInfo:
        reply = await self.call(services.MGMTD_GET_ROUTING_INFO, pb.GetRoutingInfoReq())
        return routing_info_from_pb(reply.routing_info)

    @staticmethod
    def states(info: RoutingInfo, chain_id: int = 1) -> list[PublicState]:
        return [t.public_state for t in info.chain(chain_id).targets]

    def state_of(self, info: RoutingInfo, node_id: int, chain_id: int = 1) -> PublicState:
        return info.chain(chain_id).state_of(TargetId(node_id * 100 + chain_id))

    async def until(self, condition, timeout_s=30.0) -> RoutingInfo:
        """Poll the primary until the routing info meets a condition."""
        with trio.move_on_after(timeout_s):
            while True:
                info = await self.info()
                if condition(info):
                    return info
                await trio.sleep(0.05)
        raise AssertionError(f"not within {timeout_s} s: {await self.info()}")

    async def wait_primary(self, *candidates: Manager) -> None:
        """Wait until one of the managers acts as primary."""
        with trio.fail_after(30):
            while not any(m.mgmtd.is_primary for m in candidates):  # noqa: ASYNC110
                await trio.sleep(0.01)

    @property
    def primaries(self) -> list[Manager]:
        return [m for m in self.managers.values() if m.mgmtd.is_primary]


@asynccontextmanager
async def cluster_of(**options) -> AsyncIterator[Cluster]:
    """Make a cluster with an observer's link; nothing is started."""
    async with trio.open_nursery() as nursery:
        cluster = Cluster(nursery, **options)
        runtime = simulated_runtime(cluster.network.endpoint("observer"), 999)
        identity = Identity(CLUSTER, client_id="observer")
        async with open_channels(runtime, identity, RpcSection()) as channels:
            addresses = [f"mem:n{m}" for m in cluster.manager_ids]
            cluster.link = MgmtdLink(channels, addresses, runtime)
            yield cluster
            for process in [*cluster.storages.values(), *cluster.managers.values()]:
                process.scope.cancel()
                await process.ended.wait()
        nursery.cancel_scope.cancel()
