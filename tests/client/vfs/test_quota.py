# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Writers below a quota, through two vfs over the real metadata service:
EDQUOT from write itself, never too late.
"""

import os
from types import SimpleNamespace

import pytest
import trio

from fs.client.native import EmberFs, Identity
from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.vfs import Vfs
from fs.runtime.ports import Runtime
from fs.schema.layout import FileRef
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.common_pb2 import CallerPb
from fs.schema.services import META_CLOSE, META_GET_ATTR, META_SYNC
from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK
from tests.client.fakes import FakeClock, run_inline
from tests.meta.harness import CALL

from .conftest import ROOT, RW, RecordingKernel, small_section
from .unreliable import Service, snake

pytestmark = pytest.mark.thorough

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
        return await self.repeat(method, request)

    async def repeat(self, method, request):
        """Send a request of an earlier call again, as when its reply was lost."""
        request = method.request_type.FromString(request.SerializeToString())
        return await getattr(self._service.meta.service, snake(method.name))(CALL, request)


@pytest.fixture
async def world(nursery):
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

    async def native(letter):
        caller = ReliableMeta(service, letter * 32)
        runtime = Runtime(FakeClock(), None, run_inline, service.random)
        return EmberFs(caller, service.store(), runtime=runtime, identity=Identity(0, 0))

    made = SimpleNamespace(
        native=native,
        first=first,
        second=second,
        directory=directory,
        limit=limit,
        used=used,
        service=service,
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


@pytest.mark.parametrize("exchange", [False, True])
@pytest.mark.parametrize("size", [1, CHUNK, LIMIT + CHUNK])
async def test_what_is_moved_below_a_quota_while_it_is_written_is_judged_as_it_is(
    world, size, exchange
):
    """Its bytes, which meta had not heard of, were dropped at the close."""
    await world.limit(LIMIT)
    vfs = world.first.vfs
    handle_id, inode_id = await create(world.first, 1, b"f")
    vfs.namespace.remember_dentry(1, b"f", inode_id)  # as who asks in the name of the kernel
    other, _ = await create(world.first, world.directory, b"g")
    await vfs.files.write(handle_id, 0, bytes(size))
    move = vfs.namespace.rename((1, b"f"), (world.directory, b"g"), ROOT, exchange=exchange)
    if size > LIMIT:
        await over(move)
    else:
        await move
    await close(world.first, handle_id)
    await close(world.first, other)
    assert await world.used() == (size if size <= LIMIT else 0)
    place = (1, b"f") if size > LIMIT else (world.directory, b"g")
    assert (await vfs.namespace.lookup(*place, ROOT)).file.length == size


async def test_two_mounts_share_a_limit(world):
    await world.limit(LIMIT)
    handles = []
    for mount, name in ((world.first, b"f"), (world.second, b"g")):
        handles.append((mount, (await create(mount, world.directory, name))[0]))
    written = 0
    for i in range(10):
        for mount, handle_id in handles:
            try:
                written += await mount.vfs.files.write(handle_id, i * CHUNK, bytes(CHUNK))
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


async def test_a_limit_set_while_a_file_is_open(world, autojump_clock):
    files = world.first.vfs.files
    handle_id, inode_id = await create(world.first, world.directory, b"f")
    await files.write(handle_id, 0, bytes(CHUNK))
    await files.fsync(handle_id, is_data_only=False)
    await world.limit(3 * CHUNK)
    await files.write(handle_id, CHUNK, bytes(4 * CHUNK))
    await over(files.fsync(handle_id, is_data_only=False))
    assert await length_seen(world.first, inode_id) == CHUNK
    await over(files.write(handle_id, 5 * CHUNK, b"x"))
    await close(world.first, handle_id)
    assert inode_id not in world.first.vfs._core.states
    world.first.meta.counts.clear()
    await trio.sleep(30)
    assert "Sync" not in world.first.meta.counts, "reported again and again"
    assert await world.used() == CHUNK
    assert await length_seen(world.second, inode_id) == CHUNK
    assert await chunk_bytes(world, inode_id) == CHUNK


async def length_seen(mount, inode_id):
    return (await mount.vfs.namespace.getattr(inode_id, ROOT)).length


async def chunk_bytes(world, inode_id):
    """Where the chunks end, whatever meta says."""
    inode = (await world.second.vfs.namespace.getattr(inode_id, ROOT)).file
    found, _ = await world.service.chunks.file_length(FileRef(inode_id, inode.layout, 4))
    return found


async def write_unaware(world, count):
    """A file of one chunk, reported, and `count` more chunks beyond a limit of 3 that came
    after it was opened.
    """
    files = world.first.vfs.files
    handle_id, inode_id = await create(world.first, world.directory, b"f")
    await files.write(handle_id, 0, b"a" * CHUNK)
    await files.fsync(handle_id, is_data_only=False)
    await world.limit(3 * CHUNK)
    await files.write(handle_id, CHUNK, bytes(count * CHUNK))
    return handle_id, inode_id


async def test_what_close_refuses_is_gone_when_close_returns(world):
    """The kernel ends the open file later: by then somebody may have looked."""
    handle_id, inode_id = await write_unaware(world, 4)
    await over(world.first.vfs.files.flush(handle_id))
    assert await length_seen(world.first, inode_id) == CHUNK
    assert await chunk_bytes(world, inode_id) == CHUNK
    await world.first.vfs.files.release(handle_id)
    assert await world.used() == CHUNK


async def test_what_the_background_finds_refused_every_open_file_is_told_once(
    world, autojump_clock
):
    handle_id, inode_id = await write_unaware(world, 4)
    other = await world.first.vfs.files.open(inode_id, RW, ROOT)
    await trio.sleep(world.first.vfs.section.write_back_interval_s + 1)
    assert await length_seen(world.first, inode_id) == CHUNK
    files = world.first.vfs.files
    for told in (handle_id, other.handle_id):
        await over(files.write(told, 0, b"x"))
        assert await files.write(told, 0, b"b") == 1
        await close(world.first, told)
    assert await world.used() == CHUNK
    await trio.sleep(30)  # two had it open, so cutting is left to whoever comes by
    assert await chunk_bytes(world, inode_id) == CHUNK
    reader = await world.second.vfs.files.open(inode_id, os.O_RDONLY, ROOT)
    assert bytes(await world.second.vfs.files.read(reader.handle_id, 0, 3)) == b"baa"


class SlowKernel(RecordingKernel):
    """A kernel that takes its time to forget attributes."""

    def __init__(self):
        super().__init__()
        self.asked, self.may_forget = trio.Event(), trio.Event()

    async def invalidate_attributes(self, inode_id):
        self.asked.set()
        await self.may_forget.wait()
        await super().invalidate_attributes(inode_id)


@pytest.mark.parametrize("is_durable", [True, False])
async def test_nobody_is_told_of_a_refusal_before_the_kernel_has_forgotten_its_bytes(
    world, nursery, autojump_clock, is_durable
):
    """The program looks at the file as soon as its close, or a write, was refused."""
    vfs, kernel = world.first.vfs, SlowKernel()
    vfs.connect_kernel(kernel)
    vfs.adopt(small_section(durable_close=is_durable))
    handle_id, inode_id = await write_unaware(world, 4)
    assert await length_seen(world.first, inode_id) == 5 * CHUNK
    await kernel.asked.wait()  # the background has reported, and was refused
    assert await length_seen(world.first, inode_id) == CHUNK
    told = []

    async def close_it():
        await over(vfs.files.flush(handle_id))
        told.append(list(kernel.attributes))

    nursery.start_soon(close_it)
    await trio.sleep(1)
    assert told == [], "told while the kernel still shows what was refused"
    kernel.may_forget.set()
    await trio.sleep(1)
    assert told == [[inode_id]]
    await vfs.files.release(handle_id)


async def test_what_fits_after_a_refusal_is_kept_and_zeros_lie_before_it(world):
    """Nothing of what was refused shows in the hole that a later write leaves."""
    files = world.first.vfs.files
    handle_id, inode_id = await create(world.first, world.directory, b"f")
    await world.limit(0)
    await files.write(handle_id, 0, b"refused" * CHUNK)
    await world.limit(3 * CHUNK)
    await over(files.fsync(handle_id, is_data_only=False))
    assert await files.write(handle_id, 2 * CHUNK, b"kept") == 4
    await close(world.first, handle_id)
    reader = await world.second.vfs.files.open(inode_id, os.O_RDONLY, ROOT)
    found = bytes(await world.second.vfs.files.read(reader.handle_id, 0, 9 * CHUNK))
    assert found == bytes(2 * CHUNK) + b"kept"


async def test_what_arrived_while_a_refusal_was_on_its_way_shows_in_no_hole(world):
    """It came after what was refused had been cut, and meta knows nothing of it."""
    files, caller = world.first.vfs.files, world.first.meta
    handle_id, inode_id = await write_unaware(world, 4)
    state, real_call = files.handle(handle_id).state, caller.call

    async def call(method, request, **how):
        if method is META_GET_ATTR and state.acked_seq == seq:
            world.first.vfs._core.buffer_bytes(state, 5 * CHUNK, b"late")
            world.first.vfs._core.budget.try_acquire(4)
            await world.first.vfs._core.drain(state)
        return await real_call(method, request, **how)

    await world.first.vfs._core.drain(state)
    seq, caller.call = state.acked_seq, call
    await over(files.fsync(handle_id, is_data_only=False))
    assert state.acked_seq > seq
    await over(files.fsync(handle_id, is_data_only=False))  # the chains tell of it: refused as well
    await world.limit(9 * CHUNK)
    assert await files.write(handle_id, 6 * CHUNK, b"kept") == 4
    await close(world.first, handle_id)
    reader = await world.second.vfs.files.open(inode_id, os.O_RDONLY, ROOT)
    found = bytes(await world.second.vfs.files.read(reader.handle_id, CHUNK, 9 * CHUNK))
    assert found == bytes(5 * CHUNK) + b"kept"


async def test_what_is_refused_while_another_mount_writes_is_cut_after_it(world, autojump_clock):
    """The other one was promised its bytes: they stay."""
    handle_id, inode_id = await write_unaware(world, 4)
    other = await world.second.vfs.files.open(inode_id, RW, ROOT)
    assert await world.second.vfs.files.write(other.handle_id, CHUNK, b"o" * 100) == 100
    await over(world.first.vfs.files.fsync(handle_id, is_data_only=False))
    await close(world.first, handle_id)
    await close(world.second, other.handle_id)
    assert await length_seen(world.first, inode_id) == CHUNK + 100 == await world.used()
    await world.service.meta.gc.step()
    await trio.sleep(30)  # the truncation is left to whoever comes by
    assert await chunk_bytes(world, inode_id) == CHUNK + 100


@pytest.mark.parametrize("method", [META_SYNC, META_CLOSE])
async def test_a_refusal_whose_reply_was_lost_is_a_refusal_again(world, method):
    """Its bytes are cut by then, and what is left would be fine."""
    handle_id, inode_id = await write_unaware(world, 4)
    core = world.first.vfs._core
    state = core.states[inode_id]
    await core.drain(state)
    request = core.sync_request(state)
    if method is META_CLOSE:
        session_id = str(state.handles[handle_id].file_session.session_id)
        request = meta.CloseReq(sync=request, session_id=session_id)
    await over(world.first.meta.call(method, request))
    await over(world.first.meta.repeat(method, request))
    assert await chunk_bytes(world, inode_id) == CHUNK
    await world.first.vfs.files.release(handle_id)


@pytest.mark.parametrize("flags", [RW, RW | os.O_APPEND])
async def test_a_write_that_fits_in_part_is_done_in_part(world, flags):
    """As on a full disk: what there is room for, exactly, then the error."""
    await world.limit(LIMIT + 7)
    handle_id, inode_id = await create(world.first, world.directory, b"f", flags)
    files = world.first.vfs.files
    assert await files.write(handle_id, 0, bytes(9 * CHUNK)) == 9 * CHUNK
    assert await files.write(handle_id, 9 * CHUNK, bytes(3 * CHUNK)) == CHUNK + 7
    await over(files.write(handle_id, LIMIT + 7, b"x"))
    await close(world.first, handle_id)
    assert await length_seen(world.second, inode_id) == LIMIT + 7 == await world.used()


@pytest.mark.parametrize("count", [0, 1])
async def test_usage_is_exact_when_close_returns(world, count):
    """Also before the kernel has ended the open file, which may be any time later."""
    await world.limit(10_000 * CHUNK)
    handle_id, _ = await create(world.first, world.directory, b"f")
    files = world.first.vfs.files
    if count:
        await files.write(handle_id, 0, bytes(count * CHUNK))
        await files.fsync(handle_id, is_data_only=False)
    assert await world.used() > count * CHUNK
    await files.flush(handle_id)
    assert await world.used() == count * CHUNK
    # A duplicate of the descriptor may go on, and asks again.
    await files.write(handle_id, count * CHUNK, bytes(CHUNK))
    await close(world.first, handle_id)
    assert await world.used() == (count + 1) * CHUNK


async def test_a_promise_that_somebody_else_may_be_using_stays(world):
    await world.limit(10_000 * CHUNK)
    handle_id, inode_id = await create(world.first, world.directory, b"f")
    other = await world.second.vfs.files.open(inode_id, RW, ROOT)
    await world.second.vfs.files.write(other.handle_id, 0, bytes(5 * CHUNK))
    await world.first.vfs.files.flush(handle_id)
    assert await world.used() >= 5 * CHUNK
    await close(world.second, other.handle_id)
    await close(world.first, handle_id)
    assert await world.used() == 5 * CHUNK


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


async def test_the_native_client_drops_what_is_refused_and_goes_on(world):
    client = await world.native("n")
    file = await client.create("/d/f")
    await file.write(0, b"a" * CHUNK)
    await file.fsync()
    await world.limit(3 * CHUNK)
    await file.write(CHUNK, bytes(4 * CHUNK))
    await over(file.fsync())
    assert file.length == CHUNK
    await over(file.write(CHUNK, bytes(3 * CHUNK)))
    await file.write(CHUNK, b"b" * CHUNK)
    await file.close()
    assert await client.read_file("/d/f") == b"a" * CHUNK + b"b" * CHUNK
    assert await world.used() == 2 * CHUNK
