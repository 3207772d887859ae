# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Durable writes that no task waits for: sent at once or not at all,
and tried again as the same update.
"""

import random
from dataclasses import replace

import pytest
import trio

from fs.client.storage_client import StorageClient
from fs.client.storage_writes import BEGUN_BYTES_MAX
from fs.rpc.api import Received
from fs.runtime.ports import Runtime
from fs.schema.config import ClientSection
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import FsError, Status

from .fakes import FakeClock, run_inline
from .test_routing_math import CHUNK, THREE, ref
from .test_unsynced import Routing

CHANNELS = 2


class Nodes:
    """Keeps what is begun until the test ends it; calls end as it says beforehand."""

    def __init__(self):
        self.begun = []
        self.called = []
        self.outcomes = []
        """Of calls: statuses, then successes."""
        self.is_free = True

    def begin(self, node_id, _method, request, on_end, *, payload):
        if not self.is_free:
            return None
        self.begun.append((node_id, pb.UpdateReq.FromString(request.SerializeToString()), on_end))
        assert [len(data) for data in payload] == [request.length]
        return object()

    async def call(self, node_id, _method, request, *, payload):
        self.called.append((node_id, pb.UpdateReq.FromString(request.SerializeToString())))
        assert [len(data) for data in payload] == [request.length]
        if self.outcomes:
            raise FsError(self.outcomes.pop(0), "as the test wants it")
        return Received(pb.UpdateRsp(is_durable=True))

    def end(self, *, is_durable=True, status=None):
        _, _, on_end = self.begun.pop(0)
        if status is None:
            on_end(Received(pb.UpdateRsp(is_durable=is_durable)), None)
        else:
            on_end(None, FsError(status, "as the test wants it"))


class Begun:
    """A client, and what it said of the writes that were begun."""

    def __init__(self):
        runtime = Runtime(FakeClock(), None, run_inline, random.Random(1))
        self.routing = Routing(THREE)
        self.store = StorageClient(
            "c",
            channels=None,
            routing=self.routing,
            mgmtd=None,
            runtime=runtime,
            section=ClientSection(channel_count=CHANNELS),
        )
        self.nodes = Nodes()
        self.store._writes._nodes = self.nodes
        self.told = []

    def write(self, count=100, offset=0):
        return self.store.begin_write(ref(), offset, bytes(count), self._told)

    def _told(self, is_durable, go_on):
        self.told.append((is_durable, go_on))

    @property
    def free_channels(self):
        return len(self.store._writes._channels._free)


@pytest.fixture
def begun():
    return Begun()


async def test_what_arrived_is_told_and_what_is_not_durable_is_left_to_a_sync(
    autojump_clock, begun
):
    assert begun.write()
    assert begun.free_channels == CHANNELS - 1
    assert not begun.told
    begun.nodes.end()
    assert begun.told == [(True, None)]
    assert len(begun.store._unsynced) == 0
    assert begun.write()
    begun.nodes.end(is_durable=False)
    assert begun.told[1:] == [(False, None)]
    assert len(begun.store._unsynced) == 1
    assert begun.free_channels == CHANNELS
    assert not begun.nodes.called


async def test_it_goes_to_the_head_and_asks_to_be_durable(autojump_clock, begun):
    begun.write(offset=CHUNK + 5)
    node_id, request, _ = begun.nodes.begun[0]
    chain = THREE.chain(request.chain_id)
    assert node_id == THREE.target(chain.serving[0]).node_id
    assert request.is_durable and request.chain_version == chain.chain_version
    assert (request.chunk_index, request.offset, request.length) == (1, 5, 100)
    assert request.tag.client_id == "c" and len(request.tag.request_id) == 16


@pytest.mark.parametrize(
    "why", ["two chunks", "large", "no channel", "the node is busy", "no target", "no table"]
)
async def test_what_would_have_to_wait_is_not_begun_and_keeps_no_channel(
    autojump_clock, begun, why
):
    count, offset = 100, 0
    if why == "two chunks":
        offset = CHUNK - 1
    elif why == "large":
        count = BEGUN_BYTES_MAX + 1
    elif why == "no channel":
        assert begun.write() and begun.write()
    elif why == "no target":
        begun.routing.info = replace(THREE, targets={})
    elif why == "no table":  # a mount may learn of a new one later than meta
        begun.routing.info = replace(THREE, chain_tables={})
    else:
        begun.nodes.is_free = False
    free = begun.free_channels
    assert not begun.write(count, offset)
    assert begun.free_channels == free
    assert not begun.told


@pytest.mark.parametrize("is_moved", [True, False])
async def test_what_failed_is_tried_again_as_the_same_update(autojump_clock, begun, is_moved):
    assert begun.write()
    _, first, _ = begun.nodes.begun[0]
    if is_moved:
        chains = {
            c: replace(found, chain_version=found.chain_version + 2)
            for c, found in THREE.chains.items()
        }
        begun.routing.newest = replace(THREE, routing_version=2, chains=chains)
    status = Status.ROUTING_MISMATCH if is_moved else Status.RPC_CONNECTION_LOST
    begun.nodes.outcomes = [Status.RPC_TIMEOUT]
    begun.nodes.end(status=status)
    [(is_durable, go_on)] = begun.told
    assert not is_durable and go_on is not None
    assert begun.free_channels == CHANNELS - 1, "nobody else may use its number meanwhile"
    assert await go_on()
    assert len(begun.nodes.called) == 2
    for _, again in begun.nodes.called:
        assert again.tag == first.tag
        assert again.chain_version == first.chain_version + 2 * is_moved
    assert begun.free_channels == CHANNELS


async def test_what_arrived_and_cannot_be_noted_is_asked_again(autojump_clock, begun, monkeypatch):
    """Else a sync would not know of it."""
    real, lacks = type(begun.store._writes)._noted, [MemoryError("injected")]

    def noted(self, *args):
        if lacks:
            raise lacks.pop()
        return real(self, *args)

    monkeypatch.setattr(type(begun.store._writes), "_noted", noted)
    assert begun.write()
    _, first, _ = begun.nodes.begun[0]
    begun.nodes.end(is_durable=False)
    [(is_durable, go_on)] = begun.told
    assert not is_durable and go_on is not None
    assert begun.free_channels == CHANNELS - 1
    assert await go_on()
    assert [again.tag for _, again in begun.nodes.called] == [first.tag]
    assert begun.free_channels == CHANNELS


async def test_what_cannot_be_done_fails_and_gives_its_channel_back(autojump_clock, begun):
    begun.write()
    begun.nodes.end(status=Status.NO_SPACE)
    with pytest.raises(FsError) as caught:
        await begun.told[0][1]()
    assert caught.value.status is Status.NO_SPACE
    assert begun.free_channels == CHANNELS
    assert not begun.nodes.called


async def test_the_time_counts_from_the_first_try(autojump_clock, begun):
    section, began_s = ClientSection(), trio.current_time()
    begun.write()
    await trio.sleep(2 * section.call_timeout_s)  # after more than a try takes it would be forgiven
    begun.nodes.end(status=Status.RPC_TIMEOUT)
    begun.nodes.outcomes = [Status.RPC_TIMEOUT] * 1000
    with pytest.raises(FsError) as caught:
        await begun.told[0][1]()
    assert caught.value.status is Status.RPC_TIMEOUT
    assert trio.current_time() - began_s < section.retry_time_s_max + section.call_timeout_s


async def test_given_up_in_the_middle_of_a_repeat_its_channel_is_free(autojump_clock, begun):
    begun.write()
    begun.nodes.end(status=Status.RPC_TIMEOUT)
    with trio.move_on_after(0):
        await begun.told[0][1]()
    assert begun.free_channels == CHANNELS
