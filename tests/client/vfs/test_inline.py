# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Inline files: what goes to meta instead of storage, who reads it there,
and what may never be mixed up.
"""

import os
import random
from dataclasses import replace

import pytest
import trio
import trio.testing

from fs.client.vfs.batches import NO_FILE, BatchIo
from fs.client.vfs.changing_attributes import AttrChange
from fs.schema import services
from fs.schema.inode import inode_from_pb, inode_to_pb
from fs.schema.proto import meta_pb2
from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK
from tests.client.fake_meta import FakeMeta
from tests.client.fakes import BeginsAll, FakeClock, FakeCluster
from tests.examples import first_quick

from .conftest import ROOT, RW, A, set_length

RO, WO = os.O_RDONLY, os.O_WRONLY
MAX = 32 * 1024
LOST = FsError(Status.RPC_TIMEOUT, "injected")


class BeginningMeta(BeginsAll, FakeMeta):
    """Begins what is asked, and remembers what it replied to each change."""

    def __init__(self, cluster, client_id):
        super().__init__(cluster, client_id)
        self.made = {}

    async def _serve(self, method, request, on_end):
        try:
            reply = await self.call(method, request)
        except FsError as error:
            on_end(None, error)
            return
        self.made[id(request)] = request, reply
        lost = self.cluster.lost_replies.pop(0) if self.cluster.lost_replies else None
        on_end(None if lost else reply, lost)

    async def call_again(self, method, request, error, began_s):
        assert began_s <= trio.current_time()
        if self.cluster.is_gone:
            raise error
        if method is services.META_SYNC and request.HasField("inline_data"):
            for come_between in self.cluster.between:
                await come_between()
            request.caller.is_repeat = True
            return await self.call(method, request)
        if id(request) in self.made:
            return self.made[id(request)][1]
        return await self.call(method, request)


class RetryingMeta(FakeMeta):
    """Asks again by itself, when what it was replied to a report with bytes is lost."""

    async def call(self, method, request, **options):
        reply = await super().call(method, request, **options)
        is_report = method is services.META_SYNC and request.HasField("inline_data")
        if is_report and self.cluster.lost_replies:
            self.cluster.lost_replies.pop(0)
            for come_between in self.cluster.between:
                await come_between()
            request.caller.is_repeat = True
            return await super().call(method, request, **options)
        return reply


class InlineCluster(FakeCluster):
    def __init__(self, *, begins):
        super().__init__(FakeClock())
        self.inline.bytes_max = MAX
        self.begins = begins
        self.lost_replies = []
        self.between = []
        """What others do between a report with bytes and its repeat."""
        self.is_gone = False

    def meta(self, client_id="client"):
        return (BeginningMeta if self.begins else RetryingMeta)(self, client_id)

    @property
    def stored(self):
        """Bytes in chunks."""
        return sum(map(len, self.chunks.chunks.values()))

    def count(self, *names):
        return sum(name in names for name in self.calls)


@pytest.fixture(params=[True, False], ids=["begun", "by tasks"])
def cluster(request, autojump_clock):
    return InlineCluster(begins=request.param)


async def end_by(begin, otherwise, handle_id):
    """Do what the kernel's requests do: begin it, else by a task."""
    ended, result = trio.Event(), []

    def end(error):
        result.append(error)
        ended.set()

    if begin(handle_id, end):
        await ended.wait()
        if result[0] is None:
            return
        if isinstance(result[0], FsError):
            raise result[0]
    await otherwise(handle_id)


async def flush(m, h):
    if not m.files.flush_now(h):
        await end_by(m.files.begin_flush, m.files.flush, h)


async def fsync(m, h):
    async def otherwise(h):
        await m.files.fsync(h, is_data_only=False)

    await end_by(m.files.begin_fsync, otherwise, h)


async def close(m, h):
    try:
        await flush(m, h)
    finally:
        if not m.files.release_now(h):
            await m.files.release(h)


