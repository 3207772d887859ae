"""The supervisor of a local cluster: starts its processes, restarts those that die, stops them in order.

Runs as its own process (`python -m fs.app.supervisor DIRECTORY`), detached from the terminal.  Answers
one JSON line per connection on a Unix socket: status, add, remove, stop.

Invariants:
    - At most one supervisor per cluster: it holds a lock on run/supervisor.lock while it lives.
    - A process is signalled only through a pidfd opened for its verified identity (process_id.py).
    - The death of the supervisor stops no service; the next one adopts what still runs: by the state file, which is written
      after every start, else, where that could not be written or was removed, by what /proc shows (running.py).
    - What the machine refuses (a full disk, no more processes or descriptors) ends no supervisor: it goes on, and tries again.
    - Nor does any line that comes by the socket, nor one that never ends.

Concurrency: trio; one task per service.  No checkpoint lies between a change of a service's fields and
the writing of the state file.
"""

import argparse
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from ..runtime.held_file import take_file
from ..runtime.log import LOG_BYTES_VARIABLE
from ..schema.status import FsError, Status
from .cluster_dir import ClusterDir
from .mount_point import clear_dead_mount
from .process_end import ENDED, LEFT_BEHIND, describe_exit, pidfd_of, wait_daemon_end, wait_end
from .process_id import ProcessId, parse_process_id, process_id, send_signal
from .quiet import tell_of_stop
from .readiness import READY_VARIABLE
from .running import left_running
from .stuck_daemon import exit_code_of
from .supervisor_link import last_line

log = logging.getLogger(__name__)

RESTART_PAUSE_S_MIN: Final = 0.1
RESTART_PAUSE_S_MAX: Final = 5.0
HEALTHY_AFTER_S: Final = 10.0
"""A service that ran this long starts again after the shortest pause."""
STOP_ORDER: Final = ("mountd", "storage", "meta", "mgmtd", "control", "kv")
MANAGERS: Final = {"mgmtd", "control"}
MOUNT_STOP_TIMEOUT_S: Final = 60.0
"""A mount daemon has data to flush; then it is killed."""
STOP_TIMEOUT_S: Final = 20.0
"""Of the other processes."""
END_TIMEOUT_S: Final = 10.0
"""Of a supervisor, after all its services have stopped."""
POLL_S: Final = 0.02
REQUEST_BYTES_MAX: Final = 65_536
"""Who sends more without ending its line gets no answer: nobody is to fill our memory."""
LOG_BYTES_MAX: Final = 64 * 1024 * 1024
READY_BYTES_MAX: Final = 1024
_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
"""Of a service: its files are named by it."""


def service_command(role: str, config_path: Path) -> list[str]:
    """Return the command line of a service."""
    return [sys.executable, "-P", "-m", f"{__package__}.{role}", str(config_path)]


@dataclass(slots=True)
class Service:
    """One supervised process."""

    name: str
    role: str
    """One of STOP_ORDER: the command that runs it."""
    mount_point: str = ""
    state: str = "starting"
    """starting, running, restarting, stopping, stopped."""
    identity: ProcessId | None = None
    since_s: float = 0.0
    """Wall-clock seconds of the last change of state."""
    restart_count: int = 0
    last_exit: str = ""
    complaint: str = ""
    """What an orderly stop could not do."""
    wanted: bool = True
    was_killed: bool = False
    """It did not end when it was asked to."""
    left_code: int = 0
    """Of a mount daemon of which something is left: how its main thread ended."""
    metrics_address: str = ""
    """Where it serves its metrics; empty: nowhere."""
    pause: trio.CancelScope | None = None
    """Of the sleep before the next start."""
    ended: trio.Event = field(default_factory=trio.Event)

    def to_state(self) -> dict[str, Any]:
        """Return what status shows and the state file keeps."""
        return {
            "name": self.name,
            "role": self.role,
            "mount_point": self.mount_point,
            "state": self.state,
            "pid": self.identity.pid if self.identity else None,
            "start_ticks": self.identity.start_ticks if self.identity else None,
            "since_s": self.since_s,
            "restart_count": self.restart_count,
            "last_exit": self.last_exit,
            "metrics_address": self.metrics_address,
        }


async def _wait_end(service: Service, identity: ProcessId) -> bool:
    """Wait for the end of a service's process; False: as `wait_daemon_end`."""
    if service.role == "mountd":
        has_ended = await wait_daemon_end(identity, Path(service.mount_point))
        service.left_code = 0 if has_ended else exit_code_of(identity.pid)
        return has_ended
    await wait_end(identity)
    return True


