"""Processes die under a copy: it pauses, ends without error,
and every replica is equal afterwards.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from emberfs.kvcache import KVCache

from .conftest import run

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(1800)]
ENTRIES_BEFORE_KILL = 20
"""Of the many in the uppermost folder of the copy."""
EXTRA_STARTS_MAX = 2
"""On a machine that has no time for it a start may fail, and is done again."""
PAUSE_S_MAX = 60
"""A few seconds on an idle machine."""
FREED_S_MAX = 60
"""A second or two on an idle machine; two minutes where nobody knows that it was killed."""
EXPOSED_S_MAX = 0.5
"""Two calls of the kernel, on a machine that has time for them."""

HEARTBEAT = """
import os, sys, time
path = sys.argv[1]
longest = 0.0
index = 0
while not os.path.exists(path + ".stop"):
    began = time.monotonic()
    with open(f"{path}.{index % 50}", "wb") as file:
        file.write(b"x" * 20000)
    longest = max(longest, time.monotonic() - began)
    index += 1
    time.sleep(0.05)  # at full speed it takes most of the machine
print(longest, index)
"""


HOLDER = """
import fcntl, os, sys, time
for kind, path in (("flock", sys.argv[1]), ("lockf", sys.argv[2])):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    getattr(fcntl, kind)(fd, fcntl.LOCK_EX)
    os.write(fd, bytes(int(sys.argv[3])))
    os.fsync(fd)
print("held", flush=True)
time.sleep(600)
"""
WAITER = """
import fcntl, os, sys
for kind, path in (("flock", sys.argv[1]), ("lockf", sys.argv[2])):
    fd = os.open(path, os.O_RDWR)
    try:
        getattr(fcntl, kind)(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("waits", flush=True)
    getattr(fcntl, kind)(fd, fcntl.LOCK_EX)
    print(os.fstat(fd).st_size, flush=True)
"""


def entry_count(folder):
    return len(os.listdir(folder)) if folder.exists() else 0


@pytest.mark.parametrize(
    "victims", [("storage-1",), ("control",), ("storage-2", "control")], ids="+".join
)
def test_copy_survives_the_death_of(own_cluster, library_tree, victims, report_figure):
    probe = subprocess.Popen(
        [sys.executable, "-c", HEARTBEAT, own_cluster.mount / "probe"],
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = [own_cluster.pid_of(victim) for victim in victims]
    copied = own_cluster.mount / "lib"
    copy = subprocess.Popen(["cp", "-r", library_tree, copied])
    for index, pid in enumerate(pids, 1):
        while entry_count(copied) < index * ENTRIES_BEFORE_KILL:
            assert copy.poll() is None, "the copy ended before the kill"
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
    assert copy.wait(900) == 0
    (own_cluster.mount / "probe.stop").touch()
    longest, written = probe.communicate(timeout=300)[0].split()
    assert probe.returncode == 0
    run("diff", "-r", library_tree, own_cluster.mount / "lib")
    for victim, pid in zip(victims, pids, strict=True):
        own_cluster.wait_successor(victim, pid)
    healed_s = own_cluster.wait_healthy()
    comparison = own_cluster.ember("admin", "chunks", "compare", "--dir", own_cluster.directory)
    report_figure(
        f"{' and '.join(victims)} killed: longest pause of a writer {float(longest):.2f} s"
        f" over {written} writes, all replicas serving {healed_s:.1f} s after the copy;"
        f" {comparison.strip().splitlines()[-1]}"
    )
    restarts = {s["name"]: s["restart_count"] for s in own_cluster.status()["services"]}
    assert {name for name, count in restarts.items() if count} == set(victims)
    assert max(restarts.values()) <= 1 + EXTRA_STARTS_MAX, restarts
    assert float(longest) < PAUSE_S_MAX


def test_a_kv_cache_goes_on_when_its_mount_daemon_was_killed(lone_cluster):
    """It belongs to an engine that runs for weeks, and finds again all that was put."""
    blocks = [(b"%d" % number, bytes([number]) * 65536) for number in range(40)]
    cache = KVCache(lone_cluster.mount / "kv", block_bytes=65536, capacity_bytes=1 << 28)
    assert cache.put([(key, memoryview(block)) for key, block in blocks]) == 40
    for _ in range(2):
        os.kill(lone_cluster.pid_of("mount-1"), signal.SIGKILL)
        died = time.monotonic()
        while True:
            try:
                found = cache.get([key for key, _ in blocks])
                break
            except OSError:
                if time.monotonic() - died > PAUSE_S_MAX:
                    raise
                time.sleep(0.01)
        assert found == [block for _, block in blocks]
        with pytest.raises(OSError, match="may not survive"):
            cache.sync()
        assert cache.put([(b"after %f" % died, memoryview(bytes(65536)))]) == 1
    cache.sync()
    cache.close()


def test_a_killed_mount_daemon_exposes_no_empty_directory(lone_cluster):
    """Whoever wrote there would write to the disk beneath,
    and nothing could be mounted on it any more.
    """
    mount = lone_cluster.mount
    (mount / "there").touch()
    for _ in range(2):
        os.kill(lone_cluster.pid_of("mount-1"), signal.SIGKILL)
        died, exposed_s, had_died, is_back = time.monotonic(), 0.0, False, False
        while not is_back:
            assert time.monotonic() - died < PAUSE_S_MAX, "it is not mounted again"
            looked = time.monotonic()
            try:
                names = os.listdir(mount)
            except OSError:  # dead, which a program is told
                had_died = True
                time.sleep(0.001)
                continue
            is_back = "there" in names and had_died
            time.sleep(0.001)
            if not names:
                exposed_s += time.monotonic() - looked
        assert exposed_s < EXPOSED_S_MAX


def test_a_killed_mount_daemon_gives_up_what_it_held(lone_cluster, tmp_path_factory, report_figure):
    """The next one at its mount point knows that it is gone, and says so."""
    cluster, length, other = lone_cluster, 3_000_000, tmp_path_factory.mktemp("other")
    cluster.ember("mount", other, "--dir", cluster.directory)
    programs = []

    def start(program, mount):
        paths = [mount / name for name in ("by-flock", "by-lockf")]
        command = [sys.executable, "-c", program, *paths, str(length)]
        programs.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return programs[-1].stdout

    try:
        assert start(HOLDER, cluster.mount).readline() == "held\n"
        waiter = start(WAITER, other)
        assert waiter.readline() == "waits\n"
        pid = cluster.pid_of("mount-1")
        os.kill(pid, signal.SIGSTOP)  # who is only stopped keeps everything
        time.sleep(1.0)
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        assert waiter.readline() == f"{length}\n"
        assert waiter.readline() == f"{length}\n"
        took_s = time.monotonic() - began
    finally:
        for program in programs:
            program.kill()
            program.communicate()
    # Those of the other mount end a moment after its program, and with the mount at the latest.
    cluster.ember("umount", other, "--dir", cluster.directory)
    told = cluster.ember("admin", "session", "files", "--dir", cluster.directory, "--json")
    assert not json.loads(told), "its file sessions have ended"
    report_figure(f"locks of a killed mount daemon were free after {took_s:.1f} s")
    assert took_s < FREED_S_MAX
