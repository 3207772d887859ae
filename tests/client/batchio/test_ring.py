# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""A ring over the model of a cluster, seen from the program's end."""

import ctypes
import errno
import fcntl
import os

import pytest
import trio
import trio.lowlevel
from emberfs.protocol import ENTRY, EntryFlag, Op

from fs.client.batchio import jobs as jobs_module
from fs.client.batchio import ring as ring_module
from fs.client.batchio.checks import Share
from fs.client.batchio.jobs import COPIED_BYTES_MAX
from fs.client.batchio.memory import is_memory_file, shared_memory
from fs.client.vfs import batches as batches_module
from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.ports import Caller
from fs.runtime import readiness
from fs.schema.status import FsError, Status

from .conftest import ENTRY_COUNT
from .fuzz import CONTENT, random_rings


def address(view):
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


async def test_reads_and_writes(autojump_clock, program):
    async with program() as it:
        it.memory.view[: len(CONTENT)] = CONTENT
        half = len(CONTENT) // 2
        assert await it.do(
            {"op": Op.WRITE, "length": half},
            {"op": Op.WRITE, "offset": half, "place": half, "length": half},
        ) == [half, half]
        assert await it.do(
            {"place": 500_000, "offset": 100, "length": 200_000},
            {"place": 800_000, "offset": len(CONTENT) - 5, "length": 10},
            {"place": 900_000, "offset": len(CONTENT), "length": 10},
            {"length": 0},
        ) == [200_000, 5, 0, 0]
        assert it.memory.view[500_000:700_000] == CONTENT[100:200_100]
        assert it.mount.vfs.batches.length(it.files[1].handle_id) == len(CONTENT)
        assert it.mount.kernel.content  # it was told that its pages are old


async def test_bytes_go_straight_into_and_out_of_the_programs_memory(autojump_clock, program):
    """Nothing lies between: what storage fills and sends is the program's memory itself."""
    seen = []
    async with program(CONTENT) as it:
        store, start = it.mount.vfs._core.store, address(it.memory.view)
        read, write = store.chunks.read, store.chunks.write

        async def watched_read(reads, **kwargs):
            seen.extend((address(r.buffer) - start, len(r.buffer)) for r in reads)
            await read(reads, **kwargs)

        async def watched_write(file, offset, data, **options):
            seen.append((address(data) - start, len(data)))
            return await write(file, offset, data, **options)

        await it.mount.files.flush(it.base)
        store.chunks.read, store.chunks.write = watched_read, watched_write
        await it.do({"place": 10, "length": 1000}, {"place": 5000, "offset": 7, "length": 200_000})
        await it.do({"op": Op.WRITE, "place": 123, "length": 150_000})
        del store.chunks.read, store.chunks.write
    assert sorted(seen) == [(10, 1000), (123, 150_000), (5000, 200_000)]


async def test_own_buffered_writes_are_seen_and_stay_in_order(autojump_clock, program):
    async with program() as it:
        await it.mount.files.write(it.base, 0, b"first" * 100)
        assert await it.do({"length": 500}) == [500]
        assert it.memory.view[:500] == b"first" * 100
        await it.mount.files.write(it.base, 0, b"second")
        it.memory.view[:5] = b"THIRD"
        assert await it.do({"op": Op.WRITE, "length": 5}) == [5]
        await it.do({"place": 1000, "length": 6})
        assert it.memory.view[1000:1006] == b"THIRDd"


async def test_batches_end_out_of_order(autojump_clock, program):
    async with program(CONTENT) as it:
        await it.mount.files.flush(it.base)
        gate = it.mount.cluster.chunks.gate = trio.Event()
        it.put(op=Op.WRITE, user_data=1)
        it.ring_bell(1)
        await trio.testing.wait_all_tasks_blocked()
        it.put(user_data=2, offset=200_000)
        it.ring_bell(1)
        assert await it.results(1) == [(2, 100)]
        gate.set()
        it.mount.cluster.chunks.gate = None
        assert await it.results(1) == [(1, 100)]


