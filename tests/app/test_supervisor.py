"""The supervisor with small stand-in programs instead of services:
restarts, order, adoption, back-off.
"""

import errno
import json
import os
import shutil
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import trio

from fs.app.machine.cluster_dir import ClusterDir
from fs.app.machine.process_id import ProcessId, is_alive, process_id
from fs.app.machine.running import read_state
from fs.app.mounts import stuck_daemon
from fs.app.supervision import process_end
from fs.app.supervision import supervised as module
from fs.app.supervision.process_end import LEFT_BEHIND
from fs.app.supervision.supervisor_link import has_orphans
from fs.app.supervisor import Supervisor, serve, take_lock
from fs.schema.status import FsError, Status

SYS_EXIT = {"x86_64": "60", "aarch64": "93"}
SERVES = """
import os, signal, sys
journal = open(sys.argv[1] + ".journal", "a", buffering=1)
def stop(*_):
    journal.write(f"stopped {os.path.basename(sys.argv[1])}\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
os.write(int(os.environ["EMBERFS_READY_FD"]), b"\\n")
while True:
    signal.pause()
"""
SERVES_A_WHILE = """
import os, time
os.write(int(os.environ["EMBERFS_READY_FD"]), b"\\n")
time.sleep(2)
"""
LEAVES_A_THREAD = """
import ctypes, os, signal, threading, time
end = ctypes.CDLL(None).pthread_exit
for number in signal.SIGTERM, signal.SIGUSR1:
    signal.signal(number, lambda *_: end(None))
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
os.write(int(os.environ["EMBERFS_READY_FD"]), b"\\n")
while True:
    signal.pause()
"""
"""Its main thread ends when it is asked to;
another one goes on, as if the kernel kept it waiting.
"""
FAILS_AND_LEAVES_A_THREAD = LEAVES_A_THREAD.replace(".pthread_exit", "").replace(
    "end(None)", "end.syscall(SYS_EXIT, 1)"
)
"""Its main thread ends as by exit(1): it says that it could not do all."""
DIES = "import sys; sys.exit(3)"


@pytest.fixture
def directory(tmp_path):
    made = ClusterDir(tmp_path)
    made.make_folders()
    return made


def command(text):
    def make(_role: str, config_path: Path) -> list[str]:
        return [sys.executable, "-c", text, str(config_path)]

    return make


async def wait_until(predicate, timeout_s=60.0):
    with trio.fail_after(timeout_s):
        while not predicate():  # noqa: ASYNC110 - other processes tell nobody
            await trio.sleep(0.01)


def service(supervisor, name):
    return next(s for s in supervisor.status()["services"] if s["name"] == name)


async def test_a_killed_service_is_restarted(directory):
    supervisor = Supervisor(directory, command=command(SERVES))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        supervisor.add("storage-1", "storage")
        await wait_until(lambda: service(supervisor, "storage-1")["state"] == "running")
        first_pid = service(supervisor, "storage-1")["pid"]
        os.kill(first_pid, signal.SIGKILL)
        begin_s = time.monotonic()
        await wait_until(lambda: service(supervisor, "storage-1")["pid"] not in {first_pid, None})
        # At once; processes start slowly on a busy machine.
        assert time.monotonic() - begin_s < 30.0
        found = service(supervisor, "storage-1")
        assert (found["restart_count"], found["last_exit"]) == (1, "killed by SIGKILL")
        await supervisor.stop()
    assert service(supervisor, "storage-1")["state"] == "stopped"


async def test_without_restarts_a_dead_service_stays_dead(directory):
    supervisor = Supervisor(directory, restarts=False, command=command(DIES))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        supervisor.add("control", "control")
        await wait_until(lambda: service(supervisor, "control")["state"] == "stopped")
        found = service(supervisor, "control")
        assert (found["restart_count"], found["last_exit"]) == (0, "exit code 3")
        await supervisor.stop()


