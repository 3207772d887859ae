"""The programs that mount(8) and umount(8) look for are written,
run this installation, and go again.
"""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fs.app import mount_helper
from fs.app.commands import helper_commands
from fs.app.mounts.helper_script import DEEDS, MARK, helper_path, helper_text
from fs.schema.status import FsError, Status


@pytest.fixture
def _root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def called(folder, *words):
    return CliRunner().invoke(helper_commands.helper, [*words, "--folder", str(folder)])


@pytest.mark.thorough
@pytest.mark.usefixtures("_root")
def test_both_are_written_and_removed(tmp_path):
    done = called(tmp_path, "install")
    places = [tmp_path / f"{deed}.fuse.ember" for deed in DEEDS]
    assert done.output.split() == [str(place) for place in places]
    for deed, place in zip(DEEDS, places, strict=True):
        assert place.read_text() == helper_text(deed, sys.executable)
        assert place.stat().st_mode & 0o777 == 0o755
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        ran = subprocess.run([place], capture_output=True, text=True, check=False, env=env)
        assert ran.returncode == 1 and f"usage: {deed}.fuse.ember" in ran.stderr
    assert called(tmp_path, "install").exit_code == 0
    assert called(tmp_path, "remove").exit_code == 0
    assert called(tmp_path, "remove").exit_code == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_root")
@pytest.mark.parametrize("deed", ["install", "remove"])
def test_a_file_of_somebody_else_stays(tmp_path, deed):
    place = tmp_path / "umount.fuse.ember"
    place.write_text("#!/bin/sh\n")
    error = called(tmp_path, deed).exception
    assert isinstance(error, FsError) and error.status is Status.EXISTS
    assert [*tmp_path.iterdir()] == [place] and place.read_text() == "#!/bin/sh\n"


@pytest.mark.parametrize("deed", ["install", "remove"])
def test_who_is_not_root_is_told(tmp_path, deed, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    error = called(tmp_path, deed).exception
    assert error.status is Status.NOT_PERMITTED and "as root" in error.detail


def test_a_path_with_blanks_is_one_word():
    text = helper_text("mount", "/opt/a b/python")
    assert f"\n{MARK}\nexec '/opt/a b/python' -P -m fs.app.mount_helper mount " in text
    assert helper_path("mount") == "/sbin/mount.fuse.ember"


@pytest.mark.parametrize("interpreter", ["/gone/python", sys.executable])
def test_what_is_mounted_can_be_unmounted_where_emberfs_is_gone(tmp_path, interpreter):
    """umount(8) runs the helper and nothing else:
    without a program or its packages everything stayed mounted.
    """
    tools = {"umount": '#!/bin/sh\necho "without a helper: $*"\n'}
    tools["umount.fuse.ember"] = helper_text("umount", interpreter)
    for name, text in tools.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.defpath}", "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}
    command = [tmp_path / "umount.fuse.ember", "/mnt/x", "-l"]
    if interpreter == sys.executable:
        # Of the same interpreter, without the packages that were installed for it.
        lines = tools["umount.fuse.ember"].replace(" -P ", " -S -P ")
        command[0].write_text(lines)
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert (ran.returncode, ran.stdout) == (0, "without a helper: -i /mnt/x -l\n"), ran.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FsError(Status.BAD_MOUNT_POINT, "x"), 32),
        (FsError(Status.NOT_PERMITTED, "x"), 1),
        (FsError(Status.FUSE_MISSING, "x"), 2),
        (OSError(12, "no memory"), 2),
        (ExceptionGroup("", [FsError(Status.START_FAILED, "x")]), 32),
        (KeyboardInterrupt(), 8),
    ],
)
def test_exit_codes_are_those_of_mount(monkeypatch, capsys, error, code):
    def fail(_arguments):
        raise error

    monkeypatch.setitem(mount_helper._DEEDS, "mount", fail)
    assert mount_helper.run("mount", []) == code
    said = capsys.readouterr().err
    assert said.startswith("mount.fuse.ember: ") and len(said.splitlines()) == 1


def test_a_bug_is_no_exit_code_of_mount(monkeypatch):
    monkeypatch.setitem(mount_helper._DEEDS, "mount", lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        mount_helper.run("mount", [])
