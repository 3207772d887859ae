# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Answers to READs that are shorter than what the kernel takes a file to have:
it goes by them, or they wait.
"""

import os
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.device import Request
from fs.client.fuse.direct.directory_requests import DirectoryRequests
from fs.client.fuse.direct.protocol import Opcode
from fs.client.fuse.direct.server import Server
from fs.client.fuse.direct.together import ReadsTogether
from fs.client.vfs.batches import NO_FILE, BatchIo
from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.told_lengths import (
    ACTED_ON_S,
    HELD_S,
    LOOK_AGAIN_S,
    QUIET_S,
    NotedKernel,
    Patience,
    ToldLengths,
)
from fs.schema import services
from fs.schema.ids import InodeId
from fs.schema.inode import inode_to_pb
from tests.sim.page_cache import ModelDevice

from .conftest import ROOT, RW

# ---- what is known -------------------------------------------------------------------------------


def test_a_smaller_length_counts_only_when_the_kernel_has_acted_on_it():
    told = ToldLengths()
    assert not told.may_show_longer(0, 0.0)
    told.note_told(100, 1.0)
    assert told.may_show_longer(99, 9.0)
    assert not told.may_show_longer(100, 9.0)
    told.note_told(10, 10.0)
    assert told.may_show_longer(10, 10.0 + ACTED_ON_S / 2)
    assert not told.may_show_longer(10, 10.0 + ACTED_ON_S)
    told.note_told(50, 11.0)
    told.note_told(20, 11.0)
    told.note_told(10, 11.0)
    assert told.may_show_longer(49, 11.0)
    assert not told.may_show_longer(50, 11.0)


def test_a_smaller_length_that_the_kernel_may_overlook_does_not_count():
    told = ToldLengths(touched_s=1.0)
    assert told.may_overlook(0.9) and told.may_overlook(1.0 + ACTED_ON_S / 2)
    assert not told.may_overlook(1.0 + ACTED_ON_S)
    told.note_told(100, 2.0)
    told.note_told(10, 3.0, may_be_overlooked=True)
    assert told.may_show_longer(99, 9.0)
    told.note_told(200, 3.0, may_be_overlooked=True)
    assert told.may_show_longer(199, 9.0)
    told.note_told(10, 4.0)
    assert not told.may_show_longer(10, 9.0)


def test_after_a_truncation_no_short_answer_counts_for_a_moment():
    told = ToldLengths()
    told.note_truncated(100, 10, 1.0)
    assert told.may_show_longer(10, 1.0) and not told.may_answer(0, 0, 1.0)
    assert told.may_answer(0, 0, 1.0 + ACTED_ON_S)
    assert not told.may_show_longer(10, 1.0 + ACTED_ON_S)


def test_what_has_changed_since_a_read_arrived_makes_the_kernel_overlook_its_answer():
    told = ToldLengths(touched_at=5)
    assert told.may_answer(5, 0, 0.0)
    assert not told.may_answer(4, 0, 0.0)
    told.notice_count = 1
    assert not told.may_answer(5, 0, 0.0)


def test_answers_are_given_in_the_order_of_the_file():
    told = ToldLengths(held=[4096, 0, 8192])
    assert told.may_answer(0, 0, 0.0)
    assert not told.may_answer(0, 4096, 0.0)
    told.read_count = 1  # which may begin before
    assert not told.may_answer(0, 0, 0.0)


def test_reads_of_what_lies_before_are_waited_for_until_a_notice_is_sent():
    told = ToldLengths(held=[4096, 8192])
    assert told.awaits_reads(8192)
    assert not told.awaits_reads(4096)
    told.read_count = 1
    assert told.awaits_reads(4096)
    told.notice_count = 1
    assert not told.awaits_reads(4096)


def test_patience_is_longer_with_reads_than_with_nothing():
    told, one = ToldLengths(held=[0, 4096]), Patience()
    assert not one.has_ended(told, 4096, 10, 1.0)
    assert not one.has_ended(told, 4096, 10, 1.0 + 3 * HELD_S)
    told.held.remove(0)
    assert not one.has_ended(told, 4096, 10, 1.0 + 3.9 * HELD_S)
    assert one.has_ended(told, 4096, 10, 1.0 + 4.1 * HELD_S)
    assert not one.has_ended(told, 4096, 5, 1.0 + 4.1 * HELD_S), "cut once more"
    assert one.has_ended(told, 4096, 5, 1.0 + 5.2 * HELD_S)
    told.held.append(0)
    assert one.has_ended(told, 4096, 5, 1.0 + QUIET_S)


def test_the_kernel_acts_on_what_it_was_told_a_moment_ago():
    told = ToldLengths()
    assert told.acts_in_s(1.0) == 0
    told.note_truncated(100, 10, 1.0)
    assert told.acts_in_s(1.0 + ACTED_ON_S / 2) == pytest.approx(ACTED_ON_S / 2)
    assert told.acts_in_s(2.0) == 0


# ---- what waits ----------------------------------------------------------------------------------


class SlowKernel:
    def __init__(self):
        self.notices, self.ranges = [], []

    async def invalidate_attributes(self, inode_id):
        await trio.sleep(1)
        self.notices.append(("attributes", inode_id, trio.current_time()))

    async def invalidate_content(self, inode_id, start=0, length=0):
        await trio.sleep(1)
        self.notices.append(("content", inode_id, trio.current_time()))
        self.ranges.append((start, length))


async def test_notices_wait_for_reads_and_count_as_changes(autojump_clock):
    touched, kernel, told = [], SlowKernel(), ToldLengths()
    noted, began_s = NotedKernel(kernel, {7: told}, touched.append), trio.current_time()
    async with trio.open_nursery() as nursery:
        told.read_count = 1
        nursery.start_soon(noted.invalidate_attributes, 7)
        await trio.sleep(0.1)
        told.read_count = 0
        await trio.sleep(0.5)
        assert told.notice_count == 1
        assert touched == []
    assert touched == [told]
    assert told.notice_count == 0
    ((what, inode_id, told_s),) = kernel.notices
    assert (what, inode_id) == ("attributes", 7)
    assert 1.1 <= told_s - began_s <= 1.1 + 2 * LOOK_AGAIN_S


async def test_notices_do_not_wait_for_ever_nor_for_what_nobody_knows(autojump_clock):
    kernel, told, began_s = SlowKernel(), ToldLengths(read_count=1), trio.current_time()
    noted = NotedKernel(kernel, {7: told}, lambda _: None)
    await noted.invalidate_content(8, 4096, 100)
    assert kernel.ranges == [(4096, 100)]
    assert kernel.notices.pop() == ("content", 8, began_s + 1)
    began_s = trio.current_time()
    await noted.invalidate_content(7)
    told_s = kernel.notices.pop()[2]
    assert QUIET_S + 1 <= told_s - began_s < QUIET_S + 1.1


@pytest.mark.parametrize("flags", [0, os.O_DIRECT])
@pytest.mark.parametrize("are_together", [False, True])
async def test_notices_do_not_wait_for_reads_past_the_page_cache(
    autojump_clock, mounts, monkeypatch, flags, are_together
):
    """Of such a file there may always be some under way."""
    async with mounts(readahead_bytes_max=0) as m:
        await m.write_file(b"f", b"x" * 100)
        handle_id = (await m.open(b"f", os.O_RDONLY | flags)).handle_id
        core, usual = m.vfs._core, m.vfs._core.store.read

        async def slow(*args, **others):
            await trio.sleep(0.5)
            await usual(*args, **others)

        monkeypatch.setattr(core.store, "read", slow)
        async with trio.open_nursery() as nursery:
            if are_together:
                reads = ReadsTogether()
                found = m.files.begin_read(handle_id, 0, 50)
                reads.add((0,) * 10 + (0, 50, 0, 0, flags, 0), *found)
                nursery.start_soon(m.files.read_together, reads.table(core.memory))
            else:
                nursery.start_soon(m.files.read, handle_id, 0, 50)
            await wait_all_tasks_blocked()
            began_s = trio.current_time()
            await core.kernel.invalidate_attributes(m.files.handle(handle_id).state.inode_id)
            waited_s = trio.current_time() - began_s
        assert (waited_s > 0.4) == (not flags)
        await m.close(handle_id)


async def cut(here, there):
    """Have a file of which the kernel was told that it has 100 bytes emptied by another mount;
    return a handle of it.
    """
    await here.write_file(b"f", b"x" * 100)
    handle_id = (await here.open(b"f", os.O_RDONLY)).handle_id
    await here.stat(b"f")
    await trio.sleep(1)
    await there.close((await there.open(b"f", RW | os.O_TRUNC)).handle_id)
    return handle_id


async def test_a_short_answer_that_counts_is_given_in_a_moment(autojump_clock, mounts):
    async with mounts(2, readahead_bytes_max=0) as (here, there):
        handle_id = await cut(here, there)
        began_s = trio.current_time()
        assert bytes(await here.files.read(handle_id, 0, 4096)) == b""
        assert 0.9 * LOOK_AGAIN_S < trio.current_time() - began_s <= 2 * LOOK_AGAIN_S
        began_s = trio.current_time()
        await trio.sleep(ACTED_ON_S)
        assert bytes(await here.files.read(handle_id, 0, 4096)) == b""
        assert trio.current_time() - began_s == pytest.approx(ACTED_ON_S), "it was told"
        await here.close(handle_id)


async def test_it_waits_for_a_read_that_was_sent_before_and_arrives_after(
    autojump_clock, mounts, monkeypatch
):
    """Seed 180506 of the simulation: of what lies behind the kernel asks first."""
    async with mounts(2, readahead_bytes_max=0) as (here, there):
        await here.write_file(b"f", b"x" * 50_000)
        handle_id = (await here.open(b"f", os.O_RDONLY)).handle_id
        inode, core, answered = await here.stat(b"f"), here.vfs._core, []
        usual, known = core.store.read, core.known[inode.inode_id]

        async def slow(reads, **others):
            await trio.sleep(0.05)
            await usual(reads, **others)

        async def read(offset):
            answered.append((offset, len(await here.files.read(handle_id, offset, 4096))))

        await there.names.setattr(inode.inode_id, AttrChange(length=5000), None, ROOT)
        core.absorbed(inode_to_pb(await there.stat(b"f")))
        assert core.states[inode.inode_id].local_length() == 5000
        monkeypatch.setattr(core.store, "read", slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, 32_768)
            await wait_all_tasks_blocked()
            nursery.start_soon(read, 4096)
        assert answered == [(4096, 904), (32_768, 0)]

        # What has ended the file behind its end is not taken for having told that.
        known.note_told(50_000, core.now_s())
        await read(32_768)
        assert known.told_length == 32_768
        await here.close(handle_id)


async def test_one_that_is_overlooked_waits_until_the_kernel_is_told(autojump_clock, mounts):
    async with mounts(2, readahead_bytes_max=0) as (here, there):
        handle_id = await cut(here, there)
        mark, began_s = here.files.read_mark(), trio.current_time()
        core, ended_s = here.vfs._core, []
        known = core.known[here.files.handle(handle_id).state.inode_id]
        core.touch(known)  # a reply that tells the length of before

        async def read():
            assert bytes(await here.files.read_since(mark, handle_id, 0, 4096)) == b""
            ended_s.append(trio.current_time() - began_s)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.sleep(HELD_S / 2)
            assert ended_s == []
            assert here.files.read_now(handle_id, 0, 4096) is None
            await here.stat(b"f")
        assert HELD_S / 2 < ended_s[0] <= HELD_S / 2 + ACTED_ON_S + 2 * LOOK_AGAIN_S

        # nobody asks
        core.note_given(known, here.files.handle(handle_id).state.inode, 1.0)
        known.note_told(100, core.now_s())
        ended_s.clear()
        began_s = trio.current_time()
        await read()
        assert HELD_S <= ended_s[0] < 2 * HELD_S
        await here.close(handle_id)


@pytest.mark.parametrize("is_overtaken", [True, False])
async def test_a_length_that_a_listing_told_counts_unless_something_was_told_meanwhile(
    autojump_clock, mounts, monkeypatch, is_overtaken
):
    """Seed 92004 of the simulation: the kernel took nothing from it,
    so a short answer is not given before one to what lies before.
    """
    async with mounts(2, readahead_bytes_max=0) as (here, there):
        await here.write_file(b"f", b"x" * 50_000)
        handle_id = (await here.open(b"f", os.O_RDONLY)).handle_id
        inode, core, answered = await here.stat(b"f"), here.vfs._core, []
        usual_call, usual_read = core.meta.call, core.store.read

        async def slow_call(method, request, **others):
            if method is services.META_LIST:
                await trio.sleep(0.1)
            return await usual_call(method, request, **others)

        async def slow_read(reads, **others):
            if reads[0].offset == 4096:
                await trio.sleep(0.02)
            await usual_read(reads, **others)

        async def read(offset):
            answered.append((offset, len(await here.files.read(handle_id, offset, 4096))))

        monkeypatch.setattr(core.meta, "call", slow_call)
        monkeypatch.setattr(core.store, "read", slow_read)
        requests = DirectoryRequests(here.vfs, core.runtime)
        await trio.sleep(ACTED_ON_S)
        body = p.READ_IN.pack(here.vfs.directories.opendir(InodeId(1), ROOT), 0, 4096, *[0] * 4)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                requests._readdirplus, Request(2, Opcode.READDIRPLUS, 1, 0, 0, 0, body)
            )
            await trio.sleep(0.01)
            if is_overtaken:
                await here.stat(b"f")
            await there.names.setattr(inode.inode_id, AttrChange(length=5000), None, ROOT)
        await trio.sleep(ACTED_ON_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, 4096)
            nursery.start_soon(read, 32_768)
        found = [(4096, 904), (32_768, 0)]
        assert answered == (found if is_overtaken else found[::-1])
        await here.close(handle_id)


async def test_a_look_up_done_again_counts_from_when_the_kernel_asked(autojump_clock, mounts):
    async with mounts(2) as (here, there):
        await here.write_file(b"f", b"x" * 100)
        inode, core = await here.stat(b"f"), here.vfs._core
        known, requests = core.known[inode.inode_id], DirectoryRequests(here.vfs, core.runtime)
        await there.names.setattr(inode.inode_id, AttrChange(length=10), None, ROOT)
        core.touch(known)
        for waited_s, told_length in ((0.2, 100), (0.0, 10)):
            await trio.sleep(0.1)
            look_up = requests.again(Opcode.LOOKUP, waited_s)
            await look_up(Request(2, Opcode.LOOKUP, 1, 0, 0, 0, b"f\0"))
            assert known.told_length == told_length
        assert requests.again(Opcode.OPEN, 0.2) is None


async def test_reads_done_again_are_answered_in_the_order_of_the_file(autojump_clock, mounts):
    """What begins behind, and ends the file sooner,
    would make the kernel overlook the end of what begins before it.
    """
    async with mounts(2, readahead_bytes_max=0) as (here, there), trio.open_nursery() as nursery:
        device = ModelDevice()
        server = Server(device, here.vfs, here.vfs._core.runtime)
        nursery.start_soon(server.run)
        for number in range(8):
            name = b"f%d" % number
            await here.write_file(name, b"x" * 50_000)
            opened = await here.open(name, os.O_RDONLY)
            inode = await here.stat(name)
            await trio.sleep(1)  # the kernel asks for attributes no sooner
            await there.names.setattr(inode.inode_id, AttrChange(length=10), None, ROOT)
            answered, all_answered = [], trio.Event()

            def end(offset, error, reply):
                assert (error, reply) == (0, b"")
                answered.append(offset)  # noqa: B023
                if len(answered) == len(offsets):  # noqa: B023
                    all_answered.set()  # noqa: B023

            offsets = [32_768, 4096, 16_384]
            for offset in offsets:
                body = p.READ_IN.pack(opened.handle_id, offset, 4096, 0, 0, 0, 0)
                device.send(Opcode.READ, inode.inode_id, body, partial(end, offset))
            await all_answered.wait()
            assert answered[0] == 4096
            await here.close(opened.handle_id)
        device.end()


@pytest.mark.parametrize("slow_s", [3 * HELD_S, 2 * QUIET_S])
@pytest.mark.parametrize("is_touched", [False, True])
async def test_a_short_answer_waits_for_a_slow_read_of_what_lies_before(
    autojump_clock, mounts, monkeypatch, slow_s, is_touched
):
    """Given before, it would make the kernel overlook how short the answer is to that.

    Also when attributes were told meanwhile: of a listing that it asked for long ago it takes
    nothing (seed 180240 of the simulation).
    """
    async with mounts(2, readahead_bytes_max=0) as (here, there):
        await here.write_file(b"f", b"x" * 50_000)
        handle_id = (await here.open(b"f", os.O_RDONLY)).handle_id
        inode, core, answered = await here.stat(b"f"), here.vfs._core, []
        usual, began_s = core.store.read, trio.current_time()

        async def slow(reads, **others):
            if reads[0].offset == 0:
                await trio.sleep(slow_s)
            await usual(reads, **others)

        async def read(offset):
            found = await here.files.read(handle_id, offset, 4096)
            answered.append((offset, len(found), trio.current_time() - began_s))

        await there.names.setattr(inode.inode_id, AttrChange(length=10), None, ROOT)
        monkeypatch.setattr(core.store, "read", slow)
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, 0)
            nursery.start_soon(read, 32_768)
            await wait_all_tasks_blocked()
            if is_touched:
                core.touch(core.known[inode.inode_id])
        counts = {offset: count for offset, count, _ in answered}
        assert counts == {0: 10, 32_768: 0}
        first, _, waited_s = answered[0]
        if slow_s < QUIET_S:
            assert first == 0
        else:
            assert first == 32_768 and QUIET_S <= waited_s < QUIET_S + 0.1
        await here.close(handle_id)


async def test_who_waits_for_another_read_does_not_read_all_the_while(
    autojump_clock, mounts, monkeypatch
):
    async with mounts(2, readahead_bytes_max=0) as (here, there):
        await here.write_file(b"f", b"x" * 50_000)
        handle_id = (await here.open(b"f", os.O_RDONLY)).handle_id
        inode, core, asked = await here.stat(b"f"), here.vfs._core, []
        usual = core.store.read

        async def slow(reads, **others):
            asked.append(reads[0].offset)
            if reads[0].offset == 0:
                await trio.sleep(0.5)
            await usual(reads, **others)

        await there.names.setattr(inode.inode_id, AttrChange(length=5000), None, ROOT)
        monkeypatch.setattr(core.store, "read", slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.files.read, handle_id, 0, 8192)
            nursery.start_soon(here.files.read, handle_id, 4096, 4096)
        assert asked.count(4096) <= 3
        await here.close(handle_id)


async def test_what_has_waited_before_a_truncation_waits_for_the_kernel_to_act_on_it(
    autojump_clock, mounts, monkeypatch
):
    """Seed 180116 of the simulation through the caches of Linux:
    a file is cut, looked up, and emptied by an open meanwhile.
    """
    async with mounts(readahead_bytes_max=0) as m:
        await m.write_file(b"f", b"x" * 100)
        handle_id = (await m.open(b"f", os.O_RDONLY)).handle_id
        await m.stat(b"f")
        core, answered = m.vfs._core, []
        known, usual = core.known[m.files.handle(handle_id).state.inode_id], core.meta.call

        async def slow(method, request, **others):
            reply = await usual(method, request, **others)
            if method is services.META_OPEN:
                await trio.sleep(2 * HELD_S)
            return reply

        async def read():
            found = await m.files.read_since(mark, handle_id, 0, 4096)
            answered.append((bytes(found), trio.current_time()))

        known.note_told(4096, core.now_s())  # as a late reply does
        mark = m.files.read_mark()
        core.touch(known)
        monkeypatch.setattr(core.meta, "call", slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.sleep(HELD_S / 2)
            assert not answered
            emptied = await m.open(b"f", RW | os.O_TRUNC)
            told_s = trio.current_time()
        ((found, answered_s),) = answered
        assert found == b""
        assert told_s + ACTED_ON_S / 2 < answered_s < told_s + ACTED_ON_S + 2 * LOOK_AGAIN_S
        await m.close(emptied.handle_id)
        await m.close(handle_id)


async def test_reads_past_the_page_cache_wait_for_nothing(autojump_clock, mounts):
    async with mounts(2, readahead_bytes_max=0) as (here, there):
        await here.close(await cut(here, there))
        await there.write_file(b"f", b"x" * 100)
        handle_id = (await here.open(b"f", os.O_RDONLY | os.O_DIRECT)).handle_id
        mark, began_s = here.files.read_mark(), trio.current_time()
        inode = await here.stat(b"f")
        await there.close((await there.open(b"f", RW | os.O_TRUNC)).handle_id)
        assert inode.length == 100
        assert bytes(await here.files.read_since(mark, handle_id, 0, 4096)) == b""
        assert trio.current_time() == began_s
        await here.close(handle_id)


# ---- own writes ----------------------------------------------------------------------------------


async def test_what_is_written_during_a_read_is_not_read_as_a_hole(autojump_clock, mounts, cluster):
    """The read waits for what was written before;
    what comes meanwhile makes the file longer, and is not in storage.
    """
    async with mounts(readahead_bytes_max=0, write_buffer_bytes=64 * 1024) as m:
        handle_id, found = await m.create(b"f"), []
        await m.files.write(handle_id, 0, b"a" * 100)
        gate = cluster.chunks.gate = trio.Event()

        async def read():
            found.append(bytes(await m.files.read(handle_id, 0, 4096)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            await m.files.write(handle_id, 100, b"b" * 100)
            gate.set()
        cluster.chunks.gate = None
        assert found in ([b"a" * 100], [b"a" * 100 + b"b" * 100])
        await m.close(handle_id)


async def test_so_it_is_in_a_batch(autojump_clock, mounts, cluster):
    async with mounts(readahead_bytes_max=0, write_buffer_bytes=64 * 1024) as m:
        handle_id = await m.create(b"f")
        await m.files.write(handle_id, 0, b"a" * 100)
        gate = cluster.chunks.gate = trio.Event()
        io = BatchIo(NO_FILE, 0, memoryview(bytearray(4096)), 0, handle_id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(m.vfs.batches.read, [io])
            await trio.testing.wait_all_tasks_blocked()
            await m.files.write(handle_id, 100, b"b" * 100)
            gate.set()
        cluster.chunks.gate = None
        assert bytes(io.buffer[: io.count]) in (b"a" * 100, b"a" * 100 + b"b" * 100)
        await m.close(handle_id)
