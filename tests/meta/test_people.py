"""Random deeds of several people against the model:
same answers, and the whole tree with all attributes the same after each.
"""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fs.kv.faulty import RandomFaults
from fs.kv.memory import MemoryEngine
from fs.meta.check import check
from fs.runtime.simulated import SimulatedClock
from tests.examples import first_quick
from tests.kv.harness import CHOSEN_KIND
from tests.meta.choosing import KINDS, PEOPLE, RIGHTS, Chooser
from tests.meta.deeds import Deed, Expectation, ask
from tests.meta.harness import World
from tests.meta.model import SUPERUSER, Model

SHUTTLE = [*KINDS, *RIGHTS, "remove_tree"]


class Company:
    """The model and a service, and those who act on both."""

    def __init__(self, world, source):
        self.world = world
        self.source = source
        self.model = Model()
        self.chooser = Chooser(source, SHUTTLE)

    async def both(self, deed):
        """Do it on both sides; the answers must agree."""
        who = deed.who
        expected = Expectation(self.model, deed)
        answer = await ask(self.world.user(who.uid, who.gid, tuple(who.groups)), deed)
        assert expected.agrees(answer), (str(deed), answer, expected.answer)
        self.chooser.learn(deed, answer)

    async def run(self, count):
        for _ in range(count):
            deed = self.chooser.deed(self.source.choice(PEOPLE))
            await self.both(deed)
            if deed.kind == "remove_tree":
                # Names inside count as links until the tree has been emptied.
                while await self.world.meta.gc.step():
                    pass
                self._forget_removed()
            for directory in self.model.directories():
                await self.both(Deed("list", SUPERUSER, (directory.ident,)))
        assert await check(self.world.engine) == []

    def _forget_removed(self):
        """What is in a removed tree is deleted: a directory at once, the rest later."""
        gone = [n for n in self.model.nodes.values() if n.kind == "dir" and n.nlink == 0]
        for node in gone:
            del self.model.nodes[node.ident]
            if node.ident in self.chooser.directories:
                self.chooser.directories.remove(node.ident)


@pytest.mark.thorough
@settings(
    max_examples=25 if CHOSEN_KIND != "foundationdb" else 5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32))
async def test_people_against_the_model(seed):
    world = World(MemoryEngine(SimulatedClock()))
    await world.initialise()
    world.engine.faults = RandomFaults(
        random.Random(seed), conflict=0.05, unknown_committed=0.05, unknown_lost=0.05
    )
    await Company(world, random.Random(seed)).run(40)


@pytest.mark.parametrize("seed", first_quick([1, 2, 3]))
async def test_people_on_each_engine(any_world, seed):
    await Company(any_world, random.Random(seed)).run(80)