@pytest.fixture
def left(monkeypatch):
    """The processes that cannot be killed: a signal would not reach a thread
    that waits for a disk.
    """
    monkeypatch.setattr(stuck_daemon, "LOOK_S", 0.05)
    monkeypatch.setattr(stuck_daemon, "LEFT_AFTER_S", 0.2)
    monkeypatch.setattr(module, "MOUNT_STOP_TIMEOUT_S", 30.0)
    pids, send = [], module.send_signal

    def send_but_kill(pidfd, number):
        if number != signal.SIGKILL:
            send(pidfd, number)

    monkeypatch.setattr(module, "send_signal", send_but_kill)
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_mount_daemon_of_which_a_thread_waits_for_a_disk_is_not_waited_for(directory, left):
    """It waited for as long as the disk did not answer, and with it whoever had it stop."""
    supervisor = Supervisor(directory, command=command(LEAVES_A_THREAD))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        supervisor.add("mount-1", "mountd", str(directory.path / "m"))
        await wait_until(lambda: service(supervisor, "mount-1")["state"] == "running")
        left.append(service(supervisor, "mount-1")["pid"])
        with trio.fail_after(20):
            await supervisor.stop()
    found = service(supervisor, "mount-1")
    assert (found["state"], found["last_exit"]) == ("stopped", LEFT_BEHIND)
    assert not supervisor._services["mount-1"].complaint, "it had come to its end"
    os.kill(left[0], 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_daemon_that_failed_before_its_thread_was_left_is_told_of(directory, left):
    """Nobody was: killed in the middle of its work it looked like one that had done it all."""
    text = FAILS_AND_LEAVES_A_THREAD.replace("SYS_EXIT", SYS_EXIT[os.uname().machine])
    supervisor = Supervisor(directory, command=command(text))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        supervisor.add("mount-1", "mountd", str(directory.path / "m"))
        await wait_until(lambda: service(supervisor, "mount-1")["state"] == "running")
        left.append(service(supervisor, "mount-1")["pid"])
        directory.log_path("mount-1").write_text("what it said last\n")
        with trio.fail_after(20):
            await supervisor.stop()
    assert service(supervisor, "mount-1")["last_exit"] == LEFT_BEHIND
    assert "what it said last" in supervisor._services["mount-1"].complaint


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_mount_is_served_again_while_a_thread_of_its_daemon_waits_for_a_disk(
    directory, left
):
    supervisor = Supervisor(directory, command=command(LEAVES_A_THREAD))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        supervisor.add("mount-1", "mountd", str(directory.path / "m"))
        for count in (0, 1):
            await wait_until(
                lambda count=count: (
                    service(supervisor, "mount-1")["state"] == "running"
                    and service(supervisor, "mount-1")["restart_count"] == count
                )
            )
            left.append(service(supervisor, "mount-1")["pid"])
            if not count:
                os.kill(left[0], signal.SIGUSR1)
        assert left[0] != left[1]
        os.kill(left[0], 0)
        with trio.fail_after(20):
            await supervisor.stop()


@pytest.mark.slow
async def test_restarts_back_off(directory, monkeypatch, caplog):
    monkeypatch.setattr(module, "RESTART_PAUSE_S_MIN", 0.05)
    supervisor = Supervisor(directory, command=command(DIES))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        supervisor.add("control", "control")
        await wait_until(lambda: service(supervisor, "control")["restart_count"] > 2)
        await supervisor.stop()
    said = [record.args[-1] for record in caplog.records if "next start in" in record.msg]
    assert said[:3] == [0.05, 0.1, 0.2]


async def test_stop_goes_from_mounts_to_control(directory):
    supervisor = Supervisor(directory, command=command(SERVES))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        for name, role in (("control", "control"), ("storage-1", "storage"), ("mount-1", "mountd")):
            supervisor.add(name, role, str(directory.path))
        await wait_until(
            lambda: all(s["state"] == "running" for s in supervisor.status()["services"])
        )
        await supervisor.stop()
    journals = directory.config_path("x").parent.glob("*.journal")
    stopped = [(path.stat().st_mtime_ns, path.read_text().split()[1]) for path in journals]
    assert [name for _, name in sorted(stopped)] == [
        "mount-1.toml", "storage-1.toml", "control.toml",
    ]  # fmt: skip


@pytest.mark.parametrize("error", [FsError(Status.BAD_MOUNT_POINT, "no"), OSError(12, "no")])
async def test_a_dead_mount_that_cannot_be_detached_keeps_nothing_else_from_stopping(
    directory, monkeypatch, error
):
    def refuse(_):
        raise error

    monkeypatch.setattr(module, "clear_dead_mount", refuse)
    supervisor = Supervisor(directory, command=command(SERVES))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        for name, role in (("control", "control"), ("mount-1", "mountd")):
            supervisor.add(name, role, str(directory.path))
        await wait_until(
            lambda: all(s["state"] == "running" for s in supervisor.status()["services"])
        )
        told = await supervisor.answer({"command": "stop"})
    assert [complaint.startswith(str(directory.path)) for complaint in told["complaints"]] == [True]
    assert {s["state"] for s in supervisor.status()["services"]} == {"stopped"}


async def test_who_has_asked_before_the_stop_is_answered(directory, monkeypatch):
    """Its answer was given up 50 ms after the stop."""
    answer = Supervisor.answer

    async def answer_late(self, request):
        if request["command"] == "status":
            await trio.sleep(0.5)
        return await answer(self, request)

    monkeypatch.setattr(Supervisor, "answer", answer_late)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, directory)
            await wait_until(directory.supervisor_socket.exists)
            path = str(directory.supervisor_socket)
            async with (
                await trio.open_unix_socket(path) as caller,
                await trio.open_unix_socket(path) as other,
            ):
                await caller.send_all(b'{"command": "status"}\n')
                await other.send_all(b'{"command": "stop"}\n')
                assert json.loads(await other.receive_some()) == {"complaints": []}
                assert json.loads(await caller.receive_some())["services"] == []
    assert not directory.supervisor_socket.exists()


