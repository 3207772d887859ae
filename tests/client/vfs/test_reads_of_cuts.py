# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Reads of what is being cut off: storage has no bytes any more before a reader's mount knows
that the file is shorter.
"""

import os
import struct
from dataclasses import replace

import pytest
import trio

from fs.client.holes import CutMeanwhileError
from fs.client.read_table import ReadTable
from fs.client.vfs.batches import NO_FILE, BatchIo
from fs.client.vfs.changing_attributes import AttrChange
from fs.kernels.batches import ENTRY
from fs.schema import services
from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK

from .conftest import ROOT, RW

KEY = struct.pack("<IIII", 1, 1, 1, 0)


async def _by_open(m, handle_id):
    opened = await m.open(b"f", RW | os.O_TRUNC)
    await m.close(opened.handle_id)


async def _by_length(m, handle_id):
    state = m.files.handle(handle_id).state
    await m.names.setattr(state.inode_id, AttrChange(length=0), handle_id, ROOT)


@pytest.mark.parametrize("cut", [_by_open, _by_length])
@pytest.mark.parametrize("reads_by", ["begin", "read"])
async def test_bytes_that_go_are_not_read_as_zeros(
    autojump_clock, mounts, monkeypatch, cut, reads_by
):
    async with mounts() as m:
        await m.write_file(b"f", b"content")
        handle_id = (await m.open(b"f")).handle_id
        core, is_cut = m.vfs._core, trio.Event()
        usual = core.call

        async def late(method, request, **others):
            reply = await usual(method, request, **others)
            if method in {services.META_OPEN, services.META_SET_ATTR}:
                is_cut.set()
                await trio.sleep(1)
            return reply

        async with trio.open_nursery() as nursery:
            monkeypatch.setattr(core, "call", late)
            nursery.start_soon(cut, m, handle_id)
            await is_cut.wait()
            if reads_by == "begin":
                assert m.files.begin_read(handle_id, 0, 100) is None
            assert m.files.read_now(handle_id, 0, 100) is None
            assert bytes(await m.files.read(handle_id, 0, 100)) == b""


@pytest.mark.parametrize("cut", [_by_open, _by_length])
async def test_a_short_answer_comes_when_the_kernel_has_acted_on_that_of_the_truncation(
    autojump_clock, mounts, cut
):
    async with mounts() as m:
        await m.write_file(b"f", b"content")
        handle_id = (await m.open(b"f")).handle_id
        await cut(m, handle_id)
        answered_s = trio.current_time()
        assert m.files.read_now(handle_id, 0, 100) is None
        assert m.files.begin_read(handle_id, 0, 100) is None
        assert bytes(await m.files.read(handle_id, 0, 100)) == b""
        assert 0.0 < trio.current_time() - answered_s < 0.1
        await m.close(handle_id)


async def test_an_open_that_truncates_sends_no_notice(autojump_clock, mounts):
    """It would make the kernel show zeros for what reads that are under way do not find:
    it takes no notice of how short they are.
    """
    async with mounts() as m:
        await m.write_file(b"f", b"content")
        await m.stat(b"f")  # the kernel is given its length
        handle_id = (await m.open(b"f", RW | os.O_TRUNC)).handle_id
        assert m.kernel.attributes == []
        await m.close(handle_id)


# ---- opened while it is cut ----------------------------------------------------------------------


async def _truncate_by_name(m, inode_id):
    await m.names.setattr(inode_id, AttrChange(length=100), None, ROOT)


@pytest.mark.parametrize("is_open_before", [False, True])
async def test_who_opens_a_file_that_is_being_truncated_sees_the_new_length(
    autojump_clock, mounts, monkeypatch, is_open_before
):
    """Meta has answered the open before the truncation, and nobody had it open then,
    or by another descriptor that was closed since.
    """
    async with mounts(readahead_bytes_max=0) as m:
        await m.write_file(b"f", b"content")
        inode_id = (await m.stat(b"f")).inode_id
        before = (await m.open(b"f", os.O_RDONLY)).handle_id if is_open_before else None
        opened, usual = [], m.vfs._core.call

        async def late(method, request):
            if method is services.META_SET_ATTR:
                if before is not None:
                    await m.close(before)
                opened.append((await m.open(b"f", os.O_RDONLY)).handle_id)
            return await usual(method, request)

        monkeypatch.setattr(m.vfs._core, "call", late)
        await _truncate_by_name(m, inode_id)
        assert bytes(await m.files.read(opened[0], 0, 1000)) == b"content".ljust(100, b"\0")
        await m.close(opened[0])
        assert not m.vfs._core.states and not m.vfs._core.cuts


async def test_who_opens_a_file_that_is_being_truncated_reads_when_that_is_over(
    autojump_clock, mounts, monkeypatch
):
    """Until then the kernel overlooks that an answer is short, and shows zeros."""
    async with mounts(readahead_bytes_max=0) as m:
        await m.write_file(b"f", b"x" * 200)
        inode_id = (await m.stat(b"f")).inode_id
        opened, usual, answered_s = [], m.vfs._core.call, []

        async def late(method, request):
            if method is services.META_SET_ATTR:
                opened.append((await m.open(b"f", os.O_RDONLY)).handle_id)
            reply = await usual(method, request)
            if method is services.META_SET_ATTR:
                await trio.sleep(1)
                answered_s.append(trio.current_time())
            return reply

        monkeypatch.setattr(m.vfs._core, "call", late)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_truncate_by_name, m, inode_id)
            await trio.sleep(0.5)
            assert m.files.begin_read(opened[0], 0, 4096) is None
            assert m.files.read_now(opened[0], 0, 4096) is None
            assert bytes(await m.files.read(opened[0], 0, 4096)) == b"x" * 100
            assert trio.current_time() > answered_s[0], "and a moment later"
        await m.close(opened[0])


# ---- cut by another mount ------------------------------------------------------------------------


async def _by_another(there, content):
    opened = await there.open(b"f", RW | os.O_TRUNC)
    await there.files.write(opened.handle_id, 0, content)
    await there.close(opened.handle_id)


async def _read(m, handle_id, count):
    return bytes(await m.files.read(handle_id, 0, count))


async def _read_in_batch(m, handle_id, count):
    ios = [BatchIo(NO_FILE, at, memoryview(bytearray(100)), 0, handle_id) for at in (0, count - 1)]
    await m.vfs.batches.read(ios)
    assert [io.error for io in ios] == [None, None]
    assert ios[1].count == 0
    return bytes(ios[0].buffer[: ios[0].count])


async def _read_by_rows(m, handle_id, count):
    count = min(count, 1000)  # larger ones are never begun
    table = ReadTable(ENTRY.pack(0, 0, 0, count, KEY), memoryview(bytearray(count)))
    ended = []
    assert m.vfs.batches.begin_table(table, {KEY: handle_id}, ended.append, is_relaxed=False)
    await trio.testing.wait_all_tasks_blocked()
    assert ended == [None]  # holes are left to the ordinary way
    ((_, io),) = await m.vfs.batches.read_table(table, {KEY: handle_id}, is_relaxed=False)
    assert io.error is None
    return bytes(io.buffer[: io.count])


async def _copy(m, handle_id, count):
    target_id = await m.create(b"copy")
    assert await m.vfs.copying.copy(handle_id, 0, target_id, 0, count) < count
    await m.close(target_id)
    return await m.read_file(b"copy")


async def _seek(m, handle_id, count):
    assert await m.vfs.seeking.seek(handle_id, 0, os.SEEK_HOLE) == len(b"new")
    return b"new"


@pytest.mark.parametrize("look", [_read, _read_in_batch, _read_by_rows, _copy, _seek])
@pytest.mark.parametrize("readahead_bytes_max", [0, 512 * 1024])
@pytest.mark.parametrize("length", [100, 2 * CHUNK])
async def test_what_another_mount_has_cut_is_no_hole(
    autojump_clock, mounts, look, readahead_bytes_max, length
):
    async with mounts(2, readahead_bytes_max=readahead_bytes_max) as (here, there):
        await here.write_file(b"f", b"x" * length)
        handle_id = (await here.open(b"f")).handle_id
        assert await here.read_all(handle_id) == b"x" * length
        here.files.handle(handle_id).readahead.clear()
        here.vfs._core.forget_ahead(here.files.handle(handle_id).readahead)
        await _by_another(there, b"new")
        assert await look(here, handle_id, length) == b"new"
        await here.close(handle_id)


@pytest.mark.timeout(20)
async def test_a_cut_by_a_clock_that_is_behind_is_believed(autojump_clock, mounts):
    """A power loss took from metadata what this mount was told last;
    then another service cut the file, whose clock is behind.
    """
    async with mounts(2, readahead_bytes_max=0) as (here, there):
        await here.write_file(b"f", b"x" * 100)
        handle_id = (await here.open(b"f", os.O_RDONLY)).handle_id
        state = here.files.handle(handle_id).state
        state.inode = replace(state.inode, ctime_ns=state.inode.ctime_ns + 3_600_000_000_000)
        await _by_another(there, b"new")
        assert bytes(await here.files.read(handle_id, 0, 100)) == b"new"
        await here.close(handle_id)


@pytest.mark.parametrize("look", [_read, _seek])
async def test_who_leaves_while_his_file_is_cut_asks_no_more(
    autojump_clock, mounts, monkeypatch, look
):
    """Nobody tells what he has left of the new length."""
    async with mounts(2, readahead_bytes_max=0) as (here, there):
        await here.write_file(b"f", b"x" * 100)
        handle_id = (await here.open(b"f", os.O_RDONLY)).handle_id
        await _by_another(there, b"new")
        core, usual = here.vfs._core, here.vfs._core.meta.call

        async def call(method, request, **others):
            if not here.files._handles:
                await trio.sleep(0.01)
            else:
                await here.files.release(handle_id)
            return await usual(method, request, **others)

        monkeypatch.setattr(core.meta, "call", call)
        with trio.fail_after(10), pytest.raises(FsError) as caught:
            await look(here, handle_id, 100)
        assert caught.value.status is Status.BAD_FILE


async def begun_together(mount, table):
    """Return whether reads that were begun are done."""
    ended = trio.Event(), []

    def end(is_done):
        ended[1].append(is_done)
        ended[0].set()

    known = [mount.vfs._core.known[inode_id] for inode_id in table.paged]
    assert mount.files.begin_together(table, end, 4096)
    assert [one.read_count for one in known] == [1] * len(known)
    await ended[0].wait()
    assert [one.read_count for one in known] == [0] * len(known)
    (is_done,) = ended[1]
    return is_done


@pytest.mark.parametrize("is_begun", [False, True])
async def test_reads_together_are_told_so(autojump_clock, mounts, is_begun):
    async with mounts(2, readahead_bytes_max=0) as (here, there):
        await here.write_file(b"f", b"x" * 100)
        handle_id = (await here.open(b"f")).handle_id
        await _by_another(there, b"new")
        file, count = here.files.begin_read(handle_id, 0, 4096)
        assert count == 100
        table = ReadTable(ENTRY.pack(0, 0, 0, count, KEY), memoryview(bytearray(count)))
        table.files[KEY] = file
        if is_begun:
            table.paged = {file.inode_id}
            assert not await begun_together(here, table)
        else:
            with pytest.raises(CutMeanwhileError):
                await here.files.read_together(table)
        assert bytes(await here.files.read(handle_id, 0, 4096)) == b"new"
        await here.close(handle_id)


async def test_what_is_cut_between_the_plan_of_a_read_and_its_end_is_no_hole(
    autojump_clock, mounts, cluster
):
    """The mount hears of the cut while the read is under way:
    its reader went by the length of before.
    """
    async with mounts(2, readahead_bytes_max=0) as (here, there):
        await here.write_file(b"f", b"x" * 100)
        handle_id = (await here.open(b"f")).handle_id
        state = here.files.handle(handle_id).state
        file, count = here.files.begin_read(handle_id, 0, 4096)
        await _by_another(there, b"new")
        await here.stat(b"f")
        assert state.local_length() == 3
        table = ReadTable(ENTRY.pack(0, 0, 0, count, KEY), memoryview(bytearray(count)))
        table.files[KEY] = file
        with pytest.raises(CutMeanwhileError):
            await here.files.read_together(table)
        await here.close(handle_id)


async def test_begun_reads_of_holes_ask_whether_they_are_holes_once(
    autojump_clock, mounts, monkeypatch
):
    async with mounts(readahead_bytes_max=0) as m:
        handle_id = await m.create(b"f")
        await m.files.write(handle_id, 100, b"x" * 10)
        await m.names.setattr(
            m.files.handle(handle_id).state.inode_id, AttrChange(length=2 * CHUNK), handle_id, ROOT
        )
        await m.close(handle_id)
        handle_id = (await m.open(b"f")).handle_id
        core, asked = m.vfs._core, []
        usual = core.require_holes

        async def require_holes(reads):
            asked.append(reads)
            await usual(reads)

        monkeypatch.setattr(core, "require_holes", require_holes)
        for _ in range(2):
            file, count = m.files.begin_read(handle_id, CHUNK, 4096)
            table = ReadTable(
                ENTRY.pack(0, CHUNK, 0, count, KEY), memoryview(bytearray(b"?" * count))
            )
            table.files[KEY], table.paged = file, {file.inode_id}
            assert await begun_together(m, table)
            assert bytes(table.view) == bytes(count)
        assert len(asked) == 1
        await m.close(handle_id)


# ---- what it costs -------------------------------------------------------------------------------


async def test_a_hole_is_asked_for_once_a_chunk(autojump_clock, mounts, monkeypatch):
    async with mounts(2, readahead_bytes_max=0, atime="noatime") as (here, there):
        handle_id = await there.create(b"f")
        await there.files.write(handle_id, 100, b"x")
        await there.names.setattr(
            there.files.handle(handle_id).state.inode_id,
            AttrChange(length=3 * CHUNK),
            handle_id,
            ROOT,
        )
        await there.close(handle_id)
        core, asked = here.vfs._core, []
        usual = core.meta.call

        async def call(method, request, **others):
            asked.append(method.name)
            return await usual(method, request, **others)

        monkeypatch.setattr(core.meta, "call", call)
        handle_id = (await here.open(b"f", os.O_RDONLY)).handle_id
        asked.clear()
        for offset in range(0, 3 * CHUNK, 4096):
            data = bytes(await here.files.read(handle_id, offset, 4096))
            assert data == (bytes(100) + b"x").ljust(4096, b"\0") if not offset else bytes(4096)
        assert len(asked) == 3
        for offset in range(0, 3 * CHUNK, 4096):
            await here.files.read(handle_id, offset, 4096)
        assert len(asked) == 3
        await trio.sleep(
            2
        )  # not for ever: what another mount has written and cut since would be zeros, too
        await here.files.read(handle_id, CHUNK, 4096)
        assert len(asked) == 4
        await here.close(handle_id)


async def test_the_kernel_is_not_trusted_with_a_length_that_a_short_read_has_changed(
    autojump_clock, mounts
):
    """It shows the file as short as the answer to a READ was;
    when the file is as long as before again, that is not what was told last.
    """
    async with mounts(2, readahead_bytes_max=0) as (here, there):
        await here.write_file(b"f", b"old")
        await here.stat(b"f")
        handle_id = (await here.open(b"f", os.O_RDONLY)).handle_id
        await there.close((await there.open(b"f", RW | os.O_TRUNC)).handle_id)
        assert bytes(await here.files.read(handle_id, 0, 100)) == b""
        await there.write_file(b"f", b"new")
        here.kernel.attributes.clear()
        inode_id = here.files.handle(handle_id).state.inode_id
        known = here.vfs._core.known[inode_id]
        known.given_mtime_ns = (await there.stat(b"f")).mtime_ns  # as after utimes(2)
        again = await here.files.open(inode_id, os.O_RDONLY, ROOT)
        assert here.kernel.attributes == [inode_id]
        for one in (handle_id, again.handle_id):
            await here.close(one)
