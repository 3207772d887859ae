"""A cluster of several hosts from nothing, by the commands of the page;
the long form: `python -m tests.deploy`.
"""

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
    made = Life(hosts, SMALL, pause_s=0.25)  # at full speed it takes most of the machine
    yield made
    made.close()
    hosts.close()


def test_hosts_from_nothing_another_key_one_more_which_leaves_one_lost(life):
    life.install()
    life.rotate()
    life.grow(4)
    life.leave(4)
    life.lose(3)
    told = life.operator("ember cluster rotate-key inventory.toml --yes", check=False)
    assert told.returncode == 1 and "h3 would keep the old key" in told.stderr, told
    life.end_load()
