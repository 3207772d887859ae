"""Random operations against a namespace of plain dicts: same outcome, same tree, times monotone."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fs.kv.faulty import RandomFaults
from fs.meta.check import check
from fs.schema.proto import common_pb2 as pb
from fs.schema.status import FsError, Status
from tests.kv.harness import CHOSEN_KIND
from tests.meta.harness import ROOT, World

NAMES = [b"a", b"b", b"c"]


class Node:
    """An object: a directory has entries, anything else has only its name count."""

    def __init__(self, kind, parent=None):
        self.kind = kind
        self.entries = {} if kind == "dir" else None
        self.parent = parent
        self.nlink = 0

    def below(self):
        yield self
        for child in (self.entries or {}).values():
            yield from child.below()


class Model:
    """What POSIX says, in plain dicts.  Every method returns a status name or None."""

    def __init__(self):
        self.root = Node("dir")
        self.root.parent = self.root

    def directories(self):
        return [node for node in self.root.below() if node.kind == "dir"]

    def make(self, parent, name, kind):
        if name in parent.entries:
            return Status.EXISTS
        node = parent.entries[name] = Node(kind, parent)
        node.nlink = 1
        return None

    def link(self, parent, name, new_parent, new_name):
        node = parent.entries.get(name)
        if node is None:
            return Status.NOT_FOUND
        if new_name in new_parent.entries:
            return Status.EXISTS
        if node.kind == "dir":
            return Status.NOT_PERMITTED
        new_parent.entries[new_name] = node
        node.nlink += 1
        return None

    def remove(self, parent, name, *, is_rmdir):
        node = parent.entries.get(name)
        if node is None:
            return Status.NOT_FOUND
        if is_rmdir and node.kind != "dir":
            return Status.NOT_DIRECTORY
        if is_rmdir and node.entries:
            return Status.NOT_EMPTY
        if not is_rmdir and node.kind == "dir":
            return Status.IS_DIRECTORY
        del parent.entries[name]
        node.nlink -= 1
        return None

    def remove_tree(self, parent, name):
        node = parent.entries.get(name)
        if node is None:
            return Status.NOT_FOUND
        if node.kind != "dir":
            return Status.NOT_DIRECTORY
        for directory in [n for n in node.below() if n.kind == "dir"]:
            for child in directory.entries.values():
                if child.kind != "dir":
                    child.nlink -= 1
        del parent.entries[name]
        return None

    def rename(self, old, old_name, new, new_name, mode):
        source, target = old.entries.get(old_name), new.entries.get(new_name)
        if source is None or (target is None and mode == "exchange"):
            return Status.NOT_FOUND
        if target is not None and mode == "no_replace":
            return Status.EXISTS
        if source is target:
            return None
        status = self._judge(old, new, source, target, mode)
        if status is not None:
            return status
        if mode == "exchange":
            old.entries[old_name], target.parent = target, old
        else:
            if target is not None:
                target.nlink -= 1
            del old.entries[old_name]
        new.entries[new_name], source.parent = source, new
        return None

    @staticmethod
    def _judge(old, new, source, target, mode):
        if target is not None and mode != "exchange":
            if source.kind == "dir" and target.kind != "dir":
                return Status.NOT_DIRECTORY
            if source.kind != "dir" and target.kind == "dir":
                return Status.IS_DIRECTORY
        if source.kind == "dir" and new in source.below():
            return Status.INVALID_ARGUMENT
        if mode == "exchange" and target.kind == "dir" and old in target.below():
            return Status.INVALID_ARGUMENT
        if mode != "exchange" and target is not None and target.entries:
            return Status.NOT_EMPTY
        return None


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
async def test_against_the_model(open_lab, seed):
    engine = await open_lab()
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
