# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Times of access: which reads count, when this mount and others see them,
and what becomes of them when something goes wrong.
"""

import os
import random
from dataclasses import replace

import pytest
import trio

from fs.client import noted_reads
from fs.client.noted_reads import AGAIN_S, FOUND_MAX, LAST_S, MANY, PAUSE_S, NotedReads
from fs.client.relatime import is_due
from fs.client.vfs.access_times import with_reads
from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.creating import FMODE_EXEC
from fs.client.vfs.open_file import NOT_READ, InodeState
from fs.schema.inode import InodeType
from fs.schema.proto import meta_pb2
from fs.schema.status import FsError, Status
from tests.examples import first_quick

from .conftest import ROOT, RW

DAY_S = 86_400
READ = os.O_RDONLY
TOLD_S = PAUSE_S + 0.5


def no_memory(*_: object) -> None:
    raise MemoryError


def notes(cluster):
    return cluster.calls.count("NoteReads")


async def shown(m, name):
    """The time of access that a program of a mount sees."""
    return with_reads(m.vfs.reads, await m.stat(name)).atime_ns


def stored(cluster, name):
    return cluster.get(cluster.names[1][name]).atime_ns


async def a_file(m, name=b"f", data=b"data"):
    """A file of another mount's, as good as: nothing of it is kept here."""
    await m.write_file(name, data)
    await trio.sleep(2)
    return await m.stat(name)


async def test_a_first_read_counts_at_once_here_and_soon_everywhere(
    autojump_clock, mounts, cluster
):
    async with mounts(2) as (m, other):
        before = await a_file(other)
        await m.read_file(b"f")
        seen = await shown(m, b"f")
        assert seen > before.atime_ns == stored(cluster, b"f") == await shown(other, b"f")
        assert not notes(cluster)
        await trio.sleep(TOLD_S)
        assert await shown(other, b"f") == seen == stored(cluster, b"f")
        after = await other.stat(b"f")
        assert (after.mtime_ns, after.ctime_ns) == (before.mtime_ns, before.ctime_ns)
        assert after.file == before.file
        await trio.sleep(10)
        assert not m.vfs.reads.found and await shown(m, b"f") == seen
        await m.read_file(b"f")  # the second read of a day does not
        await trio.sleep(TOLD_S)
        assert stored(cluster, b"f") == seen and notes(cluster) == 1
        autojump_clock.jump(DAY_S)  # at once: what a mount does each second would be done for each
        await m.read_file(b"f")
        await trio.sleep(TOLD_S)
        assert stored(cluster, b"f") > seen + (DAY_S - 10) * 10**9


async def test_what_waits_goes_with_the_end_of_the_mount(autojump_clock, mounts, cluster):
    async with mounts() as m:
        before = await a_file(m)
        await m.read_file(b"f")
    assert stored(cluster, b"f") > before.atime_ns
    assert notes(cluster) == 1


async def test_many_go_together_and_at_once(autojump_clock, mounts, cluster):
    async with mounts() as m:
        for number in range(MANY + 1):
            await m.write_file(b"%d" % number, b"x")
        await trio.sleep(2)
        for number in range(MANY + 1):
            await m.read_file(b"%d" % number)
        await trio.sleep(0.1)
        assert notes(cluster) >= 2
        await trio.sleep(TOLD_S)
        assert notes(cluster) == 3
        assert all(
            cluster.get(i).atime_ns > cluster.get(i).mtime_ns for i in cluster.names[1].values()
        )


@pytest.mark.parametrize("way", ["now", "begun", "ahead", "copied"])
async def test_every_way_to_read_counts(autojump_clock, mounts, cluster, way):
    async with mounts() as m:
        before = await a_file(m, data=b"x" * 100_000)
        handle_id = (await m.open(b"f", READ)).handle_id
        if way == "now":
            m.files.read_now(handle_id, 0, 10)
        elif way == "begun":
            assert m.files.begin_read(handle_id, 0, 10) is not None
        elif way == "ahead":
            m.files.ahead_now(handle_id, 0, 10)
        else:
            target = await m.create(b"g")
            await m.vfs.copying.copy(handle_id, 0, target, 0, 10)
            await m.close(target)
        assert await shown(m, b"f") > before.atime_ns
        await m.close(handle_id)


