"""Interrupting `ember warmup`: it ends cleanly, says how far it came,
and the next run goes on there.
"""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import typer

from fs.app.commands import warmup_command
from fs.app.commands.warmup_command import PIECE_BYTES, warm_up
from fs.schema.inode import InodeType
from fs.schema.status import FsError, Status

NAMES = ("/d/a", "/d/b", "/d/c", "/d/e")


class FakeFs:
    """Files of two steps and a bit; `before_piece` is called with path and offset
    before each is read.
    """

    length = 2 * PIECE_BYTES + 5

    def __init__(self, before_piece):
        self._before_piece = before_piece
        self.before_opening = lambda _path, _start: None
        """Called with the first path of each call."""
        self._before_open = lambda _path, _start: None
        self.warmed = []
        self.opened = []
        self.are_inline = False
        self.is_closed = False

    def stat(self, path):
        return SimpleNamespace(is_dir=path == "/d", type=InodeType.DIRECTORY)

    def find(self, _path):
        inode = SimpleNamespace(type=InodeType.FILE, length=self.length)
        return [SimpleNamespace(path=name, inode=inode) for name in reversed(NAMES)]

    def open_many(self, paths):
        self.opened.append(list(paths))
        self.before_opening(paths[0], 0)
        return [self._opened(path) for path in paths]

    def _opened(self, path):
        try:
            self._before_open(path, 0)
        except FsError as error:
            return error
        if self.are_inline:
            return SimpleNamespace(length=self.length, is_inline=True)
        file = self._file(path)
        file.is_inline = False
        return file

    @contextmanager
    def _file(self, path):
        def prefetch(start, count):
            try:
                self._before_piece(path, start)
            except FsError as error:
                return 0, [error]
            self.warmed.append((path, start, count))
            return 3 * count, []

        yield SimpleNamespace(length=self.length, prefetch=prefetch)


@pytest.fixture
def fake(monkeypatch):
    fs = FakeFs(lambda _path, _start: None)

    @contextmanager
    def connected(_directory, _paths, *, follow):
        assert follow
        yield fs
        fs.is_closed = True

    monkeypatch.setattr(warmup_command, "connected", connected)
    monkeypatch.setattr(warmup_command, "path_inside", lambda path, **_: path)
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


@pytest.mark.parametrize("after", ["d/b", "/c", "/data/b", "/", "/e"])
def test_what_is_in_no_directory_that_is_warmed_is_nothing_to_go_on_after(fake, after):
    """By its letters it would leave out all files or none, without a word."""
    with pytest.raises(FsError, match=r"--after .* is not in /d") as failed:
        run(after)
    assert failed.value.status is Status.INVALID_ARGUMENT
    assert not fake.warmed


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


def fail_at(wanted, *errors):
    """Return what lets the first tries of the first piece of a file fail."""
    left = list(errors)

    def before_piece(path, start):
        if (path, start) == (wanted, 0) and left:
            raise left.pop(0)

    return before_piece


def test_small_neighbours_are_opened_together_and_a_large_file_at_its_turn(fake, monkeypatch):
    run()
    assert fake.opened == [[name] for name in NAMES]
    monkeypatch.setattr(warmup_command, "OPENED_AT_ONCE", 3)
    fake.length, fake.opened, fake.warmed = 5, [], []
    run()
    assert fake.opened == [list(NAMES[:3]), list(NAMES[3:])]
    assert fake.warmed == [(name, 0, 5) for name in NAMES]


def test_what_meta_keeps_was_read_to_open_it(fake, capsys):
    fake.length, fake.are_inline = 5, True
    run(as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert (said["file_count"], said["byte_count"], said["read_bytes"]) == (4, 20, 0)
    assert said["last_path"] == NAMES[-1]
    assert not fake.warmed


def test_where_nobody_opens_files_each_is_a_failure_and_the_next_ones_get_their_turn(
    fake, capsys, monkeypatch
):
    monkeypatch.setattr(warmup_command, "OPENED_AT_ONCE", 2)
    fake.length = 5
    fake.before_opening = fail_at(NAMES[0], FsError(Status.RPC_TIMEOUT, "meta"))
    with pytest.raises(FsError, match="/d/a: meta, and 1 more"):
        run(as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert (said["file_count"], len(said["failures"])) == (2, 2)


def test_files_that_are_gone_are_no_failure(fake, capsys):
    fake._before_open = fail_at("/d/b", FsError(Status.NOT_FOUND, "/d/b"))
    run()
    assert capsys.readouterr().out.rstrip().endswith("; 1 were gone")
    fake._before_open = fail_at("/d/b", FsError(Status.STALE, "/d/b"))
    run(as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert (said["file_count"], said["gone_count"], said["failures"]) == (3, 1, [])
    assert said["is_complete"]


def test_what_may_pass_by_itself_is_tried_again(fake, capsys, monkeypatch):
    monkeypatch.setattr(warmup_command, "TRY_AGAIN_S", 0.0)
    changed = FsError(Status.ROUTING_MISMATCH, "chain 3")
    fake._before_piece = fail_at("/d/b", changed, changed)
    run(as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert (said["file_count"], said["failures"]) == (4, [])
    assert said["read_bytes"] == 3 * said["byte_count"] == 3 * 4 * fake.length
    fake._before_piece = fail_at("/d/b", changed, changed, changed)
    with pytest.raises(FsError, match="/d/b: chain 3") as caught:
        run()
    assert caught.value.status is Status.ROUTING_MISMATCH


def test_what_does_not_pass_is_tried_once_and_the_rest_goes_on(fake, capsys):
    fake._before_piece = fail_at("/d/b", FsError(Status.CHUNK_DIVERGED, "chunk 1"))
    with pytest.raises(FsError, match="/d/b: chunk 1"):
        run(as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert said["failures"] == [["/d/b", str(FsError(Status.CHUNK_DIVERGED, "chunk 1"))]]
    assert said["last_path"] == "/d/e"


ASKED_TO_END = """
import sys, threading, time
from contextlib import contextmanager
from fs.app import main
from fs.app.commands import warmup_command
from tests.app.commands.test_warmup import FakeFs

def wait(path, start):
    if path == "/d/c":
        print("waiting", flush=True)
        threading.Event().wait()  # as for an answer from the thread that has the connections

@contextmanager
def connected(_directory, _paths, *, follow):
    yield FakeFs(wait)
    print("closed", flush=True)

warmup_command.connected, warmup_command.path_inside = connected, (lambda path, *, follow: path)
try:
    main.warmup(["/d"])
except BaseException as error:
    sys.exit(error.exit_code)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_asks_it_to_end_while_it_waits_is_told_how_to_go_on(number):
    """Also `timeout`, a batch system's limit of time, and a terminal that is closed."""
    # Tests may run under nohup.
    command = ["env", "--default-signal=HUP", sys.executable, "-c", ASKED_TO_END]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as warming:
        try:
            assert warming.stdout.readline() == "waiting\n"
            warming.send_signal(number)
            assert warming.stdout.readline() == "closed\n"
            out = warming.stdout.read()
            assert warming.wait(60) == 130
        finally:
            warming.kill()
    assert out.endswith("interrupted; go on with --after '/d/b'\n")
