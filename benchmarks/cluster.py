"""A fresh cluster of real processes for a benchmark, wiped afterwards."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .machine import TOUCHED_COPIES, io_bytes, touch_memory
from .workloads import MIB

ROOT = Path(__file__).resolve().parents[1]

PATIENCE_S = 300.0
"""For chains to become as wanted."""


def ember(*arguments: str) -> str:
    """Run an `ember` command with this python and return what it printed;
    its words are shown if it fails.
    """
    command = [sys.executable, "-m", "fs.app.main", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"ember {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


_inline_bytes_max: list[int] = []


def keep_small_files(length_max: int) -> None:
    """Have clusters that are brought up from now on keep files up to so many bytes
    in their metadata stores; 0: none.
    """
    _inline_bytes_max[:] = [length_max]


def _restart_with_small_files(directory: Path, length_max: int) -> None:
    """Change the setting, and have the process that it concerns started anew."""
    place = ("--dir", str(directory))
    ember("admin", "config", "change", "meta", f"meta.inline_bytes_max={length_max}", *place)
    services = json.loads(ember("status", *place, "--json"))["services"]
    (pid,) = [service["pid"] for service in services if service["name"] == "control"]
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        services = json.loads(ember("status", *place, "--json"))["services"]
        if any(s["name"] == "control" and s["pid"] not in (None, pid) for s in services):
            return
        time.sleep(0.3)
    raise TimeoutError(f"the metadata service is not started anew within {PATIENCE_S} s")


@contextmanager
def fresh_cluster(parent: Path | None = None, *options: str) -> Iterator[tuple[Path, Path]]:
    """Bring up a cluster and a mount, gone when we are; yield (cluster directory, mount point).

    Args:
        parent: on the disk to measure; default: the temporary directory.
        options: more of `ember up`; without: three storage processes.
    """
    with tempfile.TemporaryDirectory(prefix="ember-bench-", dir=parent) as folder:
        directory, mount_point = Path(folder) / "cluster", Path(folder) / "mnt"
        mount_point.mkdir()
        place = ("--dir", str(directory), "--mount", str(mount_point))
        ember("up", *place, "--until", str(os.getpid()), *options)
        try:
            for length_max in _inline_bytes_max:
                _restart_with_small_files(directory, length_max)
            yield directory, mount_point
        finally:
            ember("down", "--dir", str(directory), "--wipe")


@contextmanager
def cluster_beside_file(parent: Path | None, mib: int) -> Iterator[tuple[Path, Path, Path]]:
    """Bring up a cluster next to a local file that says what its disk does.

    Yield (cluster directory, mount point, a file of that many MiB of noise on the same disk); all
    go when we do.  Memory for several such files has been used before.
    """
    touch_memory(TOUCHED_COPIES * mib * MIB)
    with tempfile.NamedTemporaryFile(dir=parent) as local, fresh_cluster(parent) as (directory, at):
        for _ in range(mib):
            local.write(random.Random(2).randbytes(MIB))  # noqa: S311 - not a secret
        local.flush()
        yield directory, at, Path(local.name)


def warm_up(directory: Path, path: Path) -> None:
    """Have every replica read a file into its page cache; `path` is in the cluster's mount."""
    ember("warmup", "--dir", str(directory), str(path))


class Nodes:
    """The storage processes of a local cluster, as `ember status` shows them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def status(self) -> dict[str, Any]:
        """Return what `ember status --json` says."""
        return dict(json.loads(ember("status", "--dir", str(self._directory), "--json")))

    def pids(self) -> dict[str, int]:
        """Return the process id of each storage process that runs."""
        found = self.status()["services"]
        return {s["name"]: s["pid"] for s in found if s["role"] == "storage" and s["pid"]}

    def io_bytes(self, field: str) -> dict[str, int]:
        """Return a field of `/proc/PID/io` of each:
        rchar (read by calls), write_bytes (sent to disks).
        """
        found = {}
        for name, pid in self.pids().items():
            found[name] = io_bytes(pid, field)
        return found

    def used_bytes(self) -> int:
        """Return what blocks in use take on all disks;
        those of what was removed are until a flush.
        """
        disks = json.loads(ember("admin", "disk", "list", "--dir", str(self._directory), "--json"))
        return sum(disk["used_bytes"] for disk in disks)

    def wait(self, is_reached: Callable[[list[Any]], bool]) -> None:
        """Wait until the chains are as wanted; raises TimeoutError."""
        self.wait_until(lambda: is_reached(self.status()["chains"]))

    def wait_until(self, is_reached: Callable[[], bool]) -> None:
        """Wait until the cluster is as wanted; raises TimeoutError."""
        end = time.monotonic() + PATIENCE_S
        while not is_reached():
            if time.monotonic() > end:
                raise TimeoutError(f"the cluster is not as wanted within {PATIENCE_S} s")
            time.sleep(0.1)

    @contextmanager
    def started_by_hand(self, name: str) -> Iterator[None]:
        """Run a storage process that the supervisor leaves dead."""
        config = self._directory / "config" / f"{name}.toml"
        command = [sys.executable, "-m", "fs.app.main", "storage", "--config", str(config)]
        with subprocess.Popen(command, cwd=ROOT) as process:  # noqa: S603
            try:
                yield
            finally:
                process.terminate()
