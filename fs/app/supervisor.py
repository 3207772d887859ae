"""The supervisor of a local cluster: starts its processes, restarts those that die,
stops them in order.

Runs as its own process (`python -m fs.app.supervisor DIRECTORY`), detached from the terminal.
Answers one JSON line per connection on a Unix socket: status, add, remove, stop.

Invariants:
    - At most one supervisor per cluster: it holds a lock on run/supervisor.lock while it lives.
    - A process is signalled only through a pidfd opened for its verified identity
      (machine/process_id.py).
    - The death of the supervisor stops no service; the next one adopts what still runs: by the
      state file, which is written after every start, else, where that could not be written or was
      removed, by what /proc shows (machine/running.py).
    - What the machine refuses (a full disk, no more processes or descriptors) ends no
      supervisor: it goes on, and tries again.
    - Nor does any line that comes by the socket, nor one that never ends.

Concurrency: trio; one task per service (supervision/supervised.py).
"""

import argparse
import json
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from ..runtime.held_file import take_file
from ..schema.status import FsError, Status
from .machine.cluster_dir import ClusterDir
from .machine.process_id import ProcessId, parse_process_id
from .machine.running import left_running
from .supervision.process_end import wait_end
from .supervision.quiet import tell_of_stop
from .supervision.supervised import Service, Upkeep

log = logging.getLogger(__name__)

STOP_ORDER: Final = ("mountd", "storage", "meta", "mgmtd", "control", "kv")
MANAGERS: Final = {"mgmtd", "control"}
END_TIMEOUT_S: Final = 10.0
"""Of a supervisor, after all its services have stopped."""
POLL_S: Final = 0.02
REQUEST_BYTES_MAX: Final = 65_536
"""Who sends more without ending its line gets no answer: nobody is to fill our memory."""
LAST_ANSWERS_S: Final = 1.0
"""Whoever has asked, for the stop or anything else, is answered within so long after the stop."""
_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
"""Of a service: its files are named by it."""


def service_command(role: str, config_path: Path) -> list[str]:
    """Return the command line of a service."""
    return [sys.executable, "-P", "-m", f"{__package__}.{role}", str(config_path)]


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
        command: Callable[[str, Path], list[str]] = service_command,
    ) -> None:
        self._directory = directory
        self._upkeep = Upkeep(directory, restarts, command, self._save)
        self._services: dict[str, Service] = {}
        self._stopped = trio.Event()
        self._nursery: trio.Nursery | None = None

    def add(self, name: str, role: str, mount_point: str = "") -> None:
        """Start a service, or take over the one that an earlier supervisor started.

        Raises:
            FsError: ALREADY_RUNNING if a service of that name has not stopped.
        """
        assert self._nursery is not None, "only while running"
        known = self._services.get(name)
        if known is not None and known.state != "stopped":
            raise FsError(Status.ALREADY_RUNNING, name)
        service = Service(name, role, mount_point, self._upkeep)
        left = left_running(self._directory).get(name)
        if left is not None:
            service.identity = ProcessId(left["pid"], left["start_ticks"])
            service.metrics_address = left.get("metrics_address", "")
        self._services[name] = service
        self._nursery.start_soon(service.run)

    async def remove(self, name: str) -> None:
        """Stop one service and forget it.

        Raises:
            FsError: NOT_RUNNING; NOT_FLUSHED: it has stopped, a mount daemon that
                could not write everything.
        """
        service = self._services.get(name)
        if service is None:
            raise FsError(Status.NOT_RUNNING, name)
        await service.stop()
        self._services.pop(name, None)
        self._save()
        if service.complaint:
            raise FsError(Status.NOT_FLUSHED, service.complaint)

    async def stop(self) -> None:
        """Stop everything: mounts flush first, storage tells managers, who know that all is going,
        what it has; the store comes last.
        """
        for role in STOP_ORDER:
            if role == "storage":
                self._tell_managers()
            async with trio.open_nursery() as nursery:
                for service in self._services.values():
                    if service.role == role:
                        nursery.start_soon(service.stop)
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

    def _save(self) -> None:
        """Write the state file, if there is room; losing it in a power failure harms nothing,
        so it is not synced.
        """
        temporary = self._directory.state_path.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(self.status()))
            temporary.replace(self._directory.state_path)
        except OSError as error:
            log.warning("%s is not up to date: %s", self._directory.state_path, error.strerror)

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


def _require_usable(name: str, role: str, mount_point: str) -> None:
    """Raise FsError(RPC_BAD_REQUEST) for what can be neither started nor stopped."""
    try:
        is_path = b"\0" not in os.fsencode(mount_point)
    except UnicodeEncodeError:
        is_path = False
    if role not in STOP_ORDER or not _NAME.fullmatch(name) or not is_path:
        raise FsError(Status.RPC_BAD_REQUEST, f"no service: {name!r}, {role!r}, {mount_point!r}")


async def _serve_socket(
    supervisor: Supervisor, listener: trio.SocketListener, answering: trio.Nursery
) -> None:
    """Accept callers until cancelled, each in a task of `answering`."""

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
            except Exception as error:
                # All services would be left without anybody who looks after them.
                log.exception("a request failed: %s", line[:100])
                reply = {"error": int(Status.INTERNAL_ERROR), "detail": repr(error)}
            await stream.send_all(json.dumps(reply).encode() + b"\n")
        except trio.BrokenResourceError:
            log.info("a caller left before its answer")
        finally:
            await trio.aclose_forcefully(stream)

    await trio.serve_listeners(handle, [listener], handler_nursery=answering)


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
    # Without a checkpoint between name and readiness: whoever was refused there would
    # take the supervisor for gone.
    made = socket.create_server(str(path), family=socket.AF_UNIX, backlog=16)
    listening = trio.socket.from_stdlib_socket(made)

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
        async with trio.open_nursery() as answering:
            accepting = trio.CancelScope()

            async def accept() -> None:
                with accepting:
                    await _serve_socket(supervisor, trio.SocketListener(listening), answering)

            nursery.start_soon(accept)
            await supervisor.wait_stopped()
            accepting.cancel()
            await trio.lowlevel.checkpoint()  # nobody comes to who is about to be gone
            answering.cancel_scope.deadline = trio.current_time() + LAST_ANSWERS_S
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
