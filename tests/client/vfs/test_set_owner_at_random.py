# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Programs of two mounts that set mode and owner at random,
while a file that one of them makes is written, synced and closed.

A model has each change at once, in the order in which they returned.  This mount shows that at
any time; the other one, and meta, no more rights than that, and the same after a close, an
fsync, and a fifth of a second.
"""

import os
import random

import pytest
import trio

from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.kept import KEPT_S
from fs.client.vfs.ports import Caller
from tests.examples import first_quick

from .conftest import ROOT, RW

MAKER = 71
MODES = (0o600, 0o640, 0o644, 0o755, 0o700, 0o604, 0o4755, 0o1644)
STEPS = 60


class World:
    def __init__(self, mounts, cluster, draw):
        self.here, self.there = mounts
        self.cluster, self.draw = cluster, draw
        self.handle_id = self.inode_id = 0
        self.now = {}
        self.has_told = True
        """Meta has to know all that was set."""

    async def begin(self, name):
        self.handle_id = await self.here.create(name, mode=0o600)
        self.here.files.note_maker(self.handle_id, MAKER)
        self.inode_id = self.here.files.handle(self.handle_id).state.inode_id
        self.now = {"mode": 0o600, "uid": 0, "gid": 0}
        await self.write()

    async def write(self):
        await self.here.files.write(self.handle_id, 0, self.draw.randbytes(9))

    def change(self):
        asked = {}
        if self.draw.random() < 0.7:
            asked["mode"] = self.draw.choice(MODES)
        if self.draw.random() < 0.3:
            asked["uid"] = self.draw.choice((0, 5, 6))
        if self.draw.random() < 0.3:
            asked["gid"] = self.draw.choice((0, 5))
        return asked or {"mode": 0o644}

    async def set_here(self):
        asked = self.change()
        caller = ROOT if self.draw.random() < 0.8 else Caller(self.now["uid"], self.now["gid"])
        if caller.uid:
            asked = {"mode": self.draw.choice(MODES[:6])}
        thread = self.draw.choice((MAKER, MAKER, MAKER, 0, 7))
        names, change = self.here.names, AttrChange(**asked)
        is_late = names.set_now(self.inode_id, change, caller, thread) is not None
        if not is_late:
            await names.setattr(self.inode_id, change, None, caller)
        self.now |= asked
        self.has_told = not is_late

    async def set_there(self):
        """Something that nobody has seen before: what was there already would not be told apart."""
        if not self.has_told:
            await trio.sleep(0.001)
        asked = {"mode": self.draw.choice((0o400, 0o440)), "gid": self.draw.randrange(10**6, 10**9)}
        await self.there.names.setattr(self.inode_id, AttrChange(**asked), None, ROOT)
        await self.here.names.getattr(self.inode_id, ROOT)  # else it may show its own for a second
        # What waits here was set before, so meta drops all of it.
        told = self.cluster.get(self.inode_id)
        self.now = {"mode": told.mode, "uid": told.uid, "gid": told.gid}
        await self.sync()

    async def sync(self):
        await self.here.files.fsync(self.handle_id, is_data_only=False)
        self.has_told = True

    async def pause(self):
        await trio.sleep(self.draw.choice((0.01, KEPT_S * 2, 1.2)))
        await trio.testing.wait_all_tasks_blocked()

    async def open_here(self):
        opened = await self.here.files.open(
            self.inode_id, self.draw.choice((os.O_RDONLY, RW)), ROOT
        )
        self.has_told = True
        await self.here.close(opened.handle_id)

    async def truncate(self):
        await self.here.names.setattr(
            self.inode_id, AttrChange(length=self.draw.randrange(3)), self.handle_id, ROOT
        )
        self.has_told = True

    async def switch_release(self):
        self.cluster.knows_owners = not self.cluster.knows_owners

    async def step(self):
        weights = {
            self.write: 5,
            self.set_here: 8,
            self.set_there: 1,
            self.sync: 1,
            self.pause: 2,
            self.open_here: 1,
            self.truncate: 1,
            self.switch_release: 1,
        }
        began_s = trio.current_time()
        (act,) = self.draw.choices(list(weights), list(weights.values()))
        await act()
        if trio.current_time() - began_s > KEPT_S:
            self.has_told = True
        await self.check()

    async def check(self):
        shown = (await self.here.names.getattr(self.inode_id, ROOT)).mode
        assert shown == self.now["mode"], (oct(shown), self.now)
        told = self.cluster.get(self.inode_id)
        assert not told.mode & ~self.now["mode"] & 0o777
        if self.has_told:
            assert {"mode": told.mode, "uid": told.uid, "gid": told.gid} == self.now

    async def end(self):
        await self.here.close(self.handle_id)
        self.has_told = True
        await self.check()
        assert not self.here.vfs._core.owned


@pytest.mark.parametrize("inline_bytes_max", [0, 65_536], ids=["in chunks", "inline"])
@pytest.mark.parametrize("seed", first_quick(range(40), 2))
async def test_all_see_what_was_set_last(autojump_clock, mounts, cluster, seed):
    draw = random.Random(seed)
    async with mounts(2) as made:
        world = World(made, cluster, draw)
        for index in range(3):
            await world.begin(b"f%d" % index)
            for _ in range(STEPS):
                await world.step()
            await world.end()
