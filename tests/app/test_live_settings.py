"""Every setting that a running process takes over is really seen by what uses it,
and the one before it no more.

Each test lets a part of a process do its ordinary work with a section that notes which of its
settings are asked for, after the part was given it in the place of an earlier one.  What a part
makes something of at once (limits, rates) is looked at, too.
"""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import logging
import math
import os
import random

import pytest
import trio
from trio.testing import MockClock

from fs.app.process.compose import _adopt
from fs.client.file_read import FileRead
from fs.client.meta_client import MetaClient
from fs.client.retry import longest_s
from fs.client.storage_client import StorageClient
from fs.client.vfs.ports import Caller
from fs.client.vfs.vfs import Vfs
from fs.kv.memory import MemoryEngine
from fs.rpc.api import ConnectionRefused
from fs.rpc.observer import RpcObserver
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.log import set_log_level
from fs.runtime.ports import Runtime
from fs.runtime.simulated import SimulatedClock, simulated_runtime
from fs.runtime.tracing import Tracer
from fs.schema import services
from fs.schema.config import (
    ClientSection,
    MetaSection,
    MgmtdSection,
    ProcessConfig,
    ProcessSection,
    StorageSection,
    TraceSection,
)
from fs.schema.proto import meta_pb2
from fs.schema.proto.common_pb2 import CallerPb
from fs.schema.status import FsError
from fs.schema.stored_settings import LIVE
from fs.storage import scrub as scrub_module
from fs.storage import storage as storage_module
from tests.client.fakes import FakeClock, FakeCluster, run_inline
from tests.client.test_routing_math import THREE, ref
from tests.meta.harness import World
from tests.mgmtd.harness import cluster_of
from tests.mgmtd.test_mover import add_node
from tests.storage.cluster import open_caller, open_cluster

OF_STORAGE = (
    "forward_timeout_s",
    "forward_retry_s",
    "link_failed_after_s",
    "resync_interval_s",
    "scrub_bytes_per_s_max",
    "compact_bytes_per_s_max",
    "low_space_fraction",
)
LIMITS_OF_STORAGE = (
    "read_concurrency",
    "write_concurrency",
    "resync_concurrency",
    "resync_bytes_per_s_max",
)
RETRIES = ("retry_time_s_max", "retry_pause_s", "retry_pause_s_max")
OF_CALLS = (*RETRIES, "call_timeout_s", "requests_per_node_max")
OF_READS = ("batch_count_max", "batch_bytes_max", "verify_reads")
OF_MOUNTS = (
    "write_buffer_bytes",
    "dirty_bytes_max",
    "write_back_interval_s",
    "unmount_time_s_max",
    "readahead_bytes_max",
    "readahead_total_bytes_max",
    "leased_names_max",
)
OF_META = (
    "gc_delay_s",
    "gc_interval_s",
    "gc_batch_count",
    "session_scan_interval_s",
    "session_grace_s",
    "trash_expiry_s",
    "trash_scan_interval_s",
    "trash_free_fraction_min",
)
OF_MANAGERS = (
    "probe_timeout_s",
    "replace_after_s",
    "move_stall_s",
    "moves_max",
    "moves_per_node_max",
    "move_free_fraction_min",
    "rotate_after_s",
    "rotations_max",
)
OF_EVERY_PROCESS = {"process.log_level", "process.slow_request_s", "trace.sample_rate"}


def test_no_live_setting_is_left_out():
    """What the tests below look for is all there is."""
    found = {
        "storage": OF_STORAGE + LIMITS_OF_STORAGE,
        "client": OF_CALLS + OF_READS + OF_MOUNTS,
        "meta": OF_META,
        "mgmtd": OF_MANAGERS,
    }
    named = {f"{section}.{key}" for section, keys in found.items() for key in keys}
    assert named | OF_EVERY_PROCESS == LIVE


class Noting:
    """A section that notes what is asked of it."""

    def __init__(self, name, section):
        self._name, self._section, self.asked = name, section, set()

    def __getattr__(self, key):
        self.asked.add(f"{self._name}.{key}")
        return getattr(self._section, key)


