import logging

import pytest
from trio.testing import MockClock


@pytest.fixture
def mock_clock():
    return MockClock(autojump_threshold=0)


@pytest.fixture(autouse=True)
def quiet_logs():
    logging.getLogger("fs.rpc").setLevel(logging.ERROR)