async def test_reads_by_batches_count(autojump_clock, mounts, cluster):
    async with mounts() as m:
        before = await a_file(m, data=b"x" * 1000)
        handle_id = (await m.open(b"f", READ)).handle_id
        share = m.files.share(handle_id)
        m.files.readable(share)  # what the table of a batch asks for each file that it reads
        assert await shown(m, b"f") > before.atime_ns
        await m.close(share)
        await m.close(handle_id)


async def test_writing_and_opening_alone_do_not_count(autojump_clock, mounts, cluster):
    async with mounts() as m:
        before = await a_file(m)
        handle_id = (await m.open(b"f", RW)).handle_id
        await m.files.write(handle_id, 0, b"more")
        await m.close(handle_id)
        await m.close((await m.open(b"f", os.O_WRONLY)).handle_id)
        m.files._core.seen.clear()  # the kernel has nothing of it
        await m.close((await m.open(b"f", READ)).handle_id)
        with pytest.raises(FsError):
            m.files.readable(await m.create(b"g", os.O_WRONLY))
        assert await shown(m, b"f") == before.atime_ns
    assert not notes(cluster)


async def test_what_the_kernel_may_have_read_by_itself_counts_at_the_close(
    autojump_clock, mounts, cluster
):
    async with mounts() as m:
        before = await a_file(m)
        opened = await m.open(b"f", READ)
        assert opened.keep_cache
        assert await shown(m, b"f") == before.atime_ns
        await m.close(opened.handle_id)
        assert await shown(m, b"f") > before.atime_ns
        empty = await a_file(m, b"empty", b"")
        opened = await m.open(b"empty", READ)
        assert opened.keep_cache
        await m.close(opened.handle_id)
        assert await shown(m, b"empty") == empty.atime_ns


async def test_each_change_makes_the_next_read_count(autojump_clock, mounts, cluster):
    """Of a file that stays open, too: databases read and write by turns."""
    async with mounts() as m:
        await a_file(m)
        handle_id = (await m.open(b"f", RW)).handle_id
        await m.files.read(handle_id, 0, 4)
        first = await shown(m, b"f")
        await trio.sleep(1)
        await m.files.read(handle_id, 0, 4)
        assert await shown(m, b"f") == first
        await m.files.write(handle_id, 0, b"more")
        assert await shown(m, b"f") == first
        await trio.sleep(1)
        await m.files.read(handle_id, 0, 4)
        second = await shown(m, b"f")
        assert second > first
        await trio.sleep(100)
        assert stored(cluster, b"f") == second
        await m.files.write(handle_id, 0, b"again")
        await m.files.read(handle_id, 0, 4)
        await m.close(handle_id)
        await trio.sleep(TOLD_S)
        assert stored(cluster, b"f") > second


async def test_o_noatime_and_a_mount_with_noatime(autojump_clock, mounts, cluster):
    async with mounts() as m:
        before = await a_file(m)
        handle_id = (await m.open(b"f", READ | os.O_NOATIME)).handle_id
        await m.files.read(handle_id, 0, 4)
        share = m.files.share(handle_id)
        m.files.readable(share)
        await m.close(share)
        await m.close(handle_id)
        assert await shown(m, b"f") == before.atime_ns
    async with mounts(atime="noatime") as m:
        await m.read_file(b"f")
        assert await shown(m, b"f") == before.atime_ns
    assert not notes(cluster)


async def test_a_program_that_is_run_is_read_at_once(autojump_clock, mounts, cluster):
    async with mounts() as m:
        before = await a_file(m)
        handle_id = (await m.open(b"f", READ | FMODE_EXEC)).handle_id
        assert await shown(m, b"f") > before.atime_ns
        await m.close(handle_id)


async def listed(m, flags=0):
    directories = m.vfs.directories
    handle_id = directories.opendir(1, ROOT, flags)
    assert await directories.readdir(handle_id, 0)
    directories.releasedir(handle_id)


async def root_atime(m):
    return with_reads(m.vfs.reads, await m.names.getattr(1, ROOT)).atime_ns


async def test_a_directory_that_is_listed(autojump_clock, mounts, cluster):
    async with mounts() as m:
        await a_file(m)
        before = await root_atime(m)
        await listed(m, os.O_NOATIME)
        m.vfs.directories.releasedir(m.vfs.directories.opendir(1, ROOT))
        assert await root_atime(m) == before
        await listed(m)
        first = await root_atime(m)
        assert first > before
        await trio.sleep(TOLD_S)
        await listed(m)
        assert await root_atime(m) == first == cluster.get(1).atime_ns
        await a_file(m, b"g")
        await listed(m)
        assert await root_atime(m) > first


