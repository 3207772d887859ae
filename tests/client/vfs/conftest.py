# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
import os
import random
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.ports import Caller
from fs.client.vfs.vfs import Vfs
from fs.runtime.ports import Runtime
from fs.schema.config import ClientSection
from fs.schema.status import FsError, Status
from tests.client.fakes import FakeClock, FakeCluster, run_inline

ROOT = Caller(0, 0)
RW = os.O_RDWR
A = os.O_WRONLY | os.O_APPEND
INLINE_BYTES_MAX = 65_536
BOTH_WAYS = {
    "test_allocation",
    "test_appends",
    "test_copying",
    "test_files",
    "test_immutable",
    "test_listed_names",
    "test_locks",
    "test_quota",
    "test_removed_elsewhere",
    "test_seeking",
    "test_set_id",
    "test_vfs",
}
"""Modules about what programs see, wherever their bytes are:
with small files in chunks, and in the metadata store.

The others set it themselves, or say what is asked of chunks and when, which inline
files do not need: durable closes, failed writes, cuts that are taken for holes,
lengths that only the chains know.
"""


class RecordingKernel:
    def __init__(self):
        self.attributes = []
        self.content = []
        self.ranges = []
        self.write_maps = None
        """Called when content is to be forgotten: writes what a program has
        changed through a map.
        """

    async def invalidate_attributes(self, inode_id):
        self.attributes.append(inode_id)

    async def invalidate_content(self, inode_id, start=0, length=0):
        self.content.append(inode_id)
        self.ranges.append((start, length))
        if self.write_maps is not None:
            await self.write_maps()


def small_section(**changes):
    settings = {
        "write_buffer_bytes": 64 * 1024,
        "dirty_bytes_max": 1024 * 1024,
        "readahead_bytes_max": 512 * 1024,
    } | changes
    return ClientSection(**settings)


class Mount:
    """One vfs with shorthands by name in the root directory."""

    def __init__(self, cluster, name, seed, **settings):
        clock = cluster.clock
        runtime = Runtime(clock, None, run_inline, random.Random(seed))
        self.kernel = RecordingKernel()
        self.cluster = cluster
        self.vfs = Vfs(
            cluster.meta(name), cluster.store(), runtime, small_section(**settings), self.kernel
        )
        self.files = self.vfs.files
        self.names = self.vfs.namespace

    async def create(self, name, flags=RW, mode=0o644):
        opened, inode = await self.files.create(1, name, mode, flags | os.O_CREAT, ROOT)
        self.names.remember_dentry(1, name, inode.inode_id)
        self.names.give(inode, lookup_count=1)
        return opened.handle_id

    async def open(self, name, flags=RW):
        inode = await self.names.lookup(1, name, ROOT)
        return await self.files.open(inode.inode_id, flags, ROOT)

    async def close(self, handle_id):
        try:
            await self.files.flush(handle_id)
        finally:
            await self.files.release(handle_id)
            self.forget_removed()

    def forget_removed(self):
        """As Linux does with what has no name as soon as nobody holds it."""
        core = self.vfs._core
        for inode_id, known in list(core.known.items()):
            state = core.states.get(inode_id)
            if known.nameless is not None and (state is None or not state.handles):
                self.names.forget(inode_id, known.lookup_count)

    async def write_file(self, name, data):
        handle_id = await self.create(name, RW | os.O_TRUNC)
        await self.files.write(handle_id, 0, data)
        await self.close(handle_id)

    async def read_file(self, name):
        handle_id = (await self.open(name, os.O_RDONLY)).handle_id
        try:
            return await self.read_all(handle_id)
        finally:
            await self.close(handle_id)

    async def read_all(self, handle_id, step=100_000):
        parts = []
        while part := await self.files.read(handle_id, sum(map(len, parts)), step):
            parts.append(bytes(part))
        return b"".join(parts)

    async def stat(self, name):
        return await self.names.lookup(1, name, ROOT)


@pytest.fixture
def autojump_clock():
    return MockClock(autojump_threshold=0)


def pytest_generate_tests(metafunc):
    if (
        metafunc.module.__name__.rpartition(".")[2] in BOTH_WAYS
        and "cluster" in metafunc.fixturenames
    ):
        ways = {"in chunks": 0, "inline": INLINE_BYTES_MAX}
        metafunc.parametrize("inline_bytes_max", ways.values(), ids=ways)


@pytest.fixture
def inline_bytes_max():
    """How long files may be whose bytes the metadata service keeps; 0: none are."""
    return 0


@pytest.fixture
def cluster(autojump_clock, inline_bytes_max):
    cluster = FakeCluster(FakeClock())
    cluster.inline.bytes_max = inline_bytes_max
    return cluster


@pytest.fixture
def mounts(cluster):
    @asynccontextmanager
    async def start(count=1, **settings):
        async with trio.open_nursery() as nursery:
            made = [Mount(cluster, f"client{i}", i, **settings) for i in range(count)]
            for mount in made:
                await nursery.start(mount.vfs.run)
            yield made if count > 1 else made[0]
            for mount in made:
                await mount.vfs.shut_down()
        assert not any(m.vfs._core.budget.used_bytes for m in made)
        assert not any(m.vfs._core.budget.kept_bytes for m in made)
        assert not any(m.vfs._core.states for m in made)
        assert not any(m.vfs._core.readahead_bytes for m in made)

    return start


def fault(status=Status.NO_SPACE):
    return FsError(status, "injected")


async def set_length(m, handle_id, name, length):
    inode_id = (await m.stat(name)).inode_id
    await m.names.setattr(inode_id, AttrChange(length=length), handle_id, ROOT)
