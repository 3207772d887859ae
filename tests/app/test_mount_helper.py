"""The mount helper, where no mount is needed to see what it does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fs.app import mount_helper
from fs.app.machine.process_id import ProcessId
from fs.app.machine.running import Command
from fs.app.mounts.helper_script import helper_text
from fs.runtime.config_file import read_config, write_config
from fs.schema.config import ClientSection, ProcessConfig

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def helper(deed, *words, env=ENV):
    """Return the helper, started."""
    command = [sys.executable, "-P", "-m", "fs.app.mount_helper", deed, *words]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("uid", [0, 1000])
def test_a_remount_writes_nothing_for_other_users(tmp_path, monkeypatch, uid):
    """They may have put a link in the place of the file, to any file of root's."""
    path = tmp_path / "mount-1.toml"
    client = ClientSection(mount_point=str(tmp_path), mount_options=["ro"])
    write_config(path, ProcessConfig(client=client))
    daemon = Command(ProcessId(1, 1), "mountd", path, uid), read_config(path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(mount_helper.mount_calls, "remount", lambda *_: 8)
    monkeypatch.setattr(mount_helper, "mount_daemons_at", lambda _: [daemon])
    mount_helper._remount(str(tmp_path), ["noexec"])
    expected = ["noexec", "suid", "dev"] if uid == 0 else ["ro"]
    assert read_config(path).client.mount_options == expected


@pytest.mark.parametrize(
    "words",
    [("/c/\udcff", "/mnt"), ("/c", "/mnt/\udcff"), ("n:1", "/mnt", "-o", "key_file=/\udcff")],
)
def test_names_that_are_no_text_are_refused_in_a_line(words, capsys):
    assert mount_helper.run("mount", list(words)) == 32
    assert "is not UTF-8 text" in capsys.readouterr().err


@pytest.mark.thorough
def test_options_may_come_last_whatever_the_environment_says(tmp_path):
    env = {**ENV, "POSIXLY_CORRECT": "1"}
    child = helper("mount", str(tmp_path / "none"), str(tmp_path), "-f", "-o", "ro", env=env)
    assert (child.communicate(timeout=60)[1], child.returncode) == ("", 0)


def daemons_of(folder):
    """The processes that were started with a configuration in a folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes()
        except OSError:
            continue
        if b"fs.app.mountd" in words and os.fsencode(folder) in words:
            found.append(int(file.parent.name))
    return found


TOLD_AT_ONCE = """
import os
popen = lone_mount.subprocess.Popen
def told(*words, **options):
    child = popen(*words, **options)
    os.kill(os.getpid(), {number})
    return child
lone_mount.subprocess.Popen = told
"""
"""The signal comes when the daemon has been started, and nobody knows of it yet."""


@pytest.mark.slow
@pytest.mark.mount
@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_is_told_to_end_leaves_no_daemon(tmp_path, number, at_once):
    """As by timeout(1): it would mount when nobody expects it any more."""
    place, config = tmp_path / "place", tmp_path / "m.toml"
    place.mkdir()
    config.write_text(f'[process]\nmgmtd_addresses = ["unix:{tmp_path}/none"]\n')
    script = (
        "import sys; from pathlib import Path\n"
        "from fs.app import mount_helper; from fs.app.local import lone_mount\n"
        "lone_mount.runtime_folder = lambda: Path(sys.argv[1])\n"
        f"{TOLD_AT_ONCE.format(number=int(number)) if at_once else ''}"
        "sys.exit(mount_helper.main(sys.argv[2:]))"
    )
    command = [sys.executable, "-P", "-c", script, tmp_path / "run", "mount", config, place]
    child = subprocess.Popen(command, env=ENV, stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + 60
    while not at_once and not daemons_of(tmp_path):
        assert time.monotonic() < deadline_s and child.poll() is None
        time.sleep(0.05)
    if not at_once:
        child.send_signal(number)
    assert (child.communicate(timeout=60)[1], child.returncode) == (
        "mount.fuse.ember: interrupted\n",
        8,
    )
    assert not daemons_of(tmp_path)


@pytest.mark.parametrize(
    ("interpreter", "expected"),
    [
        ("exit 0", "without"),
        ("exit 1", "without"),
        ("exit 126", "without"),
        ("kill -9 $$", "without"),
        ("kill -ILL $$", "without"),
        ("exit 40", 0),
        ("exit 41", 1),
        ("exit 72", 32),
        ("exit 73", "without"),
    ],
)
def test_umount_does_without_a_helper_that_is_broken(tmp_path, interpreter, expected):
    """Half of an installation, or another version of Python, kept everything mounted."""
    tools = {"python": f"#!/bin/sh\n{interpreter}\n", "umount": '#!/bin/sh\necho "$*"\nexit 5\n'}
    tools["umount.fuse.ember"] = helper_text("umount", str(tmp_path / "python"))
    for name, text in tools.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.defpath}"}
    command = [tmp_path / "umount.fuse.ember", "/mnt/a b", "-l"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    without = (5, "-i /mnt/a b -l\n")
    assert (ran.returncode, ran.stdout) == (without if expected == "without" else (expected, ""))
