"""Signals to a program that reads what storage does not give:
it ends, or its direct read says EINTR.
"""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.client.fuse.test_mount import Server

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="no /dev/fuse"),
]
READER = """
import mmap, os, signal, sys
signal.signal(signal.SIGALRM, lambda *_: print("a timer ended it", flush=True))
signal.setitimer(signal.ITIMER_REAL, *([0.1, 0.1] if sys.argv[2:] else [0.0, 0.0]))
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
print("reading", flush=True)
try:
    os.preadv(fd, [mmap.mmap(-1, 4096)], 0)
except KeyboardInterrupt:  # what Python makes of EINTR when its handler has seen SIGINT
    print("interrupted", flush=True)
# An interpreter that ends hears no signal any more: it would end by this one.
signal.setitimer(signal.ITIMER_REAL, 0)
"""
BEFORE_SIGNAL_S = 0.5


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("HANG_READS", "1")
    (tmp_path / "mnt").mkdir()
    server = Server(tmp_path / "mnt")
    path = tmp_path / "mnt" / "file"
    with path.open("wb") as file:
        file.write(bytes(8192))
        file.flush()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    yield path
    server.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_program_that_a_signal_ends_ends_in_a_read(path, number):
    with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as reader:
        time.sleep(BEFORE_SIGNAL_S)
        assert reader.poll() is None
        reader.send_signal(number)
        assert reader.wait(60) == -number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_direct_read_ends_by_any_signal(path, number):
    command = [sys.executable, "-c", READER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout.readline() == "reading\n"
        time.sleep(BEFORE_SIGNAL_S)
        assert reader.poll() is None
        reader.send_signal(number)
        said = reader.stdout.read()
        code = reader.wait(60)
    assert (said, code) == (("interrupted\n", 0) if number == signal.SIGINT else ("", -number))


def test_a_direct_read_goes_on_while_a_timer_runs(path):
    """As on a local file system: who sets a timer does not expect its calls to fail for it."""
    command = [sys.executable, "-c", READER, str(path), "timer"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout.readline() == "reading\n"
        time.sleep(2)
        assert reader.poll() is None
        reader.send_signal(signal.SIGINT)
        said = reader.stdout.read().split("\n")
        assert reader.wait(60) == 0
    assert said[-2:] == ["interrupted", ""] and len(said) <= 3
