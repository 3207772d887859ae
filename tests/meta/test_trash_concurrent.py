"""Users who trash and restore while two services clean:
nothing goes before its time or after it was restored.
"""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import random

import pytest
import trio

from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import FsError, Status
from tests.examples import first_quick
from tests.meta.harness import ROOT

SECOND_NS = 10**9
FILES = [b"%d" % number for number in range(12)]
RUN_S, SCAN_S = 600, 7


class Places:
    """What users know: until when each file is kept, and that it is somewhere."""

    def __init__(self, world, rng):
        self.world, self.rng, self.user = world, rng, world.user()
        self.due_ns: dict[bytes, int] = {}
        self.trash_id = 0
        self.counts = {"trashed": 0, "restored": 0, "too late": 0}

    async def act(self, names):
        """Trash and restore files of one's own, over and over."""
        while self.world.runtime.clock.monotonic_s() < self.end_s:
            await trio.sleep(self.rng.random() * 40)
            name = self.rng.choice(names)
            if name in self.due_ns:
                await self._restore(name)
            else:
                await self._trash(name)

    async def _trash(self, name):
        expire_s = self.rng.randrange(1, 90)
        request = meta.MoveToTrashReq(parent_inode_id=ROOT, name=name, expire_s=expire_s)
        reply = await self.user.call("move_to_trash", request)
        assert reply.trash_name == name
        self.trash_id, self.due_ns[name] = reply.trash_inode_id, reply.due_ns
        self.counts["trashed"] += 1

    async def _restore(self, name):
        try:
            await self.user.rename(self.trash_id, name, ROOT, name, no_replace=True)
            self.counts["restored"] += 1
        except FsError as error:
            assert error.status is Status.NOT_FOUND, error  # noqa: PT017 - success is an outcome too
            assert self.due_ns[name] <= self.world.meta.service.now_ns()
            await self.user.create(ROOT, name)
            self.counts["too late"] += 1
        del self.due_ns[name]

    async def judge(self):
        """Compare what users know with what is there."""
        await trio.sleep(2 * SCAN_S)
        at_home = set(await self.user.names(ROOT)) - {b".trash"}
        in_trash = set(await self.user.names(self.trash_id))
        now_ns = self.world.meta.service.now_ns()
        kept = {name for name, due_ns in self.due_ns.items() if due_ns > now_ns}
        assert at_home == set(FILES) - set(self.due_ns)
        missed_ns = now_ns - 2 * SCAN_S * SECOND_NS  # both services have looked since
        assert kept <= in_trash <= {n for n, due_ns in self.due_ns.items() if due_ns > missed_ns}


async def clean(cleaner):
    while True:
        await trio.sleep(SCAN_S)
        await cleaner.step()


@pytest.mark.parametrize("seed", first_quick(range(4), 2))
async def test_nothing_goes_too_early_or_after_all(world, autojump_clock, seed):
    places = Places(world, random.Random(seed))
    cleaners = [world.meta.trash, world.new_meta().trash]
    for name in FILES:
        await places.user.create(ROOT, name)
    places.end_s = world.runtime.clock.monotonic_s() + RUN_S
    async with trio.open_nursery() as background:
        for cleaner in cleaners:
            background.start_soon(clean, cleaner)
        async with trio.open_nursery() as users:
            for start in range(0, len(FILES), 4):
                users.start_soon(places.act, FILES[start : start + 4])
        await places.judge()
        background.cancel_scope.cancel()
    assert min(places.counts.values()) > 2, places.counts
