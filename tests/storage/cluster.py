"""A storage cluster in one process: real services over the in-memory network, with a small manager.

The manager hears reports and moves targets by the real chain-state transition; leases, routing
delivery and process deaths are under the test's control.  Runs on trio's mock clock.
"""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import trio
import xxhash

from fs.chunkengine.factory import memory_engine
from fs.chunkengine.refused import refused_engine
from fs.chunkengine.simulated_disk import SimulatedDisk
from fs.mgmtd.chain_state import next_chain
from fs.rpc.api import Identity, Received
from fs.rpc.channel import open_channels
from fs.rpc.server import Server
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.simulated import simulated_runtime
from fs.schema import services
from fs.schema.config import DiskSection, ProcessConfig, StorageSection
from fs.schema.ids import ChainId, ChunkId, InodeId, NodeId, TargetId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.read_columns import WantedRead, read_request, read_results
from fs.schema.routing import (
    Chain,
    ChainTarget,
    LocalState,
    Node,
    PublicState,
    Role,
    RoutingInfo,
    Target,
)
from fs.schema.status import FsError, Retry, Status
from fs.storage.storage import Storage

CLUSTER_ID = "test"
CHAIN = 7
INODE = 0x1001
CHUNK = 64 * 1024
LEASE_S = 2.0
FAILED_AFTER_S = 2.5
TICK_S = 0.25


class ScriptedRouting:
    """A node's newest routing info, as far as the manager has let it through."""

    def __init__(self, manager, node_id):
        self.info = RoutingInfo()
        self._manager = manager
        self._node_id = node_id
        self._changed = trio.Event()

    def deliver(self, info):
        if info.routing_version > self.info.routing_version:
            self.info = info
            self._changed.set()
            self._changed = trio.Event()

    async def wait_newer(self, routing_version):
        while self.info.routing_version <= routing_version:
            await self._changed.wait()
        return self.info

    async def refresh(self):
        await trio.sleep(0.001)
        if self._node_id not in self._manager.cut_off:
            self.deliver(self._manager.info)
        return self.info


class ScriptedLease:
    def __init__(self):
        self.until_s = 0.0

    def is_valid(self):
        return self.margin_s > 0

    @property
    def margin_s(self):
        return self.until_s - trio.current_time()


class SilentMgmtd:
    """Takes reports of unreachable nodes; the test's manager judges by itself."""

    async def call(self, method, _request, **_options):
        return method.reply_type()


class StorageNode:
    def __init__(self, cluster, node_id, disk, *, capacity_bytes):
        self.cluster = cluster
        self.node_id = node_id
        self.name = f"node-{node_id}"
        self.disk = disk or SimulatedDisk(capacity_bytes=capacity_bytes)
        self.routing = ScriptedRouting(cluster, node_id)
        self.lease = ScriptedLease()
        self.incarnation = 0
        self.storage = None
        self.section = None
        self.engine = None
        self.block_bytes = cluster.block_bytes
        """What its disk is formatted with, if it is new."""
        self.refusal = None
        """Why its disk cannot be opened; None: it can."""
        self._scope = None
        self._ended = trio.Event()

    @property
    def is_alive(self):
        return self._scope is not None

    @property
    def target(self):
        return self.storage.targets.targets[TargetId(100 + self.node_id)]

    async def run(self, *, task_status):
        section = self.section = StorageSection(
            disks=[DiskSection(path=self.name, target_ids=[100 + self.node_id])],
            forward_timeout_s=self.cluster.forward_timeout_s,
            reject_create_free_bytes_min=0,
            resync_concurrency=4,
            checksum_block_bytes=self.block_bytes,
        )
        config = ProcessConfig(storage=section)
        self.incarnation += 1
        self.routing = ScriptedRouting(self.cluster, self.node_id)
        self.lease = ScriptedLease()
        self._ended = trio.Event()
        identity = Identity(CLUSTER_ID, self.node_id, f"{self.node_id}.{self.incarnation}")
        seed = self.cluster.seed * 1000 + self.node_id * 10 + self.incarnation
        runtime = simulated_runtime(self.cluster.network.endpoint(self.name), seed)

        def open_disk():
            if self.refusal is not None:
                raise self.refusal
            return memory_engine(
                self.disk,
                cluster_id=CLUSTER_ID,
                node_id=self.node_id,
                section=section,
                target_ids=[100 + self.node_id],
            )

        async def reopen(_index):
            await runtime.run_blocking(self.engine.close)
            self.engine = await runtime.run_blocking(open_disk)
            return self.engine

        self.engine = refused_engine(self.refusal) if self.refusal else open_disk()
        with trio.CancelScope() as scope:
            async with open_channels(runtime, identity, config.rpc) as channels:
                self.storage = Storage(
                    runtime,
                    config,
                    identity,
                    [self.engine],
                    routing=self.routing,
                    lease=self.lease,
                    channels=channels,
                    mgmtd=SilentMgmtd(),
                    trigger_heartbeat=self.cluster.wake,
                    reopen=reopen,
                )
                server = Server(identity, config.rpc, on_bug=self.cluster.note_bug)
                server.add_service("Storage", self.storage.service)
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.storage.run)
                    await nursery.start(server.run, runtime.network, f"mem:{self.name}")
                    self._scope = scope
                    task_status.started()
                    await trio.sleep_forever()
        self._scope = None
        self._ended.set()

    async def kill(self):
        """kill -9."""
        scope, self._scope = self._scope, None
        self.cluster.network.kill(self.name)
        scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()
        self.disk.crash()
        self.cluster.wake()


