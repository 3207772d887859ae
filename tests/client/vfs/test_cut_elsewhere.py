# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Files that another mount cuts, or makes longer, while this one writes them."""

import os

import pytest
import trio

from fs.client.vfs.allocation import FallocateMode
from fs.client.vfs.batches import NO_FILE, BatchIo
from fs.client.vfs.changing_attributes import AttrChange
from fs.schema import services
from fs.schema.status import FsError, Status

from .conftest import ROOT, RW


@pytest.mark.parametrize("looks", [False, True])
async def test_what_is_written_after_another_mount_has_cut_the_file_stays(
    autojump_clock, mounts, looks
):
    async with mounts(2) as (here, there):
        await here.write_file(b"f", b"before" * 1000)
        handle_id = (await here.open(b"f")).handle_id
        cut = await there.open(b"f", RW | os.O_TRUNC)
        await there.close(cut.handle_id)
        await here.files.write(handle_id, 0, b"after")
        state = here.files.handle(handle_id).state
        await here.vfs._core.drain(state)
        if looks:  # and so learns of the cut, before it tells of what it wrote
            await here.stat(b"f")
            assert bytes(await here.files.read(handle_id, 0, 100)) == b"after"
            inode_id = here.files.handle(handle_id).state.inode_id
            assert (await here.names.getattr(inode_id, ROOT)).length == 5
        await here.close(handle_id)
        assert await there.read_file(b"f") == b"after"
        assert await here.read_file(b"f") == b"after"


async def begin(here, there):
    """Have a file cut by one mount and then written by another,
    which is told of the cut before it tells of what it wrote; return handle and state.
    """
    await here.write_file(b"f", b"before" * 1000)
    handle_id = (await here.open(b"f")).handle_id
    await there.close((await there.open(b"f", RW | os.O_TRUNC)).handle_id)
    await here.files.write(handle_id, 0, b"after")
    state = here.files.handle(handle_id).state
    await here.vfs._core.drain(state)
    return handle_id, state


async def hear(here, state):
    """Have a mount hear of the cut without anybody asking how long the file is."""
    other = await here.files.open(state.inode_id, os.O_RDONLY, ROOT)
    await here.close(other.handle_id)
    assert state.is_length_unknown


async def test_every_way_of_looking_shows_what_was_written(autojump_clock, mounts):
    async def look_up(here, state):
        return await here.names.lookup(1, b"f", ROOT)

    async def get(here, state):
        return await here.names.getattr(state.inode_id, ROOT)

    async def change(here, state):
        return await here.names.setattr(state.inode_id, AttrChange(mode=0o600), None, ROOT)

    async def list_(here, state):
        directory = here.vfs.directories.opendir(1, ROOT)
        (entry,) = await here.vfs.directories.readdir(directory, 0)
        here.vfs.directories.releasedir(directory)
        return entry.inode

    for look in (look_up, get, change, list_):
        async with mounts(2) as (here, there):
            handle_id, state = await begin(here, there)
            assert (await look(here, state)).length == 5, look.__name__
            await here.close(handle_id)
            await there.names.unlink(1, b"f", ROOT)


async def test_whoever_asks_for_the_length_is_told_what_was_written(autojump_clock, mounts):
    async with mounts(2) as (here, there):
        handle_id, state = await begin(here, there)
        await hear(here, state)
        assert await here.vfs.seeking.seek(handle_id, 0, os.SEEK_DATA) == 0
        await here.close(handle_id)

        handle_id, state = await begin(here, there)
        await hear(here, state)
        target_id = await here.create(b"g")
        assert await here.vfs.copying.copy(handle_id, 0, target_id, 0, 100) == 5
        for one in (handle_id, target_id):
            await here.close(one)

        handle_id, state = await begin(here, there)
        await hear(here, state)
        io = BatchIo(NO_FILE, 0, memoryview(bytearray(100)), 0, handle_id)
        await here.vfs.batches.read([io])
        assert (io.count, bytes(io.buffer[:5])) == (5, b"after")
        await here.close(handle_id)


