"""Virtual time for everything that waits; a store of each kind."""

import pytest

from tests.kv import fixtures
from tests.kv.fixtures import kind_of, virtual_clock
from tests.kv.harness import CHOSEN_KIND

open_lab = fixtures.open_lab
STORE_KINDS = ["memory", pytest.param("foundationdb", marks=pytest.mark.slow)]


@pytest.fixture
def autojump_clock(request):
    """Let time pass only while everybody waits."""
    return virtual_clock(kind_of(request, "store_engine", "memory"))


@pytest.fixture(params=[CHOSEN_KIND] if CHOSEN_KIND else STORE_KINDS)
async def store_engine(request, open_lab):
    """An empty engine of each kind."""
    return await open_lab(request.param)