async def write(m, h, offset, data):
    if m.files.write_now(h, offset, data) is None:
        await m.files.write(h, offset, data)


async def make(m, name, data, flags=WO):
    h = await m.create(name, flags | os.O_TRUNC)
    await write(m, h, 0, data)
    await close(m, h)


async def read(m, name):
    h = (await m.open(name, RO)).handle_id
    try:
        found = m.files.read_now(h, 0, 2 * CHUNK)
        return bytes(await m.files.read(h, 0, 2 * CHUNK) if found is None else found)
    finally:
        await close(m, h)


def inline(cluster, name):
    return cluster.inline.data.get(cluster.names[1][name])


async def test_a_small_file_costs_one_report_and_no_write(autojump_clock, mounts, cluster):
    async with mounts() as m:
        await make(m, b"f", b"small")
        assert inline(cluster, b"f") == b"small"
        assert [n for n in cluster.calls if n not in {"StatFs", "PruneSessions"}] == [
            "Create",
            "Sync",
        ]
        assert (cluster.stored, cluster.chunks.sync_count, cluster.durable_calls) == (0, 0, 1)
        assert (await m.stat(b"f")).length == 5


async def test_it_is_read_with_its_open(autojump_clock, mounts, cluster):
    async with mounts(2) as (one, two):
        await make(one, b"f", b"small")
        for m in (one, two):
            cluster.calls.clear()
            assert await read(m, b"f") == b"small"
            assert [n for n in cluster.calls if n != "StatFs"] == ["Lookup", "Open"]
        assert not cluster.chunks.reads and not cluster.inline.moved_count


async def test_longer_ones_go_to_storage(autojump_clock, mounts, cluster):
    async with mounts() as m:
        data = bytes(range(256)) * (MAX // 256) + b"x"
        await make(m, b"f", data)
        assert inline(cluster, b"f") is None and not cluster.inline.refused_count
        assert await read(m, b"f") == data
        await make(m, b"g", data[:-1])
        assert inline(cluster, b"g") == data[:-1]


async def test_nothing_is_sent_where_meta_does_not_offer_it(autojump_clock, mounts, cluster):
    cluster.inline.bytes_max = 0
    async with mounts() as m:
        await make(m, b"f", b"small")
        assert not cluster.inline.refused_count and not cluster.inline.data
        assert await read(m, b"f") == b"small"


async def test_bytes_that_are_not_of_their_checksum_are_an_error(autojump_clock, mounts, cluster):
    async with mounts(2) as (one, two):
        await make(one, b"f", b"small")
        bring = cluster.inline.bring

        def bring_wrong(request, name, reply):
            bring(request, name, reply)
            reply.inline_data = reply.inline_data.upper()

        cluster.inline.bring = bring_wrong
        with pytest.raises(FsError) as e:
            await read(two, b"f")
        assert e.value.status is Status.CHECKSUM_MISMATCH
        cluster.inline.bring = lambda *_: None
        with pytest.raises(FsError) as e:
            await read(two, b"f")
        assert e.value.status is Status.CHECKSUM_MISMATCH


async def test_a_descriptor_that_goes_on_after_a_close(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, b"first")
        await flush(m, h)  # close of a duplicate
        await write(m, h, 5, b" second")
        await flush(m, h)
        assert inline(cluster, b"f") == b"first second"
        await write(m, h, 1, b"IR")
        await write(m, h, 6, b"SE")
        await fsync(m, h)
        assert inline(cluster, b"f") == b"fIRst SEcond"
        assert not cluster.inline.moved_count and not cluster.stored
        await write(m, h, 12, bytes(MAX))  # grows beyond the limit
        await close(m, h)
        assert cluster.inline.moved_count == 1 and not cluster.inline.data
        assert await read(m, b"f") == b"fIRst SEcond" + bytes(MAX)
        assert cluster.get(cluster.names[1][b"f"]).length == 12 + MAX


async def test_who_syncs_a_file_again_and_again_gets_a_chunk(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, bytes(MAX - 100))
        await fsync(m, h)
        for i in range(20):
            await write(m, h, i, b"x")
            await fsync(m, h)
        assert cluster.inline.moved_count == 1 and cluster.stored == MAX - 100
        await close(m, h)
        assert await read(m, b"f") == b"x" * 20 + bytes(MAX - 120)
        h = await m.create(b"g", RW)
        for i in range(1000):
            await write(m, h, i % 100, b"x")
            await fsync(m, h)
        await close(m, h)
        assert inline(cluster, b"g") == b"x" * 100


async def test_what_is_written_while_a_close_is_under_way(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, b"first")
        cluster.meta_gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flush, m, h)
            await trio.testing.wait_all_tasks_blocked()
            await write(m, h, 3, b"ST")
            # Storage must not have it before meta has said what becomes of the file.
            m.vfs._core.start_flush(m.files.open_state(h))
            await trio.testing.wait_all_tasks_blocked()
            assert not cluster.stored
            cluster.meta_gate.set()
        cluster.meta_gate = None
        await close(m, h)
        assert await read(m, b"f") == b"firST"


