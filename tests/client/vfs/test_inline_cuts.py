# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Small files that are cut where they end:
what `borg extract`, `bsdtar` and others do to each file they unpack.
"""

import os
from contextlib import suppress

import pytest

from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.ports import Caller
from fs.schema.status import FsError

from .conftest import ROOT, RW, A, set_length
from .test_inline import LOST, close, cluster, flush, fsync, inline, make, read, write

__all__ = ["cluster"]

ENDS = {"close": close, "fsync": fsync, "flush": flush}


@pytest.mark.parametrize("end", ENDS)
async def test_it_stays_with_what_goes_to_meta(autojump_clock, mounts, cluster, end):
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, b"small")
        await set_length(m, h, b"f", 5)
        assert (await m.stat(b"f")).length == 5
        await ENDS[end](m, h)
        assert inline(cluster, b"f") == b"small" and not cluster.stored
        assert cluster.count("SetAttr") == 0 and cluster.count("Sync") == 1
        if end != "close":
            await close(m, h)


async def test_it_counts_as_a_change(autojump_clock, mounts, cluster):
    """Of times, and of what a program could do beyond others."""
    async with mounts(2) as (one, two):
        h = await one.create(b"f", RW, 0o6777)
        inode_id = (await one.stat(b"f")).inode_id
        await one.names.setattr(inode_id, AttrChange(uid=5, gid=5), None, ROOT)
        await one.names.setattr(inode_id, AttrChange(mode=0o6777), None, ROOT)
        await close(one, h)
        h = (await one.files.open(inode_id, os.O_RDWR, Caller(5, 5))).handle_id
        await write(one, h, 0, b"small")
        await one.names.setattr(inode_id, AttrChange(mtime_ns=1), h, Caller(5, 5))
        await set_length(one, h, b"f", 5)
        await close(one, h)
        for m in (one, two):
            found = await m.stat(b"f")
            assert found.mtime_ns > 1 and found.mode == 0o777 and found.length == 5


async def test_what_another_mount_has_told_of_is_cut(autojump_clock, mounts, cluster):
    """The writer knows a shorter file."""
    async with mounts(2) as (one, two):
        h = await one.create(b"f", RW)
        await write(one, h, 0, b"small")
        await make(two, b"f", b"longer than that")
        await set_length(one, h, b"f", 5)
        await close(one, h)
        for m in (one, two):
            assert await read(m, b"f") == b"small"


async def test_what_another_mount_tells_of_later_stays(autojump_clock, mounts, cluster):
    async with mounts(2) as (one, two):
        h = await one.create(b"f", RW)
        await write(one, h, 0, b"small")
        await set_length(one, h, b"f", 5)
        other = (await two.open(b"f", RW)).handle_id
        await write(two, other, 5, b" and more")
        await close(two, other)
        await close(one, h)
        for m in (one, two):
            assert await read(m, b"f") == b"small and more"


@pytest.mark.parametrize("length", [0, 4, 6])
async def test_any_other_length_is_told_at_once(autojump_clock, mounts, cluster, length):
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, b"small")
        await set_length(m, h, b"f", length)
        assert cluster.count("SetAttr") == 1
        await close(m, h)
        assert await read(m, b"f") == b"small"[:length].ljust(length, b"\0")


async def test_records_without_a_place_get_one_first(autojump_clock, mounts, cluster):
    async with mounts(2) as (one, two):
        await make(one, b"f", b"")
        h, other = (await one.open(b"f", A)).handle_id, (await two.open(b"f", A)).handle_id
        await write(one, h, 0, b"one")
        await write(two, other, 0, b"other")
        await close(two, other)
        await set_length(one, h, b"f", 3)
        await close(one, h)
        assert (await read(two, b"f")) == b"oth"


async def test_what_may_take_a_capability_is_told_at_once(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f", RW)
        inode_id = (await m.stat(b"f")).inode_id
        await m.names.setxattr(inode_id, b"security.capability", b"x", ROOT)
        await write(m, h, 0, b"small")
        await set_length(m, h, b"f", 5)
        assert cluster.count("SetAttr") == 1
        await close(m, h)


async def test_what_became_of_an_earlier_report_is_not_guessed(autojump_clock, mounts, cluster):
    """The first bytes may come to meta yet, and reach behind the cut."""
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, b"longer")
        cluster.lost_replies, cluster.is_gone = [LOST], True
        with suppress(FsError):  # who asks again by himself finds it taken
            await fsync(m, h)
        cluster.is_gone = False
        await write(m, h, 0, b"small")
        await set_length(m, h, b"f", (await m.stat(b"f")).length)
        assert cluster.count("SetAttr") == cluster.begins
        await close(m, h)
