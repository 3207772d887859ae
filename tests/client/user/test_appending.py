"""What is written from beginning to end goes out in whole steps, whatever it is made of."""

import random
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from emberfs import appending
from emberfs.appending import Appender
from emberfs.posix import PosixClient

STEP = 4096


class Client(PosixClient):
    """Notes what is written; waits, or fails, when a test says so."""

    def __init__(self):
        super().__init__()
        self.written = []
        self.gate = threading.Event()
        self.gate.set()
        self.fails_from = 1 << 60
        self.under_way = 0

    def write(self, transfers):
        self.under_way += 1
        try:
            assert self.gate.wait(30)
            for transfer in transfers:
                if transfer.offset >= self.fails_from:
                    raise OSError(28, "as the test wants it", transfer.file.path)
                self.written.append((transfer.offset, len(transfer.buffer)))
            super().write(transfers)
        finally:
            self.under_way -= 1


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(appending, "STEP_BYTES", STEP)
    monkeypatch.setattr(appending, "_PIECE_BYTES", 1000)


@pytest.fixture
def client():
    with Client() as client:
        yield client


def append_all(client, file, content):
    with Appender(client, file) as stream:
        stream.append(memoryview(content))
        stream.finish()


def test_pieces_of_any_size_become_steps(client, tmp_path):
    rng = random.Random(3)
    pieces = [rng.randbytes(rng.choice([0, 1, 50, 1000, STEP, 3 * STEP + 7])) for _ in range(60)]
    seen = bytearray()
    with client.open(str(tmp_path / "f"), "x") as file, Appender(client, file) as stream:
        for number, piece in enumerate(pieces):
            assert stream.offset == sum(map(len, pieces[:number]))
            given = bytearray(piece)
            stream.append(memoryview(given), seen.extend)
            given[:] = bytes(len(given))  # they are the caller's again
        stream.finish()
    wanted = b"".join(pieces)
    assert (tmp_path / "f").read_bytes() == wanted == bytes(seen)
    whole = len(wanted) // STEP
    assert sorted(client.written) == [
        *((number * STEP, STEP) for number in range(whole)),
        (whole * STEP, len(wanted) % STEP),
    ]


def test_nothing_is_nothing(client, tmp_path):
    with client.open(str(tmp_path / "f"), "x") as file, Appender(client, file) as stream:
        stream.append(memoryview(b""))
        stream.finish()
    assert client.written == []


def test_while_one_step_is_filled_others_are_written(client, tmp_path):
    with client.open(str(tmp_path / "f"), "x") as file, Appender(client, file) as stream:
        client.gate.clear()
        stream.append(memoryview(bytes((appending.STEP_COUNT - 1) * STEP + 5)))  # does not wait
        filler = threading.Thread(target=stream.append, args=[memoryview(bytes(STEP))])
        filler.start()
        filler.join(0.05)
        assert filler.is_alive(), "there is no more room"
        client.gate.set()
        filler.join()
        stream.finish()
    assert (tmp_path / "f").read_bytes() == bytes(appending.STEP_COUNT * STEP + 5)


@pytest.mark.parametrize("steps", [2, 12])
def test_a_write_that_fails_is_told_and_none_is_left_under_way(client, tmp_path, steps):
    client.fails_from = STEP
    with client.open(str(tmp_path / "f"), "x") as file:
        with pytest.raises(OSError, match="as the test wants it"):
            append_all(client, file, bytes(steps * STEP))
        assert client.under_way == 0


def test_whoever_gives_up_leaves_none_under_way(client, tmp_path):
    class GivenUpError(Exception):
        pass

    opener = threading.Timer(0.05, client.gate.set)
    with client.open(str(tmp_path / "f"), "x") as file:
        client.gate.clear()
        opener.start()
        with suppress(GivenUpError), Appender(client, file) as stream:
            stream.append(memoryview(bytes(2 * STEP)))
            raise GivenUpError
        assert client.under_way == 0
        assert sorted(client.written) == [(0, STEP), (STEP, STEP)]


@pytest.mark.parametrize(
    "begin", ["threading.Thread(target=save).start()", "atexit.register(save)"]
)
def test_what_is_saved_while_the_interpreter_ends_is_saved(tmp_path, begin):
    program = f"""
import atexit, threading
from emberfs.appending import Appender
from emberfs.posix import PosixClient

def save():
    if threading.current_thread() is not threading.main_thread():
        threading.main_thread().join()
    with PosixClient() as client, client.open("f", "x") as file, Appender(client, file) as stream:
        stream.append(memoryview(b"saved"))
        stream.finish()

{begin}
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "f").read_bytes() == b"saved"


def test_without_another_thread_the_calling_one_writes(client, tmp_path, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    content = random.Random(5).randbytes(9 * STEP + 3)
    with client.open(str(tmp_path / "f"), "x") as file:
        append_all(client, file, content)
    assert (tmp_path / "f").read_bytes() == content
