"""A cluster of several hosts from nothing, by the commands of the page; the long form: `python -m tests.deploy`."""

import pytest

from .hosts import Hosts, trouble
from .stages import SMALL, Life

pytestmark = [
    pytest.mark.slow,
    pytest.mark.mount,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(trouble()), reason=f"needs network namespaces: {trouble()}"),
]


@pytest.fixture
def life(tmp_path):
    hosts = Hosts(tmp_path)
    made = Life(hosts, SMALL)
    yield made
    made.close()
    hosts.close()


def test_hosts_from_nothing_one_more_which_leaves_one_lost(life):
    life.install()
    life.grow(4)
    life.leave(4)
    life.lose(3)
    life.end_load()