class Change:
    """Gives a part one section after another; in the end only the last may have been asked."""

    def __init__(self, name, adopt, before, after):
        self.before, self.after = Noting(name, before), Noting(name, after)
        adopt(self.before)
        adopt(self.after)
        self.before.asked.clear()
        self.after.asked.clear()

    def check(self, *keys):
        late = self.before.asked & LIVE
        assert not late, late
        wanted = {f"{self.after._name}.{key}" for key in keys}
        assert wanted <= self.after.asked, wanted - self.after.asked


@pytest.fixture
def autojump_clock():
    return MockClock(autojump_threshold=0)


def test_of_every_process():
    level = logging.getLogger().level
    runtime = simulated_runtime(MemoryNetwork(seed=1).endpoint("x"), 7)
    observer, tracer = RpcObserver(1.0), Tracer(runtime.clock, random.Random(1))
    echo = observer.served(services.CORE_ECHO)
    waiting = observer.served(services.MGMTD_GET_ROUTING_INFO)
    try:
        _adopt(
            ProcessConfig(
                process=ProcessSection(log_level="error", slow_request_s=7.0),
                trace=TraceSection(sample_rate=1.0),
            ),
            observer=observer,
            tracer=tracer,
        )
        assert logging.getLogger().level == logging.ERROR
        assert (echo.slow_s, waiting.slow_s) == (7.0, math.inf)
        assert observer.served(services.CORE_GET_INFO).slow_s == 7.0
        assert tracer.sample_rate == 1.0 and all(tracer.is_due() for _ in range(9))
        tracer.sample_rate = 0.5  # as somebody who watches for a while has it
        quiet = ProcessSection(log_level="debug", slow_request_s=0.0)
        new = ProcessConfig(process=quiet, trace=TraceSection(sample_rate=1.0))
        _adopt(new, observer=observer, tracer=tracer)
        assert (echo.slow_s, tracer.sample_rate) == (math.inf, 0.5)
    finally:
        set_log_level("info")
        logging.getLogger().setLevel(level)


async def test_of_storage(autojump_clock, monkeypatch):
    monkeypatch.setattr(storage_module, "COMPACT_INTERVAL_S", 5.0)
    monkeypatch.setattr(scrub_module, "BEGIN_AFTER_S", 5.0)
    section = StorageSection(
        reject_create_free_bytes_min=0, scrub_bytes_per_s_max=1 << 30, forward_timeout_s=5.0
    )
    async with open_cluster(3) as cluster, open_caller(cluster) as caller:
        node = cluster.nodes[1]
        change = Change("storage", node.storage.adopt, section, section)
        await caller.write(0, b"x" * 1000)
        await cluster.nodes[2].kill()
        await caller.write(0, b"y" * 1000)
        await cluster.start_node(2)
        await cluster.wait_all_serving()
        node.storage.report()
        await trio.sleep(6)
        change.check(*OF_STORAGE)


async def test_limits_of_storage(autojump_clock):
    async with open_cluster(1) as cluster:
        storage = cluster.nodes[1].storage
        (disk,) = storage._disks
        async with disk.read_limiter:  # held while the limit changes
            storage.adopt(
                StorageSection(
                    read_concurrency=2,
                    write_concurrency=3,
                    resync_concurrency=5,
                    resync_bytes_per_s_max=1000,
                )
            )
            assert disk.read_limiter.value == 2
        assert (disk.read_limiter.value, disk.write_limiter.value) == (2, 3)
        assert storage._resync._slots.value == 5
        began_s = trio.current_time()
        for _ in range(3):
            await storage._resync._rate.take(2000)
        assert trio.current_time() - began_s == pytest.approx(4.0)
        storage.adopt(StorageSection(resync_bytes_per_s_max=0))
        await storage._resync._rate.take(1 << 40)
        assert trio.current_time() - began_s == pytest.approx(4.0)


