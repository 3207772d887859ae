"""Tests that ask for no clock of their own while a fixture has one:
they would wait in real time.
"""

from types import SimpleNamespace

import pytest

from tests.conftest import CLOCKS, _check_clocks

CLOCK = min(CLOCKS)


async def waits():
    """Stand for a test that waits."""


def looks():
    """Stand for one that does not."""


def item(function=waits, *, closure=(), arguments=(), marks=()):
    return SimpleNamespace(
        nodeid="tests/test_x.py::test_x",
        function=function,
        get_closest_marker=lambda name: name if name in marks else None,
        _fixtureinfo=SimpleNamespace(names_closure=closure, argnames=arguments),
    )


def test_a_test_that_waits_asks_for_the_clock_of_its_fixtures():
    with pytest.raises(pytest.UsageError, match=f"test_x: ask for .*{CLOCK}"):
        _check_clocks([item(closure=[CLOCK, "cluster"], arguments=["cluster"])])


@pytest.mark.parametrize(
    "sound",
    [
        item(closure=[CLOCK, "cluster"], arguments=[CLOCK, "cluster"]),
        item(closure=["tmp_path"], arguments=["tmp_path"]),
        item(looks, closure=[CLOCK, "cluster"], arguments=["cluster"]),
        item(closure=[CLOCK, "cluster"], arguments=["cluster"], marks=["real_time"]),
        SimpleNamespace(get_closest_marker=lambda _: None, function=waits),
    ],
)
def test_others_may_go_on(sound):
    _check_clocks([sound])


def test_it_looks_at_what_is_collected(request):
    """Every collection begins with it."""
    config = SimpleNamespace()
    wrong = item(closure=[CLOCK], arguments=[])
    (plugin,) = (
        p for p in request.config.pluginmanager.get_plugins() if getattr(p, "_check_clocks", None)
    )
    with pytest.raises(pytest.UsageError):
        plugin.pytest_collection_modifyitems(config, [wrong])
