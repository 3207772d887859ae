# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Chunks that a truncation cuts are cut for good: it ends when that would survive a power loss."""

import random
from dataclasses import replace

import pytest

from fs.client.storage_client import StorageClient
from fs.rpc.api import Received
from fs.runtime.ports import Runtime
from fs.schema import services
from fs.schema.config import ClientSection
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import FsError, Status

from .fakes import FakeClock, run_inline
from .test_routing_math import CHUNK, THREE, ref
from .test_unsynced import Routing


class Nodes:
    """Storage nodes that note what they are asked for."""

    def __init__(self):
        self.asked = []
        self.updates = []
        self.can_flush = True
        self.before_sync = []
        """What happens before the next syncs."""

    async def call(self, _node_id, method, request, **_options):
        self.asked.append(method)
        if method is services.STORAGE_REMOVE_CHUNKS:
            return Received(pb.RemoveChunksRsp(results=[pb.RemoveResultPb()] * len(request.ranges)))
        if method is services.STORAGE_SYNC_CHAINS:
            if self.before_sync:
                self.before_sync.pop(0)()
            return Received(pb.SyncChainsRsp())
        assert request.type == (pb.WRITE if request.is_fill else pb.TRUNCATE)
        self.updates.append(request)
        return Received(pb.UpdateRsp(is_durable=request.is_fill and self.can_flush))

    def order(self):
        """What came, without repeats of the same."""
        names = [method.name for method in self.asked]
        return [n for i, n in enumerate(names) if i == 0 or names[i - 1] != n]


@pytest.fixture
def routing():
    return Routing(THREE)


@pytest.fixture
def store(routing, autojump_clock):
    runtime = Runtime(FakeClock(), None, run_inline, random.Random(1))
    made = StorageClient(
        "c", channels=None, routing=routing, mgmtd=None, runtime=runtime, section=ClientSection()
    )
    made._nodes = made._writes._nodes = Nodes()
    return made


async def always():
    return True


@pytest.mark.parametrize("length", [0, CHUNK, CHUNK + 5])
async def test_what_is_cut_is_durable_when_the_truncation_ends(store, length, autojump_clock):
    await store.truncate_file(ref(), length, 3, always)
    order = store._nodes.order()
    assert order[0] == services.STORAGE_REMOVE_CHUNKS.name
    assert order[-1] == services.STORAGE_SYNC_CHAINS.name
    assert (services.STORAGE_WRITE.name in order) == bool(length % CHUNK)


def losing(routing):
    """Return what makes all chains lose power."""

    def lose():
        chains = {
            c: replace(chain, loss_count=1, chain_version=chain.chain_version + 2)
            for c, chain in THREE.chains.items()
        }
        routing.newest = replace(THREE, chains=chains, routing_version=THREE.routing_version + 1)
        raise FsError(Status.ROUTING_MISMATCH, "power was lost")

    return lose


async def test_what_a_power_loss_may_have_brought_back_is_cut_again(store, routing, autojump_clock):
    store._nodes.before_sync.append(losing(routing))
    await store.truncate_file(ref(), 0, 3, always)
    assert store._nodes.order().count(services.STORAGE_REMOVE_CHUNKS.name) == 2


async def test_what_another_one_has_finished_is_left(store, autojump_clock):
    async def never():
        return False

    await store.truncate_file(ref(), 0, 3, never)
    assert store._nodes.asked == []


async def test_what_is_filled_is_durable_on_its_way(store, autojump_clock):
    file = ref(dyn_stripe=0)
    await store.fill_file(file, b"bytes", 3, always)
    (request,) = store._nodes.updates
    assert store._nodes.order() == [services.STORAGE_WRITE.name]
    assert (request.inode_id, request.chunk_index, request.offset) == (file.inode_id, 0, 0)
    assert (request.truncate_ver, request.is_fill, request.is_durable) == (3, True, True)


async def test_what_is_not_durable_on_its_way_is_synced(store, routing, autojump_clock):
    store._nodes.can_flush = False
    await store.fill_file(ref(dyn_stripe=0), b"bytes", 3, always)
    order = [services.STORAGE_WRITE.name, services.STORAGE_SYNC_CHAINS.name]
    assert store._nodes.order() == order
    store._nodes.before_sync.append(losing(routing))
    store._nodes.asked.clear()
    await store.fill_file(ref(dyn_stripe=0), b"bytes", 4, always)
    assert store._nodes.order() == order * 2, "filled again, since power was lost in between"


async def test_what_another_one_has_filled_is_left(store, autojump_clock):
    answers = [True, False]

    async def once():
        return answers.pop(0)

    await store.fill_file(ref(dyn_stripe=0), b"bytes", 3, once)
    assert not store._nodes.updates
