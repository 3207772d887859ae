"""What a sync says of updates acknowledged before it,
by how often their chain has lost what was not synced.
"""

import random
from dataclasses import replace

import pytest

from fs.client.storage_client import StorageClient
from fs.client.unsynced import FLUSHED_S, NOTE_COUNT_MAX, Unsynced
from fs.rpc.api import Received
from fs.runtime.ports import Runtime
from fs.schema import services
from fs.schema.config import ClientSection
from fs.schema.ids import ChainId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.routing import Chain, ChainTarget, PublicState, RoutingInfo
from fs.schema.status import FsError, Status

from .fakes import FakeClock, run_inline
from .test_routing_math import CHUNK, THREE, ref


def chain(loss_count=0, chain_id=1):
    return Chain(
        ChainId(chain_id), 5, (ChainTarget(chain_id * 10, PublicState.SERVING),), (), (), loss_count
    )


def lost(call, *args):
    with pytest.raises(FsError) as caught:
        call(*args)
    assert caught.value.status is Status.WRITES_LOST


def sync(unsynced, loss_count, key=(9, 1)):
    unsynced.settle(unsynced.of([key]), {key[1]: loss_count})


def test_a_loss_is_told_once():
    unsynced = Unsynced()
    unsynced.note(9, chain(), 0.0)
    # What was written later is there, what was written before is not.
    unsynced.note(9, chain(1), 1.0)
    lost(sync, unsynced, 1)
    sync(unsynced, 1)
    assert not unsynced


def test_what_was_synced_or_written_after_the_loss_is_no_loss():
    unsynced = Unsynced()
    unsynced.note(9, chain(), 0.0)
    sync(unsynced, 0)
    sync(unsynced, 1)
    unsynced.note(9, chain(1), 1.0)
    sync(unsynced, 1)


def test_other_files_and_chains_are_not_blamed():
    unsynced = Unsynced()
    unsynced.note(8, chain(), 0.0)
    unsynced.note(9, chain(0, 2), 0.0)
    sync(unsynced, 1)
    unsynced.settle(unsynced.of([(9, 2)]), {1: 5})  # chain 2 has not answered
    assert len(unsynced) == 2
    lost(sync, unsynced, 1, (9, 2))
    lost(sync, unsynced, 1, (8, 1))


def test_what_is_written_during_a_sync_waits_for_the_next():
    unsynced = Unsynced()
    unsynced.note(9, chain(), 0.0)
    covered = unsynced.of([(9, 1)])
    unsynced.note(9, chain(), 1.0)
    unsynced.settle(covered, {1: 0})
    lost(sync, unsynced, 1)
    unsynced.note(9, chain(1), 2.0)
    covered = unsynced.of([(9, 1)])
    unsynced.note(9, chain(2), 3.0)
    lost(unsynced.settle, covered, {1: 2})
    sync(unsynced, 2)


def test_only_old_notes_of_chains_without_a_loss_are_dropped():
    unsynced = Unsynced()
    late_s, info = FLUSHED_S + 1, RoutingInfo(chains={ChainId(1): chain()})
    for inode_id in range(NOTE_COUNT_MAX + 1):
        unsynced.note(inode_id, chain(), 0.0)
    unsynced.trim(info, 1.0)
    assert len(unsynced) == NOTE_COUNT_MAX + 1
    unsynced.trim(RoutingInfo(chains={ChainId(1): chain(1)}), late_s)
    assert len(unsynced) == NOTE_COUNT_MAX + 1
    unsynced.note(0, chain(), late_s)
    unsynced.trim(info, late_s)
    assert len(unsynced) == NOTE_COUNT_MAX
    assert unsynced.of([(0, 1)]) and not unsynced.of([(1, 1)])


class Routing:
    """Shows what it was given; a refresh brings the next picture."""

    def __init__(self, info):
        self.info = self.newest = info

    async def refresh(self):
        self.info = self.newest
        return self.info


