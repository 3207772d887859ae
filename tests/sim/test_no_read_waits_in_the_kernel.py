# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""READs beside many others, of a file that another mount has cut:
none is kept back until a shorter answer has changed the size.
"""

import os
import random

import trio
from trio.testing import wait_all_tasks_blocked

from fs.client.fuse.direct.server import Server
from fs.client.vfs.changing_attributes import AttrChange
from fs.schema.config import ClientSection
from tests.client.vfs.conftest import ROOT, autojump_clock, cluster, inline_bytes_max, mounts

from .kernel_calls import ModelKernel
from .page_cache import ModelDevice

__all__ = ["autojump_clock", "cluster", "inline_bytes_max", "mounts"]

BUSY_COUNT = ClientSection().max_background - 1
BUSY_BYTES = 256 * 1024


async def test_a_read_that_comes_when_many_are_under_way_is_not_overlooked(
    autojump_clock, mounts, monkeypatch
):
    """It was kept back in the kernel, and came after the answer to one of what lies behind it:
    the program saw zeros (decision 0151).
    """
    async with mounts(2, readahead_bytes_max=0) as (here, there), trio.open_nursery() as nursery:
        await there.write_file(b"busy", b"b" * BUSY_BYTES * BUSY_COUNT)
        await there.write_file(b"cut", b"x" * 100_000)
        busy_id, cut_id = [(await there.stat(name)).inode_id for name in (b"busy", b"cut")]
        core, may_end = here.vfs._core, trio.Event()
        usual = core.read_stored

        async def read_stored(reads, **others):
            if reads[0].file.inode_id == busy_id:
                await may_end.wait()
            await usual(reads, **others)

        monkeypatch.setattr(core, "read_stored", read_stored)
        device = ModelDevice()
        kernel = ModelKernel(device, random.Random(1), nursery, 0.0)
        nursery.start_soon(Server(device, here.vfs, core.runtime).run)
        busy, cut = [await kernel.open(name, os.O_RDONLY) for name in (b"busy", b"cut")]
        await there.names.setattr(cut_id, AttrChange(length=10), None, ROOT)
        for number in range(BUSY_COUNT):
            kernel.read_ahead(busy, number * BUSY_BYTES, BUSY_BYTES)
        await wait_all_tasks_blocked()
        found = {}

        async def read(offset):
            found[offset] = await kernel.read(cut, offset, 4096)

        nursery.start_soon(read, 65_536)
        await wait_all_tasks_blocked()
        nursery.start_soon(read, 4096)
        await trio.sleep(0.5)
        may_end.set()
        await trio.sleep(5)
        assert found == {65_536: b"", 4096: b""}
        await kernel.close(busy)
        await kernel.close(cut)
        await trio.sleep(1)
        device.end()
