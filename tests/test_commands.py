"""Commands that are forked end as those that start from nothing."""

import os
import subprocess
import sys

import pytest

from tests.commands import run_ember

pytestmark = pytest.mark.slow

COMMAND = "import sys; from fs.app.main import main; sys.argv[0] = 'ember'; main()"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["version"], 0),
        (["no-such-command"], 2),
        (["status", "--dir", "nowhere"], 1),
        (["rm", "\udcff"], 1),
    ],
)
def test_both_say_and_return_the_same(words, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMBERFS_CONFIG", "")
    command = [sys.executable, "-P", "-c", COMMAND, *words]
    alone = subprocess.run(
        command, capture_output=True, text=True, errors="surrogateescape", check=False
    )
    forked = run_ember(*words)
    assert forked.returncode == alone.returncode == code
    assert (forked.stdout, forked.stderr) == (alone.stdout, alone.stderr)


def test_each_has_the_environment_and_the_folder_of_its_time(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.setenv("EMBERFS_CONFIG", f"{name}.toml")
        told = run_ember("admin", "node", "list")
        assert told.returncode == 1 and f"{name}.toml" in told.stderr, told
        assert run_ember("key", "new", "key").returncode == 0
    assert (tmp_path / "one/key").read_text() != (tmp_path / "two/key").read_text()


def test_one_that_takes_too_long_is_killed(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # that nobody writes to
    with pytest.raises(subprocess.TimeoutExpired):
        run_ember("admin", "shell", "--file", tmp_path / "pipe", timeout=0.1)
    assert run_ember("version").returncode == 0