class StorageCluster:
    """Nodes 1..n with target 100 + n each, all in one chain."""

    def __init__(
        self, nursery, node_count, *, seed, capacity_bytes, forward_timeout_s, block_bytes
    ):
        self.nursery = nursery
        self.block_bytes = block_bytes
        self.seed = seed
        self.random = random.Random(seed)
        self.network = MemoryNetwork(seed)
        self.forward_timeout_s = forward_timeout_s
        self.nodes = {
            n: StorageNode(self, n, None, capacity_bytes=capacity_bytes)
            for n in range(1, node_count + 1)
        }
        self.local_states = {TargetId(100 + n): LocalState.OFFLINE for n in self.nodes}
        self.heard_s = {}
        self.cut_off = set()
        self.is_frozen = False
        self.delivery_delay_s = 0.02
        self.bugs = []
        self.history = []
        self._wake = trio.Event()
        self.info = RoutingInfo(
            1,
            CLUSTER_ID,
            False,
            {
                NodeId(n): Node(NodeId(n), frozenset({Role.STORAGE}), f"mem:node-{n}", "")
                for n in self.nodes
            },
            {
                TargetId(100 + n): Target(TargetId(100 + n), ChainId(CHAIN), NodeId(n), 0)
                for n in self.nodes
            },
        )

    def wake(self):
        self._wake.set()

    def note_bug(self, where, error):
        self.bugs.append((where, error))

    @property
    def chain(self):
        return self.info.chains[ChainId(CHAIN)]

    def states(self):
        return {t.target_id - 100: t.public_state.name for t in self.chain.targets}

    def publish(self, chain):
        self.history.append(chain)
        self.info = replace(
            self.info,
            routing_version=self.info.routing_version + 1,
            chains={ChainId(CHAIN): chain},
        )
        for node in self.nodes.values():
            self.nursery.start_soon(self._deliver, node, self.info, self.random.random())

    async def _deliver(self, node, info, share):
        await trio.sleep(share * self.delivery_delay_s)
        if node.is_alive and node.node_id not in self.cut_off:
            node.routing.deliver(info)

    async def start_node(self, node_id):
        node = self.nodes[node_id]
        self.local_states[TargetId(100 + node_id)] = LocalState.OFFLINE
        await self.nursery.start(node.run)
        self.heard_s[node_id] = trio.current_time()
        self.wake()

    async def create_chain(self):
        await trio.sleep(0.3)
        members = tuple(ChainTarget(TargetId(100 + n), PublicState.SERVING) for n in self.nodes)
        self.publish(Chain(ChainId(CHAIN), 1, members))
        await self.wait_all_serving()

    async def manage(self):
        """Hear the nodes, judge the chain."""
        while True:
            with trio.move_on_after(TICK_S):
                await self._wake.wait()
            self._wake = trio.Event()
            now_s = trio.current_time()
            for node_id, node in self.nodes.items():
                self._hear(node_id, node, now_s)
            if self.info.chains and not self.is_frozen:
                chain = next_chain(self.chain, self.local_states)
                if chain is not self.chain:
                    self.publish(chain)
            await trio.sleep(0.002)

    def _hear(self, node_id, node, now_s):
        target_id = TargetId(100 + node_id)
        if not node.is_alive:
            self.local_states[target_id] = LocalState.OFFLINE
        elif node_id not in self.cut_off:
            node.lease.until_s = now_s + LEASE_S
            self.heard_s[node_id] = now_s
            if node.routing.info.routing_version == 0:
                node.routing.deliver(self.info)
            for report in node.storage.report():
                current = self.chain.chain_version if self.info.chains else 0
                if report.chain_version == current:
                    self.local_states[target_id] = LocalState(report.local_state)
        elif now_s - self.heard_s[node_id] > FAILED_AFTER_S:
            self.local_states[target_id] = LocalState.OFFLINE

    async def wait_judged(self, node_id):
        """Wait until a dead node's target is out of service."""
        with trio.fail_after(10):
            while self.states()[node_id] not in {"OFFLINE", "LASTSRV"}:  # noqa: ASYNC110 - polls
                await trio.sleep(0.01)

    async def wait_states(self, wanted, timeout_s=60.0):
        with trio.fail_after(timeout_s):
            while self.states() != wanted or not self._is_settled():  # noqa: ASYNC110 - polls
                await trio.sleep(0.01)

    async def wait_all_serving(self, timeout_s=120.0):
        await self.wait_states(dict.fromkeys(self.nodes, "SERVING"), timeout_s)

    def _is_settled(self):
        """Every live member knows the chain and has drawn its conclusions."""
        for member in self.chain.targets:
            node = self.nodes[member.target_id - 100]
            if not node.is_alive or node.node_id in self.cut_off:
                continue
            if node.routing.info is not self.info:
                return False
            if member.public_state is PublicState.SERVING and (
                node.target.local_state is not LocalState.UPTODATE
            ):
                return False
        return True


