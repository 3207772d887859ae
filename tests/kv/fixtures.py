"""Fixtures for the suites of what works on any store: import them into a conftest.py."""

import pytest

from fs.kv.faulty import FaultyEngine
from fs.kv.memory import MemoryEngine
from fs.runtime.simulated import SimulatedClock
from tests.kv.harness import CHOSEN_KIND, Lab

KIND = CHOSEN_KIND or "memory"


@pytest.fixture
async def open_lab(tmp_path, nursery):
    """Return a function that opens a new, empty engine of a kind,
    with `faults` that a test may set.
    """
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
