"""Real clusters for the tests of this folder:
`ember up` in a temporary directory, `ember down` at the end.

`--until` this very process: a cluster is also stopped, and its mount
ended, when the tests are killed.

The short form runs by default; EMBER_TEST_SCALE=full runs the sizes that are promised for
a release. With EMBER_TEST_INLINE=BYTES these clusters keep files up to that length in
their metadata stores, with 0 none.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fs.app.machine.cluster_dir import ClusterDir
from fs.app.monitoring.status_view import gather
from fs.app.supervision import supervisor_link
from tests.commands import run_ember
from tests.examples import IS_FULL

EMBER = Path(sys.executable).parent / "ember"
INLINE_BYTES_MAX = os.environ.get("EMBER_TEST_INLINE", "")


def scaled(short: int, full: int) -> int:
    """Return the size for the chosen form."""
    return full if IS_FULL else short


def run(*command: object, cwd: Path | None = None, timeout: float = 600, **kwargs) -> str:
    """Run a command that must succeed; return what it prints."""
    if command[0] == EMBER and not kwargs:
        done = run_ember(*command[1:], cwd=cwd, timeout=timeout)
    else:
        done = subprocess.run(
            [str(c) for c in command],
            cwd=cwd,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
            **kwargs,
        )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass
class Cluster:
    """One running cluster with one mount."""

    directory: Path
    mount: Path

    def ember(self, *arguments: object, timeout: float = 300) -> str:
        return run(EMBER, *arguments, timeout=timeout)

    def tried(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run a command on it that may fail; return how it ended."""
        return run_ember(*arguments, "--dir", self.directory, timeout=300)

    def wipe(self) -> None:
        """Stop it and remove everything, if there is anything."""
        run_ember("down", "--dir", self.directory, "--wipe", timeout=120)

    def up(self, *options: object) -> None:
        self.ember(
            "up", "--dir", self.directory, "--mount", self.mount, "--until", os.getpid(), *options
        )

    def keep_small_files(self, length_max: int) -> None:
        """Have the metadata service keep files up to so many bytes, 0: none;
        it is started anew, as after a crash.
        """
        where = "--dir", self.directory
        self.ember(
            "admin", "config", "change", "meta", f"meta.inline_bytes_max={length_max}", *where
        )
        self.kill("control")

    def kill(self, service: str) -> None:
        """Kill a process, and wait for its successor;
        a mount daemon's has to detach what the dead one left, too.
        """
        pid = self.pid_of(service)
        os.kill(pid, signal.SIGKILL)
        self.wait_successor(service, pid)
        deadline = time.monotonic() + 60
        while not os.path.ismount(self.mount):
            assert time.monotonic() < deadline, "it is not mounted"
            time.sleep(0.05)

    def wait_successor(self, service: str, pid: int) -> None:
        """Wait until another process than this one serves as a service."""
        deadline = time.monotonic() + 60
        while (told := self.process(service))["pid"] == pid or told["state"] != "running":
            assert time.monotonic() < deadline, told
            time.sleep(0.05)

    def down(self, *options: object) -> None:
        self.ember("down", "--dir", self.directory, *options)

    def status(self) -> dict:
        """What `ember status --json` prints, without a process for each time that a test asks."""
        return gather(ClusterDir(self.directory))

    def process(self, service: str) -> dict:
        """What the supervisor knows of a process."""
        told = supervisor_link.ask(ClusterDir(self.directory), command="status")
        (found,) = [s for s in told["services"] if s["name"] == service]
        return found

    def pid_of(self, service: str) -> int:
        return self.process(service)["pid"]

    def wait_healthy(self, timeout_s: float = 300) -> float:
        """Wait until every target of every chain serves; return the seconds it took."""
        began = time.monotonic()
        while time.monotonic() - began < timeout_s:
            chains = self.status()["chains"]
            states = [t["state"] for chain in chains for t in chain["targets"]]
            if states and all(state == "serving" for state in states):
                return time.monotonic() - began
            time.sleep(0.2)
        raise AssertionError(f"not healthy after {timeout_s} s: {self.status()['chains']}")


def _up(made: Cluster, *options: object) -> None:
    made.up(*options)
    if INLINE_BYTES_MAX:
        made.keep_small_files(int(INLINE_BYTES_MAX))


@contextmanager
def _running(base: Path, *options: object) -> Iterator[Cluster]:
    made = Cluster(base / "data", base / "mnt")
    made.mount.mkdir()
    try:
        _up(made, *options)
        yield made
    finally:
        made.wipe()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory, until_last_use):
    """A cluster that tests share; each works in a directory of its own."""
    return until_last_use.enter_context(_running(tmp_path_factory.mktemp("cluster")))


@pytest.fixture
def own_cluster(tmp_path):
    """A cluster for one test, which may break it."""
    with _running(tmp_path) as made:
        yield made


@pytest.fixture
def lone_cluster(tmp_path):
    """As own_cluster, of one storage process, for a test of what is none of its business."""
    with _running(tmp_path, "--nodes", 1, "--replicas", 1, "--chains", 1) as made:
        yield made


@pytest.fixture
def place(cluster, request):
    """A fresh directory on the shared mount."""
    made = cluster.mount / request.node.name.replace("/", "_")
    made.mkdir()
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="session")
def library_tree(tmp_path_factory):
    """The Python standard library as real input:
    thousands of files, two or three hundred in the short form.
    """
    source = Path(os.__file__).parent
    copied = tmp_path_factory.mktemp("input") / "lib"
    skipped = ["__pycache__", "site-packages"]
    if not IS_FULL:
        skipped += ["test", "idlelib", "lib2to3", "config-*", "ensurepip", "tkinter", "turtledemo"]
        skipped += ["encodings", "distutils", "lib-dynload", "multiprocessing", "unittest"]
        skipped += ["asyncio", "email", "importlib", "xml"]
    shutil.copytree(source, copied, symlinks=True, ignore=shutil.ignore_patterns(*skipped))
    return copied
