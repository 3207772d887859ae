# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""The bytes of a write or a read are free at its end, however it ends;
without the garbage collector, which comes late.
"""

import gc
import weakref
from contextlib import suppress

import pytest
import trio
import trio.testing

from fs.client.file_read import FileRead
from fs.client.storage_reads import StorageReads
from fs.client.vfs.batches import NO_FILE, BatchIo
from fs.client.vfs.open_file import FetchedBlock
from fs.runtime.simulated import simulated_runtime
from fs.schema.config import ClientSection
from fs.schema.status import FsError, Status

from .test_begun_writes import begun  # noqa: F401 - a fixture
from .test_read_table import FILES, Nodes, Routing
from .test_routing_math import CHUNK, ref
from .vfs.conftest import autojump_clock, cluster, inline_bytes_max, mounts  # noqa: F401 - fixtures

TRANSIENT = [Status.RPC_CONNECTION_LOST, Status.ROUTING_MISMATCH]


class Bytes(bytearray):
    """That can be referred to weakly."""


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()


async def write(begun, count, offset=0):  # noqa: F811
    """Write, and return a weak reference to the bytes, and the status of the failure or None."""
    data = Bytes(count)
    found = weakref.ref(data)
    try:
        await begun.store.write(ref(), offset, data)
    except FsError as error:
        return found, error.status
    return found, None


@pytest.mark.parametrize("count", [100, CHUNK, 3 * CHUNK])
@pytest.mark.parametrize(
    "outcomes", [[], TRANSIENT, [Status.NO_SPACE], [*TRANSIENT, Status.NO_SPACE]]
)
async def test_the_bytes_of_a_write_are_free_at_its_end(
    autojump_clock, no_collector, begun, count, outcomes  # noqa: F811
):  # fmt: skip
    begun.store._writes._groups._nodes = begun.nodes
    begun.nodes.outcomes = list(outcomes)
    found, status = await write(begun, count)
    assert status is (Status.NO_SPACE if Status.NO_SPACE in outcomes else None)
    await trio.lowlevel.checkpoint()
    assert found() is None


@pytest.mark.parametrize("way", ["buffered", "unbuffered", "batch"])
async def test_a_mount_keeps_no_bytes_of_a_write_that_failed(
    autojump_clock, no_collector, mounts, cluster, way  # noqa: F811
):  # fmt: skip
    async with mounts() as m:
        h = await m.create(b"f")
        cluster.chunks.write_faults.append(FsError(Status.NO_SPACE, "as the test wants it"))
        data = Bytes(CHUNK)
        found = weakref.ref(data)
        if way == "batch":
            io = BatchIo(NO_FILE, 0, memoryview(data), 0, h)
            await m.vfs.batches.write([io])
            assert io.error.status is Status.NO_SPACE
            del io
        else:
            write = m.files.write if way == "buffered" else m.files.write_unbuffered
            with suppress(FsError):
                await write(h, 0, memoryview(data))
                await m.files.fsync(h, is_data_only=False)
                pytest.fail("it has not failed")
        del data
        await trio.testing.wait_all_tasks_blocked()
        assert found() is None
        with suppress(FsError):
            await m.close(h)


class FailingNodes(Nodes):
    """Fail with these first; an answer is a reply."""

    def __init__(self, outcomes):
        super().__init__()
        self.outcomes = list(outcomes)

    async def call(self, node_id, method, request, **options):
        if self.outcomes:
            raise FsError(self.outcomes.pop(0), "as the test wants it")
        return await super().call(node_id, method, request, **options)


@pytest.mark.parametrize("count", [100, 3 * CHUNK])
@pytest.mark.parametrize(
    "outcomes", [[], TRANSIENT, [Status.CHUNK_DAMAGED], [*TRANSIENT, *[Status.CHUNK_DAMAGED] * 9]]
)
async def test_the_bytes_of_a_read_are_free_at_its_end(
    autojump_clock, no_collector, count, outcomes  # noqa: F811
):  # fmt: skip
    runtime, section = simulated_runtime(None, 1), ClientSection()
    client = StorageReads(
        FailingNodes(outcomes), routing=Routing(), runtime=runtime, section=section
    )
    data = Bytes(count)
    found = weakref.ref(data)
    status = None
    try:
        await client.read([FileRead(next(iter(FILES.values())), 0, memoryview(data))])
    except FsError as error:
        status = error.status
    assert status is (Status.CHUNK_DAMAGED if Status.CHUNK_DAMAGED in outcomes else None)
    del data
    await trio.lowlevel.checkpoint()
    assert found() is None


@pytest.mark.parametrize("count", [1, 2])
async def test_a_mount_keeps_no_bytes_of_a_ring_read_that_failed(
    autojump_clock, no_collector, mounts, cluster, count  # noqa: F811
):  # fmt: skip
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, bytes(CHUNK))
        await m.files.fsync(h, is_data_only=False)

        async def read(reads, **_options):
            raise FsError(Status.CHUNK_DAMAGED, f"{len(reads)} as the test wants it")

        cluster.chunks.read = read
        data = [Bytes(CHUNK) for _ in range(count)]
        found = [weakref.ref(one) for one in data]
        ios = [BatchIo(NO_FILE, 0, memoryview(one), handle_id=h) for one in data]
        await m.vfs.batches.read(ios)
        assert {io.error.status for io in ios} == {Status.CHUNK_DAMAGED}
        del ios, data
        await trio.testing.wait_all_tasks_blocked()
        assert [one() for one in found] == [None] * count
        await m.close(h)


def fetched_blocks():
    """Return those of all mounts of the process; earlier tests may have left some."""
    return [one for one in gc.get_objects() if type(one) is FetchedBlock]


async def test_what_could_not_be_read_ahead_is_free_with_its_file(
    autojump_clock, no_collector, mounts, cluster  # noqa: F811
):  # fmt: skip
    others = fetched_blocks()
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, bytes(8 * CHUNK))
        await m.files.fsync(h, is_data_only=False)
        real = cluster.chunks.read

        async def read(reads, **options):
            if len(reads[0].buffer) != 4096:
                raise FsError(Status.CHUNK_DAMAGED, "as the test wants it")
            await real(reads, **options)

        cluster.chunks.read = read
        for offset in range(0, 2 * CHUNK, 4096):
            await m.files.read(h, offset, 4096)
        await trio.testing.wait_all_tasks_blocked()
        ahead = m.files.handle(h).readahead
        assert any(block.content.error is not None for block in ahead.blocks)
        del ahead
        await m.close(h)
        await trio.testing.wait_all_tasks_blocked()
        assert len(fetched_blocks()) == len(others)
