# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""The bytes of a write are free at its end, however it ends; without the garbage collector, which comes late."""

import gc
import weakref
from contextlib import suppress

import pytest
import trio
import trio.testing

from fs.client.vfs.batches import NO_FILE, BatchIo
from fs.schema.status import FsError, Status

from .test_begun_writes import begun  # noqa: F401 - a fixture
from .test_routing_math import CHUNK, ref
from .vfs.conftest import autojump_clock, cluster, mounts  # noqa: F401 - fixtures

TRANSIENT = [Status.RPC_CONNECTION_LOST, Status.ROUTING_MISMATCH]


class Bytes(bytearray):
    """That can be referred to weakly."""


@pytest.fixture
def no_collector():
    gc.collect()
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