@pytest.mark.parametrize("is_odd", [False, True])
async def test_a_large_batch_is_done_in_rounds_between_which_others_are_served(
    autojump_clock, program, monkeypatch, is_odd
):
    rounds, turns = [], []
    sort = ring_module.sort_out if is_odd else ring_module.plain_reads

    def watched(copied, *arguments):
        rounds.append((len(copied) // ENTRY.size, len(turns)))
        return sort(copied, *arguments)

    async def other():
        while True:
            await trio.lowlevel.checkpoint()
            turns.append(None)

    monkeypatch.setattr(ring_module, "_ROUND_BYTES", 3 * ENTRY.size)
    monkeypatch.setattr(ring_module, "sort_out" if is_odd else "plain_reads", watched)
    async with program(CONTENT) as it:
        await it.mount.files.flush(it.base)
        for n in range(10):
            flags = EntryFlag.RELAXED if is_odd and n % 2 else 0
            it.put(offset=n * 1000, place=n * 5000, length=5000, flags=flags)
        it.ring_bell(10)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(other)
                assert sorted(await it.results(10)) == [(n, 5000) for n in range(10)]
                nursery.cancel_scope.cancel()
        for n in range(10):
            wanted = CONTENT[n * 1000 : n * 1000 + 5000]
            assert bytes(it.memory.view[n * 5000 : n * 5000 + 5000]) == wanted
        # An odd round is asked for as plain reads first; 3 + 3 + 3 + 1.
        assert [count for count, _ in rounds] == [3, 3, 3] + ([] if is_odd else [1])
        # Each took a turn in each round of the loop, in any order.
        assert rounds[-1][1] - rounds[0][1] >= len(rounds) - 2 > 0


async def test_writes_of_a_large_batch_keep_their_order(autojump_clock, program, monkeypatch):
    monkeypatch.setattr(ring_module, "_ROUND_BYTES", 2 * ENTRY.size)
    async with program(bytes(100)) as it:
        it.memory.view[:8] = b"abcdefgh"
        puts = [{"op": Op.WRITE, "offset": n // 2, "place": n, "length": 1} for n in range(8)]
        assert await it.do(*puts, {"op": 7}, {"op": Op.WRITE, "length": 0}) == [1] * 8 + [
            -errno.EINVAL,
            0,
        ]
        assert await it.do({"place": 1000, "length": 4}) == [4]
        assert bytes(it.memory.view[1000:1004]) == b"bdfh"


async def test_exact_depth_waits_for_as_many(autojump_clock, program):
    async with program(CONTENT, depth=3) as it:
        for _ in range(8):
            it.put()
        it.ring_bell(2)
        await trio.sleep(100)
        assert it.heard() == []
        it.ring_bell(6)
        assert len(await it.results(6)) == 6
        await trio.sleep(100)
        assert it.heard() == []
        it.put()
        it.ring_bell(1)
        assert len(await it.results(3)) == 3


async def test_depth_at_most_waits_until_the_timeout(autojump_clock, program):
    async with program(CONTENT, depth=-4, timeout_s=10.0) as it:
        for _ in range(6):
            it.put()
        it.ring_bell(2)
        await trio.sleep(9)
        assert it.heard() == []
        await trio.sleep(2)
        assert len(it.heard()) == 2
        began_s = trio.current_time()
        it.ring_bell(4)
        assert len(await it.results(4)) == 4
        assert trio.current_time() - began_s < 1


async def test_holes_are_zeros_or_errors_as_one_asks(autojump_clock, program):
    async with program() as it:
        await it.mount.files.write(it.base, 200_000, b"end")
        it.memory.view[:10] = b"0123456789"
        holes = {"flags": EntryFlag.HOLES_ARE_ERRORS}
        assert await it.do({"length": 5}, {"length": 5, **holes}) == [5, -errno.ENODATA]
        assert it.memory.view[:5] == bytes(5)
        relaxed = {"flags": EntryFlag.RELAXED | EntryFlag.HOLES_ARE_ERRORS}
        assert await it.do({"offset": 200_000, "length": 5, **relaxed}) == [3]


async def test_one_that_fails_leaves_the_others(autojump_clock, program):
    async with program(CONTENT) as it:
        await it.mount.files.flush(it.base)
        it.files[2] = Share(it.files[1].handle_id, True, False)
        failure = FsError(Status.NO_SPACE, "test")
        it.mount.cluster.chunks.write_faults = [failure]
        results = await it.do(
            {"op": Op.WRITE, "length": 10},
            {"op": Op.WRITE, "offset": 200_000, "length": 10},
            {"op": Op.WRITE, "file": 2},
            {"file": 3},
            {"memory": 3},
            {"place": (1 << 20) - 50},
            {"length": 100},
        )
        assert sorted(results[:2]) == [-errno.ENOSPC, 10]
        assert results[2:] == [-errno.EBADF, -errno.EBADF, -errno.EFAULT, -errno.EFAULT, 100]
        with pytest.raises(FsError):
            # The other descriptor of the file learns of it, as of any write.
            await it.mount.files.fsync(it.base, is_data_only=False)
        await it.mount.vfs.batches.sync(it.files[1].handle_id)


@pytest.mark.parametrize(
    ("failure", "answer"),
    [
        (ZeroDivisionError(), (errno.EIO, "bug in a batch")),
        (MemoryError(), (errno.ENOMEM, "lacks something")),
    ],
)
async def test_a_bug_or_lack_in_one_batch_is_an_error_of_this_batch(
    autojump_clock, program, caplog, failure, answer
):
    number, told = answer
    async with program(CONTENT) as it:

        async def broken(*_, **__):
            raise failure

        it.mount.vfs.batches.read = broken
        assert await it.do({"length": 10}) == [-number]
        del it.mount.vfs.batches.read
        assert await it.do({"length": 10}) == [10]
    assert told in caplog.text and ("bug in" in caplog.text) == (number == errno.EIO)


async def broken(ring):
    with trio.fail_after(60):
        while not ring.breach:  # noqa: ASYNC110 - the ring tells nobody here
            await trio.sleep(0.1)


@pytest.mark.parametrize("counts", [[17], [2**32 - 1], [16, 1], [8, 9]])
async def test_more_entries_than_there_is_room_for_break_the_ring(autojump_clock, program, counts):
    async with program(depth=ENTRY_COUNT) as it:
        for count in counts:
            it.ring_bell(count)
        await broken(it.ring)


async def test_half_a_count_breaks_the_ring(autojump_clock, program):
    async with program() as it:
        it.bell.send(b"\x01\x00")
        await broken(it.ring)


async def test_the_daemon_does_not_wait_for_who_does_not_listen(autojump_clock, program):
    async with program() as it:
        for _ in range(2000):  # more counts than fit the socket
            it.put(file=9)
            it.ring_bell(1)
            await trio.testing.wait_all_tasks_blocked()
        assert it.ring._unsaid
        assert len(await it.results(2000)) == 2000


@pytest.mark.real_time  # readiness watches no ring under another clock
async def test_a_watched_ring_goes_on_once_who_did_not_listen_does(program):
    assert readiness.install()
    async with program() as it:
        while not it.ring._unsaid:
            it.put(file=9)
            it.ring_bell(1)
            await trio.testing.wait_all_tasks_blocked()
        it.put(file=9)
        it.ring_bell(1)
        assert len(await it.results(it.put_count)) == it.put_count
        assert await it.do({"file": 9}) == [-errno.EBADF]


async def test_memory_that_may_shrink_is_copied_and_never_touched(autojump_clock, program):
    async with program(CONTENT) as it:
        fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 100_000)
        assert is_memory_file(fd)
        it.memories[2] = shared_memory(os.dup(fd), 100_000, 0)
        assert it.memories[2].mapped_bytes == 0
        assert await it.do({"memory": 2, "offset": 5, "place": 10, "length": 1000}) == [1000]
        assert os.pread(fd, 1000, 10) == CONTENT[5:1005]
        os.pwrite(fd, b"written", 50)
        assert await it.do({"memory": 2, "op": Op.WRITE, "place": 50, "length": 7}) == [7]
        os.ftruncate(fd, 0)
        assert await it.do({"memory": 2, "op": Op.WRITE, "length": 7}) == [-errno.EFAULT]
        assert await it.do({"memory": 2}) == [100]
        await it.do({"length": 7})
        assert it.memory.view[:7] == b"written"
        it.memories.pop(2).close()
        os.close(fd)


async def test_copies_take_bounded_memory_whatever_entries_say(autojump_clock, program):
    """A sparse memory file costs its program nothing; the daemon must not pay for it."""
    windows = []
    size = 300 << 20
    async with program(CONTENT) as it:
        fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        memory = it.memories[2] = shared_memory(fd, size, 0)
        window = memory.window
        memory.window = lambda offset, length: windows.append(length) or window(offset, length)
        wanted = {"memory": 2, "length": size}
        assert await it.do(*[wanted] * 10) == [len(CONTENT)] * 10
        assert max(windows) <= COPIED_BYTES_MAX
        windows.clear()
        long = 2 * COPIED_BYTES_MAX + 5
        assert await it.do(
            {"op": Op.WRITE, "memory": 2, "length": 7},
            {"op": Op.WRITE, "memory": 2, "offset": 100, "length": long},
            {"op": Op.WRITE, "memory": 2, "offset": 1, "length": 7},
        ) == [7, long, 7]
        assert sum(windows) == long + 14
        assert max(windows) <= COPIED_BYTES_MAX
        assert it.mount.vfs.batches.length(it.files[1].handle_id) == long + 100


async def test_copies_of_all_rounds_together_take_bounded_memory(
    autojump_clock, program, monkeypatch
):
    under_way, most = 0, 0
    move = jobs_module._move

    async def watched(batches, ios, *arguments):
        nonlocal under_way, most
        byte_count = sum(len(io.buffer) for io in ios)
        under_way += byte_count
        most = max(most, under_way)
        await trio.sleep(1)
        await move(batches, ios, *arguments)
        under_way -= byte_count

    monkeypatch.setattr(jobs_module, "_move", watched)
    monkeypatch.setattr(ring_module, "_ROUND_BYTES", 2 * ENTRY.size)
    size = COPIED_BYTES_MAX
    async with program(CONTENT) as it:
        fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        it.memories[2] = shared_memory(fd, size, 0)
        assert await it.do(*[{"memory": 2, "length": size}] * 9) == [len(CONTENT)] * 9
    assert most == COPIED_BYTES_MAX


async def test_a_program_that_is_written_loses_its_privileges(autojump_clock, program):
    """As by write(2): else whoever may write to it would run what he wrote as its owner."""
    async with program(CONTENT) as it:
        names, handle = it.mount.vfs.namespace, it.mount.files.handle(it.base)
        inode_id, caller = handle.state.inode_id, handle.caller
        await names.setattr(inode_id, AttrChange(mode=0o6775), None, caller)
        await names.setxattr(inode_id, b"security.capability", b"x", Caller(0, 0))
        assert await it.do({"length": 5}) == [5]
        assert handle.state.inode.mode & 0o7777 == 0o6775
        assert await it.do({"op": Op.WRITE, "length": 5}) == [5]
        assert handle.state.inode.mode & 0o7777 == 0o775
        with pytest.raises(FsError) as failed:
            await names.getxattr(inode_id, b"security.capability", caller)
        assert failed.value.status is Status.NO_ATTRIBUTE


def test_huge_pages_are_not_touched():
    """There are few: who touches a hole when the last one is taken dies of SIGBUS."""
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    os.ftruncate(fd, os.fstat(fd).st_blksize)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    memory = shared_memory(fd, 4096, 0)
    assert memory.mapped_bytes == 0
    memory.close()


def test_memory_is_taken_as_it_is_sealed():
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 8192)
    with pytest.raises(FsError):
        shared_memory(os.dup(fd), 8193, 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    memory = shared_memory(os.dup(fd), 8192, 0)
    memory.window(10, 3)[:] = b"abc"
    assert os.pread(fd, 3, 10) == b"abc"
    os.close(fd)
    with open("/proc/self/maps") as plain:
        assert not is_memory_file(plain.fileno())


@pytest.mark.parametrize("seed", range(4))
async def test_random_rings(autojump_clock, program, seed):
    """Row R6, the short form: whatever stands in a ring, the daemon answers,
    and touches nothing of others.
    """
    async with program(CONTENT) as it:
        await random_rings(it, seed, 300)


@pytest.mark.parametrize("count", [8, 12])
async def test_many_that_fail_together_are_done_few_at_a_time(
    autojump_clock, program, monkeypatch, count
):
    """A turn of the event loop with a task for each of 60,000 reads took seconds,
    in which nobody else was served.
    """
    monkeypatch.setattr(batches_module, "_AT_ONCE_COUNT_MAX", 3)
    under_way, most = 0, 0
    async with program(CONTENT) as it:
        store = it.mount.vfs.batches._core.store
        real = store.read

        async def read(reads, **options):
            nonlocal under_way, most
            if len(reads) > 1 or reads[0].offset == 100:
                raise FsError(Status.CHUNK_DAMAGED, "test")
            under_way += 1
            most = max(most, under_way)
            await trio.sleep(1)
            await real(reads, **options)
            under_way -= 1

        monkeypatch.setattr(store, "read", read)
        entries = [{"offset": 100 * n, "place": 100 * n, "length": 100} for n in range(count)]
        found = await it.do(*entries)
    assert most == 3
    assert found == [100, -errno.EIO, *[100] * (count - 2)]


async def test_many_writes_are_done_few_at_a_time(autojump_clock, program, monkeypatch):
    """Each is compared with all that are under way: 2000 at once held others up for 0.6 s."""
    monkeypatch.setattr(batches_module, "_AT_ONCE_COUNT_MAX", 3)
    under_way, most = 0, 0
    async with program(CONTENT) as it:
        files = it.mount.vfs.batches._files
        real = files.write_unbuffered

        async def write(*arguments):
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await trio.sleep(1)
            count = await real(*arguments)
            under_way -= 1
            return count

        monkeypatch.setattr(files, "write_unbuffered", write)
        entries = [{"op": Op.WRITE, "offset": 100 * n, "length": 100} for n in range(10)]
        assert await it.do(*entries) == [100] * 10
    assert most == 3


@pytest.mark.real_time
@pytest.mark.parametrize("seed", range(2))
async def test_random_rings_that_are_watched(program, seed):
    """As in a mount daemon: the event loop looks after the bell by itself."""
    assert readiness.install()
    async with program(CONTENT) as it:
        await random_rings(it, seed, 300)