@pytest.mark.slow
async def test_a_scrub_that_is_stopped_in_the_middle_goes_on_later(autojump_clock, monkeypatch):
    monkeypatch.setattr(scrub_module, "BEGIN_AFTER_S", 5.0)
    slow = StorageSection(scrub_bytes_per_s_max=100)
    async with open_cluster(1) as cluster, open_caller(cluster) as caller:
        storage = cluster.nodes[1].storage
        storage.adopt(slow)
        for index in range(4):
            await caller.write(0, b"x" * 1000, index)
        while not cluster.nodes[1].target.scrubbed_bytes:  # noqa: ASYNC110
            await trio.sleep(1.0)
        storage.adopt(StorageSection(scrub_bytes_per_s_max=0))
        await trio.sleep(50.0)
        assert cluster.nodes[1].target.scrubbed_bytes <= 2000
        storage.adopt(slow)
        await trio.sleep(50.0)
        assert cluster.nodes[1].target.scrubbed_bytes == 4000


class Refusing:
    """Channels to peers that are not there."""

    def __init__(self):
        self.timeouts = set()

    def get(self, _address, **_options):
        return self

    async def call(self, method, _request, *, timeout_s=None, **_options):
        await trio.lowlevel.checkpoint()
        if method is services.MGMTD_REPORT_UNREACHABLE:
            return method.reply_type()
        self.timeouts.add(timeout_s)
        raise ConnectionRefused("nobody")


class Routing:
    info = THREE

    async def wait_newer(self, _version):
        await trio.sleep_forever()

    async def refresh(self):
        await trio.lowlevel.checkpoint()
        return self.info


SHORT = ClientSection(retry_time_s_max=3.0, call_timeout_s=1.5, requests_per_node_max=3)


async def refused_after(call, seconds):
    began_s = trio.current_time()
    with pytest.raises(FsError):
        await call
    assert seconds - 1.5 < trio.current_time() - began_s <= seconds + 1.5


async def test_of_clients_of_storage(autojump_clock):
    peers, runtime = Refusing(), simulated_runtime(MemoryNetwork(seed=1).endpoint("x"), 7)
    client = StorageClient(
        "c", channels=peers, routing=Routing(), mgmtd=peers, runtime=runtime, section=SHORT
    )
    change = Change("client", client.adopt, ClientSection(), SHORT)
    reads = [FileRead(ref(), 0, memoryview(bytearray(10)))]
    await refused_after(client.read(reads), 3.0)
    assert peers.timeouts == {1.5}
    assert {limiter.value for limiter in client._nodes._limiters.values()} == {3}  # fmt: skip
    change.check(*OF_CALLS, *OF_READS)
    change.after.asked.clear()
    await refused_after(client.write(ref(), 0, b"x"), 3.0)
    change.check(*RETRIES, "call_timeout_s")
    client.adopt(ClientSection(requests_per_node_max=2))
    assert not client._nodes._limiters  # the next call makes one anew


async def test_of_clients_of_meta(autojump_clock):
    peers, runtime = Refusing(), simulated_runtime(MemoryNetwork(seed=1).endpoint("x"), 7)
    routing = World(MemoryEngine(SimulatedClock())).routing
    client = MetaClient("c", channels=peers, routing=routing, runtime=runtime, section=SHORT)
    change = Change("client", client.adopt, ClientSection(), SHORT)
    request = meta_pb2.GetAttrReq(caller=CallerPb())
    await refused_after(client.call(services.META_GET_ATTR, request), 3.0)
    change.check(*RETRIES)


