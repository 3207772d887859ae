"""Talking to a cluster's supervisor: one JSON line each way.

Standard library only, so that it is quick.

Blocking; used by the command line, never by a service.
"""

import json
import os
import socket
import subprocess
import sys
import time
from typing import Any, Final

from ...schema.status import FsError, Status
from ..machine.cluster_dir import ClusterDir
from ..machine.entry_modules import ENTRY_PACKAGE
from ..machine.process_id import ProcessId
from . import interrupts

ANSWER_TIMEOUT_S: Final = 180.0
"""Longer than any orderly stop."""
START_TIMEOUT_S: Final = 60.0


def ask(directory: ClusterDir, **request: Any) -> dict[str, Any]:
    """Send one request and return the answer.

    Raises:
        FsError: NOT_RUNNING when no supervisor answers, else what the supervisor says.
    """
    try:
        line = _exchange(directory, request)
    except OSError as error:
        raise _silence(directory, error) from error
    if not line:
        last = last_line(directory.log_path("supervisor"))
        detail = f"the supervisor of {directory.path} has just ended; the end of its log: {last}"
        raise FsError(Status.NOT_RUNNING, detail)
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise FsError(Status(answer["error"]), answer["detail"])
    return answer


def _exchange(directory: ClusterDir, request: dict[str, Any]) -> bytes:
    """Return the line that a supervisor answers; raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_TIMEOUT_S)
        connection.connect(str(directory.supervisor_socket))
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as file:
            return file.readline()


def is_answering(directory: ClusterDir) -> bool:
    """True if a supervisor answers; raises FsError(BAD_CLUSTER_DIR) when only its owner may ask."""
    return answering_pid(directory) is not None


def answering_pid(directory: ClusterDir) -> int | None:
    """Return who answers as the supervisor, None if nobody does;
    raises FsError(BAD_CLUSTER_DIR) when only its owner may ask.
    """
    try:
        line = _exchange(directory, {"command": "status"})
    except PermissionError as error:
        raise _silence(directory, error) from error
    except OSError:
        return None
    return json.loads(line)["supervisor_pid"] if line else None


def has_orphans(directory: ClusterDir) -> bool:
    """True if services of a cluster run, of which no supervisor answers."""
    from ..machine.running import left_running  # noqa: PLC0415 - it reads configurations, which takes long

    return bool(left_running(directory))


def _silence(directory: ClusterDir, error: OSError) -> FsError:
    """Return what it means that no supervisor answers."""
    if isinstance(error, PermissionError):
        detail = f"{directory.path} belongs to somebody else: run this as its owner"
        return FsError(Status.BAD_CLUSTER_DIR, detail)
    from ..machine.running import supervisor_of  # noqa: PLC0415 - as above

    if supervisor_of(directory) is not None:
        detail = (
            f"the supervisor of {directory.path} runs, but its socket is gone: was "
            f"{directory.run_path} emptied? stop it: {directory.command('down')}"
        )
    elif has_orphans(directory):
        detail = (
            f"the supervisor of {directory.path} has died, its services go on; take them over: "
            f"{directory.command('up')}"
        )
    else:
        detail = f"no cluster runs in {directory.path}; start it: {directory.command('up')}"
    return FsError(Status.NOT_RUNNING, detail)


def start(directory: ClusterDir, *, restarts: bool, until: ProcessId | None = None) -> None:
    """Start a supervisor detached from this terminal and wait until it answers.

    Args:
        directory: the cluster's.
        restarts: whether it starts dead services again.
        until: a process whose end stops the cluster.

    Raises:
        FsError: ALREADY_RUNNING, or START_FAILED with the last line of its log.
    """
    if is_answering(directory):
        raise FsError(
            Status.ALREADY_RUNNING,
            f"a cluster in {directory.path}; see: {directory.command('status')}, stop it: "
            f"{directory.command('down')}",
        )
    flags = [] if restarts else ["--no-restart"]
    flags += [f"--until={until}"] if until else []
    log_path = directory.log_path("supervisor")
    module = f"{ENTRY_PACKAGE}.supervisor"
    with interrupts.put_off() as take_them:
        with log_path.open("ab") as log_file:
            child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-m", module, str(directory.path), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                cwd=directory.path,
                start_new_session=True,
                env=os.environ,
            )
        try:
            take_them()
            _wait_answering(directory, child)
        except BaseException:  # also Ctrl-C: nothing is left behind that would count as running
            _end(child)
            raise


def _wait_answering(directory: ClusterDir, child: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if answering_pid(directory) == child.pid:
            return
        if child.poll() is not None:
            break
        time.sleep(0.02)
    log_path = directory.log_path("supervisor")
    raise FsError(Status.START_FAILED, f"supervisor: {last_line(log_path)} (log: {log_path})")


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a supervisor that has started nothing, or stops what it has taken over."""
    child.terminate()
    try:
        child.wait(ANSWER_TIMEOUT_S)
    except BaseException:
        child.kill()
        child.wait()
        raise


def last_line(path: os.PathLike[str]) -> str:
    """Return the last line of a log that is not empty."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - any path-like
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "no log"
    return next((line for line in reversed(lines) if line.strip()), "nothing was logged")
