"""Whole clusters of real processes: `ember up` to `ember down`, with faults in between."""

import contextlib
import fcntl
import hashlib
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from emberfs.clusters import find_place
from prometheus_client.parser import text_string_to_metric_families

from fs.app.machine.cluster_dir import ClusterDir
from fs.app.monitoring.metrics_commands import fetch
from fs.app.monitoring.status_view import gather
from fs.app.supervision import supervisor_link
from fs.client.blocking import connect_blocking
from fs.schema import metrics
from fs.schema.metric import Shower
from fs.schema.metrics import METRICS
from fs.schema.status import FsError
from tests.commands import run_ember

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
needs_fuse = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")


class Ember:
    """One cluster, driven only by the command line."""

    def __init__(self, base: Path) -> None:
        self.directory = base / "cluster"
        self.mount = base / "mount"
        self.mount.mkdir()

        self.is_loaded = True
        """Commands are forked from a process that has loaded what they need."""

    def command(self, *arguments):
        return [sys.executable, "-m", "fs.app.main", *map(str, arguments)]

    def run(self, *arguments, check=True, names_directory=True):
        words = [*arguments, *(("--dir", self.directory) if names_directory else ())]
        if self.is_loaded:
            done = run_ember(*words, timeout=300)
        else:
            command = self.command(*words)
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert not check or done.returncode == 0, (done.stdout, done.stderr)
        return done

    def up(self, *arguments, check=True):
        return self.run("up", "--until", os.getpid(), *arguments, check=check)

    def status(self):
        """What `ember status --json` prints, without a process for each time that a test asks."""
        return gather(ClusterDir(self.directory))

    def service(self, name):
        told = supervisor_link.ask(ClusterDir(self.directory), command="status")
        return next(s for s in told["services"] if s["name"] == name)

    def kill(self, name):
        """Kill a process; return as soon as the supervisor knows."""
        pid = self.service(name)["pid"]
        os.kill(pid, signal.SIGKILL)
        deadline_s = time.monotonic() + 60
        while self.service(name)["pid"] == pid:
            assert time.monotonic() < deadline_s, name
            time.sleep(0.01)

    def wait(self, predicate, timeout_s=120.0):
        deadline_s = time.monotonic() + timeout_s
        while not predicate(self.status()):
            assert time.monotonic() < deadline_s, self.status()
            time.sleep(0.1)


def end(pid):
    """Kill a process; return when it has ended."""
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([descriptor], [], [], 60)[0]
    os.close(descriptor)


@pytest.fixture
def ember(tmp_path):
    cluster = Ember(tmp_path)
    yield cluster
    cluster.run("down", check=False)
    assert not os.path.ismount(cluster.mount)


def error_line(done):
    """A failure is one line that begins with the program's name."""
    assert done.returncode == 1, done
    lines = [line for line in done.stderr.splitlines() if not line.endswith(("...", "started"))]
    assert "Traceback" not in done.stderr
    assert lines[-1].startswith("ember: "), done.stderr
    return lines[-1]


def processes_of(directory):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(directory) in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(path.read_bytes())
    return found


HOLDER = """
import os, sys
file = open(sys.argv[1], "wb", buffering=0)
file.write(b"flushed, as all else")
os.fsync(file.fileno())
print("flushed", flush=True)
sys.stdin.readline()
file.write(b"buffered while the chain is away")
print("buffered", flush=True)
sys.stdin.readline()
"""


SHOWERS = {
    "control": {Shower.MEMBER, Shower.META, Shower.MGMTD, Shower.PRIMARY, Shower.KV},
    "kv": {Shower.KV},
    "mgmtd": {Shower.MEMBER, Shower.MGMTD},
    "meta": {Shower.MEMBER, Shower.META},
    "storage": {Shower.MEMBER, Shower.STORAGE},
    "mountd": {Shower.MOUNT},
}
SOMETIMES = {
    metrics.SERVER_SLOW,
    metrics.SERVER_USER_RECEIVED,
    metrics.SERVER_USER_SENT,
    metrics.KV_RETRIES,
    metrics.KV_STORE_REFUSED,
}
"""What need not happen here."""


