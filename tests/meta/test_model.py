"""Random operations against a namespace of plain dicts: same outcome, same tree, times monotone."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fs.kv.faulty import RandomFaults
from fs.meta.check import check
from fs.schema.proto import common_pb2 as pb
from fs.schema.status import FsError
from tests.kv.fixtures import example_lab
from tests.kv.harness import CHOSEN_KIND
from tests.meta.harness import ROOT, World
from tests.meta.model import Model

pytestmark = pytest.mark.thorough

NAMES = [b"a", b"b", b"c"]


KIND_OF_TYPE = {pb.FILE: "file", pb.DIRECTORY: "dir", pb.SYMLINK: "symlink"}


class Pair:
    """Model and service side by side."""

    def __init__(self, world):
        self.world = world
        self.user = world.user()
        self.model = Model()
        self.ids = {self.model.root: ROOT}
        self.ctimes = {}

    async def _same(self, expected, call):
        try:
            await call
        except FsError as error:
            assert error.status is expected, (error, expected)  # noqa: PT017 - success is an outcome too
        else:
            assert expected is None, expected

    async def step(self, draw):
        directories = self.model.directories()
        here, there = draw.choice(directories), draw.choice(directories)
        i, j = self.ids[here], self.ids[there]
        name, other = draw.choice(NAMES), draw.choice(NAMES)
        kind = draw.choice(
            ["file", "file", "dir", "dir", "symlink", "link", "unlink", "rmdir", "tree"]
            + ["rename"] * 5
        )
        user, model = self.user, self.model
        if kind == "file":
            made = user.create(i, name, is_exclusive=True)
            await self._same(model.make(here, name, "file"), made)
        elif kind == "dir":
            await self._same(model.make(here, name, "dir"), user.mkdir(i, name))
        elif kind == "symlink":
            await self._same(model.make(here, name, "symlink"), user.symlink(i, name, b"x"))
        elif kind == "link":
            await self._link(here, name, there, other)
        elif kind == "unlink":
            await self._same(model.remove(here, name, is_rmdir=False), user.unlink(i, name))
        elif kind == "rmdir":
            await self._same(model.remove(here, name, is_rmdir=True), user.rmdir(i, name))
        elif kind == "tree":
            await self._same(model.remove_tree(here, name), user.remove_tree(i, name))
            # Names inside the tree count as links until it has been emptied.
            while await self.world.meta.gc.step():
                pass
        else:
            mode = draw.choice(["replace", "replace", "no_replace", "exchange"])
            flags = {} if mode == "replace" else {mode: True}
            expected = model.rename(here, name, there, other, mode)
            await self._same(expected, user.rename(i, name, j, other, **flags))

    async def _link(self, here, name, there, other):
        node = here.entries.get(name)
        expected = self.model.link(here, name, there, other)
        if node is not None:
            inode_id = (await self.user.lookup(self.ids[here], name)).inode_id
            await self._same(expected, self.user.link(inode_id, self.ids[there], other))

    async def compare(self, node=None):
        """Compare the whole tree and learn the ids of new directories on the way."""
        node = node or self.model.root
        inode = await self.user.attr(self.ids[node])
        subdirectories = [n for n in node.entries.values() if n.kind == "dir"]
        assert inode.nlink == 2 + len(subdirectories)
        page = await self.user.list(self.ids[node], with_inodes=True)
        assert [entry.name for entry in page.entries] == sorted(node.entries)
        for entry in page.entries:
            child = node.entries[entry.name]
            assert KIND_OF_TYPE[entry.type] == child.kind
            assert self.ctimes.get(entry.inode_id, 0) <= entry.inode.ctime_ns
            self.ctimes[entry.inode_id] = entry.inode.ctime_ns
            known = self.ids.setdefault(child, entry.inode_id)
            assert known == entry.inode_id
            if child.kind == "dir":
                await self.compare(child)
            else:
                assert entry.inode.nlink == child.nlink


async def run_pair(world, seed, step_count):
    pair = Pair(world)
    draw = random.Random(seed)
    for _ in range(step_count):
        await pair.step(draw)
        await pair.compare()
    assert await check(world.engine) == []


@settings(
    max_examples=25 if CHOSEN_KIND != "foundationdb" else 5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32))
async def test_against_the_model(tmp_path, seed):
    async with example_lab(tmp_path) as engine:
        world = World(engine)
        await world.initialise()
        # Conflicts and both kinds of unknown outcomes must not show.
        engine.faults = RandomFaults(
            random.Random(seed), conflict=0.1, unknown_committed=0.1, unknown_lost=0.1
        )
        await run_pair(world, seed, 40)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_against_the_model_on_each_engine(any_world, seed):
    await run_pair(any_world, seed, 60)


@pytest.mark.slow
@pytest.mark.fdb
async def test_against_the_model_on_foundationdb(open_lab):
    """The short form of `ember test --kv foundationdb:CLUSTERFILE`."""
    world = World(await open_lab("foundationdb"))
    await world.initialise()
    await run_pair(world, 4, 20)


async def test_what_remains_after_collection(world, autojump_clock):  # noqa: ARG001
    import trio  # noqa: PLC0415

    pair = Pair(world)
    draw = random.Random(7)
    for _ in range(300):
        await pair.step(draw)
        await pair.compare()
    await trio.sleep(61)
    while await world.meta.gc.step():  # noqa: ASYNC110 - two lists fill, nobody can signal
        await trio.sleep(61)
    await pair.compare()
    tr = world.engine.transaction()
    inodes = await tr.get_range(b"INOD", b"INOE")
    alive = {id(node) for node in pair.model.root.below()}
    assert len(inodes) == len(alive) + 1  # and the GC root
    assert not await tr.get_range(b"GC", b"GD")
