"""Random operations against usage and quotas of plain dicts:
each directory's numbers after each step, EDQUOT exactly.
"""

import copy
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fs.kv.faulty import RandomFaults
from fs.kv.memory import MemoryEngine
from fs.meta import records
from fs.meta.check import check, read_all
from fs.runtime.simulated import SimulatedClock
from fs.schema.status import FsError, Status
from tests.meta.harness import ROOT, World, hint
from tests.meta.model import Model
from tests.meta.test_model import NAMES, Pair

pytestmark = pytest.mark.thorough

LENGTHS = [0, 1, 10, 100]


class UsageModel(Model):
    """A namespace whose files know their home and whose directories know their limits."""

    def __init__(self):
        super().__init__()
        self.ids = {self.root: ROOT}

    def order(self, place):
        return self.ids[place[0]].to_bytes(8, "big") + place[1]

    def make(self, parent, name, kind):
        status = super().make(parent, name, kind)
        if status is None:
            node = parent.entries[name]
            node.length, node.limits = 0, (0, 0)
            node.home, node.others = (parent, name), set()
        return status

    def link(self, parent, name, new_parent, new_name):
        status = super().link(parent, name, new_parent, new_name)
        if status is None:
            new_parent.entries[new_name].others.add((new_parent, new_name))
        return status

    def drop(self, node, place):
        if place in node.others:
            node.others.remove(place)
        elif node.others:
            node.home = min(node.others, key=self.order)
            node.others.remove(node.home)
        else:
            node.home = None

    def move(self, node, old, new):
        if old in node.others:
            node.others.remove(old)
            node.others.add(new)
        else:
            node.home = new

    def remove(self, parent, name, *, is_rmdir):
        node = parent.entries.get(name)
        status = super().remove(parent, name, is_rmdir=is_rmdir)
        if status is None:
            self.drop(node, (parent, name))
        return status

    def rename(self, old, old_name, new, new_name, mode):
        source, target = old.entries.get(old_name), new.entries.get(new_name)
        status = super().rename(old, old_name, new, new_name, mode)
        if status is None and source is not target:
            if mode == "exchange":
                self.move(target, (new, new_name), (old, old_name))
            elif target is not None:
                self.drop(target, (new, new_name))
            self.move(source, (old, old_name), (new, new_name))
        return status

    def usage(self, directory):
        """(bytes, files, directories) by a walk."""
        directories = {n for n in directory.below() if n.kind == "dir"}
        homed = {
            node
            for d in directories
            for name, node in d.entries.items()
            if node.kind != "dir" and node.home == (d, name)
        }
        return sum(n.length for n in homed), len(homed), len(directories) - 1

    def exceeds(self, other, memo):
        """Whether `other`, a changed copy of this, holds more than some limit,
        and more than before.
        """
        for directory in self.directories():
            changed = memo[id(directory)]
            if not any(d is changed for d in other.directories()):
                continue
            before, after = self.usage(directory), other.usage(changed)
            bytes_max, inodes_max = changed.limits
            if bytes_max and after[0] > max(bytes_max, before[0]):
                return True
            if inodes_max and sum(after[1:]) > max(inodes_max, sum(before[1:])):
                return True
        return False


