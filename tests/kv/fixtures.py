"""Fixtures for the suites of what works on any store: import them into a conftest.py."""

import pytest
import trio.testing

from fs.kv.faulty import FaultyEngine
from fs.kv.memory import MemoryEngine
from fs.runtime.simulated import SimulatedClock
from tests.kv.harness import CHOSEN_KIND, Lab

KIND = CHOSEN_KIND or "memory"


@pytest.fixture
async def open_lab(tmp_path, nursery):
    """Return a function that opens a new, empty engine of a kind, with `faults` that a test may set."""
    labs = []

    async def open_one(kind: str = KIND):
        if kind == "memory":
            return MemoryEngine(SimulatedClock())
        lab = Lab(kind, tmp_path / f"kv-{len(labs)}", nursery)
        labs.append(lab)
        return FaultyEngine(await lab.open(), None)

    yield open_one
    for lab in labs:
        await lab.clean()
        await lab.close()


def virtual_clock(kind: str) -> trio.testing.MockClock:
    """Return virtual time; on FoundationDB, which answers from elsewhere, the harness steps it."""
    return trio.testing.MockClock(autojump_threshold=float("inf") if kind == "foundationdb" else 0)


def kind_of(request, name: str, default: str) -> str:
    """Return the kind of engine that a parameter of a test asks for, `default` where the test has none."""
    callspec = getattr(request.node, "callspec", None)
    return default if callspec is None else callspec.params.get(name, default)
