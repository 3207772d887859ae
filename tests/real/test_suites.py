"""Python's own tests of files, where they are installed; `tests/real/suites.py` runs all, and Go's, by hand."""

import pytest

from . import suites

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.skipif(
    not suites.has_python_tests(), reason="libpython3.11-testsuite is not installed"
)
@pytest.mark.parametrize("part", ["test_fcntl", "test_posixpath", "test_stat"])
def test_what_python_expects_of_files(place, part):
    assert suites.judge(part, place) == set()


def test_what_fails_in_one_place_alone_is_told(tmp_path, monkeypatch, capsys):
    results = {tmp_path: (False, {"a", "b", "TestNonpollableDeadline"})}
    monkeypatch.setattr(suites, "run", lambda _part, where: results.get(where, (False, {"b"})))
    assert suites.judge("test_os", tmp_path) == {"a"}
    assert "epoll" in capsys.readouterr().out
    results[tmp_path] = (False, {"b"})
    assert suites.judge("test_os", tmp_path) == set()