async def test_a_mount_with_nodiratime(autojump_clock, mounts, cluster):
    async with mounts() as m:
        await a_file(m)
        before = await root_atime(m)
        m.vfs.count_reads(of_files=True, of_directories=False)
        await listed(m)
        await m.read_file(b"f")
        assert await root_atime(m) == before
        assert await shown(m, b"f") > before


async def test_a_link_that_is_followed(autojump_clock, mounts, cluster):
    async with mounts() as m:
        link = await m.names.symlink(1, b"l", b"target", ROOT)
        assert await m.names.readlink(link.inode_id, ROOT) == b"target"
        first = await shown(m, b"l")
        assert first > link.atime_ns
        await m.names.readlink(link.inode_id, ROOT)
        assert await shown(m, b"l") == first
        m.names.forget(link.inode_id, 100)  # then it asks
        await trio.sleep(TOLD_S)
        assert await m.names.readlink(link.inode_id, ROOT) == b"target"
        assert await shown(m, b"l") == first
        pipe = await m.names.mknod(1, b"p", 0o010644, ROOT)
        with pytest.raises(FsError):
            await m.names.readlink(pipe.inode_id, ROOT)
        assert pipe.type is InodeType.FIFO


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_time_that_is_set_counts_more(autojump_clock, mounts, cluster, is_open, is_begun):
    """Also the very one that the file had before: backup programs set it back so."""
    async with mounts() as m:
        before = await a_file(m)
        handle_id = (await m.open(b"f", RW)).handle_id
        await m.files.read(handle_id, 0, 4)
        if not is_open:
            await m.close(handle_id)
        change = AttrChange(atime_ns=before.atime_ns, mtime_ns=before.mtime_ns)
        await set_times(m, before.inode_id, change, is_begun=is_begun)
        if is_open:
            await m.close(handle_id)
        assert await shown(m, b"f") == before.atime_ns
        await trio.sleep(TOLD_S)
        assert await shown(m, b"f") == before.atime_ns == stored(cluster, b"f")


async def set_times(m, inode_id, change, *, is_begun):
    """As the frontend does: at once if that may be, else begun, else in a task."""
    if m.names.set_now(inode_id, change, ROOT, 0) is not None:
        return
    done = trio.Event()
    errors = []

    def end(_, error):
        errors.append(error)
        done.set()

    if is_begun and m.names.begin_setattr(inode_id, change, ROOT, end):
        await done.wait()
        if errors[0] is None:
            return
    await m.names.setattr(inode_id, change, None, ROOT)


