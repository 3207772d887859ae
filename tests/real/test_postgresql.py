"""PostgreSQL on the mount: what it said was committed is there after its own death,
the mount's and a storage process's.
"""

import os
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from .conftest import IS_FULL, Cluster, run

PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)

pytestmark = [
    pytest.mark.mount,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not IS_FULL, reason="its initdb alone takes most of a minute"),
    pytest.mark.skipif(PROGRAMS is None, reason="needs PostgreSQL (package postgresql)"),
    pytest.mark.skipif(
        os.geteuid() != 0, reason="it refuses to run as root, so needs another user"
    ),
]
AS_USER = ("setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups")
LOAD_S = 12
BEFORE_KILL_S = 6
START_S_MAX = 300
SUMS = (
    "select sum(abalance) from pgbench_accounts",
    "select sum(bbalance) from pgbench_branches",
    "select sum(tbalance) from pgbench_tellers",
    "select sum(delta) from pgbench_history",
)


class Server:
    """A PostgreSQL server whose data is on the mount, and what it has acknowledged."""

    def __init__(self, data: Path, sockets: Path) -> None:
        self.data, self.sockets = data, sockets
        self.acknowledged: list[int] = []
        self.process: subprocess.Popen | None = None

    def make(self) -> None:
        """Make the database that pgbench and `insert` use, and serve it."""
        self.call("initdb", "-D", self.data, "--locale=C", "-E", "UTF8", "--data-checksums")
        self.start()
        self.call("createdb", "-h", self.sockets, "b")
        self.call("pgbench", "-q", "-i", "-h", self.sockets, "b")
        self.ask("create table t (i bigint primary key, filler text); create extension amcheck")

    def call(self, program: str, *arguments: object) -> str:
        return run(*AS_USER, PROGRAMS / program, *arguments)

    def ask(self, query: str) -> list[str]:
        return self.call("psql", "-h", self.sockets, "-XqAtc", query, "b").split()

    def start(self) -> None:
        """Start it, and wait until it has recovered."""
        options = ("-k", self.sockets, "-c", "listen_addresses=", "-c", "shared_buffers=16MB")
        command = [*AS_USER, PROGRAMS / "postgres", "-D", self.data, *options]
        self.process = subprocess.Popen(list(map(str, command)))
        give_up_s = time.monotonic() + START_S_MAX
        ask = [PROGRAMS / "pg_isready", "-q", "-h", self.sockets]
        while subprocess.run(ask, check=False).returncode:
            assert self.process.poll() is None, "PostgreSQL did not start"
            assert time.monotonic() < give_up_s, "PostgreSQL does not become ready"
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL to it and all its children."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(START_S_MAX) == 0

    def insert(self, until: threading.Event) -> None:
        """Insert rows one by one, noting what was acknowledged, until told or refused."""
        command = [*AS_USER, PROGRAMS / "psql", "-h", self.sockets, "-XqAt", "b"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(list(map(str, command)), text=True, bufsize=1, **pipes) as psql:
            number = max(self.acknowledged, default=0) + 1000
            with suppress(BrokenPipeError):
                while not until.is_set():
                    filler = f"repeat('x', {number % 3000})"
                    psql.stdin.write(f"insert into t values ({number}, {filler}) returning i;\n")
                    line = psql.stdout.readline()
                    if not line.strip():
                        break
                    self.acknowledged.append(int(line))
                    number += 1
            psql.kill()

    def check(self) -> None:
        """Raise AssertionError where something is missing, half done or damaged."""
        assert set(self.acknowledged) <= set(map(int, self.ask("select i from t")))
        assert len(set(self.ask("; ".join(SUMS)))) == 1
        self.call("pg_amcheck", "-h", self.sockets, "--heapallindexed", "b")


def load_with_a_death(server, kill):
    """Run pgbench, and an inserting client beside it; in the middle let somebody die."""
    count, until = len(server.acknowledged), threading.Event()
    inserting = threading.Thread(target=server.insert, args=(until,))
    inserting.start()
    command = [PROGRAMS / "pgbench", "-n", "-h", server.sockets, "-c", 3, "-T", LOAD_S, "b"]
    with subprocess.Popen(list(map(str, (*AS_USER, *command)))) as bench:
        time.sleep(BEFORE_KILL_S)
        kill()
        bench.wait(START_S_MAX)
    until.set()
    inserting.join()
    assert len(server.acknowledged) > count
    return bench.returncode


@pytest.fixture
def reachable_cluster():
    """A cluster for one test, mounted where other users get to;
    pytest closes its own directories to them.
    """
    base = Path(tempfile.mkdtemp())
    for folder in (base, *base.parents):
        if folder.stat().st_mode & stat.S_IXOTH:
            break
        folder.chmod(0o711)
    made = Cluster(base / "data", base / "mnt")
    made.mount.mkdir()
    try:
        made.up()
        yield made
    finally:
        made.down("--wipe")
        shutil.rmtree(base)


def test_committed_transactions_survive(reachable_cluster):
    cluster = reachable_cluster

    def kill(service):
        os.kill(cluster.pid_of(service), signal.SIGKILL)

    def kill_mount():
        kill("mount-1")
        server.kill()

    home, sockets = cluster.mount / "pg", cluster.mount.parent / "sockets"
    for folder in (home, sockets):
        folder.mkdir()
        shutil.chown(folder, "postgres", "postgres")
    server = Server(home / "data", sockets)
    try:
        server.make()
        load_with_a_death(server, server.kill)
        server.start()
        server.check()
        assert load_with_a_death(server, lambda: kill("storage-2")) == 0
        server.check()
        load_with_a_death(server, kill_mount)
        cluster.ember("mount", "--recover", cluster.mount, "--dir", cluster.directory)
        server.start()
        server.check()
        server.stop()
        server.call("pg_checksums", "--check", "-D", server.data)
    finally:
        if server.process is not None and server.process.poll() is None:
            server.kill()
