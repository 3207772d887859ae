"""Fixtures for the suites of what works on any store: import them into a conftest.py."""

from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest
import trio

from fs.kv.api import Transaction
from fs.kv.faulty import FaultyEngine
from fs.kv.forwarding import ForwardingTransaction
from fs.kv.memory import MemoryEngine
from fs.runtime.simulated import SimulatedClock
from tests.kv.harness import CHOSEN_KIND, Lab

KIND = CHOSEN_KIND or "memory"


class CountedTransaction(ForwardingTransaction):
    def __init__(self, inner: Transaction, engine: "CountedEngine") -> None:
        super().__init__(inner)
        self._engine = engine

    async def commit(self) -> bytes | None:
        stamp = await self._inner.commit()
        self._engine.commit_count += stamp is not None
        return stamp


class CountedEngine(FaultyEngine):
    """Counts commits that wrote and took effect, as the engine in memory does by itself."""

    commit_count = 0

    def transaction(self) -> Transaction:
        return CountedTransaction(super().transaction(), self)


@pytest.fixture
async def open_lab(tmp_path, nursery):
    """Return a function that opens a new, empty engine of a kind,
    with `faults` that a test may set.
    """
    async with _labs(tmp_path, nursery) as open_one:
        yield open_one


@asynccontextmanager
async def example_lab(path: Path):
    """Open an engine as `open_lab` does, for one example of a test that hypothesis repeats.

    A fixture is made once for all examples, so the tasks of its engines, which end with the first
    one, would be missing in the others.
    """
    place = Path(mkdtemp(dir=path))
    async with trio.open_nursery() as nursery, _labs(place, nursery) as open_one:
        yield await open_one()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _labs(path: Path, nursery: trio.Nursery):
    labs = []

    async def open_one(kind: str = KIND):
        if kind == "memory":
            return MemoryEngine(SimulatedClock())
        lab = Lab(kind, path / f"kv-{len(labs)}", nursery)
        labs.append(lab)
        return CountedEngine(await lab.open(), None)

    try:
        yield open_one
    finally:
        for lab in labs:
            await lab.clean()
            await lab.close()