class Supervisor:
    """All services of one cluster.

    Args:
        directory: the cluster's.
        restarts: whether a service that dies is started again.
        command: makes the command line from (role, configuration file).
    """

    def __init__(
        self,
        directory: ClusterDir,
        *,
        restarts: bool = True,
        command: Callable[[str, Path], list[str]] | None = None,
    ) -> None:
        self._directory = directory
        self._restarts = restarts
        self._command = command or service_command
        self._services: dict[str, Service] = {}
        self._stopped = trio.Event()
        self._nursery: trio.Nursery | None = None

    # ---- life of one service

    def _set_state(self, service: Service, state: str) -> None:
        service.state = state
        service.since_s = time.time()
        self._save()

    def _save(self) -> None:
        """Write the state file, if there is room; losing it in a power failure harms nothing, so it is not synced."""
        temporary = self._directory.state_path.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(self.status()))
            temporary.replace(self._directory.state_path)
        except OSError as error:
            log.warning("%s is not up to date: %s", self._directory.state_path, error.strerror)

    def _spawn(self, service: Service) -> tuple[subprocess.Popen[bytes], int]:
        """Start the process; return it and the read end of its ready pipe."""
        path = self._directory.log_path(service.name)
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_suffix(".log.1"))
        config = self._directory.config_path(service.name)
        ready_read, ready_write = os.pipe()
        try:
            with path.open("ab") as log_file:
                child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    self._command(service.role, config),
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=log_file,
                    cwd=self._directory.path,
                    start_new_session=True,
                    pass_fds=[ready_write],
                    env={
                        **os.environ,
                        READY_VARIABLE: str(ready_write),
                        LOG_BYTES_VARIABLE: str(LOG_BYTES_MAX),
                    },
                )
        finally:
            os.close(ready_write)
        return child, ready_read

    async def _wait_ready(self, service: Service, ready_read: int) -> None:
        """Note when the service says that it serves; an end of file means that it died before."""
        try:
            await trio.lowlevel.wait_readable(ready_read)
            told = os.read(ready_read, READY_BYTES_MAX)
            if told and service.state == "starting":
                service.metrics_address = told.decode(errors="replace").strip()
                self._set_state(service, "running")
                log.info("%s serves", service.name)
        finally:
            os.close(ready_read)

    async def _run_once(self, service: Service) -> tuple[int | None, str]:
        """Start the process, wait for its end; return its exit code, None if there was none, and how it ended for people."""
        try:
            child, ready_read = self._spawn(service)
        except OSError as error:  # no room for its log, no process or descriptor left
            return None, f"cannot be started: {error.strerror}"
        service.identity = process_id(child.pid) or ProcessId(child.pid, 0)
        service.metrics_address = ""
        self._set_state(service, "starting")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._wait_ready, service, ready_read)
            code = await self._wait_child(service, child)
            nursery.cancel_scope.cancel()
        service.identity = None
        return code, LEFT_BEHIND if code is None else describe_exit(code)

    async def _wait_child(self, service: Service, child: "subprocess.Popen[bytes]") -> int | None:
        """Wait for the end of a process that was started here; return its exit code; None: as `wait_daemon_end`."""
        while (code := child.poll()) is None:
            identity = process_id(child.pid)
            if identity is None:  # it is just ending, or there is no descriptor to look
                await trio.sleep(POLL_S)
                continue
            if identity != service.identity:
                service.identity = identity
                self._save()
            if not await _wait_end(service, identity):
                return None
        return code

    async def _run_service(self, service: Service) -> None:
        """Keep one service running until it is not wanted any more."""
        pause_s = RESTART_PAUSE_S_MIN
        while True:
            started_s = trio.current_time()
            if service.identity is not None:  # adopted
                self._set_state(service, "running")
                has_ended = await _wait_end(service, service.identity)
                service.identity, code = None, None
                service.last_exit = ENDED if has_ended else LEFT_BEHIND
            else:
                code, service.last_exit = await self._run_once(service)
            is_done = service.role == "mountd" and code == 0  # unmounted by hand
            if not service.wanted or not self._restarts or is_done:
                break
            if trio.current_time() - started_s >= HEALTHY_AFTER_S:
                pause_s = RESTART_PAUSE_S_MIN
            log.warning(
                "%s ended (%s); next start in %.1f s", service.name, service.last_exit, pause_s
            )
            service.restart_count += 1
            self._set_state(service, "restarting")
            with trio.CancelScope() as service.pause:
                await trio.sleep(pause_s)
            if not service.wanted:
                break
            pause_s = min(pause_s * 2, RESTART_PAUSE_S_MAX)
        self._set_state(service, "stopped")
        log.info("%s stopped (%s)", service.name, service.last_exit)
        service.ended.set()

    async def _stop_service(self, service: Service) -> None:
        """Ask the process to end, wait, kill it when it does not."""
        service.wanted = False
        if service.pause is not None:
            service.pause.cancel()
        if service.ended.is_set():
            return
        pidfd = await pidfd_of(service.identity) if service.identity else None
        if pidfd is not None:
            try:
                self._set_state(service, "stopping")
                send_signal(pidfd, signal.SIGTERM)
                is_mount = service.role == "mountd"
                timeout_s = MOUNT_STOP_TIMEOUT_S if is_mount else STOP_TIMEOUT_S
                with trio.move_on_after(timeout_s) as scope:
                    await service.ended.wait()
                if scope.cancelled_caught:
                    log.error("%s did not stop in time and is killed", service.name)
                    service.was_killed = True
                    send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)
        await service.ended.wait()
        if service.role == "mountd":
            clear_dead_mount(Path(service.mount_point))
            if pidfd is not None:
                service.complaint = self._complaint(service)

    def _complaint(self, service: Service) -> str:
        """Return what a mount daemon that was stopped could not write; empty: nothing."""
        if service.last_exit in _GOOD_EXITS:
            return ""
        said = last_line(self._directory.log_path(service.name))
        is_left = service.last_exit == LEFT_BEHIND
        how = describe_exit(service.left_code) if is_left else service.last_exit
        if service.was_killed or how == describe_exit(-signal.SIGKILL):
            said = f"its daemon did not end in {MOUNT_STOP_TIMEOUT_S:g} s and was killed"
        _, _, lost = said.partition(f"{Status.NOT_FLUSHED.name}: ")
        if is_left and how in _GOOD_EXITS and not (lost or service.was_killed):
            return ""  # it had come to its end: all that it had to do was done
        detail = lost.partition(" (")[2].removesuffix(")")  # what it means is said by who asked
        return f"{service.mount_point}: {detail or said}"

    # ---- all services

    def add(self, name: str, role: str, mount_point: str = "") -> None:
        """Start a service, or take over the one that an earlier supervisor started.

        Raises:
            FsError: ALREADY_RUNNING if a service of that name has not stopped.
        """
        assert self._nursery is not None, "only while running"
        known = self._services.get(name)
        if known is not None and known.state != "stopped":
            raise FsError(Status.ALREADY_RUNNING, name)
        service = Service(name, role, mount_point)
        left = left_running(self._directory).get(name)
        if left is not None:
            service.identity = ProcessId(left["pid"], left["start_ticks"])
            service.metrics_address = left.get("metrics_address", "")
        self._services[name] = service
        self._nursery.start_soon(self._run_service, service)

    async def remove(self, name: str) -> None:
        """Stop one service and forget it.

        Raises:
            FsError: NOT_RUNNING; NOT_FLUSHED: it has stopped, a mount daemon that could not write everything.
        """
        service = self._services.get(name)
        if service is None:
            raise FsError(Status.NOT_RUNNING, name)
        await self._stop_service(service)
        self._services.pop(name, None)
        self._save()
        if service.complaint:
            raise FsError(Status.NOT_FLUSHED, service.complaint)

    async def stop(self) -> None:
        """Stop everything: mounts flush first, storage tells managers, who know that all is going, what it has; the store comes last."""
        for role in STOP_ORDER:
            if role == "storage":
                self._tell_managers()
            async with trio.open_nursery() as nursery:
                for service in self._services.values():
                    if service.role == role:
                        nursery.start_soon(self._stop_service, service)
        self._stopped.set()

    def _tell_managers(self) -> None:
        for service in self._services.values():
            if service.role in MANAGERS and service.identity is not None:
                tell_of_stop(service.identity)

    async def wait_stopped(self) -> None:
        """Wait until `stop` has stopped every service."""
        await self._stopped.wait()

    def status(self) -> dict[str, Any]:
        """Return the state of every service, as JSON-able values."""
        return {
            "supervisor_pid": os.getpid(),
            "services": [service.to_state() for service in self._services.values()],
        }

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request of the socket."""
        match request:
            case {"command": "status"}:
                return self.status()
            case {"command": "add", "name": str(name), "role": str(role), "mount_point": str(at)}:
                _require_usable(name, role, at)
                self.add(name, role, at)
            case {"command": "remove", "name": str(name)}:
                await self.remove(name)
            case {"command": "stop"}:
                await self.stop()
                return {"complaints": [s.complaint for s in self._services.values() if s.complaint]}
            case _:
                raise FsError(Status.RPC_BAD_REQUEST, "the supervisor knows no such request")
        return {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until stopped.  Takes over what an earlier supervisor left running."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for name, found in left_running(self._directory).items():
                self.add(name, found["role"], found["mount_point"])
            task_status.started()
            await self._stopped.wait()
        self._save()


_GOOD_EXITS: Final = {"exit code 0", ENDED}


def _require_usable(name: str, role: str, mount_point: str) -> None:
    """Raise FsError(RPC_BAD_REQUEST) for what can be neither started nor stopped."""
    try:
        is_path = b"\0" not in os.fsencode(mount_point)
    except UnicodeEncodeError:
        is_path = False
    if role not in STOP_ORDER or not _NAME.fullmatch(name) or not is_path:
        raise FsError(Status.RPC_BAD_REQUEST, f"no service: {name!r}, {role!r}, {mount_point!r}")


async def _serve_socket(supervisor: Supervisor, listener: trio.SocketListener) -> None:
    async def handle(stream: trio.SocketStream) -> None:
        try:
            line = b""
            while not line.endswith(b"\n"):
                received = await stream.receive_some(65_536)
                if not received or len(line) > REQUEST_BYTES_MAX:
                    return
                line += received
            try:
                reply = await supervisor.answer(json.loads(line))
            except FsError as error:
                reply = {"error": int(error.status), "detail": error.detail}
            except (ValueError, RecursionError) as error:  # no JSON, or nested without end
                reply = {"error": int(Status.RPC_BAD_REQUEST), "detail": str(error)}
            await stream.send_all(json.dumps(reply).encode() + b"\n")
        except trio.BrokenResourceError:
            log.info("a caller left before its answer")
        finally:
            await trio.aclose_forcefully(stream)

    await trio.serve_listeners(handle, [listener])


async def serve(
    directory: ClusterDir, *, restarts: bool = True, until: ProcessId | None = None
) -> None:
    """Run the supervisor of a cluster until it is told to stop, by its socket or by SIGTERM.

    Args:
        directory: the cluster's.
        restarts: whether a service that dies is started again.
        until: a process whose end, however it comes, also stops the cluster.

    Raises:
        FsError: ALREADY_RUNNING.
    """
    supervisor = Supervisor(directory, restarts=restarts)
    path = directory.supervisor_socket
    path.unlink(missing_ok=True)
    listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await listening.bind(str(path))
    listening.listen(16)

    async def stop_at_signal() -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                await supervisor.stop()

    async def stop_after(identity: ProcessId) -> None:
        await wait_end(identity)
        log.info("process %d has ended: stopping", identity.pid)
        await supervisor.stop()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_at_signal)
        await nursery.start(supervisor.run)
        if until is not None:
            nursery.start_soon(stop_after, until)
        nursery.start_soon(_serve_socket, supervisor, trio.SocketListener(listening))
        await supervisor.wait_stopped()
        await trio.sleep(0.05)  # lets the answer to "stop" leave
        nursery.cancel_scope.cancel()
    path.unlink(missing_ok=True)


def take_lock(directory: ClusterDir) -> int:
    """Become the only supervisor; return the descriptor that holds the lock.

    Raises:
        FsError: ALREADY_RUNNING.
    """
    return take_file(directory.lock_path, f"a cluster in {directory.path}")


def take_over(directory: ClusterDir) -> int:
    """Wait until the supervisor has ended, then hold its lock, so that nothing starts meanwhile.

    Raises:
        FsError: ALREADY_RUNNING when it does not end.
    """
    deadline_s = time.monotonic() + END_TIMEOUT_S
    while True:
        try:
            return take_lock(directory)
        except FsError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(POLL_S)


def main() -> None:
    """Run `python -m fs.app.supervisor DIRECTORY [--no-restart] [--until PID:START_TICKS]`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--no-restart", action="store_true")
    parser.add_argument("--until", type=parse_process_id)
    given = parser.parse_args()
    directory = ClusterDir(given.directory)
    try:
        take_lock(directory)
        trio.run(partial(serve, directory, restarts=not given.no_restart, until=given.until))
    except FsError as error:
        sys.exit(f"ember: {error}")


if __name__ == "__main__":
    main()