async def test_own_bytes_are_read_before_the_close(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, b"first")
        assert bytes(await m.files.read(h, 1, 100)) == b"irst"
        assert not inline(cluster, b"f") and not cluster.stored
        await m.files.fsync(h, is_data_only=True)
        assert inline(cluster, b"f") == b"first" and not cluster.stored
        await write(m, h, 5, b" and more")
        assert bytes(await m.files.read(h, 0, 100)) == b"first and more"
        await close(m, h)
        assert inline(cluster, b"f") == b"first and more"


async def test_two_mounts_that_write_get_chunks(autojump_clock, mounts, cluster):
    async with mounts(2) as (one, two):
        h1 = await one.create(b"f", RW)
        h2 = (await two.open(b"f", RW)).handle_id
        await write(one, h1, 0, b"one")
        await write(two, h2, 3, b"two")
        await close(one, h1)
        assert cluster.inline.refused_count and not cluster.inline.data
        await close(two, h2)
        for m in (one, two):
            assert await read(m, b"f") == b"onetwo"


async def test_another_mount_writes_to_it_while_it_is_open(autojump_clock, mounts, cluster):
    async with mounts(2) as (one, two):
        h1 = await one.create(b"f", RW)
        await write(one, h1, 0, b"abcdef")
        await fsync(one, h1)
        assert inline(cluster, b"f") == b"abcdef"
        h2 = (await two.open(b"f", RW)).handle_id
        await write(two, h2, 1, b"B")
        await write(one, h1, 4, b"E")
        await close(two, h2)
        await close(one, h1)
        assert cluster.inline.moved_count and not cluster.inline.data
        for m in (one, two):
            assert await read(m, b"f") == b"aBcdEf"


@pytest.mark.parametrize("length", [0, 3, 9])
async def test_it_is_truncated_under_a_writer_and_a_reader(autojump_clock, mounts, cluster, length):
    async with mounts(2) as (one, two):
        h = await one.create(b"f", RW)
        await write(one, h, 0, b"abcdef")
        await flush(one, h)
        readers = [(m, (await m.open(b"f", RO)).handle_id) for m in (one, two)]
        await set_length(one, h, b"f", length)
        expected = b"abcdef"[:length].ljust(length, b"\0")
        assert bytes(await one.files.read(readers[0][1], 0, 100)) == expected
        await trio.sleep(1.1)
        await two.stat(b"f")
        assert bytes(await two.files.read(readers[1][1], 0, 100)) == expected
        await write(one, h, length, b"XY")
        await close(one, h)
        assert inline(cluster, b"f") == (b"XY" if length == 0 else None)
        for m, reader in readers:
            await trio.sleep(1.1)
            await m.stat(b"f")
            assert bytes(await m.files.read(reader, 0, 100)) == expected + b"XY"
            await close(m, reader)