class UsagePair(Pair):
    def __init__(self, world):
        super().__init__(world)
        self.model = UsageModel()
        self.model.root.limits = (0, 0)
        self.ids = self.model.ids
        self.refused_count = 0

    def judged(self, change):
        """Return what `change(model, node -> node)` should answer,
        having made it unless it is refused.
        """
        trial_memo = {}
        trial = copy.deepcopy(self.model, trial_memo)
        status = change(trial, lambda node: trial_memo[id(node)])
        if status is None and self.model.exceeds(trial, trial_memo):
            self.refused_count += 1
            return Status.QUOTA_EXCEEDED
        return change(self.model, lambda node: node)

    async def step(self, draw):
        directories = self.model.directories()
        here, there = draw.choice(directories), draw.choice(directories)
        name, other = draw.choice(NAMES), draw.choice(NAMES)
        kind = draw.choice(
            ["file", "file", "dir", "link", "link", "unlink", "rmdir", "tree", "quota", "quota"]
            + ["rename"] * 5
            + ["length"] * 4
            + ["file"] * 3
            + ["dir"] * 2
        )
        await getattr(self, f"do_{kind}")(draw, here, there, name, other)

    async def do_file(self, _draw, here, _there, name, _other):
        expected = self.judged(lambda m, n: m.make(n(here), name, "file"))
        await self._same(expected, self.user.create(self.ids[here], name, is_exclusive=True))

    async def do_dir(self, _draw, here, _there, name, _other):
        expected = self.judged(lambda m, n: m.make(n(here), name, "dir"))
        await self._same(expected, self.user.mkdir(self.ids[here], name))
        if expected is None:
            made = here.entries[name]
            self.ids[made] = (await self.user.lookup(self.ids[here], name)).inode_id

    async def do_link(self, _draw, here, there, name, other):
        node = here.entries.get(name)
        if node is not None:
            expected = self.judged(lambda m, n: m.link(n(here), name, n(there), other))
            inode_id = (await self.user.lookup(self.ids[here], name)).inode_id
            await self._same(expected, self.user.link(inode_id, self.ids[there], other))

    async def do_unlink(self, _draw, here, _there, name, _other):
        expected = self.model.remove(here, name, is_rmdir=False)
        await self._same(expected, self.user.unlink(self.ids[here], name))

    async def do_rmdir(self, _draw, here, _there, name, _other):
        expected = self.model.remove(here, name, is_rmdir=True)
        await self._same(expected, self.user.rmdir(self.ids[here], name))

    async def do_tree(self, _draw, here, _there, name, _other):
        node = here.entries.get(name)
        inside = list(node.below()) if node is not None else []
        expected = self.model.remove_tree(here, name)
        await self._same(expected, self.user.remove_tree(self.ids[here], name))
        while await read_all(self.world.engine, records.GC_DIRECTORY):
            await self.world.meta.gc.step()
        if expected is None:
            await self._learn_homes({n for n in inside if n.kind == "dir"})

    async def _learn_homes(self, gone):
        """Of several names outside of a removed tree any may have become the home."""
        nodes = {id(n): n for n in self.model.root.below() if n.kind != "dir"}
        for node in nodes.values():
            node.others = {place for place in node.others if place[0] not in gone}
            if node.home[0] in gone:
                names = set(node.others)
                for parent, name in names:
                    inode = await self.user.lookup(self.ids[parent], name)
                prefix = records.link_prefix(inode.inode_id)
                pairs = await read_all(self.world.engine, prefix)
                by_id = {self.ids[d]: d for d in self.model.directories()}
                places = [records.link_place(key) for key, _ in pairs]
                node.others = {(by_id[i], name) for i, name in places}
                (node.home,) = names - node.others

    async def do_rename(self, draw, here, there, name, other):
        mode = draw.choice(["replace", "replace", "no_replace", "exchange"])
        flags = {} if mode == "replace" else {mode: True}
        expected = self.judged(lambda m, n: m.rename(n(here), name, n(there), other, mode))
        moved = self.user.rename(self.ids[here], name, self.ids[there], other, **flags)
        await self._same(expected, moved)

    async def do_length(self, draw, here, _there, name, _other):
        node = here.entries.get(name)
        if node is None or node.kind != "file":
            return
        length, is_truncate = draw.choice(LENGTHS), draw.choice([True, False])

        def change(_model, find):
            changed = find(node)
            changed.length = length if is_truncate else max(changed.length, length)

        expected = self.judged(change)
        inode = await self.user.lookup(self.ids[here], name)
        if is_truncate:
            await self._same(expected, self.user.set_attr(inode.inode_id, length=length))
        else:
            fields = {
                "length_hint": hint(length, inode.file.truncate_ver),
                "has_new_data": True,
            }
            await self._same(expected, self.user.sync(inode.inode_id, **fields))

    async def do_quota(self, draw, here, _there, _name, _other):
        here.limits = draw.choice([0, 5, 50, 150]), draw.choice([0, 2, 4, 6])
        await self.user.set_quota(self.ids[here], *here.limits)

    async def compare(self, _node=None):
        for directory in self.model.directories():
            reply = await self.user.usage(self.ids[directory])
            found = reply.directory.usage
            assert (found.bytes, found.files, found.directories) == self.model.usage(directory)
            quota = reply.directory.quota
            assert (quota.bytes_max, quota.inodes_max) == directory.limits
        assert await check(self.world.engine) == []


async def run_pair(world, seed, step_count):
    pair = UsagePair(world)
    draw = random.Random(seed)
    for _ in range(step_count):
        await pair.step(draw)
        if draw.random() < 0.02:
            world.meta = world.new_meta()  # one whose cache is empty
        await pair.compare()
    return pair.refused_count


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32))
async def test_against_the_model(seed):
    world = World(MemoryEngine(SimulatedClock()))
    await world.initialise()
    world.engine.faults = RandomFaults(
        random.Random(seed), conflict=0.1, unknown_committed=0.1, unknown_lost=0.1
    )
    await run_pair(world, seed, 60)


@pytest.mark.parametrize("seed", [1, 2, 11])
async def test_against_the_model_on_each_engine(any_world, seed):
    assert await run_pair(any_world, seed, 100) > 5


def test_the_model_counts_a_file_once():
    model = UsageModel()
    model.root.limits = (0, 0)
    model.make(model.root, b"d", "dir")
    directory = model.root.entries[b"d"]
    model.ids[directory] = 99
    model.make(directory, b"f", "file")
    directory.entries[b"f"].length = 5
    model.link(directory, b"f", model.root, b"g")
    assert model.usage(directory) == (5, 1, 0)
    model.remove(directory, b"f", is_rmdir=False)
    assert model.usage(directory) == (0, 0, 0)
    assert model.usage(model.root) == (5, 1, 1)


async def test_what_the_refusal_says(world):
    user = world.user()
    made = await user.mkdir(ROOT, b"d")
    await user.set_quota(made.inode_id, 0, 1)
    await user.create(made.inode_id, b"a")
    with pytest.raises(FsError, match="1 of 1 inodes used, 1 more wanted") as refused:
        await user.create(made.inode_id, b"b")
    assert refused.value.status is Status.QUOTA_EXCEEDED
