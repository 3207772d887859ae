"""Others' tests of files, where they are installed;
`python -m tests.real.suites` runs all of them, by hand.
"""

import re
import shutil
import sys
from pathlib import Path

import pytest

from . import suite_part, suites, suites_of_programs, suites_of_sources

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


@pytest.mark.parametrize("program", ["overlay", "nginx", "rsync"])
def test_what_programs_keep_in_files(place, program):
    part = suites_of_programs.parts().get(f"programs/{program}")
    if part is None:
        pytest.skip("not installed")
    assert suites.judge(program, part, place) == set()


def test_programs_that_are_missing_are_named(monkeypatch, capsys):
    asked = {"found": ("true; false | true", "sh"), "missing": ("true", "sh no-such-program")}
    monkeypatch.setattr(suites_of_programs, "NEEDED", asked)
    found = suites_of_programs.parts()
    assert list(found) == ["programs/found"]
    assert "programs/missing (no-such-program not installed)" in capsys.readouterr().out
    assert suites.run(found["programs/found"], Path("/tmp")) == (False, set())


def test_an_application_is_told_of_both_mounts(tmp_path, monkeypatch, capsys):
    script = tmp_path / "applications" / "shown.py"
    script.parent.mkdir()
    script.write_text(
        "import os, sys; os.path.samefile(*sys.argv[1:]) or 1 / 0; print(sys.argv[2], "
        "file=open('told', 'w')); os.rename('told', '../told')"
    )
    monkeypatch.setattr(suites, "__file__", str(tmp_path / "suites.py"))
    monkeypatch.setattr(suites, "APPLICATIONS", {"shown": "os", "missing": "no_such_package"})
    (tmp_path / "mount").mkdir()
    (tmp_path / "longer-name").symlink_to("mount")
    for other in (None, tmp_path / "longer-name", tmp_path / "no-mount"):
        found = suites.application_parts(Path(sys.executable), other)
        assert list(found) == ["applications/shown"]
        assert suites.run(found["applications/shown"], tmp_path / "mount") == (True, set())
        told = Path((tmp_path / "mount" / "told").read_text().strip()).parent
        assert told.name == ("longer-name" if other and other.exists() else "mount")
    assert "cannot import no_such_package" in capsys.readouterr().out


def test_what_fails_in_one_place_alone_is_told(tmp_path, monkeypatch, capsys):
    results = {tmp_path: (False, {"a", "b", "TestNonpollableDeadline"})}
    monkeypatch.setattr(suites, "run", lambda _part, where: results.get(where, (False, {"b"})))
    assert suites.judge("test_os", suite_part.Part([]), tmp_path) == {"a"}
    assert "epoll" in capsys.readouterr().out
    results[tmp_path] = (False, {"b"})
    assert suites.judge("test_os", suite_part.Part([]), tmp_path) == set()


@pytest.mark.parametrize(
    ("part", "passed", "failed"),
    [
        (suite_part.Part(["true"]), True, set()),
        (suite_part.Part(["sh", "-c", "exit 77"]), False, set()),
        (
            suite_part.Part(["sh", "-c", "exit 77"], good_codes=suites_of_sources.LEFT_OUT),
            True,
            set(),
        ),
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
                ["printf", " 7: sparse files   ok\n 8: long names     FAILED (a.at:9)\n"],
                suites_of_sources.AUTOTEST_FAILED,
            ),
            False,
            {"8: long names"},
        ),
        (
            suites.Part(
                ["printf", "lock-1.1... Ok\n! lock-1.2 expected: [0]\n! lock-1.2 got: [1]\n"],
                suites_of_sources.SQLITE_FAILED,
            ),
            False,
            {"lock-1.2"},
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


def test_what_a_plain_user_fails_at_on_a_local_disk_too_is_no_difference(place, capsys):
    """Whose directory is the judge's own: the user could not enter it, so nothing failed there."""
    command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c"]
    part = suite_part.Part(
        [*command, "ls $PWD && echo 'FAIL: it'; exit 1"], re.compile("^FAIL: (.*)$", re.MULTILINE)
    )
    assert suites.judge("part", part, place) == set()
    assert "fails on a local disk, too" in capsys.readouterr().out