async def test_a_file_of_chunks_that_is_made_anew_is_inline(autojump_clock, mounts, cluster):
    async with mounts(2) as (one, two):
        await make(one, b"f", bytes(CHUNK + 1))
        reader = (await two.open(b"f", RO)).handle_id
        await make(one, b"f", b"small")
        assert inline(cluster, b"f") == b"small"
        assert bytes(await two.files.read(reader, 0, 100)) == b"small"
        await close(two, reader)


async def test_records_are_appended_to_it(autojump_clock, mounts, cluster):
    async with mounts(2) as (one, two):
        await make(one, b"f", b"head ")
        h1, h2 = (await one.open(b"f", A)).handle_id, (await two.open(b"f", A)).handle_id
        await write(one, h1, 0, b"one ")
        await write(two, h2, 0, b"two ")
        await close(one, h1)
        await close(two, h2)
        assert await read(two, b"f") == b"head one two "


async def test_it_is_removed_and_replaced_while_it_is_open(autojump_clock, mounts, cluster):
    async with mounts() as m:
        await make(m, b"f", b"old")
        await make(m, b"g", b"new")
        h = (await m.open(b"f", RW)).handle_id
        await m.names.rename((1, b"g"), (1, b"f"), ROOT)
        assert bytes(await m.files.read(h, 0, 10)) == b"old"
        assert await read(m, b"f") == b"new"
        await m.names.unlink(1, b"f", ROOT)
        await write(m, h, 3, b"er")
        assert bytes(await m.files.read(h, 0, 10)) == b"older"
        await close(m, h)
        m.forget_removed()
        await trio.sleep(1)
        assert not cluster.inline.data and not cluster.stored


async def test_a_file_that_gets_its_name_afterwards(autojump_clock, mounts, cluster):
    async with mounts() as m:
        opened, inode = await m.files.create(1, b"", 0o644, RW, ROOT, is_unnamed=True)
        h = opened.handle_id
        m.names.give(inode, lookup_count=1)
        await write(m, h, 0, b"small")
        await m.names.link(inode.inode_id, 1, b"f", ROOT)
        await close(m, h)
        assert await read(m, b"f") == b"small"
        assert cluster.durable_inodes[inode.inode_id].length == 5


async def test_pages_of_a_map_come_after_the_close(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, b"abcdef")
        await flush(m, h)
        await m.files.write_mapped(h, 0, b"ABCDEF")
        await m.files.release(h)
        assert await read(m, b"f") == b"ABCDEF"
        assert cluster.get(cluster.names[1][b"f"]).length == 6


async def test_a_hole_is_left_to_storage(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 100, b"x")
        await close(m, h)
        assert not cluster.inline.refused_count and not cluster.inline.data
        assert await read(m, b"f") == bytes(100) + b"x"


async def test_here_and_there(autojump_clock, mounts, cluster):
    """Runs that lie over each other, and that are joined."""
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, b"0123456789")
        await write(m, h, 5, b"FGH")
        await write(m, h, 1, b"B")
        await flush(m, h)
        await write(m, h, 3, b"D")
        await write(m, h, 0, b"A")
        await write(m, h, 10, b"!")
        await close(m, h)
        assert await read(m, b"f") == b"AB2D4FGH89!"


async def test_a_header_that_is_written_again_goes_with_the_rest(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, b"head")
        await write(m, h, 4, b"body")
        await write(m, h, 0, b"HEAD")
        await write(m, h, 7, b"Y!!")
        assert m.vfs._core.budget.used_bytes == 10
        await close(m, h)
        assert inline(cluster, b"f") == b"HEADbodY!!" and not cluster.stored
        assert cluster.count("Sync") == 1