async def test_a_time_is_set_only_behind_a_read_that_is_on_its_way(autojump_clock, mounts, cluster):
    async with mounts() as m:
        before = await a_file(m)
        await m.read_file(b"f")
        cluster.meta_gate = trio.Event()
        await trio.sleep(TOLD_S)
        assert notes(cluster) == 1
        change = AttrChange(atime_ns=before.atime_ns)
        assert not m.names.begin_setattr(before.inode_id, change, ROOT, None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(m.names.setattr, before.inode_id, change, None, ROOT)
            await trio.sleep(1)
            assert "SetAttr" not in cluster.calls
            cluster.meta_gate.set()
        cluster.meta_gate = None
        assert cluster.calls.index("SetAttr") > cluster.calls.index("NoteReads")
        assert await shown(m, b"f") == before.atime_ns == stored(cluster, b"f")


async def test_a_setting_that_cannot_begin_keeps_no_read_from_being_told(
    autojump_clock, mounts, cluster, monkeypatch
):
    async with mounts() as m:
        before = await a_file(m)
        change = AttrChange(atime_ns=before.atime_ns)
        with monkeypatch.context() as patch:
            patch.setattr(m.names, "_setattr_request", no_memory)
            with pytest.raises(MemoryError):
                m.names.begin_setattr(before.inode_id, change, ROOT, None)
        await m.read_file(b"f")
        await trio.sleep(TOLD_S)
        assert stored(cluster, b"f") > before.atime_ns


async def test_no_read_goes_while_a_time_is_being_set(autojump_clock, mounts, cluster):
    async with mounts() as m:
        before = await a_file(m)
        await m.read_file(b"f")
        cluster.meta_gate = trio.Event()
        async with trio.open_nursery() as nursery:
            change = AttrChange(atime_ns=before.atime_ns)
            nursery.start_soon(m.names.setattr, before.inode_id, change, None, ROOT)
            await trio.sleep(2 * TOLD_S)
            assert not notes(cluster)
            cluster.meta_gate.set()
        cluster.meta_gate = None
        await trio.sleep(TOLD_S)
        assert not notes(cluster) and stored(cluster, b"f") == before.atime_ns


@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_time_that_is_not_set_leaves_the_read(autojump_clock, mounts, cluster, is_begun):
    async with mounts() as m:
        before = await a_file(m)
        await m.read_file(b"f")
        seen = await shown(m, b"f")
        cluster.meta_faults["SetAttr"] = [FsError(Status.ACCESS_DENIED, "no")] * 2
        with pytest.raises(FsError):
            await set_times(
                m, before.inode_id, AttrChange(atime_ns=before.atime_ns), is_begun=is_begun
            )
        assert await shown(m, b"f") == seen
        await trio.sleep(TOLD_S)
        assert stored(cluster, b"f") == seen


async def test_what_another_mount_sets_stays(autojump_clock, mounts, cluster):
    async with mounts(2) as (m, other):
        before = await a_file(other)
        await m.read_file(b"f")
        await other.names.setattr(before.inode_id, AttrChange(atime_ns=5), None, ROOT)
        assert await shown(m, b"f") == 5
        await trio.sleep(TOLD_S)
        assert await shown(m, b"f") == 5 == stored(cluster, b"f")
        assert not m.vfs.reads.found


async def test_what_was_kept_from_before_shows_the_read_all_the_same(
    autojump_clock, mounts, cluster
):
    """Attributes of an open file are kept for a second: meta may have the read, and they not."""
    async with mounts(attr_timeout_s=30.0) as m:
        await a_file(m)
        handle_id = (await m.open(b"f", RW)).handle_id
        inode, _ = m.names.told(m.files.open_state(handle_id).inode_id)
        await m.files.read(handle_id, 0, 4)
        seen = with_reads(m.vfs.reads, inode).atime_ns
        await trio.sleep(TOLD_S)
        assert stored(cluster, b"f") == seen > inode.atime_ns
        assert with_reads(m.vfs.reads, inode).atime_ns == seen
        assert m.files.open_state(handle_id).inode.atime_ns == seen
        await trio.sleep(40)
        assert not m.vfs.reads.found
        await m.close(handle_id)


async def test_of_two_mounts_the_first_one_to_tell_counts(autojump_clock, mounts, cluster):
    async with mounts(2) as (m, other):
        await a_file(m)
        await m.read_file(b"f")
        await trio.sleep(0.5)
        await other.read_file(b"f")
        first, second = await shown(m, b"f"), await shown(other, b"f")
        assert first < second
        await trio.sleep(TOLD_S)
        assert stored(cluster, b"f") == first
        assert await shown(other, b"f") == second  # here it does not go back
        await trio.sleep(10)
        assert await shown(other, b"f") == first


async def test_removed_files_are_no_trouble(autojump_clock, mounts, cluster):
    async with mounts() as m:
        await a_file(m)
        await a_file(m, b"g")
        await m.read_file(b"f")
        await m.read_file(b"g")
        await m.names.unlink(1, b"f", ROOT)
        await m.names.rename((1, b"g"), (1, b"h"), ROOT)
        await trio.sleep(TOLD_S)
        assert stored(cluster, b"h") > cluster.get(cluster.names[1][b"h"]).mtime_ns
        assert not m.vfs.reads._pending


async def test_a_service_that_knows_no_such_call_is_not_asked_again_soon(
    autojump_clock, mounts, cluster
):
    async with mounts() as m:
        before = await a_file(m)
        cluster.meta_faults["NoteReads"] = [FsError(Status.RPC_UNKNOWN_METHOD, "no")]
        await m.read_file(b"f")
        await trio.sleep(TOLD_S)
        assert await shown(m, b"f") == before.atime_ns
        await m.read_file(b"f")
        await trio.sleep(AGAIN_S - 2 * TOLD_S)
        assert notes(cluster) == 1 and not m.vfs.reads.found
        await trio.sleep(2 * TOLD_S)
        await m.read_file(b"f")
        await trio.sleep(TOLD_S)
        assert notes(cluster) == 2 and stored(cluster, b"f") > before.atime_ns


@pytest.mark.parametrize(
    "error",
    [FsError(Status.NO_SPACE, "no"), FsError(Status.KV_UNAVAILABLE, "no"), MemoryError("no")],
)
async def test_what_is_not_taken_is_forgotten(autojump_clock, mounts, cluster, error, caplog):
    """The log says so once: a full store may stay full for long.

    No mount ends for a lack of memory here.
    """
    async with mounts() as m:
        before = await a_file(m)
        cluster.meta_faults["NoteReads"] = [error] * 3
        for _ in range(3):
            await m.read_file(b"f")
            await trio.sleep(TOLD_S)
            assert await shown(m, b"f") == before.atime_ns == stored(cluster, b"f")
        assert caplog.text.count("1 reads are not noted") == 1
        await m.read_file(b"f")
        await trio.sleep(TOLD_S)
        assert stored(cluster, b"f") > before.atime_ns


async def test_without_memory_to_begin_the_mount_goes_on_and_tells_later(
    autojump_clock, mounts, cluster, monkeypatch
):
    async with mounts() as m:
        before = await a_file(m)
        with monkeypatch.context() as patch:
            patch.setattr(NotedReads, "_next_batch", no_memory)
            await m.read_file(b"f")
            await trio.sleep(TOLD_S)
        await trio.sleep(2 * TOLD_S)
        assert stored(cluster, b"f") > before.atime_ns


async def test_no_more_is_remembered_than_there_is_room_for(
    autojump_clock, mounts, cluster, monkeypatch
):
    monkeypatch.setattr(noted_reads, "FOUND_MAX", 8)
    assert FOUND_MAX > MANY
    async with mounts(attr_timeout_s=600.0) as m:
        for number in range(12):
            await m.write_file(b"%d" % number, b"x")
        await trio.sleep(2)
        reads = m.vfs.reads
        for number in range(12):
            await m.read_file(b"%d" % number)
        assert len(reads.found) == len(reads._pending) == 8
        await trio.sleep(TOLD_S)
        assert len(reads.found) == 8 and not reads._pending  # shown for as long as others are kept
        await m.read_file(b"11")
        assert len(reads.found) == 8 and len(reads._pending) == 1


async def test_a_reply_that_tells_of_nothing_forgets_the_read(
    autojump_clock, mounts, cluster, monkeypatch
):
    async with mounts() as m:
        await a_file(m)
        await m.read_file(b"f")

        async def nothing(_self, request):
            return meta_pb2.NoteReadsRsp(atimes_ns=[0] * len(request.reads))

        monkeypatch.setattr("tests.client.fake_meta.FakeMeta.note_reads", nothing)
        await trio.sleep(TOLD_S)
        assert not m.vfs.reads.found


class Reader:
    """One mount that does this and that with some files;
    what each read does to a time of access follows from the times that were shown.
    """

    def __init__(self, mount, source):
        self.mount, self.random, self.open, self.done = mount, source, {}, 0

    async def act(self):
        name = b"%d" % self.random.randrange(4)
        before = with_reads(self.mount.vfs.reads, await self.mount.stat(name))
        now_ns = self.mount.vfs._core.runtime.clock.wall_ns()
        way = self.random.choice([self.read, self.read, self.read_anew, self.write, self.change])
        expected = await way(name, before, now_ns)
        after = await shown(self.mount, name)
        if expected is None:
            # The report of what was written moves ctime once more: what stays open knows that
            # it has read the file since.
            is_seen = way == self.read and before.mtime_ns < before.atime_ns < before.ctime_ns
            assert after > now_ns or (is_seen and after == before.atime_ns), way
        else:
            assert after == expected, way
        await trio.sleep(self.random.choice([0, 0, 0.1, 0.3, 1, 3]))

    def _after_read(self, before, now_ns):
        is_counted = is_due(before.atime_ns, before.mtime_ns, before.ctime_ns, now_ns)
        self.done += is_counted
        return None if is_counted else before.atime_ns

    async def handle(self, name):
        if name not in self.open:
            self.open[name] = (await self.mount.open(name, RW)).handle_id
        return self.open[name]

    async def read(self, name, before, now_ns):
        handle_id = await self.handle(name)
        await self.mount.files.read(handle_id, 0, 10)
        return self._after_read(before, now_ns)

    async def read_anew(self, name, before, now_ns):
        await self.mount.read_file(name)
        return self._after_read(before, now_ns)

    async def write(self, name, before, _now_ns):
        handle_id = await self.handle(name)
        await self.mount.files.write(handle_id, 0, self.random.randbytes(10))
        if self.random.random() < 0.3:
            await self.mount.files.fsync(handle_id, is_data_only=False)
        if self.random.random() < 0.5:
            await self.close(name)
        return before.atime_ns

    async def change(self, _name, before, now_ns):
        atime_ns = self.random.choice([5, now_ns, before.atime_ns, now_ns - 10**9])
        change, expected = self.random.choice(
            [
                (AttrChange(mode=0o600), before.atime_ns),
                (AttrChange(mtime_ns=now_ns - 7), before.atime_ns),
                (AttrChange(atime_ns=atime_ns), atime_ns),
                (AttrChange(atime_ns=atime_ns, mtime_ns=7), atime_ns),
            ]
        )
        is_begun = self.random.random() < 0.5
        await set_times(self.mount, before.inode_id, change, is_begun=is_begun)
        return expected

    async def close(self, name):
        if name in self.open:
            await self.mount.close(self.open.pop(name))


@pytest.mark.parametrize("seed", first_quick(range(8), 2))
async def test_this_and_that(autojump_clock, mounts, cluster, seed):
    async with mounts() as m:
        reader = Reader(m, random.Random(seed))
        for number in range(4):
            await m.write_file(b"%d" % number, b"some bytes")
        for _ in range(150):
            await reader.act()
        for number in range(4):
            await reader.close(b"%d" % number)
        await trio.sleep(TOLD_S)
        for number in range(4):
            assert await shown(m, b"%d" % number) == stored(cluster, b"%d" % number)
        assert reader.done > 10


async def test_a_link_that_stays_known_is_not_noted_again_and_again(
    autojump_clock, mounts, cluster
):
    """The kernel keeps it, and asks for its target alone: nothing else tells what meta took."""
    async with mounts() as m:
        link = await m.names.symlink(1, b"l", b"target", ROOT)
        for _ in range(3):
            await m.names.readlink(link.inode_id, ROOT)
            await trio.sleep(60)
        assert notes(cluster) == 1


async def test_a_clock_that_is_behind_takes_no_time_back(autojump_clock, mounts, cluster):
    """Clocks of hosts differ; what lies far ahead somebody has set, and the next read ends it."""
    async with mounts(2) as (m, other):
        for ahead_s, is_kept in ((30, True), (1000, False)):
            before = await a_file(other, b"%d" % ahead_s)
            ahead_ns = other.vfs._core.runtime.clock.wall_ns() + ahead_s * 10**9
            change = AttrChange(atime_ns=ahead_ns, mtime_ns=ahead_ns)
            await other.names.setattr(before.inode_id, change, None, ROOT)
            await m.read_file(b"%d" % ahead_s)
            assert (await shown(m, b"%d" % ahead_s) >= ahead_ns) == is_kept


async def test_what_is_read_by_a_clock_that_is_behind_counts_all_the_same(
    autojump_clock, mounts, cluster
):
    async with mounts() as m:
        inode_id = (await a_file(m)).inode_id
        now_ns = cluster.clock_ns()
        cluster.inodes[inode_id] = replace(
            cluster.get(inode_id), atime_ns=now_ns, mtime_ns=now_ns, ctime_ns=now_ns
        )
        behind_ns, wall_ns = 5 * 10**9, m.vfs.reads._times.wall_ns
        m.vfs.reads._times = replace(m.vfs.reads._times, wall_ns=lambda: wall_ns() - behind_ns)
        await m.read_file(b"f")
        assert await shown(m, b"f") == now_ns
        await trio.sleep(TOLD_S)
        assert await shown(m, b"f") == stored(cluster, b"f") > now_ns
        await m.read_file(b"f")
        await trio.sleep(TOLD_S)
        assert notes(cluster) == 1


async def test_a_mount_ends_soon_though_meta_does_not_answer(autojump_clock, mounts, cluster):
    """A time of access is worth no wait."""
    async with mounts() as m:
        await a_file(m)
        await m.read_file(b"f")
        cluster.meta_gate = trio.Event()
        began_s = trio.current_time()
        await m.vfs.shut_down()
        assert trio.current_time() - began_s <= LAST_S
        cluster.meta_gate = None


async def test_a_mount_ends_without_memory_for_its_last_reads(
    autojump_clock, mounts, cluster, monkeypatch
):
    async with mounts() as m:
        await a_file(m)
        await m.read_file(b"f")
        monkeypatch.setattr(NotedReads, "_next_batch", no_memory)
        await m.vfs.shut_down()


async def test_a_read_behind_one_that_is_on_its_way_is_shown_for_as_long(
    autojump_clock, mounts, cluster
):
    """Its time was that of the first one: what is kept from between showed that one again."""
    async with mounts(attr_timeout_s=10.0) as m:
        before = await a_file(m)
        handle_id = (await m.open(b"f", RW)).handle_id
        await m.files.read(handle_id, 0, 4)
        cluster.meta_gate = trio.Event()
        await trio.sleep(TOLD_S)
        assert notes(cluster) == 1
        reads = m.vfs.reads
        first_ns = reads.shown_ns(before.inode_id, before.atime_ns)
        await m.files.write(handle_id, 0, b"more")
        await m.files.read(handle_id, 0, 4)
        second_ns = reads.shown_ns(before.inode_id, before.atime_ns)
        assert second_ns > first_ns
        cluster.meta_gate, gate = trio.Event(), cluster.meta_gate
        gate.set()
        await trio.sleep(5)
        cluster.meta_gate.set()
        cluster.meta_gate = None
        await trio.sleep(8)
        assert stored(cluster, b"f") == second_ns and notes(cluster) == 2
        assert reads.shown_ns(before.inode_id, first_ns) == second_ns
        await m.close(handle_id)


async def test_without_memory_for_a_call_no_read_is_lost(autojump_clock, mounts, cluster):
    class Scarce(dict):
        lacks = 3

        def __getitem__(self, key):
            self.lacks -= 1
            if self.lacks >= 0:
                raise MemoryError
            return super().__getitem__(key)

    async with mounts() as m:
        before = await a_file(m)
        m.vfs.reads.found = Scarce()
        await m.read_file(b"f")
        await trio.sleep(8 * TOLD_S)
        assert stored(cluster, b"f") > before.atime_ns


@pytest.mark.parametrize("lacking", ["_note", "present"])
async def test_without_memory_to_note_reads_files_are_read_and_closed_all_the_same(
    autojump_clock, mounts, monkeypatch, caplog, lacking
):
    """A file whose close failed for it stayed open here until the end of the mount."""
    async with mounts() as m:
        await a_file(m)
        handle_id = (await m.open(b"f", READ)).handle_id
        state = m.files.open_state(handle_id)
        with monkeypatch.context() as patch:
            patch.setattr(NotedReads if lacking == "_note" else InodeState, lacking, no_memory)
            patch.setattr(InodeState, "has_unreported", lacking == "present")
            m.files.readable(handle_id)
            m.files.handle(handle_id).noted_seq = NOT_READ
            await m.files.release(handle_id)
        assert not state.handles and not m.vfs.reads.found
        await m.read_file(b"f")
        await trio.sleep(TOLD_S)
        assert "2 reads were not noted for a lack of memory" in caplog.text


async def test_without_memory_the_mount_goes_on(autojump_clock, mounts, cluster, monkeypatch):
    async with mounts() as m:
        before = await a_file(m)
        with monkeypatch.context() as patch:
            patch.setattr(NotedReads, "_show_no_longer", no_memory)
            await m.read_file(b"f")
            await trio.sleep(10)
        await trio.sleep(10)
        assert stored(cluster, b"f") > before.atime_ns and not m.vfs.reads.found


async def test_without_memory_for_a_reply_no_read_is_shown_for_ever(
    autojump_clock, mounts, cluster, monkeypatch
):
    async with mounts() as m:
        await a_file(m)
        await m.read_file(b"f")
        with monkeypatch.context() as patch:
            patch.setattr(NotedReads, "_note_stored", no_memory)
            await trio.sleep(TOLD_S)
        assert not m.vfs.reads.found


async def test_what_is_read_and_changed_for_long_takes_no_more_memory(
    autojump_clock, mounts, cluster
):
    """Attributes may be kept for an hour, and each read is shown for as long."""
    async with mounts(attr_timeout_s=3600.0) as m:
        await a_file(m)
        handle_id = (await m.open(b"f", RW)).handle_id
        for _ in range(100):
            await m.files.write(handle_id, 0, b"more")
            await m.files.read(handle_id, 0, 4)
            await trio.sleep(TOLD_S)
        assert notes(cluster) > 50
        assert len(m.vfs.reads._stored) == len(m.vfs.reads.found) == 1
        await m.close(handle_id)
