"""Starting and asking a supervisor, when that goes wrong."""

import signal
import subprocess

import pytest

from fs.app.machine.cluster_dir import ClusterDir
from fs.app.supervision import supervisor_link
from fs.schema.status import FsError, Status


@pytest.fixture
def directory(tmp_path):
    made = ClusterDir(tmp_path)
    made.make_folders()
    return made


@pytest.mark.parametrize("error", [KeyboardInterrupt(), FsError(Status.START_FAILED)])
def test_a_start_that_is_given_up_leaves_no_supervisor(monkeypatch, directory, error):
    """It would hold the directory, and the next start be told that a cluster runs."""
    begun, start = [], subprocess.Popen

    def begin(_words, **settings):
        begun.append(start(["sleep", "1000"], **settings))
        return begun[0]

    def answering_pid(_directory):
        if begun:
            raise error

    monkeypatch.setattr(supervisor_link.subprocess, "Popen", begin)
    monkeypatch.setattr(supervisor_link, "answering_pid", answering_pid)
    try:
        with pytest.raises(type(error)):
            supervisor_link.start(directory, restarts=True)
        assert begun[0].poll() is not None
    finally:
        begun[0].kill()
        begun[0].wait()


def test_an_interrupt_while_a_supervisor_is_being_started_ends_it(monkeypatch, directory):
    """It would go on by itself: nobody has noted yet that there is one."""
    begun, start = [], subprocess.Popen
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def begin(_words, **settings):
        begun.append(start(["sleep", "1000"], **settings))
        signal.raise_signal(signal.SIGINT)
        return begun[0]

    monkeypatch.setattr(supervisor_link.subprocess, "Popen", begin)
    try:
        with pytest.raises(KeyboardInterrupt):
            supervisor_link.start(directory, restarts=True)
        assert begun[0].poll() is not None
    finally:
        begun[0].kill()
        begun[0].wait()
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (PermissionError(13, "Permission denied"), Status.BAD_CLUSTER_DIR, "somebody else"),
        (FileNotFoundError(2, "No such file"), Status.NOT_RUNNING, "ember up"),
    ],
)
def test_somebody_elses_cluster_is_not_taken_for_one_that_is_down(
    monkeypatch, directory, error, status, said
):
    class Refused:
        def __init__(self, *_):
            raise error

    monkeypatch.setattr(supervisor_link.socket, "socket", Refused)
    with pytest.raises(FsError, match=said) as caught:
        supervisor_link.ask(directory, command="status")
    assert caught.value.status is status


def test_a_supervisor_that_ends_without_an_answer_is_told_of_with_what_it_said_last(
    monkeypatch, directory
):
    directory.log_path("supervisor").write_text("one\nthe last words\n\n")
    monkeypatch.setattr(supervisor_link, "_exchange", lambda *_: b"")
    with pytest.raises(FsError, match="the last words") as caught:
        supervisor_link.ask(directory, command="stop")
    assert caught.value.status is Status.NOT_RUNNING
