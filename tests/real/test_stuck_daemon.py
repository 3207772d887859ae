"""A mount daemon is killed while the kernel makes one of its threads wait for a READ
that it has not answered.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import Cluster, run

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(600)]
MIB = 1 << 20
CHUNKS = 9
ENDED_S_MAX = 30
"""Less than a second on an idle machine."""

PROGRAM = f"""
import os, sys, threading, time
from emberfs.batch import Transfer
from emberfs.ring import RingClient

fd = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
client = RingClient(sys.argv[1])
memory, file = client.allocate({MIB}).view, client.open(sys.argv[1], "r+")

def read(chunk):  # the second half of the chunk before, and the first half of this one
    try:
        os.pread(fd, {MIB}, chunk * {MIB} - {MIB // 2})
    except OSError as error:
        print(error)

def write(chunk):
    try:
        client.write([Transfer(file, chunk * {MIB}, memory[:4096])])
    except OSError as error:
        print(error)

print("ready", flush=True)
sys.stdin.readline()
for work in (read, write):
    for chunk in range(1, {CHUNKS}):
        threading.Thread(target=work, args=(chunk,)).start()
    time.sleep(1)
"""


@pytest.fixture
def cluster(tmp_path):
    """With one copy of every chunk: nobody stands in for a storage process that is stopped."""
    made = Cluster(tmp_path / "data", tmp_path / "mnt")
    made.mount.mkdir()
    try:
        made.up("--replicas", 1)
        yield made
    finally:
        made.down("--wipe")


def waiting(pid):
    """Return the threads that no signal reaches."""
    stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return [stat for stat in stats if stat.rpartition(")")[2].split()[0] == "D"]


def until(condition, what, timeout_s=60.0):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def test_a_daemon_that_is_killed_while_a_notice_waits_ends_and_the_mount_is_served_again(
    cluster, report_figure
):
    file = cluster.mount / "file"
    file.write_bytes(os.urandom(CHUNKS * MIB))
    run("sync", "-f", file)
    daemon, storage = cluster.pid_of("mount-1"), cluster.pid_of("storage-1")
    words = [sys.executable, "-c", PROGRAM, file]
    program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdout.readline() == b"ready\n"
    os.kill(storage, signal.SIGSTOP)
    try:
        program.stdin.write(b"go on\n")
        program.stdin.flush()
        until(lambda: waiting(daemon), "no notice waits")
        os.kill(daemon, signal.SIGKILL)
        killed_s = time.monotonic()
        until(lambda: not Path(f"/proc/{daemon}").exists(), "the daemon does not end", ENDED_S_MAX)
        ended_s = time.monotonic() - killed_s
    finally:
        os.kill(storage, signal.SIGCONT)
    said, _ = program.communicate(timeout=ENDED_S_MAX)
    assert b"not connected" in said or b"aborted" in said
    cluster.ember("mount", "--recover", "--dir", cluster.directory, cluster.mount)
    served_s = time.monotonic() - killed_s
    assert file.stat().st_size == CHUNKS * MIB
    report_figure(
        f"killed while a notice waits: ended after {ended_s:.1f} s, served after {served_s:.1f} s"
    )
