# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Inline files where there is no room, in the metadata store, in storage or below a quota:
told once, by write or close, and nothing stays charged.
"""

import os
from types import SimpleNamespace

import pytest

from fs.client.vfs.vfs import Vfs
from fs.runtime.ports import Runtime
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.common_pb2 import CallerPb
from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK
from tests.client.fakes import BeginsAll, FakeClock, run_inline
from tests.meta.harness import CALL

from .conftest import ROOT, RW, RecordingKernel, fault, small_section
from .test_inline import InlineCluster, close, flush, fsync, make, read, write
from .test_quota import ReliableMeta
from .unreliable import Service

FULL = Status.NO_SPACE
LIMIT = 100


@pytest.fixture(params=[True, False], ids=["begun", "by tasks"])
def cluster(request, autojump_clock):
    return InlineCluster(begins=request.param)


async def refused(awaitable, status):
    with pytest.raises(FsError) as e:
        await awaitable
    assert e.value.status is status


# -- full ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [close, fsync])
@pytest.mark.parametrize("who", ["metadata", "storage"])
async def test_a_full_store_is_told_once(autojump_clock, mounts, cluster, who, ends):
    async with mounts() as m:
        h = await m.create(b"f", RW)
        other = (await m.open(b"f", RW)).handle_id
        await write(m, h, 0, b"small")
        if who == "metadata":
            cluster.meta_faults["Sync"] = [fault(FULL)]
            cluster.is_gone = True  # asked again it says the same
        else:
            cluster.inline.bytes_max = 0  # as when the share of the metadata store is full
            cluster.chunks.write_faults = [fault(FULL)]
        await refused(ends(m, h), FULL)
        cluster.is_gone = False
        assert not m.vfs._core.budget.used_bytes and not m.vfs._core.budget.kept_bytes
        if ends is fsync:
            await fsync(m, h)
            await close(m, h)
        await refused(flush(m, other), FULL)
        await close(m, other)
        assert await read(m, b"f") == b""
        cluster.inline.bytes_max = 100
        await make(m, b"f", b"anew")
        assert await read(m, b"f") == b"anew"


async def test_what_the_metadata_store_has_no_room_for_goes_to_storage(
    autojump_clock, mounts, cluster
):
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, b"small")
        cluster.inline.bytes_max = 0
        await fsync(m, h)
        assert cluster.inline.refused_count == 1 and cluster.stored == 5
        await write(m, h, 5, b" and more")
        await close(m, h)
        assert cluster.inline.refused_count == 1 and await read(m, b"f") == b"small and more"


async def test_while_space_is_tight_write_itself_is_refused(autojump_clock, mounts, cluster):
    async with mounts() as m:
        m.vfs._core.space.note_full(m.vfs._core.now_s())
        h = await m.create(b"f", RW)
        cluster.chunks.write_faults = [fault(FULL)]
        await refused(m.files.write(h, 0, b"small"), FULL)
        await close(m, h)
        assert not m.vfs._core.budget.used_bytes
        assert await read(m, b"f") == b""


async def test_a_file_that_grows_beyond_inline_in_a_full_store_keeps_its_bytes(
    autojump_clock, mounts, cluster
):
    async with mounts(2) as (m, other):
        await make(m, b"f", b"small")
        h = (await m.open(b"f", RW)).handle_id
        await write(m, h, 5, bytes(10 * CHUNK))
        cluster.meta_faults["ExtendStripe"] = [fault(FULL)] * 20  # there is no room to move to
        await refused(close(m, h), FULL)
        cluster.meta_faults.clear()
        assert not m.vfs._core.budget.used_bytes
        for who in (m, other):
            assert await read(who, b"f") == b"small"


# -- below a quota, as the real metadata service counts it -----------------------------------------


class BeginningMeta(BeginsAll, ReliableMeta):
    """Begins changes, too."""

    async def _serve(self, method, request, on_end):
        try:
            reply = await self.call(method, request)
        except FsError as error:
            on_end(None, error)
        else:
            on_end(reply, None)

    async def call_again(self, method, request, error, began_s):  # noqa: ARG002 - the port has it
        if error.status is Status.QUOTA_EXCEEDED:
            raise error
        return await self.repeat(method, request)


@pytest.fixture(params=[True, False], ids=["begun", "by tasks"])
async def world(nursery, request):
    service = Service(1, inline_bytes_max=CHUNK)
    await nursery.start(service.run)
    service.engine.faults = None
    caller = (BeginningMeta if request.param else ReliableMeta)(service, "c" * 32)
    runtime = Runtime(FakeClock(), None, run_inline, service.random)
    vfs = Vfs(caller, service.store(), runtime, small_section(), RecordingKernel())
    await nursery.start(vfs.run)
    directory = (await vfs.namespace.mkdir(1, b"d", 0o755, ROOT)).inode_id

    async def limit(bytes_max):
        asked = CallerPb(request_id=os.urandom(16))
        quota = meta.QuotaPb(bytes_max=bytes_max)
        request = meta.SetQuotaReq(caller=asked, inode_id=directory, quota=quota)
        await service.meta.service.set_quota(CALL, request)

    async def used():
        asked = meta.GetUsageReq(caller=CallerPb(), inode_id=directory)
        return (await service.meta.service.get_usage(CALL, asked)).directory.usage.bytes

    async def is_inline(inode_id):
        asked = meta.GetAttrReq(caller=CallerPb(), inode_id=inode_id, takes_inline=True)
        return (await service.meta.service.get_attr(CALL, asked)).inode.file.is_inline

    async def create(name):
        opened, inode = await vfs.files.create(directory, name, 0o644, RW | os.O_CREAT, ROOT)
        return opened.handle_id, inode.inode_id

    yield SimpleNamespace(
        vfs=vfs, files=vfs.files, limit=limit, used=used, is_inline=is_inline, create=create
    )
    assert not vfs._core.budget.used_bytes
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("ends", [close, fsync])
async def test_a_limit_that_comes_while_a_file_is_open(world, ends):
    """There was none at the open: the close tells, once, and what was there before stays."""
    h, inode_id = await world.create(b"f")
    other = (await world.files.open(inode_id, RW, ROOT)).handle_id
    await write(world, h, 0, b"a" * 60)
    await fsync(world, h)
    assert await world.is_inline(inode_id) and await world.used() == 60
    await world.limit(LIMIT)
    await write(world, h, 60, b"b" * 60)
    await refused(ends(world, h), Status.QUOTA_EXCEEDED)
    assert await world.used() == 60
    if ends is fsync:
        await close(world, h)
    await refused(flush(world, other), Status.QUOTA_EXCEEDED)
    assert bytes(await world.files.read(other, 0, 1000)) == b"a" * 60
    assert await world.files.write(other, 60, b"b" * 60) == 40, "what fits is promised from now on"
    await refused(world.files.write(other, 100, b"b"), Status.QUOTA_EXCEEDED)
    await close(world, other)
    assert await world.used() == LIMIT and inode_id not in world.vfs._core.states


async def test_what_fits_below_a_limit_is_counted(world):
    await world.limit(LIMIT)
    h, inode_id = await world.create(b"f")
    assert await world.files.write(h, 0, b"a" * 150) == LIMIT, "as much as fits"
    await refused(world.files.write(h, LIMIT, b"a"), Status.QUOTA_EXCEEDED)
    await close(world, h)
    assert await world.used() == LIMIT
    await world.limit(0)
    h = (await world.files.open(inode_id, RW | os.O_TRUNC, ROOT)).handle_id
    await write(world, h, 0, b"c" * 10)
    await close(world, h)
    assert await world.is_inline(inode_id) and await world.used() == 10
