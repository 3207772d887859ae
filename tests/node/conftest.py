"""Virtual time for everything that waits."""

import pytest
import trio.testing


@pytest.fixture
def autojump_clock():
    """Let time pass only while everybody waits."""
    return trio.testing.MockClock(autojump_threshold=0)
