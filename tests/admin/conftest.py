"""Fixtures: stores of every kind, and virtual time."""

import pytest

from tests.kv import conftest, fixtures
from tests.kv.fixtures import kind_of, virtual_clock

lab = conftest.lab
open_lab = fixtures.open_lab


@pytest.fixture
def autojump_clock(request):
    return virtual_clock(kind_of(request, "lab", fixtures.KIND))
