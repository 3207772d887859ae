# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
import os
import random

import pytest
import trio

from fs.client.vfs.allocation import FallocateMode
from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.ports import Caller
from fs.schema.layout import MAX_FILE_LENGTH_BYTES
from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK

from .conftest import ROOT

PUNCH = FallocateMode.PUNCH_HOLE | FallocateMode.KEEP_SIZE
ZERO = FallocateMode.ZERO_RANGE
KEEP = FallocateMode.KEEP_SIZE


def apply(model, mode, offset, length):
    """What fallocate(2) does to a file's bytes."""
    end = offset + length
    if mode & (FallocateMode.PUNCH_HOLE | ZERO):
        stop = min(end, len(model))
        model[offset:stop] = bytes(max(0, stop - offset))
    if not mode & KEEP and end > len(model):
        model.extend(bytes(end - len(model)))


@pytest.mark.parametrize(
    ("mode", "offset"),
    [
        *((mode, 0) for mode in (0, KEEP, PUNCH, ZERO)),
        *((mode, 3 * CHUNK) for mode in (KEEP, PUNCH, ZERO | KEEP)),
    ],
)
async def test_what_needs_no_change_moves_times_and_takes_set_id_bits(
    autojump_clock, mounts, mode, offset
):
    """A range that the file has already, or beyond its end."""
    async with mounts() as m:
        await m.write_file(b"f", b"x" * CHUNK)
        inode_id = (await m.stat(b"f")).inode_id
        await m.names.setattr(inode_id, AttrChange(mode=0o6777, uid=5, gid=5), None, ROOT)
        await m.names.setattr(inode_id, AttrChange(mode=0o6777), None, ROOT)
        before = await m.stat(b"f")
        h = (await m.files.open(inode_id, os.O_RDWR, Caller(5, 5))).handle_id
        await m.vfs.allocation.fallocate(h, mode, offset, 10)
        await m.close(h)
        after = await m.stat(b"f")
        assert after.mtime_ns > before.mtime_ns
        assert after.ctime_ns > before.ctime_ns
        assert after.mode == 0o777


async def test_more_than_is_free_is_refused(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        await m.vfs.statfs(ROOT)
        cluster.chunks.free_bytes = 10 * CHUNK  # the mount does not know of it
        await m.vfs.allocation.fallocate(h, 0, 0, 4 * CHUNK)
        await trio.sleep(10)  # now it does
        for mode in (0, KEEP, ZERO):
            with pytest.raises(FsError) as error:
                await m.vfs.allocation.fallocate(h, mode, 0, 1 << 39)
            assert error.value.status is Status.NO_SPACE
        await m.vfs.allocation.fallocate(h, PUNCH, 0, 1 << 39)
        await m.vfs.allocation.fallocate(h, KEEP, 0, 14 * CHUNK)  # a part of it is there
        assert (await m.stat(b"f")).file.length == 4 * CHUNK
        cluster.chunks.free_bytes = 1 << 40  # asked again, before it is refused
        await m.vfs.allocation.fallocate(h, 0, 0, 1 << 39)
        cluster.chunks.capacity_bytes = cluster.chunks.free_bytes = 0  # nobody knows
        await m.vfs.allocation.fallocate(h, 0, 0, 1 << 40)
        await m.close(h)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(12))
async def test_random_changes_against_plain_bytes(autojump_clock, mounts, seed):
    rng = random.Random(seed)
    async with mounts() as m:
        model, h = bytearray(), await m.create(b"f")
        inode_id = (await m.stat(b"f")).inode_id
        for _ in range(60):
            offset, length = rng.randrange(5 * CHUNK), rng.randint(1, 3 * CHUNK)
            match rng.choice(
                ["write", "write", "punch", "zero", "zero+", "allocate", "keep", "cut"]
            ):
                case "write":
                    data = rng.randbytes(length)
                    await m.files.write(h, offset, data)
                    model.extend(bytes(max(0, offset + length - len(model))))
                    model[offset : offset + length] = data
                case "cut":
                    await m.names.setattr(inode_id, AttrChange(length=offset), h, ROOT)
                    model[offset:] = b""
                    model.extend(bytes(offset - len(model)))
                case name:
                    modes = {"punch": PUNCH, "zero": ZERO | KEEP, "zero+": ZERO, "keep": KEEP}
                    mode = modes.get(name, FallocateMode(0))
                    await m.vfs.allocation.fallocate(h, mode, offset, length)
                    apply(model, mode, offset, length)
            assert bytes(await m.read_all(h)) == model
        await m.close(h)
        assert await m.read_file(b"f") == model


