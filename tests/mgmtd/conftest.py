"""A store of each kind."""

import pytest

from tests.kv import fixtures
from tests.kv.harness import CHOSEN_KIND

open_lab = fixtures.open_lab
STORE_KINDS = ["memory", pytest.param("foundationdb", marks=pytest.mark.slow)]


@pytest.fixture(params=[CHOSEN_KIND] if CHOSEN_KIND else STORE_KINDS)
async def store_engine(request, open_lab):
    """An empty engine of each kind."""
    return await open_lab(request.param)