def what_is_wrong_with_metrics(status):
    """Return what a process of a cluster should show and does not,
    or shows though no document knows it.
    """
    documented, found = {m.name for m in METRICS}, set()
    for service in status["services"]:
        name, text = service["name"], fetch(service["metrics_address"].removeprefix("tcp:"))
        shown = {s.name for f in text_string_to_metric_families(text) for s in f.samples}
        shown = {re.sub("_(bucket|count|sum)$", "", n) for n in shown if n.startswith("ember_")}
        showers = SHOWERS[service["role"]] | {Shower.ALL}
        if name == status["primary"]:
            showers |= {Shower.PRIMARY}
        due = {m.name for m in METRICS if m.shower in showers and not m.occasion}
        if shown - documented or due - shown:
            return name, shown - documented, due - shown
        found |= shown
    return {m.name for m in METRICS if m not in SOMETIMES} - found


def check_metrics(ember):
    """Every process shows what is documented of its kind, and nothing else."""
    assert not (ember.mount / "nowhere").exists()  # an error to be counted
    listed = json.loads(ember.run("metrics", "targets").stdout)
    assert len(listed) == len(ember.status()["services"])
    deadline_s = time.monotonic() + 60  # on a busy machine the primary may change at any time
    while wrong := what_is_wrong_with_metrics(ember.status()):
        assert time.monotonic() < deadline_s, wrong
        time.sleep(0.1)
    once = ("--count", 1, "--interval", 0.1)
    names = [line.split()[0] for line in ember.run("top", *once).stdout.splitlines()]
    assert names[0] == "process"
    assert set(names[1:]) <= {s["name"] for s in ember.status()["services"]}
    (rows,) = map(json.loads, ember.run("top", *once, "--json").stdout.splitlines())
    assert {row["name"] for row in rows} <= {s["name"] for s in ember.status()["services"]}
    assert json.loads(ember.run("path", 1, "--json").stdout) == ["/"]
    head, line = ember.run("stat", ember.mount, *once, names_directory=False).stdout.splitlines()
    assert len(head) == len(line)


def test_without_a_mount(ember):
    ember.is_loaded = False
    ember.up("--no-mount", "--nodes", 2, "--replicas", 2, "--chains", 3)
    status = json.loads(ember.run("status", "--json").stdout)
    assert [s["name"] for s in status["services"]] == ["control", "storage-1", "storage-2"]
    assert len(status["chains"]) == 3
    assert status["is_healthy"]
    assert "it runs already" in error_line(ember.up("--no-mount", check=False))
    ember.run("down")
    assert processes_of(ember.directory) == []
    assert "does not run" in error_line(ember.run("down", check=False))
    assert "does not run" in error_line(ember.run("status", check=False))
    assert "was made with 2" in error_line(ember.up("--nodes", 3, check=False))
    ember.run("down", "--wipe")
    assert not ember.directory.exists()


def connection_to(ember):
    place = find_place(cluster=ember.directory)
    return connect_blocking(place.addresses, place.cluster_id, key_file=place.key_file)


