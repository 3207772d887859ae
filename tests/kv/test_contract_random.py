"""Random concurrent transactions must equal the same transactions one after the other.

Every transaction records what it read and did; the commit versionstamp gives the order; replaying
the committed ones on a plain model must give the same reads and the same end.
"""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import os
import random
from dataclasses import dataclass, field

import pytest
import trio

from fs.kv.api import Transaction
from fs.kv.transact import snapshot_read
from fs.schema.status import FsError, Status
from tests.kv.harness import Model

KEYS = [b"k%02d" % i for i in range(12)]
SEED_COUNT = int(os.environ.get("KV_RANDOM_SEEDS", "6"))


@dataclass
class Script:
    """What one transaction does: names and arguments; results of reads as seen."""

    steps: list[tuple] = field(default_factory=list)
    stamp: bytes | None = None


def random_step(source: random.Random) -> tuple:
    key, other = source.choice(KEYS), source.choice(KEYS)
    kind = source.randrange(10)
    if kind <= 2:
        return ("get", key)
    if kind <= 4:
        options = {"limit": source.choice([0, 0, 1, 2, 5]), "reverse": source.random() < 0.5}
        return ("get_range", min(key, other), max(key, other), options)
    if kind <= 6:
        return ("set", key, source.randbytes(8))
    if kind == 7:
        return ("clear", key)
    if kind == 8:
        return ("atomic_add", key, source.randint(-100, 100))
    return ("clear_range", min(key, other), min(max(key, other), min(key, other) + b"~"))


async def act(target: Transaction | Model, step: tuple) -> object:
    options = step[-1] if isinstance(step[-1], dict) else {}
    arguments = step[1:-1] if options else step[1:]
    result = getattr(target, step[0])(*arguments, **options)
    return await result if hasattr(result, "__await__") else result


async def run_one(engine, source: random.Random, done: list[Script]) -> None:
    script = Script()
    tr = engine.transaction()
    for _ in range(source.randint(1, 7)):
        step = random_step(source)
        script.steps.append((step, await act(tr, step)))
        if source.random() < 0.5:
            await trio.sleep(source.random() * 0.01)
    try:
        script.stamp = await tr.commit()
    except FsError as error:
        if error.status is not Status.KV_CONFLICT:
            raise
        return
    if script.stamp is not None:
        done.append(script)


@pytest.mark.parametrize("seed", range(SEED_COUNT))
async def test_random_transactions_are_serializable(lab, autojump_clock, seed):
    done: list[Script] = []

    async def worker(source: random.Random) -> None:
        for _ in range(40):
            await run_one(lab.engine, source, done)

    async with trio.open_nursery() as nursery:
        for index in range(6):
            nursery.start_soon(worker, random.Random(seed * 1000 + index))

    assert len({script.stamp for script in done}) == len(done) > 60
    model = Model()
    for script in sorted(done, key=lambda script: script.stamp):
        for step, seen in script.steps:
            assert await act(model, step) == seen, (step, script)
    assert await snapshot_read(lab.engine, lambda tr: tr.get_range(b"", b"\xff")) == sorted(
        model.rows.items()
    )
