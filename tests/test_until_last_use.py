"""What tests share is ended before the first test that comes after all its users,
and not sooner.
"""

from types import SimpleNamespace

import pytest

from tests.conftest import (
    SHARED,
    SHARED_ENDS,
    pytest_collection_finish,
    pytest_runtest_setup,
)


def items(config, *closures):
    return [
        SimpleNamespace(
            nodeid=f"tests/test_x.py::test_{number}",
            config=config,
            stash=pytest.Stash(),
            _fixtureinfo=SimpleNamespace(names_closure=closure),
        )
        for number, closure in enumerate(closures)
    ]


@pytest.fixture
def made():
    """Five tests, of which the second and the fourth share something; and what has been ended."""
    config = SimpleNamespace(stash=pytest.Stash())
    tests = items(config, [], [SHARED], [], ["tmp_path", SHARED], [])
    pytest_collection_finish(SimpleNamespace(config=config, items=tests))
    ended = []
    config.stash[SHARED_ENDS].callback(ended.append, "cluster")
    return tests, ended


def test_it_lasts_until_its_last_user_has_ended(made):
    tests, ended = made
    for test in tests[:4]:
        pytest_runtest_setup(test)
    assert not ended
    pytest_runtest_setup(tests[4])
    assert ended == ["cluster"]
    pytest_runtest_setup(tests[4])
    assert ended == ["cluster"]


def test_a_worker_that_has_none_of_its_users_ends_it_as_soon(made):
    tests, ended = made
    for test in (tests[0], tests[2], tests[4]):
        pytest_runtest_setup(test)
    assert ended == ["cluster"]


def test_who_comes_too_late_is_told(made):
    """Else it would work on the empty folder that a mount has left."""
    tests, _ended = made
    pytest_runtest_setup(tests[4])
    with pytest.raises(pytest.UsageError, match=r"test_1: .* ended"):
        pytest_runtest_setup(tests[1])


def test_where_nobody_shares_nothing_is_missed():
    config = SimpleNamespace(stash=pytest.Stash())
    tests = items(config, [], [])
    pytest_collection_finish(SimpleNamespace(config=config, items=tests))
    for test in tests:
        pytest_runtest_setup(test)
