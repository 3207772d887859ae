"""A process whose store waits for a disk that does not answer ends, and says so;
who is connected sees it at once.
"""

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_a_process_whose_store_hangs_ends(tmp_path):
    command = [sys.executable, "-m", "tests.app.stores.hung_store", str(tmp_path / "kv")]
    with subprocess.Popen(
        command, cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
            process.stdin.write("\n")
            process.stdin.flush()
            with suppress(ConnectionResetError):  # what was never accepted is reset
                assert peer.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=60)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"{tmp_path / 'kv'} does not answer for " in told
    assert told.count("\n") == 1, told


SHUT = """
import os, socket, sys
from fs.app.stores.abandon import shut_sockets
inet, idle = socket.create_server(("127.0.0.1", 0)), socket.socket()
unix = socket.socket(socket.AF_UNIX)
unix.bind(sys.argv[1])
unix.listen()
peers = [socket.create_connection(inet.getsockname()), socket.socket(socket.AF_UNIX)]
address = inet.getsockname()
peers[1].connect(sys.argv[1])
taken = [inet.accept()[0], unix.accept()[0]]
shut_sockets()
for family, where in ((socket.AF_INET, address), (socket.AF_UNIX, sys.argv[1])):
    with socket.socket(family) as late:
        try:
            late.connect(where)
            raise AssertionError(where)
        except ConnectionRefusedError:
            pass
with open(__file__) as opened:
    taken_ids = [each.fileno() for each in (inet, unix, idle, *taken)]
    assert opened.fileno() not in taken_ids, opened.fileno()
    for each in (inet, unix, idle, *taken):
        each.close()
    assert opened.read()
"""


def test_numbers_of_sockets_go_to_no_file_before_the_end(tmp_path):
    """They were closed: a file that the store opened next was closed, or written,
    as the socket that the event loop took it for.
    """
    (tmp_path / "shut.py").write_text(SHUT)
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "shut.py"), str(tmp_path / "socket")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr


WAITED_FOR = """
import socket, sys
from fs.app.stores.abandon import shut_sockets
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    listener.setblocking(False)
    print(flush=True)
    input()
    shut_sockets()
    print(flush=True)
    input()
"""


def test_who_was_never_taken_in_sees_the_end_too(tmp_path):
    """The event loop takes nobody in while it waits for the disk;
    what is shut down keeps its queue.
    """
    path = str(tmp_path / "socket")
    with subprocess.Popen(
        [sys.executable, "-c", WAITED_FOR, path],
        cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        process.stdout.readline()
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(5)
            peer.connect(path)
            process.stdin.write("\n")
            process.stdin.flush()
            process.stdout.readline()
            assert peer.recv(1) == b""
        process.communicate("\n", timeout=60)
    assert process.returncode == 0


ABANDONED = """
import threading
from fs.app.stores.abandon import abandon
def start(_self):
    raise RuntimeError("can't start new thread")
threading.Thread.start = start
try:
    abandon("hangs")
finally:
    print("goes on")
"""


def test_a_process_that_cannot_even_say_why_ends():
    ran = subprocess.run(
        [sys.executable, "-c", ABANDONED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