class Nodes:
    """Storage nodes that know the newest picture and take nothing under an older one."""

    def __init__(self, routing):
        self.routing = routing

    can_flush = False

    async def call(self, _node_id, method, request, **_options):
        asked = request.chains if method is services.STORAGE_SYNC_CHAINS else [request]
        for one in asked:
            if one.chain_version != self.routing.newest.chain(one.chain_id).chain_version:
                raise FsError(Status.ROUTING_MISMATCH, "newer")
        is_durable = self.can_flush and method is services.STORAGE_WRITE and request.is_durable
        return Received(pb.UpdateRsp(is_durable=is_durable))


@pytest.mark.parametrize("is_counted", [True, False])
async def test_a_sync_learns_of_the_loss_from_the_chain(autojump_clock, is_counted):  # noqa: ARG001
    runtime = Runtime(FakeClock(), None, run_inline, random.Random(1))
    routing = Routing(THREE)
    store = StorageClient(
        "c", channels=None, routing=routing, mgmtd=None, runtime=runtime, section=ClientSection()
    )
    store._nodes = store._writes._nodes = store._writes._groups._nodes = Nodes(routing)
    await store.write(ref(), 0, bytes(2 * CHUNK))
    await store.sync([ref()])
    await store.write(ref(), 0, bytes(2 * CHUNK))
    chains = {
        c: replace(found, chain_version=found.chain_version + 2, loss_count=int(is_counted))
        for c, found in THREE.chains.items()
    }
    routing.newest = replace(THREE, routing_version=2, chains=chains)
    if is_counted:
        with pytest.raises(FsError) as caught:
            await store.sync([ref()])
        assert caught.value.status is Status.WRITES_LOST
    await store.sync([ref()])
    await store.empty_chunks(ref(), 0, 2)
    routing.newest = replace(
        routing.newest,
        chains={c: replace(found, chain_version=9, loss_count=9) for c, found in chains.items()},
    )
    with pytest.raises(FsError):
        await store.sync([ref()])


async def test_a_durable_write_needs_no_sync_unless_something_was_lost_before(autojump_clock):  # noqa: ARG001
    runtime = Runtime(FakeClock(), None, run_inline, random.Random(1))
    routing = Routing(THREE)
    store = StorageClient(
        "c", channels=None, routing=routing, mgmtd=None, runtime=runtime, section=ClientSection()
    )
    nodes = store._nodes = store._writes._nodes = store._writes._groups._nodes = Nodes(routing)
    assert not await store.write(ref(), 0, bytes(CHUNK), is_durable=True)
    assert len(store._unsynced) == 1
    nodes.can_flush = True
    assert await store.write(ref(), 5, bytes(10), is_durable=True)
    assert len(store._unsynced) == 0
    assert await store.write(ref(), 0, bytes(2 * CHUNK), is_durable=True)
    assert len(store._unsynced) == 0
    assert not await store.write(ref(), 5, bytes(10))
    chains = {
        c: replace(found, chain_version=found.chain_version + 2, loss_count=1)
        for c, found in THREE.chains.items()
    }
    routing.info = routing.newest = replace(THREE, routing_version=2, chains=chains)
    assert not await store.write(ref(), 5, bytes(10), is_durable=True)
    with pytest.raises(FsError) as caught:
        await store.sync([ref()])
    assert caught.value.status is Status.WRITES_LOST
    assert len(store._unsynced) == 0


def test_what_is_acknowledged_beside_a_durable_update_is_still_to_be_synced():
    unsynced = Unsynced()
    unsynced.note(1, chain(), 0.0)
    before = unsynced.get(1, chain())
    unsynced.note(1, chain(), 1.0)
    assert unsynced.cover(1, chain(), before)
    assert len(unsynced) == 1
    assert unsynced.cover(1, chain(), unsynced.get(1, chain()))
    assert len(unsynced) == 0
    assert unsynced.cover(1, chain(), None)
