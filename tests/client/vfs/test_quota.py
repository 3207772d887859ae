"""Writers below a quota, through two vfs over the real metadata service: EDQUOT from write itself, never too late."""

import os
from types import SimpleNamespace

import pytest
import trio

from fs.client.vfs.namespace import AttrChange
from fs.client.vfs.vfs import Vfs
from fs.runtime.ports import Runtime
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.common_pb2 import CallerPb
from fs.schema.status import FsError, Status
from tests.client.fakes import CHUNK, FakeClock, run_inline
from tests.meta.harness import CALL

from .conftest import ROOT, RW, RecordingKernel, small_section
from .unreliable import Service, snake

LIMIT = 10 * CHUNK


class ReliableMeta:
    """MetaCaller right at the service; counts calls by method."""

    def __init__(self, service, client_id):
        self._service, self.client_id = service, client_id
        self.counts = {}
        self._request_count = 0

    async def call(self, method, request, *, timeout_s=None):  # noqa: ARG002 - the port has it
        self._request_count += 1
        self.counts[method.name] = self.counts.get(method.name, 0) + 1
        holder = request if "caller" in request.DESCRIPTOR.fields_by_name else request.sync
        holder.caller.client_id = self.client_id
        holder.caller.request_id = self.client_id[:8].encode() + self._request_count.to_bytes(
            8, "big"
        )
        request = method.request_type.FromString(request.SerializeToString())
        return await getattr(self._service.meta.service, snake(method.name))(CALL, request)


@pytest.fixture
async def world(nursery, autojump_clock):  # noqa: ARG001 - time passes by itself
    service = Service(1)
    await nursery.start(service.run)
    service.engine.faults = None

    async def mount(letter):
        caller = ReliableMeta(service, letter * 32)
        runtime = Runtime(FakeClock(), None, run_inline, service.random)
        vfs = Vfs(caller, service.store(), runtime, small_section(), RecordingKernel())
        await nursery.start(vfs.run)
        return SimpleNamespace(vfs=vfs, meta=caller)

    first, second = await mount("a"), await mount("b")
    directory = (await first.vfs.namespace.mkdir(1, b"d", 0o755, ROOT)).inode_id

    async def limit(bytes_max):
        request = meta.SetQuotaReq(
            caller=CallerPb(request_id=os.urandom(16)),
            inode_id=directory,
            quota=meta.QuotaPb(bytes_max=bytes_max),
        )
        await service.meta.service.set_quota(CALL, request)

    async def used():
        caller = CallerPb()
        reply = await service.meta.service.get_usage(
            CALL, meta.GetUsageReq(caller=caller, inode_id=directory)
        )
        return reply.directory.usage.bytes

    made = SimpleNamespace(
        first=first, second=second, directory=directory, limit=limit, used=used, service=service
    )
    yield made
    nursery.cancel_scope.cancel()


async def create(mount, directory, name, flags=RW):
    opened, inode = await mount.vfs.files.create(directory, name, 0o644, flags | os.O_CREAT, ROOT)
    return opened.handle_id, inode.inode_id


async def over(awaitable):
    with pytest.raises(FsError) as caught:
        await awaitable
    assert caught.value.status is Status.QUOTA_EXCEEDED, caught.value


async def close(mount, handle_id):
    await mount.vfs.files.flush(handle_id)
    await mount.vfs.files.release(handle_id)


@pytest.mark.parametrize("flags", [RW, RW | os.O_APPEND])
async def test_write_itself_is_refused(world, flags):
    await world.limit(LIMIT)
    handle_id, _ = await create(world.first, world.directory, b"f", flags)
    files = world.first.vfs.files
    for i in range(10):
        await files.write(handle_id, i * CHUNK, bytes(CHUNK))
    await over(files.write(handle_id, LIMIT, b"x"))
    if flags == RW:
        await files.write(handle_id, 5, b"over what is there")
    await close(world.first, handle_id)
    assert await world.used() == LIMIT


