"""Several clients of two services at once:
counters equal the walk, no limit is exceeded, in any order of commits.
"""

import random

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fs.kv.faulty import RandomFaults
from fs.kv.memory import MemoryEngine
from fs.meta import quota, records
from fs.meta.check import check, load
from fs.runtime.simulated import SimulatedClock
from fs.schema.status import FsError, Status
from tests.meta.harness import ROOT, World

pytestmark = pytest.mark.thorough

ROOTS = [b"one", b"two"]
NAMES = [b"a", b"b", b"c"]
EXPECTED = {
    Status.NOT_FOUND,
    Status.EXISTS,
    Status.NOT_EMPTY,
    Status.NOT_DIRECTORY,
    Status.IS_DIRECTORY,
    Status.NOT_PERMITTED,
    Status.INVALID_ARGUMENT,
    Status.QUOTA_EXCEEDED,
    Status.STALE,
}
INODES_MAX = 9
BYTES_MAX = 40


class Actors:
    """Clients that know nothing of each other."""

    def __init__(self, world, seed, *, with_links):
        self.world = world
        self.services = [world.meta, world.new_meta()]
        self.draw = random.Random(seed)
        self.with_links = with_links
        self.limited = []
        self.refused_count = 0

    async def run(self, number, step_count):
        user = self.world.user(client=f"{number:032x}")
        for _ in range(step_count):
            try:
                await self.step(user)
            except FsError as error:
                assert error.status in EXPECTED, error  # noqa: PT017 - success is an outcome too
                self.refused_count += error.status is Status.QUOTA_EXCEEDED
            # No checkpoint comes between choosing a service and the call that uses it.
            if not self.with_links:
                await self.check_limits()
            await trio.sleep(self.draw.uniform(0, 0.01))

    async def directory(self, user):
        here = self.draw.choice(self.limited)
        for _ in range(self.draw.randrange(3)):
            inode = await self.call(user, "lookup", here, self.draw.choice(NAMES))
            if inode.HasField("directory"):
                here = inode.inode_id
        return here

    async def call(self, user, method, *args, **fields):
        self.world.meta = self.draw.choice(self.services)
        return await getattr(user, method)(*args, **fields)

    async def step(self, user):
        draw = self.draw
        here, there = await self.directory(user), await self.directory(user)
        name, other = draw.choice(NAMES), draw.choice(NAMES)
        kinds = [
            "file",
            "file",
            "file",
            "dir",
            "dir",
            "unlink",
            "rmdir",
            "length",
            "length",
            "tree",
        ]
        kinds += ["rename"] * 5
        kind = draw.choice(kinds + ["link"] * 2 if self.with_links else kinds)
        if kind == "file":
            await self.call(user, "create", here, name, is_exclusive=True)
        elif kind == "dir":
            await self.call(user, "mkdir", here, name)
        elif kind in {"unlink", "rmdir"}:
            await self.call(user, kind, here, name)
        elif kind == "tree" and draw.random() < 0.3:
            await self.call(user, "remove_tree", here, name)
        elif kind == "rename":
            flags = draw.choice([{}, {}, {"exchange": True}])
            await self.call(user, "rename", here, name, there, other, **flags)
        else:
            inode = await self.call(user, "lookup", here, name)
            if kind == "link":
                await self.call(user, "link", inode.inode_id, there, other)
            elif inode.HasField("file"):
                await self.call(user, "set_attr", inode.inode_id, length=draw.randrange(20))

    async def check_limits(self):
        tr = self.world.engine.transaction()
        for directory_id in self.limited:
            found = [
                records.unpack_count(await tr.get(records.usage_key(directory_id, kind)))
                for kind in (b"b", b"f", b"d")
            ]
            assert found[0] <= BYTES_MAX and found[1] + found[2] <= INODES_MAX, found


async def run_actors(seed, *, with_links):
    world = World(MemoryEngine(SimulatedClock()))
    await world.initialise()
    actors = Actors(world, seed, with_links=with_links)
    user = world.user()
    for name in ROOTS:
        made = await user.mkdir(ROOT, name)
        for inner in NAMES[:2]:
            below = await user.mkdir(made.inode_id, inner)
            await user.create(below.inode_id, NAMES[0])
        await user.set_quota(made.inode_id, BYTES_MAX, INODES_MAX)
        actors.limited.append(made.inode_id)
    world.engine.faults = RandomFaults(
        random.Random(seed),
        conflict=0.02,
        unknown_committed=0.05,
        unknown_lost=0.02,
        delay_before_s_max=0.02,
        delay_after_s_max=0.02,
    )
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(actors.run, number, 25)
    world.engine.faults = None
    assert await check(world.engine) == []
    while (await load(world.engine)).gc_directories:
        for lane in world.meta.gc.lanes:
            await world.meta.gc._empty_trees(lane)
    assert await check(world.engine) == []
    return actors.refused_count


@pytest.mark.parametrize("with_links", [False, True])
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32))
async def test_concurrent_changes(seed, with_links, autojump_clock):  # noqa: ARG001
    await run_actors(seed, with_links=with_links)


async def test_limits_are_met_at_all(autojump_clock, monkeypatch):  # noqa: ARG001
    monkeypatch.setitem(quota._MARGINS, records.KIND_INODES, 5)
    assert sum([await run_actors(seed, with_links=False) for seed in range(4)]) > 2