async def test_of_mounts(autojump_clock):
    caller, cluster = Caller(0, 0), FakeCluster(FakeClock())
    runtime = Runtime(cluster.clock, None, run_inline, random.Random(1))
    vfs = Vfs(cluster.meta("c"), cluster.store(), runtime, ClientSection())
    section = ClientSection(
        write_buffer_bytes=65536,
        dirty_bytes_max=1 << 20,
        write_back_interval_s=1.0,
        leased_names_max=0,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(vfs.run)
        assert vfs._core.leased.is_wanted
        change = Change("client", vfs.adopt, ClientSection(), section)
        assert not vfs._core.leased.is_wanted
        opened, _ = await vfs.files.create(1, b"f", 0o644, os.O_RDWR | os.O_CREAT, caller)
        for offset in range(0, 200_000, 10_000):
            await vfs.files.write(opened.handle_id, offset, b"x" * 10_000)
        await trio.sleep(10)
        assert max(length for _, _, length in vfs._core.store.writes) == 65536
        await vfs.files.read(opened.handle_id, 0, 1000)
        await vfs.files.read(opened.handle_id, 1000, 1000)
        budget = vfs._core.budget
        assert budget.try_acquire(1 << 19)
        vfs.adopt(ClientSection(dirty_bytes_max=1 << 20))
        assert not budget.try_acquire((1 << 19) + 1)
        vfs.adopt(ClientSection(dirty_bytes_max=1 << 21))
        assert budget.try_acquire((1 << 19) + 1)
        budget.release((1 << 20) + 1)
        vfs.adopt(change.after)
        await vfs.files.flush(opened.handle_id)
        await vfs.files.release(opened.handle_id)
        await vfs.shut_down()
        nursery.cancel_scope.cancel()
    change.check(*OF_MOUNTS)


def test_what_covers_operations_under_way_never_shrinks():
    """As many bytes as the margin was may be buffered already,
    and attributes from before a change may still be asked for.
    """
    cluster = FakeCluster(FakeClock())
    runtime = Runtime(cluster.clock, None, run_inline, random.Random(1))
    long, longer = (ClientSection(dirty_bytes_max=1 << 28, retry_time_s_max=t) for t in (2e3, 3e3))
    assert longest_s(ClientSection()) < longest_s(long) < longest_s(longer)
    vfs = Vfs(cluster.meta("c"), cluster.store(), runtime, long)
    space = vfs._core.space
    space.note_free((1 << 28) - 1)
    vfs.adopt(ClientSection(dirty_bytes_max=1 << 20, retry_time_s_max=1.0))
    assert space.is_tight(0.0)
    assert vfs._core.retry_time_s_longest == longest_s(long)
    vfs.adopt(longer)
    assert vfs._core.retry_time_s_longest == longest_s(longer)


async def test_of_meta(autojump_clock):
    world = World(MemoryEngine(SimulatedClock()))
    await world.initialise()
    section = MetaSection(trash_free_fraction_min=0.1, trash_expiry_s=5.0, gc_delay_s=5.0)
    change = Change("meta", world.meta.adopt, MetaSection(), section)
    root = world.user(0)
    made = await root.create_rsp(1, b"f")
    await root.unlink(1, b"f")
    kept = await root.create(1, b"kept")
    request = meta_pb2.MoveToTrashReq(caller=root.caller(), parent_inode_id=1, name=b"kept")
    await world.meta.service.move_to_trash(None, request)
    async with trio.open_nursery() as nursery:
        await nursery.start(world.meta.run)
        await trio.sleep(120)
        nursery.cancel_scope.cancel()
    assert made.inode.inode_id in world.chunks.removed
    assert kept.inode_id
    change.check(*OF_META)


@pytest.mark.slow
async def test_of_managers(autojump_clock):
    section = MgmtdSection(replace_after_s=10.0, move_stall_s=5.0, rotate_after_s=1.0)
    async with cluster_of(section=section) as cluster:
        await cluster.up()
        spare = await add_node(cluster)
        spare.resync_s = 2.0
        manager = cluster.managers[1].mgmtd
        change = Change("mgmtd", manager.adopt, MgmtdSection(), section)
        await cluster.storages[12].kill()
        await trio.sleep(60)
        change.check(*OF_MANAGERS)


async def test_the_next_reign_begins_with_the_newest(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.start_manager(1)
        manager = cluster.managers[1].mgmtd
        await cluster.wait_primary(cluster.managers[1])
        manager.service.primary.lose()
        manager.adopt(MgmtdSection(moves_max=3))
        await trio.sleep(1.0)
        await cluster.wait_primary(cluster.managers[1])
        assert manager.service.primary.section.moves_max == 3
        assert manager.service.primary.state.section.moves_max == 3
