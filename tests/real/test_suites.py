"""Others' tests of files, where they are installed; `python -m tests.real.suites` runs all of them, by hand."""

import shutil

import pytest

from . import suites, suites_of_sources

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.skipif(
    not suites.has_python_tests(), reason="libpython3.11-testsuite is not installed"
)
@pytest.mark.parametrize("part", ["test_fcntl", "test_posixpath", "test_stat"])
def test_what_python_expects_of_files(place, part):
    assert suites.judge(part, suites.python_parts()[part], place) == set()


@pytest.mark.skipif(not shutil.which("fio"), reason="fio is not installed")
@pytest.mark.parametrize("way", ["odd-sizes", "mapped", "direct", "appended"])
def test_what_fio_wrote_it_reads(place, way):
    assert suites.judge(way, suites.fio_parts()[f"fio/{way}"], place) == set()


@pytest.mark.skipif(not shutil.which("stress-ng"), reason="stress-ng is not installed")
@pytest.mark.parametrize("stressor", ["fpunch", "lockofd", "rename", "xattr"])
def test_what_stressors_verify(place, stressor):
    assert suites.judge(stressor, suites.stress_parts()[f"stress/{stressor}"], place) == set()


def test_what_fails_in_one_place_alone_is_told(tmp_path, monkeypatch, capsys):
    results = {tmp_path: (False, {"a", "b", "TestNonpollableDeadline"})}
    monkeypatch.setattr(suites, "run", lambda _part, where: results.get(where, (False, {"b"})))
    assert suites.judge("test_os", suites.Part([]), tmp_path) == {"a"}
    assert "epoll" in capsys.readouterr().out
    results[tmp_path] = (False, {"b"})
    assert suites.judge("test_os", suites.Part([]), tmp_path) == set()


@pytest.mark.parametrize(
    ("part", "passed", "failed"),
    [
        (suites.Part(["true"]), True, set()),
        (suites.Part(["sh", "-c", "exit 77"]), False, set()),
        (suites.Part(["sh", "-c", "exit 77"], good_codes=suites_of_sources.LEFT_OUT), True, set()),
        (
            suites.Part(
                ["printf", "[3] $ ls -- ok\n[4] $ cat f -- failed\n"], suites_of_sources.ACL_FAILED
            ),
            False,
            {"[4] $ cat f"},
        ),
        (
            suites.Part(
                ["printf", "  1 [mkdir] OK\n  2 [open(+)] test() - error\n"],
                suites_of_sources.FUSE_FAILED,
            ),
            False,
            {"open(+)"},
        ),
        (
            suites.Part(
                ["printf", "ok 1 - a\nnot ok 2 - b\nnot ok 3 - c # TODO known breakage\n"],
                suites_of_sources.TAP_FAILED,
            ),
            False,
            {"2 - b"},
        ),
        (
            suites.Part(
                ["printf", "stress-ng: fail:  [7] link: unlink failed\n"], suites.STRESS_FAILED
            ),
            False,
            {"link: unlink failed"},
        ),
    ],
)
def test_what_suites_say_is_understood(tmp_path, part, passed, failed):
    assert suites.run(part, tmp_path) == (passed, failed)


def test_a_word_names_all_parts_that_it_begins():
    found = suites.fio_parts() | suites.go_parts()
    assert suites.chosen(["fio"], found) == suites.fio_parts()
    assert list(suites.chosen(["io/fs"], found)) == ["io/fs"]
    assert suites.chosen([], found) == found
    with pytest.raises(KeyError):
        suites.chosen(["none"], found)


def test_what_is_not_unpacked_is_named(tmp_path, capsys):
    made = tmp_path / "attr-1" / "test"
    made.mkdir(parents=True)
    (made / "run").touch()
    (made / "attr.test").touch()
    assert list(suites_of_sources.parts(tmp_path)) == ["attr/attr.test"]
    assert "left out: no fuse3" in capsys.readouterr().out
