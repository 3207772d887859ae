# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""No read that was before a time of access was set undoes that, whichever mount has read."""

import random

import pytest
import trio

from fs.client.vfs.access_times import with_reads
from fs.client.vfs.changing_attributes import AttrChange
from tests.client.fake_meta import FakeMeta
from tests.examples import first_quick

from .conftest import ROOT, RW

FILES = [b"a", b"b", b"c"]
SETTLED_S = 60


@pytest.fixture
def slow_meta(monkeypatch):
    """Requests and replies that take a while, each another one, and pass each other."""
    delays, call = random.Random(7), FakeMeta.call

    async def slowly(self, method, request, **named):
        await trio.sleep(delays.choice([0, 0, 0.2, 3 * delays.random()]))
        reply = await call(self, method, request, **named)
        await trio.sleep(delays.choice([0, 0, 0.2, 3 * delays.random()]))
        return reply

    monkeypatch.setattr(FakeMeta, "call", slowly)


class Setting:
    """What was set last of a file, by whom, and since when; while it is being set, nothing is."""

    def __init__(self):
        self.lock, self.value_ns, self.began_ns = trio.Lock(), None, 0

    def explains(self, atime_ns):
        return self.value_ns in {None, atime_ns} or atime_ns >= self.began_ns


class Program:
    """One mount's: reads and sets times; all reads of all mounts count by `relatime`."""

    def __init__(self, mount, source, settings):
        self.mount, self.random, self.settings = mount, source, settings

    async def run(self):
        for _ in range(60):
            name = self.random.choice(FILES)
            await self.random.choice([self.read, self.read, self.set_times, self.change])(name)
            await trio.sleep(self.random.choice([0, 0, 0.1, 1, 4]))

    async def read(self, name):
        await self.mount.read_file(name)

    async def change(self, name):
        """Without bytes: then the next read counts."""
        inode = await self.mount.stat(name)
        change = AttrChange(mode=self.random.choice([0o600, 0o640]))
        await self.mount.names.setattr(inode.inode_id, change, None, ROOT)

    async def set_times(self, name):
        setting, wall_ns = self.settings[name], self.mount.vfs._core.runtime.clock.wall_ns
        async with setting.lock:
            inode = await self.mount.stat(name)
            began_ns = wall_ns()
            # Another one each time: that of another mount's read is not told from the same one.
            change = AttrChange(atime_ns=began_ns - 10**9, mtime_ns=began_ns - 10**9)
            is_open = self.random.random() < 0.5
            if is_open:
                handle_id = (await self.mount.open(name, RW)).handle_id
                if self.random.random() < 0.5:
                    await self.mount.files.write(handle_id, 0, b"more")
            if self.mount.names.set_now(inode.inode_id, change, ROOT, 0) is None:
                await self.mount.names.setattr(inode.inode_id, change, None, ROOT)
            setting.value_ns, setting.began_ns = began_ns - 10**9, began_ns
            if is_open:
                await self.mount.files.fsync(handle_id, is_data_only=False)
                await self.mount.close(handle_id)
            shown = with_reads(self.mount.vfs.reads, await self.mount.stat(name)).atime_ns
            assert setting.explains(shown), (name, shown, setting.value_ns)


@pytest.mark.parametrize("seed", first_quick(range(10)))
async def test_what_was_set_is_undone_by_no_read_before(
    autojump_clock, mounts, cluster, slow_meta, seed
):
    source, settings = random.Random(seed), {name: Setting() for name in FILES}

    async def watch():
        while True:
            for name, setting in settings.items():
                found = cluster.get(cluster.names[1][name])
                is_settled = not setting.lock.locked()
                assert not is_settled or setting.explains(found.atime_ns), name
            await trio.sleep(0.05)

    async with mounts(3) as found, trio.open_nursery() as watching:
        for name in FILES:
            await found[0].write_file(name, b"some bytes")
        watching.start_soon(watch)
        async with trio.open_nursery() as programs:
            for mount in found:
                programs.start_soon(Program(mount, random.Random(source.random()), settings).run)
        await trio.sleep(SETTLED_S)
        watching.cancel_scope.cancel()
        assert cluster.calls.count("NoteReads") > 10
        for mount in found:
            assert not mount.vfs.reads.found and not mount.vfs.reads._setting