@needs_fuse
@pytest.mark.mount
def test_a_closed_one(ember, monkeypatch):
    """Its owner's commands and its mount have the key; others need a token, and are who it says."""
    ember.up("--closed", "--nodes", 1, "--mount", ember.mount)
    (ember.mount / "file").write_text("here")
    (ember.mount / "file").chmod(0o600)
    assert ember.status()["is_healthy"]
    ember.run("user", "add", 4711, "alice")
    token = ember.directory / "token"
    ember.run("user", "token", "new", 4711, "--file", token)
    record = json.loads(ember.run("status", "--json").stdout)
    with connection_to(ember) as fs:
        assert fs.read_file("/file") == b"here"
    monkeypatch.setenv("EMBERFS_TOKEN_FILE", str(token))
    with connection_to(ember) as fs, pytest.raises(FsError, match="ACCESS_DENIED"):
        fs.read_file("/file")
    monkeypatch.delenv("EMBERFS_TOKEN_FILE")
    monkeypatch.setenv("EMBERFS_KEY_FILE", "")
    address = f"unix:{ember.directory}/run/control.sock"
    with (
        pytest.raises(FsError, match="gave no credentials"),
        connect_blocking([address], record["cluster_id"]),
    ):
        pass
    ember.run("down")
    ember.up("--no-mount")
    assert ember.status()["is_healthy"], "closed as it was made"
    ember.run("down", "--wipe")
    ember.up("--no-mount", "--nodes", 1)
    ember.run("down")
    assert "was made open" in error_line(ember.up("--closed", "--no-mount", check=False))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", 2, "--replicas", 3], "--replicas 3"),
        (["--mount", "/proc/nowhere"], "does not exist"),
        (["--mount", "/etc"], "not empty"),
        (["--mount", "/proc"], "something is mounted there"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(ember, arguments, message):
    assert message in error_line(ember.up(*arguments, check=False))
    assert processes_of(ember.directory) == []


def test_a_directory_with_other_things_is_left_alone(ember):
    ember.directory.mkdir()
    (ember.directory / "thesis.tex").write_text("years of work")
    assert "not empty" in error_line(ember.up("--no-mount", check=False))
    assert "holds no cluster" in error_line(ember.run("down", "--wipe", check=False))
    assert os.listdir(ember.directory) == ["thesis.tex"]


def test_a_service_that_cannot_start_is_named_and_nothing_is_left(ember):
    ember.up("--no-mount", "--nodes", 2)
    ember.run("down")
    config = ember.directory / "config/storage-2.toml"
    config.write_text(config.read_text().replace("resync_concurrency = ", "resync_konkurrency = "))
    line = error_line(ember.up("--no-mount", check=False))
    assert "storage-2" in line
    assert "resync_konkurrency" in line
    assert "storage-2.log" in line
    assert processes_of(ember.directory) == []


@needs_fuse
@pytest.mark.mount
def test_data_survives_a_restart(ember):
    began_s = time.monotonic()
    ember.up("--mount", ember.mount)
    first_s = time.monotonic() - began_s
    content = random.Random(1).randbytes(3_000_001)
    (ember.mount / "folder").mkdir()
    (ember.mount / "folder/file").write_bytes(content)
    (ember.mount / "link").symlink_to("folder/file")
    ember.run("down")
    assert os.listdir(ember.mount) == []
    began_s = time.monotonic()
    ember.up("--mount", ember.mount)
    # 3 s on an idle machine, as the first time; where that took long, this may, too.
    assert time.monotonic() - began_s < 30 + 5 * first_s
    assert (ember.mount / "link").read_bytes() == content


@needs_fuse
@pytest.mark.mount
def test_services_may_become_more_and_fewer(ember):
    """The same store, held by the control process or served to three managers
    and two metadata services.
    """
    written = []
    for options, expected in (
        ((), ["control"]),
        (
            ("--mgmtds", 3, "--metas", 2),
            ["kv", "mgmtd-1", "mgmtd-2", "mgmtd-3", "meta-1", "meta-2"],
        ),
        (("--mgmtds", 1, "--metas", 1), ["control"]),
    ):
        ember.up("--mount", ember.mount, "--nodes", 1, *options)
        status = ember.status()
        assert [s["name"] for s in status["services"]] == [*expected, "storage-1", "mount-1"]
        assert status["primary"] in expected
        assert status["is_healthy"]
        for path in written:
            assert path.read_text() == path.name
        written.append(ember.mount / f"file-{len(written)}")
        written[-1].write_text(written[-1].name)
        record = json.loads((ember.directory / "cluster.json").read_text())
        assert (record["mgmtd_count"], record["meta_count"]) == (options or (0, 1, 0, 1))[1::2]
        check_metrics(ember)
        if options:
            assert "it runs already" in error_line(ember.up("--mgmtds", 2, check=False))
        ember.run("down")
    assert processes_of(ember.directory) == []
    assert "--mgmtds 10" in error_line(ember.up("--mgmtds", 10, check=False))


@needs_fuse
@pytest.mark.mount
def test_deaths_are_pauses(ember):
    """Every kind of service is killed while a file is written,
    synced and read back again and again.
    """
    ember.up("--mount", ember.mount)
    expected = {}
    for name in ("storage-1", "control", "storage-3"):
        ember.kill(name)
        for number in range(10):
            path = ember.mount / f"{name}-{number}"
            content = random.Random(number).randbytes(70_000 + number)
            path.write_bytes(content)
            expected[path] = hashlib.sha256(content).digest()
            assert hashlib.sha256(path.read_bytes()).digest() == expected[path]
        ember.wait(lambda status: status["is_healthy"])
        assert ember.service(name)["restart_count"] == 1
    for path, digest in expected.items():
        assert hashlib.sha256(path.read_bytes()).digest() == digest


@needs_fuse
@pytest.mark.mount
def test_a_killed_mount_daemon_comes_back(ember):
    ember.up("--mount", ember.mount, "--nodes", 1)
    (ember.mount / "file").write_text("closed, so durable")
    ember.kill("mount-1")
    ember.wait(lambda status: status["is_healthy"] and status["mounts"][0]["state"] == "mounted")
    assert (ember.mount / "file").read_text() == "closed, so durable"


@needs_fuse
@pytest.mark.mount
def test_an_unmount_says_what_it_could_not_flush_and_a_dead_mount_is_recovered(ember):
    ember.up("--mount", ember.mount, "--nodes", 1)
    config = ember.directory / "config/mount-1.toml"
    settings = config.read_text()
    assert "unmount_time_s_max = 45.0" in settings
    config.write_text(settings.replace("unmount_time_s_max = 45.0", "unmount_time_s_max = 2.0"))
    ember.kill("mount-1")  # the next one reads it
    for _ in range(2):
        ember.run("mount", "--recover", ember.mount)
    # A process of its own: this one would wait for a flush whenever it starts a child.
    holder = [sys.executable, "-c", HOLDER, str(ember.mount / "file")]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as held:
        assert held.stdout.readline() == b"flushed\n"
        storage = next(s["pid"] for s in ember.status()["services"] if s["role"] == "storage")
        os.kill(storage, signal.SIGSTOP)  # a chain that takes nothing
        try:
            held.stdin.write(b"go on\n")
            held.stdin.flush()
            assert held.stdout.readline() == b"buffered\n"
            told = error_line(ember.run("umount", ember.mount, check=False))
        finally:
            os.kill(storage, signal.SIGCONT)
            held.kill()
    assert "NOT_FLUSHED" in told
    assert f"({ember.mount}: of inode" in told
    assert not os.path.ismount(ember.mount)
    ember.run("mount", "--recover", ember.mount)
    assert (ember.mount / "file").read_bytes() == b"flushed, as all else"


@needs_fuse
@pytest.mark.mount
def test_two_mounts_and_the_death_of_the_supervisor(ember, tmp_path):
    ember.up("--mount", ember.mount, "--nodes", 1)
    second = tmp_path / "second"
    second.mkdir()
    ember.run("mount", second)
    (ember.mount / "file").write_text("seen by both")
    assert (second / "file").read_text() == "seen by both"
    end(ember.status()["supervisor_pid"])
    assert (second / "file").read_text() == "seen by both"
    assert "its services go on" in error_line(ember.run("status", check=False))
    ember.up("--mount", ember.mount)  # adopts what runs
    assert {s["restart_count"] for s in ember.status()["services"]} == {0}
    ember.run("umount", second, names_directory=False)  # the mount point says which cluster
    assert os.listdir(second) == []
    end(ember.status()["supervisor_pid"])
    ember.run("down")
    assert processes_of(ember.directory) == []


@needs_fuse
@pytest.mark.mount
def test_up_after_a_reboot(ember):
    """Nothing runs, but state file, sockets and a dead mount are there;
    the pids belong to others.
    """
    ember.up("--mount", ember.mount, "--nodes", 1)
    (ember.mount / "file").write_text("kept")
    for pid in [ember.status()["supervisor_pid"], *(s["pid"] for s in ember.status()["services"])]:
        end(pid)
    with pytest.raises(OSError, match=r"not connected|abort"):
        os.listdir(ember.mount)
    state_path = ember.directory / "run/supervisor.json"
    state = json.loads(state_path.read_text())
    for service in state["services"]:
        service["pid"] = os.getpid()
    state_path.write_text(json.dumps(state))
    remedy = f"ember up --dir {ember.directory}"
    assert remedy in error_line(ember.run("status", check=False))
    ember.up("--mount", ember.mount)
    assert (ember.mount / "file").read_text() == "kept"
    for pid in [ember.status()["supervisor_pid"], *(s["pid"] for s in ember.status()["services"])]:
        end(pid)
    assert "does not run" in error_line(ember.run("down", check=False))
    assert os.listdir(ember.mount) == []  # the dead mount is gone


@needs_fuse
@pytest.mark.mount
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_foreground_ends_with_its_cluster(ember, number):
    options = ("--mount", ember.mount, "--nodes", 1, "--foreground", "--dir", ember.directory)
    options += ("--until", os.getpid())
    # Tests may run under nohup, which has all that they start ignore SIGHUP.
    command = ["env", "--default-signal=HUP", *ember.command("up", *options)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            for line in child.stdout:
                if line.startswith("stop:"):
                    break
            assert os.path.ismount(ember.mount)
            child.send_signal(number)
            assert child.wait(60) == 0, child.stderr.read()
        finally:
            child.kill()  # else a failure would wait for its end
    assert not os.path.ismount(ember.mount)
    assert processes_of(ember.directory) == []


def test_an_interrupted_start_leaves_nothing(ember):
    with subprocess.Popen(
        ember.command("up", "--no-mount", "--dir", ember.directory, "--until", os.getpid()),
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert "control" in child.stderr.readline()
        child.terminate()
        assert child.wait(60) == 130
        assert "Traceback" not in child.stderr.read()
    assert processes_of(ember.directory) == []


@needs_fuse
@pytest.mark.mount
def test_a_mount_ended_from_outside_is_not_forced_back(ember):
    ember.up("--mount", ember.mount, "--nodes", 1)
    (ember.mount / "file").write_text("kept")
    subprocess.run(["fusermount3", "-u", str(ember.mount)], check=True)
    ember.wait(lambda status: status["services"][-1]["state"] == "stopped")
    assert "not mounted at" in error_line(ember.run("umount", ember.mount, check=False))
    ember.run("mount", ember.mount)
    assert ember.service("mount-1")["state"] == "running"
    assert (ember.mount / "file").read_text() == "kept"


@needs_fuse
@pytest.mark.mount
def test_clusters_side_by_side(tmp_path):
    clusters = []
    try:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            clusters.append(Ember(tmp_path / name))
            clusters[-1].up("--nodes", 1, "--mount", clusters[-1].mount)
            (clusters[-1].mount / "name").write_text(name)
        assert [(c.mount / "name").read_text() for c in clusters] == ["one", "two"]
    finally:
        for cluster in clusters:
            cluster.run("down", "--wipe")


def test_a_lock_held_by_somebody_else_is_no_crash(ember):
    """The supervisor of another `ember up` that is just starting holds the lock
    but does not answer yet.
    """
    ember.up("--no-mount", "--nodes", 1)
    ember.run("down")
    with (ember.directory / "run/supervisor.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "runs already" in error_line(ember.up("--no-mount", check=False))