@pytest.mark.parametrize("seed", first_quick(range(20), 6))
async def test_whatever_is_written_over_each_other(autojump_clock, mounts, cluster, seed):
    source, model = random.Random(seed), bytearray()
    async with mounts() as m:
        h = await m.create(b"f", RW)
        for _ in range(60):
            offset = source.randrange(len(model) + 1)
            data = source.randbytes(source.choice([1, 10, 1000, 5000]))
            await write(m, h, offset, data)
            model[offset : offset + len(data)] = data
            if source.random() < 0.1:
                await (fsync if source.random() < 0.5 else flush)(m, h)
            if source.random() < 0.1:
                start = source.randrange(len(model))
                assert bytes(await m.files.read(h, start, 999)) == model[start : start + 999]
        await close(m, h)
        assert await read(m, b"f") == model


async def test_times_that_are_set_go_with_it(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f", WO)
        inode_id = cluster.names[1][b"f"]
        await write(m, h, 0, b"small")
        change = AttrChange(atime_ns=1, mtime_ns=2)
        shown = m.names.set_now(inode_id, change, ROOT, 0)
        assert shown is not None and shown.mtime_ns == 2
        await close(m, h)
        assert (cluster.get(inode_id).atime_ns, cluster.get(inode_id).mtime_ns) == (1, 2)
        assert (cluster.count("Sync"), cluster.count("SetAttr")) == (1, 0)
        assert inline(cluster, b"f") == b"small"


async def test_times_of_what_stays_open_go_with_it(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f", WO)
        inode_id = cluster.names[1][b"f"]
        await write(m, h, 0, b"small")
        assert m.names.set_now(inode_id, AttrChange(mtime_ns=2), ROOT, 0) is not None
        assert cluster.count("Sync") == 0
        await trio.sleep(0.5)
        assert inline(cluster, b"f") == b"small" and cluster.get(inode_id).mtime_ns == 2
        assert (cluster.count("Sync"), cluster.stored) == (1, 0)
        await close(m, h)


async def test_pages_of_the_kernel_stay_good(autojump_clock, mounts, cluster):
    async with mounts() as m:
        await make(m, b"f", b"small")
        opened = await m.open(b"f", RW)
        assert opened.keep_cache
        await write(m, opened.handle_id, 0, b"S")
        await close(m, opened.handle_id)
        again = await m.open(b"f", RO)
        assert again.keep_cache
        await close(m, again.handle_id)


async def test_what_others_wrote_is_seen_by_who_has_it_open(autojump_clock, mounts, cluster):
    async with mounts(2) as (one, two):
        await make(one, b"f", b"small")
        reader = (await two.open(b"f", RO)).handle_id
        direct = (await two.open(b"f", RO | os.O_DIRECT)).handle_id
        cluster.calls.clear()
        assert bytes(await two.files.read(direct, 0, 10)) == b"small"
        assert cluster.count("GetAttr") == 0, "it came with the open"
        h = (await one.open(b"f", RW)).handle_id
        await write(one, h, 0, b"S")
        await close(one, h)
        assert bytes(await two.files.read(direct, 0, 10)) == b"Small"
        h = (await one.open(b"f", RW)).handle_id
        await write(one, h, 1, b"M")
        await close(one, h)
        await trio.sleep(1.1)
        assert bytes(await two.files.read(reader, 0, 10)) == b"SMall"
        await close(two, reader)
        await close(two, direct)


async def test_without_durable_closes(autojump_clock, mounts, cluster):
    async with mounts(durable_close=False) as m:
        await make(m, b"f", b"small")
        assert inline(cluster, b"f") == b"small"
        assert await read(m, b"f") == b"small"
        assert (cluster.stored, cluster.count("Sync")) == (0, 1)


async def test_an_fsync_again_asks_meta_and_no_chunk(autojump_clock, mounts, cluster):
    async with mounts() as m:
        await make(m, b"f", b"small")
        h = (await m.open(b"f", RW)).handle_id
        await fsync(m, h)
        assert (cluster.chunks.sync_count, cluster.durable_calls) == (0, 2)
        await close(m, h)


async def test_a_reply_that_is_late_lets_nobody_write_to_a_chunk(autojump_clock, mounts, cluster):
    """It says of the chunks what was so before the file became inline."""
    async with mounts() as m:
        h = await m.create(b"f", RW)
        late = cluster.get(cluster.names[1][b"f"])
        await write(m, h, 0, b"small")
        await flush(m, h)
        state = m.files.open_state(h)
        assert state.ref.dyn_stripe == 0
        state.absorb(late)
        assert state.ref.dyn_stripe == 0
        await write(m, h, 5, bytes(MAX))
        await close(m, h)
        state.absorb(late)
        assert cluster.inline.moved_count == 1
        assert await read(m, b"f") == b"small" + bytes(MAX)


async def test_a_lost_answer_is_asked_for_again(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, b"small")
        cluster.lost_replies = [LOST]
        await close(m, h)
        assert inline(cluster, b"f") == b"small" and not cluster.stored
        assert await read(m, b"f") == b"small"


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("is_left", [True, False])
async def test_nobody_knows_what_became_of_it(autojump_clock, mounts, cluster, is_done, is_left):
    """The close fails; what is written next is not lost to a report that comes late,
    also if that is much later.
    """
    async with mounts(write_back_interval_s=5.0 if is_left else 1000.0) as m:
        h = await m.create(b"f", RW)
        inode_id = cluster.names[1][b"f"]
        await write(m, h, 0, b"small")
        if is_done and not cluster.begins:
            call = m.vfs._core.meta.call

            async def call_and_lose(method, request):
                reply = await call(method, request)
                if method is services.META_SYNC:
                    raise LOST
                return reply

            m.vfs._core.meta.call = call_and_lose
        elif is_done:
            cluster.lost_replies, cluster.is_gone = [LOST], True
        else:
            cluster.meta_faults["Sync"] = [LOST]
            cluster.is_gone = True
        with pytest.raises(FsError) as e:
            await close(m, h)
        assert e.value.status is Status.RPC_TIMEOUT
        cluster.is_gone = False
        if is_done and not cluster.begins:
            m.vfs._core.meta.call = call
        before = cluster.get(inode_id).file
        await trio.sleep(10)
        assert bool(m.vfs._core.unsure_inline) is not is_left
        h = (await m.open(b"f", RW)).handle_id
        await write(m, h, 0, b"other")
        await close(m, h)
        assert cluster.count("ExtendStripe") == 1
        found = cluster.get(inode_id).file
        assert (found.truncate_ver, found.data_ver) > (before.truncate_ver, before.data_ver)
        assert await read(m, b"f") == b"other"
        if is_left and not is_done:
            assert inline(cluster, b"f") == b"other", "meta has refused it by then"
        else:
            assert not cluster.inline.data
        await make(m, b"f", b"anew")
        assert inline(cluster, b"f") == b"anew", "it is sure again"


async def test_what_became_of_a_file_that_is_gone_is_not_remembered(
    autojump_clock, mounts, cluster
):
    async with mounts(2) as (m, other):
        h = await m.create(b"f", RW)
        await write(m, h, 0, b"small")
        cluster.meta_faults["Sync"] = [LOST]
        cluster.is_gone = True
        with pytest.raises(FsError):
            await flush(m, h)
        cluster.is_gone = False
        (report,) = m.vfs._core.unsure_inline.values()
        assert not report._request.inline_data, "the bytes are not charged any more"
        await trio.sleep(30)
        assert len(m.vfs._core.unsure_inline) == 1, "it is open"
        await other.names.unlink(1, b"f", ROOT)
        await m.files.release(h)
        cluster.meta_faults["ExtendStripe"] = [LOST, LOST]
        await trio.sleep(10)
        assert len(m.vfs._core.unsure_inline) == 1
        await trio.sleep(10)
        assert not m.vfs._core.unsure_inline


async def test_what_meta_refuses_goes_to_storage(autojump_clock, mounts, cluster):
    cluster.inline.take = lambda _: None
    async with mounts() as m:
        await make(m, b"f", b"small")
        assert await read(m, b"f") == b"small"
        assert cluster.stored == 5 and cluster.durable_calls == 1


async def test_space_above_a_quota_is_asked_for_as_ever(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f", RW)
        m.files.open_state(h).is_metered = True
        m.files.open_state(h).promised_length = 100
        await write(m, h, 0, b"small")
        await m.files.flush(h)
        m.files.open_state(h).is_metered = False
        await m.files.release(h)
        assert not cluster.inline.data and cluster.stored == 5


async def test_the_last_write_waits_for_nobody_who_has_stopped(autojump_clock, mounts, cluster):
    """The mount ends while meta is asked: the bytes count as lost, nobody waits for ever."""
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, b"small")
    assert cluster.stored == 5 or list(cluster.inline.data.values()) == [b"small"]


async def test_bytes_of_an_open_that_is_answered_late_are_not_taken_for_newer_ones(
    autojump_clock, mounts, cluster, monkeypatch
):
    """The attributes are asked for again then; the bytes are still those of before."""
    async with mounts() as m:
        await make(m, b"f", b"old bytes")
        core, answered, go_on = m.files._core, trio.Event(), trio.Event()
        call = core.call

        async def late_call(method, request, **options):
            reply = await call(method, request, **options)
            if method is services.META_OPEN and not answered.is_set():
                answered.set()
                await go_on.wait()
            return reply

        async def write_first_byte():
            h = (await m.open(b"f", RW)).handle_id
            await write(m, h, 0, b"O")
            await close(m, h)

        monkeypatch.setattr(core, "call", late_call)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_first_byte)
            await answered.wait()
            h = (await m.open(b"f", RW)).handle_id
            await write(m, h, 4, b"BYTES")
            await close(m, h)
            go_on.set()
        assert await read(m, b"f") == b"Old BYTES"


async def test_bytes_of_open_files_take_no_more_than_what_may_be_buffered(
    autojump_clock, mounts, cluster
):
    async with mounts(dirty_bytes_max=1 << 20) as m:
        budget, content = m.vfs._core.budget, {}
        for i in range(64):
            content[b"f%d" % i] = bytes([i]) * (MAX - 1)
        held = [await m.create(name) for name in content]
        for h, data in zip(held, content.values(), strict=True):
            await write(m, h, 0, data)
            await fsync(m, h)
            assert budget.kept_bytes + budget.used_bytes <= 1 << 20
        assert budget.kept_bytes > (1 << 20) - 2 * MAX, "what there is room for is kept"
        known = [m.files.open_state(h).inline is not None for h in held]
        assert known == sorted(known) and known[-1] and not known[0], "the newest ones"
        assert len(cluster.inline.data) == 64
        await write(m, held[0], MAX - 1, b"!")
        await fsync(m, held[0])
        assert cluster.inline.moved_count == 1, "what is not known goes to storage"
        await write(m, held[63], MAX - 1, b"!")
        await fsync(m, held[63])
        assert cluster.inline.moved_count == 1
        for name in (b"f0", b"f63"):
            content[name] += b"!"
        for name, h in zip(content, held, strict=True):
            assert await m.read_all(h) == content[name]
        # What is written has all the room, and the kept bytes make way for it.
        big = await m.create(b"big")
        assert m.files.write_now(big, 0, bytes(1 << 20)) is not None and not budget.kept_bytes
        await fsync(m, big)
        assert not budget.used_bytes and budget.try_acquire(1 << 20)
        assert bytes(await m.files.read(held[5], 0, MAX)) == content[b"f5"]
        assert not budget.kept_bytes
        budget.release(1 << 20)
        for h in (*held, big):
            await close(m, h)
        assert not budget.kept_bytes and not budget.used_bytes


async def test_bytes_that_come_when_their_file_is_closed_are_not_kept(
    autojump_clock, mounts, cluster
):
    async with mounts(2) as (m, other):
        await make(other, b"f", b"small")
        h = (await m.open(b"f", RO)).handle_id
        await trio.sleep(10)
        async with trio.open_nursery() as nursery:
            cluster.meta_gate = trio.Event()
            nursery.start_soon(m.files.read, h, 0, 10)
            await trio.testing.wait_all_tasks_blocked()
            assert m.files.release_now(h)
            cluster.meta_gate.set()
        cluster.meta_gate = None
        assert not m.vfs._core.budget.kept_bytes


@pytest.mark.parametrize("is_begun", [True, False])
async def test_an_open_answered_while_bytes_are_moved_hides_no_later_write(
    autojump_clock, mounts, cluster, monkeypatch, is_begun
):
    """It comes when they are in a chunk already, and written over;
    what it tells has the same times and the same content.
    """
    async with mounts() as m:
        await make(m, b"f", b"small")
        inode_id, core = cluster.names[1][b"f"], m.files._core
        h = (await m.open(b"f", RW)).handle_id
        reply = meta_pb2.InodeRsp(inode=inode_to_pb(cluster.get(inode_id)))
        cluster.inline.bring(meta_pb2.OpenReq(wants_read=True, takes_inline=True), "Open", reply)
        if is_begun:
            reply.inode.file.truncate_ver += 1
            reply.inode.file.truncate_pending = True
        await write(m, h, 0, b"S")
        core.start_flush(m.files.open_state(h))
        await core.drain(m.files.open_state(h))
        state = m.files.open_state(h)
        truncate_ver = state.ref.truncate_ver
        assert cluster.inline.moved_count == 1 and state.has_unreported
        inode = inode_from_pb(reply.inode)
        core.note_inode(state, inode)
        core.note_opened(state, inode, reply, core.now_s(), can_write=False)
        assert not state.file.is_inline and state.ref.truncate_ver == truncate_ver
        assert bytes(await m.files.read(h, 0, 10)) == b"Small"
        await close(m, h)
        assert await read(m, b"f") == b"Small"


async def test_nobody_writes_to_a_chunk_before_the_move_to_it_is_over(
    autojump_clock, mounts, cluster
):
    """Its note is not durable yet: after a power loss the bytes would be moved there once more."""
    async with mounts() as m:
        await make(m, b"f", b"small")
        h = (await m.open(b"f", RW)).handle_id
        state, inode_id = m.files.open_state(h), cluster.names[1][b"f"]
        moved = cluster.inline.move(cluster.get(inode_id))
        under_way = replace(moved, file=replace(moved.file, truncate_pending=True))
        m.vfs._core.note_inode(state, under_way)
        assert not state.file.is_inline
        for data in (b"S", b"M"):
            await write(m, h, 0, data)
            await m.vfs._core.drain(state)
        assert cluster.count("ExtendStripe") == 1, "which waits for the end"
        await close(m, h)
        assert await read(m, b"f") == b"Mmall"


async def test_a_file_that_a_program_closes_while_it_is_read_spoils_no_other_read_of_its_batch(
    autojump_clock, mounts, cluster
):
    async with mounts() as m:
        await make(m, b"f", b"small")
        batches, base = m.vfs.batches, (await m.open(b"f", RO)).handle_id
        first, second = (batches.open(batches.ticket(base)) for _ in range(2))
        other = await m.create(b"other", RW)
        await write(m, other, 0, b"to be written first")
        ios = [
            BatchIo(NO_FILE, 0, memoryview(bytearray(5)), handle_id=handle_id)
            for handle_id in (first, second, batches.open(batches.ticket(other)))
        ]
        async with trio.open_nursery() as nursery:
            cluster.meta_gate = trio.Event()
            nursery.start_soon(batches.read, ios)
            await trio.testing.wait_all_tasks_blocked()
            assert m.files.release_now(first)
            cluster.meta_gate.set()
        cluster.meta_gate = None
        assert [io.error for io in ios] == [None] * 3
        assert [bytes(io.buffer) for io in ios] == [b"small", b"small", b"to be"]
        for io in ios[1:]:
            await batches.close(io.handle_id)
        await close(m, base)
        await close(m, other)
