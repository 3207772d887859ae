"""Fixtures: stores of every kind, and virtual time."""

import pytest

from tests.kv import fixtures
from tests.kv.conftest import ENGINES
from tests.kv.fixtures import kind_of, virtual_clock
from tests.kv.harness import CHOSEN_KIND, Lab

open_lab = fixtures.open_lab


@pytest.fixture(params=[CHOSEN_KIND] if CHOSEN_KIND else ENGINES)
async def lab(request, tmp_path, nursery):
    """An open engine of each kind."""
    lab = Lab(request.param, tmp_path / "kv", nursery)
    await lab.open()
    yield lab
    await lab.clean()
    await lab.close()


@pytest.fixture
def autojump_clock(request):
    return virtual_clock(kind_of(request, "lab", fixtures.KIND))
