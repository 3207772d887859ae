"""Which kind of lock a thread waits for, as its system call says."""

import fcntl
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fs.client.fuse.lock_owners import waits_as_process

WAITER = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(fd, getattr(fcntl, sys.argv[2]), struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))
"""


def settled(thread_id, path):
    """Return what is said once the thread waits for a lock of the file."""
    waiting = re.compile(rf"-> .*:{path.stat().st_ino} ")
    for _ in range(500):
        if waiting.search(Path("/proc/locks").read_text(encoding="ascii")):
            return waits_as_process(thread_id)
        time.sleep(0.01)
    pytest.fail("nobody waits for the lock")


@pytest.mark.parametrize(("command", "is_process"), [("F_SETLKW", True), ("F_OFD_SETLKW", False)])
def test_the_command_tells(tmp_path, command, is_process):
    path = tmp_path / "f"
    path.write_text("x")
    with path.open("r+") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))
        waiter = subprocess.Popen([sys.executable, "-c", WAITER, str(path), command])
        try:
            assert settled(waiter.pid, path) is is_process
        finally:
            waiter.kill()
            waiter.wait()


def test_who_runs_or_is_gone():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert waits_as_process(gone.pid) is False
    busy = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    )
    try:
        busy.stdout.readline()
        assert waits_as_process(busy.pid) is None
    finally:
        busy.kill()
        busy.communicate()