async def test_a_hole_takes_no_space_and_others_see_it_after_close(autojump_clock, mounts):
    async with mounts(2) as (one, two):
        await one.write_file(b"f", b"x" * (4 * CHUNK))
        h = (await one.open(b"f")).handle_id
        await one.vfs.allocation.fallocate(h, PUNCH, CHUNK // 2, 10 * CHUNK)
        held = [index for (_, index), chunk in one.cluster.chunks.chunks.items() if chunk]
        assert held == [0]
        await one.close(h)
        assert await two.read_file(b"f") == b"x" * (CHUNK // 2) + bytes(4 * CHUNK - CHUNK // 2)


async def test_a_hole_takes_what_another_mount_has_written_and_reported(
    autojump_clock, mounts, cluster
):
    """Also on chains that were not in use when the file was opened."""
    cluster.chunks.has_other_writers = True
    async with mounts(2) as (one, two):
        h = await one.create(b"f")
        inode_id = one.files.handle(h).state.inode_id
        await one.names.setattr(inode_id, AttrChange(length=8 * CHUNK), h, ROOT)
        other = (await two.open(b"f")).handle_id
        await two.files.write(other, CHUNK, b"x" * 3 * CHUNK)
        await two.close(other)
        await one.vfs.allocation.fallocate(h, PUNCH, 0, 8 * CHUNK)
        assert await one.read_all(h) == bytes(8 * CHUNK)
        await one.close(h)
        for m in (one, two):
            assert await m.read_file(b"f") == bytes(8 * CHUNK)


async def test_a_hole_in_a_file_open_for_appending(autojump_clock, mounts):
    async with mounts() as m:
        h = await m.create(b"f", os.O_RDWR | os.O_APPEND)
        await m.files.write(h, 0, b"x" * 2 * CHUNK)
        await m.vfs.allocation.fallocate(h, PUNCH, 10, 20)
        await m.files.write(h, 0, b"end")
        await m.close(h)
        assert await m.read_file(b"f") == b"x" * 10 + bytes(20) + b"x" * (2 * CHUNK - 30) + b"end"


async def test_refusals(autojump_clock, mounts):
    async with mounts() as m:
        h = await m.create(b"f")
        for mode, offset, length, status in (
            (FallocateMode.PUNCH_HOLE, 0, 1, Status.NOT_SUPPORTED),
            (0x08, 0, 1, Status.NOT_SUPPORTED),
            (0, 0, 0, Status.INVALID_ARGUMENT),
            (0, MAX_FILE_LENGTH_BYTES, 1, Status.FILE_TOO_LARGE),
        ):
            with pytest.raises(FsError) as e:
                await m.vfs.allocation.fallocate(h, mode, offset, length)
            assert e.value.status is status
        await m.close(h)
        h = (await m.open(b"f", os.O_RDONLY)).handle_id
        with pytest.raises(FsError) as e:
            await m.vfs.allocation.fallocate(h, 0, 0, 1)
        assert e.value.status is Status.BAD_FILE
        await m.close(h)


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (0, CHUNK // 2),
        (10, CHUNK // 2),
        (CHUNK // 2 - 1, CHUNK // 2),
        (0, 2 * CHUNK + 5),
        (CHUNK, CHUNK + 9),
    ],
)
async def test_a_hole_at_the_end_stays_one(autojump_clock, mounts, cluster, length, offset):
    """`cp --sparse=always` makes it by the length first, and then once more."""
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, b"x" * offset)
        inode_id = (await m.stat(b"f")).inode_id
        await m.names.setattr(inode_id, AttrChange(length=length), h, ROOT)
        await m.vfs.allocation.fallocate(h, PUNCH, offset, length - offset)
        await m.close(h)
        assert sum(map(len, cluster.chunks.chunks.values())) == offset
        assert await m.read_file(b"f") == (b"x" * offset).ljust(length, b"\0")


async def test_a_hole_that_stays_one_moves_times_also_behind_what_is_buffered(
    autojump_clock, mounts
):
    """What is sent meanwhile is no change of the hole's."""
    async with mounts() as m:
        h = await m.create(b"f")
        inode_id = m.files.handle(h).state.inode_id
        await m.files.write(h, 0, b"x" * CHUNK)
        await m.names.setattr(inode_id, AttrChange(length=2 * CHUNK), h, ROOT)
        await m.files.write(h, 0, b"y" * 100)
        written = await m.stat(b"f")
        assert m.files.handle(h).state.is_dirty
        await m.vfs.allocation.fallocate(h, PUNCH, CHUNK + 10, CHUNK)
        after = await m.stat(b"f")
        assert after.mtime_ns > written.mtime_ns
        await m.close(h)
        assert (await m.stat(b"f")).mtime_ns == after.mtime_ns


async def test_bytes_at_the_end_become_a_hole(autojump_clock, mounts, cluster):
    async with mounts(2) as (one, two):
        h = await one.create(b"f")
        await one.files.write(h, 0, b"x" * (CHUNK + 100))
        await one.vfs.allocation.fallocate(h, PUNCH, 50, CHUNK)
        await one.vfs.allocation.fallocate(h, PUNCH, CHUNK + 70, 30)
        await one.close(h)
        expected = b"x" * 50 + bytes(CHUNK) + b"x" * 20 + bytes(30)
        assert await two.read_file(b"f") == expected
