# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""How many READs of the page cache take memory at a time:
the kernel keeps none back (decision 0151), so the mount does.
"""

import os
from contextlib import asynccontextmanager

import pytest
import trio

from fs.client.read_table import ReadTable
from fs.client.vfs import shared
from fs.kernels.batches import ENTRY

KIB = 1024
COUNT = 5
AT_ONCE = 2


@asynccontextmanager
async def one(mounts):
    """A mount that reads nothing ahead, with a file."""
    async with mounts(max_background=AT_ONCE, readahead_bytes_max=0) as m:
        await m.write_file(b"f", bytes(COUNT * 256 * KIB))
        yield m


@pytest.mark.parametrize(
    ("read_as", "most_wanted"),
    [
        ((256 * KIB, 0), AT_ONCE),
        ((128 * KIB, 0), AT_ONCE),
        ((8 * KIB, 0), AT_ONCE),
        ((4 * KIB, 0), COUNT),
        ((256 * KIB, os.O_DIRECT), COUNT),
        ((8 * KIB, os.O_DIRECT), COUNT),
    ],
)
async def test_reads_of_several_pages_wait_for_their_turn(
    autojump_clock, mounts, cluster, read_as, most_wanted
):
    """Those of 128 KiB and less did not: the kernel may send 4096 of them at a time
    for what nobody waits for yet.
    """
    asked, most, usual = 0, 0, cluster.chunks.read
    size, flags = read_as

    async def read(reads, *, is_relaxed=False):
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        await trio.sleep(1)
        await usual(reads)
        asked -= 1

    async with one(mounts) as mount:
        cluster.chunks.read = read
        handle_id = (await mount.open(b"f", os.O_RDONLY | flags)).handle_id
        async with trio.open_nursery() as nursery:
            for number in range(COUNT):
                nursery.start_soon(mount.files.read, handle_id, number * 256 * KIB, size)
        assert most == most_wanted
        cluster.chunks.read = usual
        await mount.close(handle_id)


def table_of(file, size):
    key = bytes(ENTRY.size - ENTRY.size % 8)[:16]
    table = ReadTable(ENTRY.pack(0, 0, 0, size, key), memoryview(bytearray(size)))
    table.files, table.paged = {key: file}, {file.inode_id}
    return table


@pytest.mark.parametrize("is_begun", [False, True])
async def test_where_many_bytes_are_under_way_together_several_pages_do_not_join_them(
    autojump_clock, mounts, cluster, monkeypatch, is_begun
):
    monkeypatch.setattr(shared, "TOGETHER_ALL_BYTES_MAX", 64 * KIB)
    cluster.chunks.can_begin = is_begun
    async with one(mounts) as mount:
        files, flags = mount.files, (os.O_RDONLY, os.O_RDONLY | os.O_DIRECT)
        paged, direct = [(await mount.open(b"f", each)).handle_id for each in flags]
        file, count = files.begin_read(paged, 0, 64 * KIB)
        table, ended = table_of(file, count), trio.Event()
        async with trio.open_nursery() as nursery:
            if is_begun:
                cluster.chunks.begun_gate = ended
                assert files.begin_together(table, lambda _: None, count) is not None
            else:
                usual = cluster.chunks.read

                async def read(reads, *, is_relaxed=False):
                    await ended.wait()
                    await usual(reads)

                cluster.chunks.read = read
                nursery.start_soon(files.read_together, table)
            await trio.testing.wait_all_tasks_blocked()
            assert files.begin_read(paged, 0, 8 * KIB) is None
            assert files.begin_read(paged, 0, 4 * KIB) is not None, "somebody waits for it"
            assert files.begin_read(direct, 0, 8 * KIB) is not None
            ended.set()
            await trio.sleep(1)
        assert files.begin_read(paged, 0, 8 * KIB) is not None
        for handle_id in (paged, direct):
            await mount.close(handle_id)
