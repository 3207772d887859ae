"""Batches by plain system calls where no helper can be had: the calling thread does all of it."""

import subprocess
import sys
import threading

import pytest
from emberfs.batch import Transfer
from emberfs.posix import PIECE_BYTES, PosixClient

from tests.examples import first_quick

PROGRAM = """
import atexit, threading
from emberfs.batch import Transfer
from emberfs.posix import PIECE_BYTES, PosixClient

def copy():
    if threading.current_thread() is not threading.main_thread():
        threading.main_thread().join()
    with PosixClient() as client, client.open("f", "x") as file, client.open("f") as again:
        client.write([Transfer(file, 0, memoryview(b"saved" * PIECE_BYTES))])
        found = memoryview(bytearray(5 * PIECE_BYTES))
        assert client.read([Transfer(again, 0, found)]) == [len(found)]
        assert found == b"saved" * PIECE_BYTES

"""


@pytest.mark.parametrize(
    "begin", first_quick(["threading.Thread(target=copy).start()", "atexit.register(copy)"])
)
def test_batches_of_several_pieces_go_on_while_the_interpreter_ends(tmp_path, begin):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + begin],
        cwd=tmp_path,
        check=True,
        timeout=60,
        capture_output=True,
    )
    assert not done.stderr
    assert (tmp_path / "f").stat().st_size == 5 * PIECE_BYTES


def test_batches_go_on_where_no_thread_can_be_started(tmp_path, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with PosixClient() as client, client.open(str(tmp_path / "f"), "x") as file:
        client.write([Transfer(file, 0, memoryview(bytes(3 * PIECE_BYTES)))])
        assert file.length() == 3 * PIECE_BYTES
