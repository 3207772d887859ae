"""Interrupting `ember warmup`: it ends cleanly, says how far it came, and the next run goes on there."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import typer

from fs.app import warmup_command
from fs.app.warmup_command import PIECE_BYTES, warm_up
from fs.schema.inode import InodeType

NAMES = ("/d/a", "/d/b", "/d/c", "/d/e")


class FakeFs:
    """Files of two steps and a bit; `before_piece` is called with path and offset before each is read."""

    length = 2 * PIECE_BYTES + 5

    def __init__(self, before_piece):
        self._before_piece = before_piece
        self.warmed = []
        self.is_closed = False

    def stat(self, path):
        return SimpleNamespace(is_dir=path == "/d", type=InodeType.DIRECTORY)

    def find(self, _path):
        inode = SimpleNamespace(type=InodeType.FILE, length=self.length)
        return [SimpleNamespace(path=name, inode=inode) for name in reversed(NAMES)]

    @contextmanager
    def open(self, path):
        def prefetch(start, count):
            self._before_piece(path, start)
            self.warmed.append((path, start, count))
            return 3 * count, []

        yield SimpleNamespace(length=self.length, prefetch=prefetch)


@pytest.fixture
def fake(monkeypatch):
    fs = FakeFs(lambda _path, _start: None)

    @contextmanager
    def connected(_directory):
        yield fs
        fs.is_closed = True

    monkeypatch.setattr(warmup_command, "connected", connected)
    monkeypatch.setattr(warmup_command, "path_inside", str)
    return fs


def run(after="", *, as_json=False):
    warm_up(["/d"], directory=None, after=after, as_json=as_json)


def test_an_interrupted_run_says_how_far_it_came_and_is_resumed(fake, capsys):
    def interrupt(path, start):
        if (path, start) == ("/d/c", PIECE_BYTES):
            raise KeyboardInterrupt

    fake._before_piece = interrupt
    with pytest.raises(typer.Exit) as ended:
        run(as_json=True)
    assert ended.value.exit_code == 130
    assert fake.is_closed
    said = json.loads(capsys.readouterr().out)
    assert (said["is_complete"], said["file_count"], said["last_path"]) == (False, 2, "/d/b")
    assert said["byte_count"] == 2 * fake.length + PIECE_BYTES
    fake._before_piece = lambda _path, _start: None
    first, fake.warmed = fake.warmed, []
    run(said["last_path"])
    assert {path for path, _, _ in fake.warmed} == {"/d/c", "/d/e"}
    assert capsys.readouterr().out.startswith("2 files")
    whole = {(path, start) for path, start, _ in first} | {(p, s) for p, s, _ in fake.warmed}
    assert len(whole) == 3 * len(NAMES)


def test_a_second_run_reads_all_again_and_one_that_has_nothing_left_says_so(fake, capsys):
    for _ in range(2):
        run()
    assert len(fake.warmed) == 2 * 3 * len(NAMES)
    capsys.readouterr()
    run(NAMES[-1])
    assert capsys.readouterr().out.startswith("0 files")


def test_before_the_first_file_is_done_it_is_to_be_begun_again(fake, capsys):
    def interrupt(_path, start):
        if start:
            raise KeyboardInterrupt

    fake._before_piece = interrupt
    with pytest.raises(typer.Exit):
        run()
    out = capsys.readouterr().out
    assert "interrupted in the first file" in out
    assert "--after" not in out


CTRL_C = """
import sys, threading, time
from contextlib import contextmanager
from fs.app import warmup_command
from tests.app.test_warmup import FakeFs

def wait(path, start):
    if path == "/d/c":
        print("waiting", flush=True)
        threading.Event().wait()  # as for an answer from the thread that has the connections

@contextmanager
def connected(_directory):
    yield FakeFs(wait)
    print("closed", flush=True)

warmup_command.connected, warmup_command.path_inside = connected, str
try:
    warmup_command.warm_up(["/d"], directory=None, after="", as_json=False)
except BaseException as error:
    sys.exit(error.exit_code)
"""


@pytest.mark.slow
def test_ctrl_c_while_it_waits():
    command = [sys.executable, "-c", CTRL_C]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as warming:
        try:
            assert warming.stdout.readline() == "waiting\n"
            warming.send_signal(signal.SIGINT)
            assert warming.stdout.readline() == "closed\n"
            out = warming.stdout.read()
            assert warming.wait(60) == 130
        finally:
            warming.kill()
    assert out.endswith("interrupted; go on with --after '/d/b'\n")