async def test_a_write_that_does_not_wait_is_not_let_through_without_a_promise(world):
    await world.limit(LIMIT)
    handle_id, _ = await create(world.first, world.directory, b"f")
    files = world.first.vfs.files
    assert files.write_now(handle_id, 0, bytes(CHUNK)) is None
    await files.write(handle_id, 0, bytes(CHUNK))
    assert files.write_now(handle_id, 0, bytes(CHUNK)) == CHUNK
    await over(files.write(handle_id, LIMIT, b"x"))
    await close(world.first, handle_id)


async def test_two_mounts_share_a_limit(world):
    await world.limit(LIMIT)
    handles = []
    for mount, name in ((world.first, b"f"), (world.second, b"g")):
        handles.append((mount, (await create(mount, world.directory, name))[0]))
    written = 0
    for i in range(10):
        for mount, handle_id in handles:
            try:
                await mount.vfs.files.write(handle_id, i * CHUNK, bytes(CHUNK))
                written += CHUNK
            except FsError as error:
                assert error.status is Status.QUOTA_EXCEEDED  # noqa: PT017 - success is an outcome too
    for mount, handle_id in handles:
        await close(mount, handle_id)
    # What one was promised and did not use the other could not have meanwhile.
    assert LIMIT - 2 * CHUNK <= written <= LIMIT
    assert await world.used() == written


async def test_few_calls_while_there_is_room_and_none_without_a_quota(world):
    for bytes_max, most in ((0, 0), (10_000 * CHUNK, 8)):
        await world.limit(bytes_max)
        world.first.meta.counts.clear()
        handle_id, _ = await create(world.first, world.directory, b"f%d" % bytes_max)
        for i in range(64):
            await world.first.vfs.files.write(handle_id, i * CHUNK, bytes(CHUNK))
        await close(world.first, handle_id)
        assert world.first.meta.counts.get("ReserveSpace", 0) <= most
    assert await world.used() == 128 * CHUNK


async def test_a_limit_set_while_a_file_is_open(world):
    files = world.first.vfs.files
    handle_id, inode_id = await create(world.first, world.directory, b"f")
    await files.write(handle_id, 0, bytes(CHUNK))
    await files.fsync(handle_id, is_data_only=False)
    await world.limit(3 * CHUNK)
    await files.write(handle_id, CHUNK, bytes(4 * CHUNK))
    await over(files.fsync(handle_id, is_data_only=False))
    await over(files.write(handle_id, 5 * CHUNK, b"x"))
    await over(files.flush(handle_id))
    await over(files.release(handle_id))
    await trio.sleep(30)  # nothing is reported again and again
    assert inode_id not in world.first.vfs._core.states
    assert await world.used() == CHUNK
    assert (await world.second.vfs.namespace.getattr(inode_id, ROOT)).length == CHUNK


async def test_truncating_gives_room_back_and_growing_takes_it(world):
    await world.limit(LIMIT)
    names = world.first.vfs.namespace
    handle_id, inode_id = await create(world.first, world.directory, b"f")
    await over(names.setattr(inode_id, AttrChange(length=LIMIT + 1), handle_id, ROOT))
    await names.setattr(inode_id, AttrChange(length=LIMIT), handle_id, ROOT)
    other, _ = await create(world.second, world.directory, b"g")
    await over(world.second.vfs.files.write(other, 0, b"x"))
    await names.setattr(inode_id, AttrChange(length=0), handle_id, ROOT)
    await world.second.vfs.files.write(other, 0, b"x")
    await close(world.second, other)
    await close(world.first, handle_id)
    assert await world.used() == 1


async def test_statfs_shows_the_narrowest_quota(world):
    await world.limit(500)
    found = await world.first.vfs.statfs_at(world.directory, ROOT)
    whole = await world.first.vfs.statfs(ROOT)
    assert (found.capacity_bytes, found.free_bytes) == (500, min(500, whole.free_bytes))
    at_root = await world.first.vfs.statfs_at(1, ROOT)
    assert (at_root.capacity_bytes, at_root.free_inodes) == (
        whole.capacity_bytes,
        whole.free_inodes,
    )