@pytest.mark.timeout(20)  # the event loop itself would turn no more
@pytest.mark.parametrize("is_refused", [False, True])
async def test_a_read_ends_though_the_length_stays_unknown_while_something_is_buffered(
    autojump_clock, mounts, monkeypatch, is_refused
):
    async with mounts(2, readahead_bytes_max=0) as (here, there):
        await here.write_file(b"f", b"x" * 100)
        handle_id = (await here.open(b"f")).handle_id
        state, core = here.files.handle(handle_id).state, here.vfs._core
        await here.files.write(handle_id, 200, b"reported")
        await core.drain(state)
        await here.files.write(handle_id, 1000, b"buffered")
        await there.close((await there.open(b"f", RW | os.O_TRUNC)).handle_id)
        usual = core.call

        async def refuse(method, request, **others):
            if method is services.META_SYNC:
                raise FsError(Status.STALE, "the file is gone")
            return await usual(method, request, **others)

        if is_refused:
            monkeypatch.setattr(core, "call", refuse)
        await here.stat(b"f")
        assert state.is_dirty
        assert state.is_length_unknown
        assert bytes(await here.files.read(handle_id, 0, 300)) == bytes(300)
        assert bytes(await here.files.read(handle_id, 1000, 300)) == b"buffered"
        monkeypatch.setattr(core, "call", usual)
        await here.close(handle_id)


async def test_a_file_is_not_lengthened_to_less_than_was_written(autojump_clock, mounts):
    async with mounts(2) as (here, there):
        handle_id, state = await begin(here, there)
        await hear(here, state)
        await here.vfs.allocation.fallocate(handle_id, 0, 0, 3)
        await here.close(handle_id)
        assert await there.read_file(b"f") == b"after"


async def test_a_file_is_not_lengthened_to_less_than_another_mount_has_written(
    autojump_clock, mounts
):
    async with mounts(2) as (here, there):
        handle_id = await here.create(b"f")
        theirs = (await there.open(b"f")).handle_id
        await there.files.write(theirs, 0, b"theirs")
        await there.close(theirs)
        await here.vfs.allocation.fallocate(handle_id, 0, 0, 3)
        await here.close(handle_id)
        assert await there.read_file(b"f") == b"theirs"


async def test_a_file_is_not_lengthened_to_less_than_is_reported_in_the_same_moment(
    autojump_clock, mounts
):
    async with mounts(2) as (here, there):
        handle_id = await here.create(b"f")
        theirs = (await there.open(b"f")).handle_id
        call = here.vfs._core.meta.call

        async def late_call(method, request):
            if method is services.META_SET_ATTR:  # the question how long it is has been answered
                await there.files.write(theirs, 0, b"theirs")
                await there.close(theirs)
            return await call(method, request)

        here.vfs._core.meta.call = late_call
        await here.vfs.allocation.fallocate(handle_id, 0, 0, 3)
        assert await here.read_all(handle_id) == b"theirs"
        await here.close(handle_id)
        assert await there.read_file(b"f") == b"theirs"


@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_hole_up_to_the_end_leaves_what_another_mount_writes_behind_it(
    autojump_clock, mounts, is_closed
):
    async with mounts(2) as (here, there):
        await here.write_file(b"f", b"taken")
        handle_id = (await here.open(b"f")).handle_id
        theirs = (await there.open(b"f")).handle_id
        await there.files.write(theirs, 5, b"added")
        await there.vfs._core.drain(there.files.handle(theirs).state)
        if is_closed:
            await there.close(theirs)
        punch = FallocateMode.PUNCH_HOLE | FallocateMode.KEEP_SIZE
        await here.vfs.allocation.fallocate(handle_id, punch, 0, 5)
        await here.close(handle_id)
        if not is_closed:
            await there.close(theirs)
        assert await there.read_file(b"f") == bytes(5) + b"added"


async def test_who_is_interrupted_while_he_asks_for_the_length_leaves_no_half_of_a_report(
    autojump_clock, mounts
):
    async with mounts(2) as (here, there):
        handle_id, state = await begin(here, there)
        await hear(here, state)
        call, ended = here.vfs._core.meta.call, []

        async def slow_call(method, request):
            reply = await call(method, request)
            if method is services.META_SYNC:
                await trio.sleep(1)
                ended.append(method)
            return reply

        here.vfs._core.meta.call = slow_call
        with trio.move_on_after(0.5) as scope:
            await here.names.getattr(state.inode_id, ROOT)
        assert scope.cancelled_caught
        assert ended == []
        await trio.sleep(1)
        assert ended == [services.META_SYNC]
        assert (state.is_length_unknown, state.has_unreported) == (False, False)
        await here.close(handle_id)
