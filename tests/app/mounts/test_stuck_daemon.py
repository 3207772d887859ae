"""Mount daemons that were killed and cannot end:
who is one, and which connection is ended for it.
"""

import signal
import subprocess
import sys
import time

import pytest
import trio

from fs.app.local import bring_down
from fs.app.machine.process_id import process_id
from fs.app.machine.running import Command
from fs.app.mounts import stuck_daemon
from fs.app.mounts.mount_point import is_dead
from fs.schema.status import FsError

pytestmark = pytest.mark.thorough

HALF_DEAD = """
import ctypes, signal, threading, time
signal.signal(signal.SIGUSR1, lambda *_: ctypes.CDLL(None).pthread_exit(None))
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
"""On a signal its main thread ends; another one goes on, as if the kernel kept it waiting.

It looks for signals again and again: one that came just before a pause() would wake nobody.
"""
MOUNT = "52 27 0:48 / {} rw,nosuid,nodev - fuse.ember emberfs:c rw,user_id=0\n"
OTHER = "53 27 0:49 / {} rw - fuse.other x rw\n"


@pytest.fixture
def mount_point(tmp_path, monkeypatch):
    """A directory on which a mount is said to stand."""
    place = tmp_path / "a mount"
    place.mkdir()
    escaped = str(place).replace(" ", "\\040")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(OTHER.format(escaped) + MOUNT.format(escaped) + MOUNT.format("/elsewhere"))
    monkeypatch.setattr(stuck_daemon, "MOUNTINFO", mounts)
    return place


@pytest.fixture
def ended(monkeypatch):
    """The connections that were ended."""
    numbers = []
    monkeypatch.setattr(stuck_daemon, "_end_connection", lambda n: numbers.append(n) or True)
    return numbers


@pytest.fixture
def daemon(tmp_path, mount_point):
    """A process that looks like the daemon of the mount."""
    config = tmp_path / "mount-1.toml"
    config.write_text(f'[client]\nmount_point = "{mount_point}"\n')
    words = [sys.executable, "-c", HALF_DEAD, "fs.app.mountd", config]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout.readline() == b"ready\n"
            yield child
        finally:
            child.kill()


def end_main_thread(child):
    child.send_signal(signal.SIGUSR1)
    deadline_s = time.monotonic() + 30
    while not stuck_daemon.is_stuck(child.pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_who_lives_keeps_its_connection(daemon, mount_point, ended):
    stuck_daemon.free(daemon.pid, mount_point)
    stuck_daemon.free_all(mount_point)
    assert ended == []


def test_the_connection_of_a_daemon_without_its_main_thread_is_ended(daemon, mount_point, ended):
    end_main_thread(daemon)
    stuck_daemon.free(daemon.pid, mount_point)
    assert ended == [48]
    stuck_daemon.free_all(mount_point)
    assert ended == [48, 48]
    daemon.kill()
    daemon.wait()
    stuck_daemon.free_all(mount_point)
    assert ended == [48, 48]


def test_the_daemon_of_another_mount_is_left_alone(daemon, mount_point, ended):
    end_main_thread(daemon)
    stuck_daemon.free_all(mount_point / "other")
    assert ended == []


def test_a_dead_mount_is_asked_only_once_its_daemon_can_end(
    daemon, mount_point, ended, monkeypatch
):
    """The kernel would have whoever asks wait without an end."""
    end_main_thread(daemon)
    monkeypatch.setattr("fs.app.mounts.mount_point.is_mounted", lambda path: path == mount_point)
    assert not is_dead(mount_point)
    assert ended == [48]


def test_a_daemon_that_serves_again_keeps_its_connection(daemon, mount_point, ended, monkeypatch):
    """What is left of the one before, without a connection, may wait for a disk for long."""
    end_main_thread(daemon)
    monkeypatch.setattr(stuck_daemon, "mount_daemon_at", lambda _: "another one")
    stuck_daemon.free_all(mount_point)
    assert ended == []


async def test_who_is_looked_after_is_freed_once_it_is_killed(daemon, mount_point, ended):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stuck_daemon.look_after, daemon.pid, mount_point)
        await trio.sleep(2 * stuck_daemon.LOOK_S)
        assert ended == []
        await trio.to_thread.run_sync(end_main_thread, daemon)
        with trio.fail_after(30):
            while not ended:  # noqa: ASYNC110 - a thread tells nobody
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


def test_whoever_unmounts_does_not_wait_for_what_is_left_of_a_daemon(
    daemon, mount_point, monkeypatch
):
    """As if its last thread waited for a disk; without a supervisor nobody else looks after it."""
    identity = process_id(daemon.pid)
    command = Command(identity, "mountd", mount_point / "config.toml")
    monkeypatch.setattr(bring_down, "FOREGROUND_POLL_S", 0.02)
    monkeypatch.setattr(bring_down, "UNMOUNT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(bring_down, "send_signal", lambda *_: None)
    with pytest.raises(FsError, match="still flushing"):
        bring_down._end(command, mount_point)
    monkeypatch.setattr(bring_down, "LEFT_AFTER_S", 0.1)
    monkeypatch.setattr(bring_down, "UNMOUNT_TIMEOUT_S", 60.0)
    monkeypatch.setattr(bring_down, "send_signal", lambda *_: end_main_thread(daemon))
    bring_down._end(command, mount_point)
    assert daemon.poll() is None


def test_a_connection_that_has_ended_by_itself_is_no_trouble():
    assert not stuck_daemon._end_connection(0)