async def test_a_request_that_fails_unforeseen_ends_no_supervisor(directory, monkeypatch, caplog):
    async def fail(_):
        raise ExceptionGroup("", [RuntimeError("unforeseen")])

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, directory)
            await wait_until(directory.supervisor_socket.exists)
            path = str(directory.supervisor_socket)
            with monkeypatch.context() as patch:
                patch.setattr(Supervisor, "answer", fail)
                async with await trio.open_unix_socket(path) as caller:
                    await caller.send_all(b'{"command": "status"}\n')
                    told = json.loads(await caller.receive_some())
            async with await trio.open_unix_socket(path) as caller:
                await caller.send_all(b'{"command": "stop"}\n')
                assert json.loads(await caller.receive_some()) == {"complaints": []}
    assert told["error"] == int(Status.INTERNAL_ERROR) and "unforeseen" in told["detail"]
    assert "a request failed" in caplog.text


# The "killed" supervisor lives in this very process, whose subprocess
# module notices the abandoned child.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_new_supervisor_adopts_what_the_old_one_left(directory):
    old = Supervisor(directory, command=command(SERVES))
    async with trio.open_nursery() as nursery:
        await nursery.start(old.run)
        old.add("control", "control")
        await wait_until(lambda: service(old, "control")["state"] == "running")
        pid = service(old, "control")["pid"]
        nursery.cancel_scope.cancel()  # as if killed: nobody is stopped
    identity = process_id(pid)
    assert identity is not None
    new = Supervisor(directory, command=command(SERVES))
    async with trio.open_nursery() as nursery:
        await nursery.start(new.run)
        assert service(new, "control")["pid"] == pid
        with pytest.raises(FsError) as caught:
            new.add("control", "control")
        assert caught.value.status is Status.ALREADY_RUNNING
        await new.stop()
    assert not is_alive(identity)


async def test_a_folder_that_is_gone_ends_no_supervisor(directory):
    """As a full disk does: neither state nor log can be written."""
    supervisor = Supervisor(directory, command=command(SERVES))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        supervisor.add("storage-1", "storage")
        await wait_until(lambda: service(supervisor, "storage-1")["state"] == "running")
        first_pid = service(supervisor, "storage-1")["pid"]
        logs = directory.log_path("x").parent
        shutil.rmtree(directory.state_path.parent)
        shutil.rmtree(logs)
        os.kill(first_pid, signal.SIGKILL)
        refused = "cannot be started: No such file or directory"
        await wait_until(lambda: service(supervisor, "storage-1")["last_exit"] == refused)
        logs.mkdir()
        await wait_until(lambda: service(supervisor, "storage-1")["state"] == "running")
        assert service(supervisor, "storage-1")["pid"] != first_pid
        await supervisor.stop()


async def test_what_the_state_file_has_lost_is_adopted(directory):
    """The disk was full when it was to be written, or somebody emptied its folder."""
    directory.record_path.write_text("{}")
    config = directory.config_path("storage-1")
    line = [sys.executable, "-c", SERVES, str(config), "fs.app.storage", str(config)]
    async with trio.open_nursery() as nursery:
        begin = partial(
            trio.run_process,
            line,
            env={**os.environ, "EMBERFS_READY_FD": "1"},
            check=False,
            capture_stdout=True,
        )
        left = await nursery.start(begin)
        await wait_until(lambda: has_orphans(directory))
        supervisor = Supervisor(directory, command=command(SERVES))
        await nursery.start(supervisor.run)
        assert service(supervisor, "storage-1")["pid"] == left.pid
        await supervisor.stop()
    assert left.returncode is not None


async def test_a_stale_state_file_kills_no_stranger(directory):
    own = process_id(os.getpid())
    assert own is not None
    directory.state_path.write_text(
        '{"services": [{"name": "control", "role": "control", "mount_point": "",'
        f' "pid": {own.pid}, "start_ticks": {own.start_ticks + 1}}}]}}'
    )
    supervisor = Supervisor(directory, command=command(SERVES))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        assert supervisor.status()["services"] == []
        await supervisor.stop()