@asynccontextmanager
async def open_cluster(
    node_count,
    *,
    seed=1,
    capacity_bytes=1 << 40,
    forward_timeout_s=5.0,
    block_bytes=16 * 1024,
) -> AsyncIterator[StorageCluster]:
    async with trio.open_nursery() as nursery:
        cluster = StorageCluster(
            nursery,
            node_count,
            seed=seed,
            capacity_bytes=capacity_bytes,
            forward_timeout_s=forward_timeout_s,
            block_bytes=block_bytes,
        )
        for node_id in cluster.nodes:
            await cluster.start_node(node_id)
        nursery.start_soon(cluster.manage)
        await cluster.create_chain()
        yield cluster
        assert not cluster.bugs, cluster.bugs
        nursery.cancel_scope.cancel()


class StorageCaller:
    """A client: retries by status under the same tag, and can be asked for single attempts."""

    def __init__(self, cluster, channels, name):
        self.cluster = cluster
        self.channels = channels
        self.client_id = name
        self._sequence = 0
        self._next_request = 0
        self.channel_id = 1

    def tag(self):
        self._sequence += 1
        return pb.TagPb(
            client_id=self.client_id,
            channel_id=self.channel_id,
            sequence=self._sequence,
            request_id=self._sequence.to_bytes(16, "big"),
        )

    def write_request(self, offset, data, index=0, kind=pb.WRITE, length=None):
        return pb.UpdateReq(
            inode_id=INODE,
            chunk_index=index,
            chain_id=CHAIN,
            type=kind,
            offset=offset,
            length=len(data) if length is None else length,
            chunk_size_bytes=CHUNK,
            payload_checksum=xxhash.xxh3_64_intdigest(data),
            tag=self.tag(),
        )

    async def attempt(self, request, data=b"", *, node_id=None, timeout_s=3.0):
        chain = self.cluster.chain
        if not request.chain_version or node_id is None:
            request.chain_version = chain.chain_version
        if node_id is None:
            if not chain.serving:
                raise FsError(Status.CHAIN_UNAVAILABLE, "no head")
            node_id = chain.serving[0] - 100
        is_ranged = bool(request.range_offsets)
        received = await self.channel(node_id).call(
            services.STORAGE_WRITE_RANGES if is_ranged else services.STORAGE_WRITE,
            request,
            payload=[data] if data else (),
            timeout_s=timeout_s,
        )
        return received.message

    async def update(self, request, data=b"", *, retry_s=60.0):
        deadline_s = trio.current_time() + retry_s
        while True:
            try:
                return await self.attempt(request, data)
            except FsError as error:
                if error.retry is Retry.NEVER or trio.current_time() > deadline_s:
                    raise
            await trio.sleep(0.05)

    async def write(self, offset, data, index=0, **options):
        return await self.update(self.write_request(offset, data, index), data, **options)

    async def remove(self, index=0):
        return await self.update(self.write_request(0, b"", index, pb.REMOVE))

    async def truncate(self, length, index=0, kind=pb.TRUNCATE):
        return await self.update(self.write_request(0, b"", index, kind, length))

    def channel(self, node_id):
        return self.channels.get(f"mem:node-{node_id}", node_id=node_id)

    async def read_attempt(self, node_id, ios: Sequence[tuple[int, int, int]], **options):
        """Read (index, offset, length) at one node; return [(status, bytes)]."""
        version = self.cluster.chain.chain_version
        wanted = [
            WantedRead(INODE, index, CHAIN, version, offset, length)
            for index, offset, length in ios
        ]
        request = read_request(wanted, want_checksums=True, **options)
        received: Received = await self.channel(node_id).call(
            services.STORAGE_BATCH_READ, request, timeout_s=3.0
        )
        answers, start = [], 0
        for result in read_results(received.message, len(ios)):
            piece = bytes(received.payload[start : start + result.length])
            start += result.length
            if piece:
                assert xxhash.xxh3_64_intdigest(piece) == result.checksum
            answers.append((Status(result.status), piece))
        assert start == received.payload_bytes
        return answers

    async def read(self, index=0, *, node_id=None, retry_s=60.0):
        """Read a whole chunk at a serving node; None if there is none."""
        deadline_s = trio.current_time() + retry_s
        while True:
            serving = self.cluster.chain.serving
            chosen = node_id or (self.cluster.random.choice(serving) - 100 if serving else 0)
            try:
                return await self._read_once(chosen, index)
            except FsError as error:
                if error.retry is Retry.NEVER or trio.current_time() > deadline_s:
                    raise
            await trio.sleep(0.02)

    async def _read_once(self, node_id, index):
        if not node_id:
            raise FsError(Status.CHAIN_UNAVAILABLE)
        ((status, data),) = await self.read_attempt(node_id, [(index, 0, CHUNK)])
        if status is Status.CHUNK_NOT_FOUND:
            return None
        if status is not Status.OK:
            raise FsError(status)
        return data


@asynccontextmanager
async def open_caller(cluster, name="client-a") -> AsyncIterator[StorageCaller]:
    runtime = simulated_runtime(cluster.network.endpoint(name), cluster.seed)
    identity = Identity(CLUSTER_ID, client_id=name)
    async with open_channels(runtime, identity, ProcessConfig().rpc) as channels:
        yield StorageCaller(cluster, channels, name)


def content(cluster, node_id, index=0):
    """Return (committed version, pending version, bytes) of a chunk on a node's disk;
    None if absent.
    """
    node = cluster.nodes[node_id]
    target_id, chunk_id = TargetId(100 + node_id), ChunkId(InodeId(INODE), index)
    state = node.engine.get(target_id, chunk_id)
    if state is None:
        return None
    data = node.engine.read_whole(target_id, chunk_id) if state.commit_ver else b""
    return state.commit_ver, state.pending_ver, data
