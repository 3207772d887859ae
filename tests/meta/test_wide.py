"""The short form of tests/meta/wide.py, on every engine."""

import random
from functools import partial
from unittest.mock import AsyncMock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fs.kv.faulty import RandomFaults
from fs.meta.usage import charge as real_charge
from tests.examples import first_quick
from tests.kv.fixtures import example_lab
from tests.kv.harness import CHOSEN_KIND
from tests.meta.conftest import ANY_KIND
from tests.meta.deeds import Deed
from tests.meta.harness import World
from tests.meta.model import SUPERUSER
from tests.meta.wide import CONFIG, Company, run_seed
from tests.meta.wide_quota import QuotaCompany, QuotaModel
from tests.sim.determinism import run_deterministic

DEED_COUNT = 70 if CHOSEN_KIND != "foundationdb" else 12
"""Each is followed by a list of every directory."""


@pytest.mark.slow
@settings(
    max_examples=12 if CHOSEN_KIND != "foundationdb" else 2,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32))
async def test_everything_against_the_model(tmp_path, autojump_clock, seed):  # noqa: ARG001
    async with example_lab(tmp_path) as engine:
        world = World(engine, **CONFIG)
        await world.initialise()
        engine.faults = RandomFaults(
            random.Random(seed), conflict=0.05, unknown_committed=0.05, unknown_lost=0.05
        )
        await Company(world, random.Random(seed)).run(DEED_COUNT)


@pytest.mark.parametrize("seed", first_quick([1, 2]))
@pytest.mark.parametrize("kind", [CHOSEN_KIND] if CHOSEN_KIND else ANY_KIND)
async def test_everything_on_each_engine(open_lab, autojump_clock, kind, seed):  # noqa: ARG001
    world = World(await open_lab(kind), **CONFIG)
    await world.initialise()
    await Company(world, random.Random(seed)).run(DEED_COUNT)


@pytest.mark.thorough
async def test_with_quotas(open_lab, autojump_clock):  # noqa: ARG001
    refused_count = 0
    for seed in range(3, 7):
        engine = await open_lab()
        world = World(engine, **CONFIG)
        await world.initialise()
        engine.faults = RandomFaults(
            random.Random(seed), conflict=0.05, unknown_committed=0.05, unknown_lost=0.05
        )
        company = QuotaCompany(world, random.Random(seed))
        await company.run(DEED_COUNT)
        refused_count += company.refused_count
    assert refused_count > 0 or CHOSEN_KIND == "foundationdb", "so few deeds may all fit"


def test_a_home_in_the_trash_follows_its_name():
    """Which name stands there, when the plain one was taken, is known with the answer:
    after homes were settled.
    """
    model = QuotaModel()
    for _ in range(2):
        places = model.places()
        assert model.make(model.root, b"a", "file") is None
        model.settle(places, is_tree=False)
        places = model.places()
        node, trash, name = model.move_to_trash(model.root, b"a", is_long=True)
        model.settle(places, is_tree=False)
    model.name_in_trash(trash, name, b"a.1")
    places = model.places()
    assert model.link_node(node, model.root, b"z") is None
    model.settle(places, is_tree=False)
    assert node.home == (trash.ident, b"a.1")


async def test_usage_is_compared_after_a_file_was_removed_from_the_trash(open_lab, autojump_clock):  # noqa: ARG001
    """It is no tree, so nothing waits for a collection to tell the home of a file
    that has another name.
    """
    world = World(await open_lab(), **CONFIG)
    await world.initialise()
    company = QuotaCompany(world, random.Random(0))
    root = company.model.root
    await company.both(Deed("create", SUPERUSER, (root.ident, b"a", 0o644, True, False, 0)))
    await company.both(Deed("trash", SUPERUSER, (root.ident, b"a", True)))
    trash = company.model.trash_root.entries[b"0"]
    file = trash.entries[b"a"].ident
    await company.both(Deed("link", SUPERUSER, (file, root.ident, b"b")))
    await company.both(Deed("trash", SUPERUSER, (trash.ident, b"a", True)))
    assert company.model.nodes[file].home == (root.ident, b"b")


BROKEN = {
    "lists_do_not_count": ("fs.meta.acl.is_allowed", lambda *_: True),
    "marks_are_forgotten": ("fs.meta.ops.rename.mark_after_rename", AsyncMock(return_value=None)),
    "sessions_keep_nothing": ("fs.meta.ops.retire.open_among", AsyncMock(return_value=frozenset())),
}


def run_many(company=Company, first=0):
    for seed in range(first, first + 30):
        run_deterministic(partial(run_seed, seed, 150, company), seed)


FIRST_SEEDS = {"marks_are_forgotten": 27, "sessions_keep_nothing": 9}
"""To begin with, where those before do not notice."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_service_is_noticed(name, monkeypatch):
    monkeypatch.setattr(*BROKEN[name])
    with pytest.raises(AssertionError):
        run_many(first=FIRST_SEEDS.get(name, 0))


def _charged_without(changes_kept):
    """Return `charge` that leaves out all changes but these."""

    async def charge(tr, ctx, *changes, **options):
        await real_charge(tr, ctx, *changes_kept(changes), **options)

    return charge


BROKEN_USAGE = {
    "names_are_moved_uncounted": (
        "fs.meta.ops.rename.charge",
        _charged_without(lambda changes: changes[:-2]),
    ),
    "growth_is_not_judged": ("fs.meta.usage.require_room", AsyncMock(return_value=None)),
    "the_first_name_stays_the_home": ("fs.meta.homes._change_home", lambda _inode, _home_id: []),
    "a_cut_gives_nothing_back": ("fs.meta.ops.set_attr.recharge", AsyncMock(return_value=None)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN_USAGE)
def test_wrong_usage_is_noticed(name, monkeypatch):
    monkeypatch.setattr(*BROKEN_USAGE[name])
    with pytest.raises(AssertionError):
        run_many(QuotaCompany)
