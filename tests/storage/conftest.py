import logging

import pytest
import trio
from trio.testing import MockClock


@pytest.fixture
def mock_clock():
    return MockClock(autojump_threshold=0)


@pytest.fixture(autouse=True)
def quiet_logs():
    """For these tests only: others look at what is logged."""
    logger = logging.getLogger("fs.rpc")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def repeatable(monkeypatch):
    """Let a seed give the same run every time."""
    monkeypatch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
    trio._core._run._r.seed(1)
