"""Hostile calls leave nothing in a metadata service: its objects are counted, in this very process.

The store is RocksDB, whose memory is not Python's.  `python -m tests.meta.fuzz`
counts the same in real processes.
"""

import gc
import os
import sys

import pytest
from trio._core import _run

from fs.kv import conflicts, rocksdb_view
from fs.meta.runner import RequestRunner
from fs.rpc.api import Identity
from fs.rpc.core_service import CoreService
from fs.rpc.server import Server
from fs.rpc.transport import SocketNetwork
from fs.schema.config import ProcessConfig, RpcSection
from tests.meta.fuzz import OWNER, OWNERS_CLIENT, STRANGERS, Attack, Direct
from tests.meta.harness import World
from tests.rpc.fuzz import Running

WARM_CALLS, CALLS = 1000, 2000
"""What is remembered on purpose, up to a bound, is remembered after the first ones;
the store, in the same process, is given small bounds.
"""
BLOCKS_PER_CALL_MAX = 0.5
"""One object that stays is at least one block."""


@pytest.fixture
async def grown_blocks(open_lab, nursery, tmp_path, monkeypatch):
    """Return a function that makes hostile calls and returns
    by how many blocks this process has grown for each.
    """
    monkeypatch.setattr(rocksdb_view, "KNOWN_ROWS_MAX", 64)
    limits = {"points_max": 16 * conflicts.SCAN_MAX + 16, "ranges_max": 64}
    monkeypatch.setattr(conflicts.ConflictWindow.__init__, "__kwdefaults__", limits)
    world = World(await open_lab("rocksdb"))
    await world.initialise()
    cluster = Running(tmp_path, "emberfs", {"meta-1": os.getpid()})
    (tmp_path / "run").mkdir()
    identity = Identity("emberfs")
    server = Server(identity, RpcSection())
    server.add_service("Meta", world.meta.service)
    server.add_service(
        "Core", CoreService(identity, world.runtime.clock, ["Meta"], ProcessConfig())
    )
    await nursery.start(server.run, SocketNetwork(), cluster.address("meta-1"))
    attack = Attack(cluster, 1)

    def blocks():
        for noted in (world.chunks.truncated, world.chunks.filled, world.chunks.removed):
            noted.clear()
        # Timers of what ended in time, which trio keeps a thousand of.
        _run.GLOBAL_RUN_CONTEXT.runner.deadlines._prune()
        gc.collect()
        return sys.getallocatedblocks()

    async def run():
        async with attack._peer(0) as one, attack._peer(0) as two:
            await attack._guarded.make(Direct(one, 0), Direct(two, OWNER, OWNERS_CLIENT))
        await attack._send(WARM_CALLS, STRANGERS[:-1])
        before = blocks()
        await attack._send(WARM_CALLS + CALLS, STRANGERS[:-1])
        assert not attack.report.problems
        return (blocks() - before) / CALLS

    return run


@pytest.mark.slow
async def test_hostile_calls_leave_nothing_in_the_process(grown_blocks, report_figure):
    grown = await grown_blocks()
    report_figure(f"hostile calls: {grown:.3f} blocks for each stay in a metadata service")
    assert grown < BLOCKS_PER_CALL_MAX


@pytest.mark.slow
async def test_one_object_for_each_call_is_seen(grown_blocks, monkeypatch):
    kept, usual = [], RequestRunner._caller

    def keep(self, request, **more):
        kept.append(object())
        return usual(self, request, **more)

    monkeypatch.setattr(RequestRunner, "_caller", keep)
    assert await grown_blocks() > BLOCKS_PER_CALL_MAX
