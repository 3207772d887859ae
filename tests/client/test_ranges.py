# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Several ranges of a chunk written by one update;
by several, where its head is of a release that knows no ranges.
"""

import random
from dataclasses import replace

import pytest
import trio
import xxhash

from fs.client.storage_client import StorageClient
from fs.rpc.api import Received
from fs.runtime.ports import Runtime
from fs.schema import services
from fs.schema.config import ClientSection
from fs.schema.ids import NodeId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import FsError, Status

from .fakes import FakeClock, run_inline
from .test_routing_math import CHUNK, THREE, ref
from .test_unsynced import Routing

RANGES = [(CHUNK + 10, [b"abc", b"de"]), (CHUNK + 20, [b"f"]), (2 * CHUNK - 2, [b"gh"])]


class Nodes:
    """Answers as a test says."""

    def __init__(self):
        self.calls = []
        self.outcomes = []
        self.is_old = False

    async def call(self, node_id, method, request, *, payload):
        sent = pb.UpdateReq.FromString(request.SerializeToString())
        self.calls.append((node_id, method.name, sent, b"".join(payload)))
        if self.is_old and method is services.STORAGE_WRITE_RANGES:
            raise FsError(Status.RPC_UNKNOWN_METHOD, "service 3 method 19")
        if self.outcomes:
            raise FsError(self.outcomes.pop(0), "as the test wants it")
        return Received(pb.UpdateRsp(is_durable=request.is_durable))

    def names(self):
        return [name for _, name, _, _ in self.calls]


@pytest.fixture
def nodes():
    return Nodes()


@pytest.fixture
def store(nodes):
    runtime = Runtime(FakeClock(), None, run_inline, random.Random(1))
    made = StorageClient(
        "c",
        channels=None,
        routing=Routing(THREE),
        mgmtd=None,
        runtime=runtime,
        section=ClientSection(),
    )
    made._writes._nodes = made._writes._groups._nodes = nodes
    return made


async def test_they_are_one_update_of_their_chunk(autojump_clock, store, nodes):
    assert not await store.write_ranges(ref(), RANGES)
    ((node_id, name, request, data),) = nodes.calls
    assert (name, data) == ("WriteRanges", b"abcdefgh")
    assert node_id == THREE.target(THREE.chain(request.chain_id).serving[0]).node_id
    assert (request.chunk_index, request.chunk_size_bytes) == (1, CHUNK)
    assert (request.offset, request.length) == (10, CHUNK - 10)
    assert list(request.range_offsets) == [10, 20, CHUNK - 2]
    assert list(request.range_lengths) == [5, 1, 2]
    assert request.payload_checksum == xxhash.xxh3_64_intdigest(data)
    assert request.tag.client_id == "c"
    assert len(store._unsynced) == 1


async def test_durable_ones_need_no_sync(autojump_clock, store, nodes):
    assert await store.write_ranges(ref(), RANGES, is_durable=True)
    assert nodes.calls[0][2].is_durable
    assert len(store._unsynced) == 0


async def test_they_are_tried_again_as_the_same_update(autojump_clock, store, nodes):
    nodes.outcomes = [Status.RPC_CONNECTION_LOST, Status.ROUTING_MISMATCH]
    await store.write_ranges(ref(), RANGES)
    assert nodes.names() == ["WriteRanges"] * 3
    assert len({call[2].tag.request_id for call in nodes.calls}) == 1


async def test_a_final_error_is_told(autojump_clock, store, nodes):
    nodes.outcomes = [Status.NO_SPACE]
    with pytest.raises(FsError) as caught:
        await store.write_ranges(ref(), RANGES)
    assert caught.value.status is Status.NO_SPACE
    assert nodes.names() == ["WriteRanges"]


async def test_a_head_of_an_older_release_gets_one_after_the_other(autojump_clock, store, nodes):
    nodes.is_old = True
    for _ in range(2):
        await store.write_ranges(ref(), RANGES)
    assert nodes.names() == ["WriteRanges", *["Write"] * 6]
    written = [(request.offset, data) for _, _, request, data in nodes.calls[1:4]]
    assert written == [(10, b"abcde"), (20, b"f"), (CHUNK - 2, b"gh")]
    assert not any(request.range_offsets for _, _, request, _ in nodes.calls[1:])
    info, nodes.is_old = store._writes._routing.info, False
    restarted = {n: replace(node, incarnation="new") for n, node in info.nodes.items()}
    store._writes._routing.info = replace(info, nodes=restarted)
    await store.write_ranges(ref(), RANGES)
    assert nodes.names()[7:] == ["WriteRanges"]


async def test_a_chain_without_a_head_is_waited_for(autojump_clock, store, nodes):
    writes, routing = store._writes, store._writes._routing
    writes._without_ranges.add((NodeId(99), "old"))
    routing.info = replace(THREE, targets={})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.write_ranges, ref(), RANGES)
        await trio.sleep(0.01)
        assert not nodes.calls
        routing.newest = THREE
    assert nodes.names() == ["WriteRanges"]


async def test_a_single_one_is_a_plain_write(autojump_clock, store, nodes):
    await store.write_ranges(ref(), RANGES[:1])
    assert nodes.names() == ["Write"]