async def test_removing_an_unknown_service_is_an_error(directory):
    supervisor = Supervisor(directory, command=command(SERVES))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        with pytest.raises(FsError) as caught:
            await supervisor.remove("mount-9")
        assert caught.value.status is Status.NOT_RUNNING
        await supervisor.stop()


def test_only_one_supervisor_gets_the_lock(directory):
    held = take_lock(directory)
    with pytest.raises(FsError) as caught:
        take_lock(directory)
    assert caught.value.status is Status.ALREADY_RUNNING
    os.close(held)
    os.close(take_lock(directory))


def test_a_damaged_state_file_reads_as_empty(directory):
    directory.state_path.write_text("{")
    assert read_state(directory) == {}


def test_identity_tells_a_reused_pid_apart():
    own = process_id(os.getpid())
    assert own is not None
    assert is_alive(own)
    assert not is_alive(ProcessId(own.pid, own.start_ticks + 1))


async def test_the_end_of_a_watched_process_stops_everything(directory):
    """However that process ends: here it is killed."""
    watched = await trio.lowlevel.open_process(
        [sys.executable, "-c", "import signal; signal.pause()"]
    )
    identity = process_id(watched.pid)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(serve, directory, until=identity))
            await wait_until(directory.supervisor_socket.exists)
            watched.kill()
            await watched.wait()
    assert not directory.supervisor_socket.exists()


@pytest.mark.parametrize("refused", ["pidfd_open", "read_text"])
async def test_a_process_that_cannot_be_looked_at_has_not_ended(directory, monkeypatch, refused):
    """It had, where there was no descriptor to look:
    the supervisor waited for its exit, and heard nobody until that came.
    """
    owner = Path if refused == "read_text" else os
    real, refusals, others = getattr(owner, refused), [], set(os.listdir("/proc"))

    def refuse(what, *args, **options):
        is_child = owner is os or (what.match("/proc/*/stat") and what.parent.name not in others)
        if is_child and refusals:
            refusals.pop()
            raise OSError(errno.EMFILE, "no descriptors")
        return real(what, *args, **options)

    monkeypatch.setattr(owner, refused, refuse)
    monkeypatch.setattr(process_end, "AGAIN_S", 0.01)
    supervisor, gaps_s = Supervisor(directory, command=command(SERVES_A_WHILE), restarts=False), []
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        refusals += [None] * 3
        supervisor.add("storage-1", "storage")
        while service(supervisor, "storage-1")["state"] != "stopped":
            began_s = time.monotonic()
            await trio.sleep(0.01)
            gaps_s.append(time.monotonic() - began_s)
        assert not refusals
        assert service(supervisor, "storage-1")["last_exit"] == "exit code 0"
        await supervisor.stop()
    assert max(gaps_s) < 1.0


async def test_whoever_finds_its_socket_is_served(directory):
    """Between its name and its readiness a caller was refused, which says that nobody serves."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, directory)
        while not directory.supervisor_socket.exists():
            await trio.lowlevel.checkpoint()
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(directory.supervisor_socket))
            caller.send(b'{"command": "stop"}\n')


async def test_no_line_of_the_socket_ends_it(directory):
    """Nested JSON had: the parser gives up by an error of its own, not by one of values."""
    bad = {"error": int(Status.RPC_BAD_REQUEST)}
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, directory)
            await wait_until(directory.supervisor_socket.exists)
            path = str(directory.supervisor_socket)
            lines = [b'{"a":' * 5000, b"[" * 60_000, b"{", b"7", b"\xff\xfe", b'{"command": {}}']
            for wrong in (
                {"name": "a\0b"},
                {"name": "\ud800"},
                {"name": "../a"},
                {"name": ""},
                {"role": "\0"},
                {"role": "x"},
                {"mount_point": "/\0"},
                {"mount_point": "\ud800"},
            ):
                right = {"name": "mount-1", "role": "mountd", "mount_point": "/m"}
                lines.append(json.dumps({"command": "add"} | right | wrong).encode())
            for line in lines:
                async with await trio.open_unix_socket(path) as caller:
                    await caller.send_all(line + b"\n")
                    answer = json.loads(await caller.receive_some())
                    assert answer.items() >= bad.items()
            async with await trio.open_unix_socket(path) as caller:
                with pytest.raises(trio.BrokenResourceError):  # nobody reads on
                    await caller.send_all(bytes(16 << 20))
            async with await trio.open_unix_socket(path) as caller:
                await caller.send_all(b'{"command": "stop"}\n')
                assert json.loads(await caller.receive_some()) == {"complaints": []}
    assert not directory.supervisor_socket.exists()
