"""Which FoundationDB this process tests on:
that of FDB_CLUSTER_FILE, or a fake server started for the purpose.
"""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from tests.kv.fake_fdb.library import install

ROOT = Path(__file__).resolve().parents[3]
START_S = 30.0


def is_real() -> bool:
    return "FDB_CLUSTER_FILE" in os.environ


class FakeServer:
    """A fake server process that can be killed and started again at the same place."""

    def __init__(self, folder: Path) -> None:
        self.cluster_file = folder / "fdb.cluster"
        self._port = "0"
        self.process: subprocess.Popen
        self.start()

    def start(self) -> None:
        self.cluster_file.unlink(missing_ok=True)
        command = ["tests.kv.fake_fdb.server", str(self.cluster_file), self._port, "--with-parent"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=ROOT, stdin=subprocess.PIPE
        )
        deadline_s = time.monotonic() + START_S
        while not self.cluster_file.exists():
            assert self.process.poll() is None, "the fake server of FoundationDB ended"
            assert time.monotonic() < deadline_s, "the fake server of FoundationDB does not start"
            time.sleep(0.02)
        self._port = self.cluster_file.read_text().strip().rpartition(":")[2]

    def stop(self) -> None:
        """Have it say nothing any more, and keep its connections; returns when it has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        # Without this it may still answer on another core; WNOWAIT leaves the
        # news for nobody else to miss.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def revive(self) -> None:
        """Have it serve again, whatever was done to it."""
        if self.process.poll() is None:
            self.go_on()
        else:
            self.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()


@cache
def fake_library():
    """The fake client library, in use by this process from now on."""
    return install()


@cache
def cluster_file() -> str:
    """Return the cluster file to test on; without FDB_CLUSTER_FILE that of a fake,
    which ends with this process.
    """
    if is_real():
        return os.environ["FDB_CLUSTER_FILE"]
    fake_library()
    folder = Path(tempfile.mkdtemp(prefix="ember-fake-fdb-"))
    server = FakeServer(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.kill)
    return str(server.cluster_file)
