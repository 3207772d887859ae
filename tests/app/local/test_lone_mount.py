"""A mount daemon without a supervisor: how it is configured,
and that one which does not come to serve is ended.
"""

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fs.app.local import lone_mount
from fs.app.local.cluster_plan import MountWishes
from fs.app.local.lone_mount import KEPT_S
from fs.app.machine.process_id import ProcessId
from fs.app.machine.running import Command
from fs.app.mounts.mount_source import parse_source
from fs.runtime.config_file import read_config, write_config
from fs.schema.config import AuthSection, ClientSection, ProcessConfig, ProcessSection
from fs.schema.status import FsError

PLACE = Path("/mnt/x")


def test_addresses_and_options_make_a_configuration():
    source = parse_source("n1:7001,n2:7001:/team")
    wishes = MountWishes(subdir=source.subdir, source="n1", options=("ro",))
    made = lone_mount._config(source, {"cluster_id": "c", "token_file": "/t"}, PLACE, wishes)
    assert made.process.cluster_id == "c"
    assert made.process.mgmtd_addresses == ["tcp:n1:7001", "tcp:n2:7001"]
    assert made.auth == AuthSection(token_file="/t")
    client = made.client
    assert (client.mount_point, client.subdir, client.mount_source) == ("/mnt/x", "/team", "n1")
    assert client.mount_options == ["ro"]


def test_a_configuration_keeps_what_is_not_of_its_own_daemon(tmp_path):
    process = ProcessSection(
        cluster_id="c", mgmtd_addresses=["tcp:n:1"], metrics_address="tcp:127.0.0.1:9720"
    )
    client = ClientSection(
        mount_point="/old", subdir="/team", batch_socket="/s", attr_timeout_s=0.5
    )
    path = tmp_path / "mountd.toml"
    write_config(path, ProcessConfig(process=process, client=client))
    made = lone_mount._config(parse_source(str(path)), {}, PLACE, MountWishes())
    assert (made.client.mount_point, made.client.subdir) == ("/mnt/x", "/team")
    assert (made.client.batch_socket, made.client.attr_timeout_s) == ("", 0.5)
    assert made.process.metrics_address == "tcp:127.0.0.1:0"
    made = lone_mount._config(parse_source(f"{path}:/b"), {}, PLACE, MountWishes(subdir="/b"))
    assert made.client.subdir == "/b"


@pytest.fixture
def tries(tmp_path, monkeypatch):
    """Daemons that are started write their pids down, and do what the test says."""
    monkeypatch.setattr(lone_mount, "runtime_folder", lambda: tmp_path / "run")
    monkeypatch.setattr(lone_mount, "check_fuse", lambda: None)
    monkeypatch.setattr(lone_mount, "SERVICE_TIMEOUT_S", 0.5)
    started = []

    def start(script, name="place"):
        program = subprocess.Popen

        def instead(_words, **how):
            started.append(program(["sh", "-c", script], **how))
            return started[-1]

        monkeypatch.setattr(lone_mount.subprocess, "Popen", instead)
        place = tmp_path / name
        place.mkdir(exist_ok=True)
        lone_mount.start(parse_source("n:1"), {}, place, MountWishes())

    yield start
    for child in started:
        child.kill()
        child.wait()


def test_one_that_serves_is_left_alone(tries, tmp_path):
    tries("echo >/proc/self/fd/$EMBERFS_READY_FD; exec sleep 100")
    (config,) = (tmp_path / "run").glob("place-*.toml")
    assert f'"{tmp_path}/place"' in config.read_text()
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_one_that_ends_is_told_with_its_last_word(tries):
    with pytest.raises(FsError, match=r"exit code 3: no such directory \(log: .*place-"):
        tries("echo no such directory; exit 3")


def test_one_that_does_not_answer_is_ended(tries, monkeypatch):
    ended = []
    monkeypatch.setattr(
        lone_mount, "_end", lambda child, end=lone_mount._end: (end(child), ended.append(child))
    )
    with pytest.raises(FsError, match=r"not ready after 0\.5 s"):
        tries("exec sleep 100")
    assert [child.returncode for child in ended] == [-signal.SIGTERM]


def test_a_folder_of_somebody_else_is_not_used(tries, tmp_path):
    (tmp_path / "run").symlink_to(tmp_path)
    with pytest.raises(FsError, match="somebody else"):
        tries("exit 0")
    assert not list(tmp_path.glob("*.toml"))


def test_two_at_one_place_take_turns(tries, monkeypatch):
    """The second one would write its configuration and its log into the files of the first."""
    events, wait = [], lone_mount._wait_ready
    monkeypatch.setattr(lone_mount, "check_mount_point", lambda _: events.append("looks"))

    def wait_ready(*words):
        wait(*words)
        events.append("mounted")

    monkeypatch.setattr(lone_mount, "_wait_ready", wait_ready)
    script = "sleep 0.2; echo >/proc/self/fd/$EMBERFS_READY_FD; exec sleep 100"
    with ThreadPoolExecutor() as threads:
        list(threads.map(tries, [script] * 3))
    assert events == ["looks", "mounted"] * 3


@pytest.mark.parametrize(
    "name",
    ["a" * 255, "\U0001f600" * 63, "a b", 'a"b', "a\\b", "a\nb", "-o", "a\x0bb", "\u3000"],
    ids=repr,
)
def test_names_of_mount_points_of_any_kind(tries, tmp_path, name):
    tries("echo >/proc/self/fd/$EMBERFS_READY_FD; exec sleep 100", name)
    (path,) = (tmp_path / "run").glob("*.toml")
    assert read_config(path).client.mount_point == f"{tmp_path}/{name}"


@pytest.mark.parametrize("name", ["place", "[a]*"])
def test_what_daemons_have_left_long_ago_goes(tries, tmp_path, monkeypatch, name):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    for age_s, kept in ((KEPT_S + 100, "gone"), (KEPT_S + 100, "served"), (KEPT_S - 100, "young")):
        for suffix in ("toml", "log", "log.1", "lock"):
            path = folder / f"{name}-{kept}.{suffix}"
            path.touch()
            os.utime(path, (time.time() - 2 * age_s, time.time() - 2 * age_s))
        os.utime(folder / f"{name}-{kept}.log", (time.time() - age_s, time.time() - age_s))
    served = Command(ProcessId(1, 1), "mountd", folder / f"{name}-served.toml")
    monkeypatch.setattr(lone_mount, "commands", lambda: [served])
    tries("echo >/proc/self/fd/$EMBERFS_READY_FD; exec sleep 100", "other")
    left = sorted(path.name for path in folder.iterdir() if not path.name.startswith("other-"))
    suffixes = ("lock", "log", "log.1", "toml")
    assert left == [f"{name}-{kept}.{end}" for kept in ("served", "young") for end in suffixes]
