"""One process of a local cluster: started, started again when it dies, asked to stop,
killed when it does not.

Part of fs/app/supervisor.py, which has all of them, and says what holds for
signals and for the state file.

Concurrency: trio; one task runs `Service.run`, any other may call `Service.stop`.  No checkpoint
lies between a change of a field and the writing of the state file.
"""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from ...runtime.log import LOG_BYTES_VARIABLE
from ...schema.status import FsError, Status
from ..machine.cluster_dir import ClusterDir
from ..machine.process_id import ProcessId, process_id, send_signal
from ..mounts.mount_point import clear_dead_mount
from ..mounts.stuck_daemon import exit_code_of
from ..process.readiness import READY_VARIABLE
from .process_end import ENDED, LEFT_BEHIND, describe_exit, pidfd_of, wait_daemon_end, wait_end
from .supervisor_link import last_line

log = logging.getLogger(__name__)

RESTART_PAUSE_S_MIN: Final = 0.1
RESTART_PAUSE_S_MAX: Final = 5.0
HEALTHY_AFTER_S: Final = 10.0
"""A service that ran this long starts again after the shortest pause."""
MOUNT_STOP_TIMEOUT_S: Final = 60.0
"""A mount daemon has data to flush; then it is killed."""
STOP_TIMEOUT_S: Final = 20.0
"""Of the other processes."""
POLL_S: Final = 0.02
LOG_BYTES_MAX: Final = 64 * 1024 * 1024
READY_BYTES_MAX: Final = 1024
_GOOD_EXITS: Final = {"exit code 0", ENDED}


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How the services of a cluster are kept running."""

    directory: ClusterDir
    """Has their configuration files, and takes their logs."""
    restarts: bool
    """Whether a service that dies is started again."""
    command: Callable[[str, Path], list[str]]
    """Makes a command line from (role, configuration file)."""
    save: Callable[[], None]
    """Writes the state of all services to the state file."""


@dataclass(slots=True)
class Service:
    """See module head."""

    name: str
    role: str
    """The command that runs it."""
    mount_point: str
    """Of a mount daemon; empty: it is none."""
    upkeep: Upkeep
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

    @property
    def is_mount(self) -> bool:
        """Whether it is a mount daemon."""
        return self.role == "mountd"

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

    def _set_state(self, state: str) -> None:
        self.state = state
        self.since_s = time.time()
        self.upkeep.save()

    async def run(self) -> None:
        """Keep it running until it is not wanted any more."""
        pause_s = RESTART_PAUSE_S_MIN
        while True:
            started_s = trio.current_time()
            if self.identity is not None:  # adopted
                self._set_state("running")
                has_ended = await self._wait_end(self.identity)
                self.identity, code = None, None
                self.last_exit = ENDED if has_ended else LEFT_BEHIND
            else:
                code, self.last_exit = await self._run_once()
            is_done = self.is_mount and code == 0  # unmounted by hand
            if not self.wanted or not self.upkeep.restarts or is_done:
                break
            if trio.current_time() - started_s >= HEALTHY_AFTER_S:
                pause_s = RESTART_PAUSE_S_MIN
            log.warning("%s ended (%s); next start in %.1f s", self.name, self.last_exit, pause_s)
            self.restart_count += 1
            self._set_state("restarting")
            with trio.CancelScope() as self.pause:
                await trio.sleep(pause_s)
            if not self.wanted:
                break
            pause_s = min(pause_s * 2, RESTART_PAUSE_S_MAX)
        self._set_state("stopped")
        log.info("%s stopped (%s)", self.name, self.last_exit)
        self.ended.set()

    async def _run_once(self) -> tuple[int | None, str]:
        """Start the process, wait for its end; return its exit code, None if there was none,
        and how it ended for people.
        """
        try:
            child, ready_read = self._spawn()
        except OSError as error:  # no room for its log, no process or descriptor left
            return None, f"cannot be started: {error.strerror}"
        self.identity = process_id(child.pid) or ProcessId(child.pid, 0)
        self.metrics_address = ""
        self._set_state("starting")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._wait_ready, ready_read)
            code = await self._wait_child(child)
            nursery.cancel_scope.cancel()
        self.identity = None
        return code, LEFT_BEHIND if code is None else describe_exit(code)

    def _spawn(self) -> tuple["subprocess.Popen[bytes]", int]:
        """Start the process; return it and the read end of its ready pipe."""
        directory = self.upkeep.directory
        path = directory.log_path(self.name)
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_suffix(".log.1"))
        ready_read, ready_write = os.pipe()
        try:
            with path.open("ab") as log_file:
                child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    self.upkeep.command(self.role, directory.config_path(self.name)),
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=log_file,
                    cwd=directory.path,
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

    async def _wait_ready(self, ready_read: int) -> None:
        """Note when the process says that it serves; an end of file means that it died before."""
        try:
            await trio.lowlevel.wait_readable(ready_read)
            told = os.read(ready_read, READY_BYTES_MAX)
            if told and self.state == "starting":
                self.metrics_address = told.decode(errors="replace").strip()
                self._set_state("running")
                log.info("%s serves", self.name)
        finally:
            os.close(ready_read)

    async def _wait_child(self, child: "subprocess.Popen[bytes]") -> int | None:
        """Wait for the end of a process that was started here; return its exit code;
        None: as `wait_daemon_end`.
        """
        while (code := child.poll()) is None:
            identity = process_id(child.pid)
            if identity is None:  # it is just ending, or there is no descriptor to look
                await trio.sleep(POLL_S)
                continue
            if identity != self.identity:
                self.identity = identity
                self.upkeep.save()
            if not await self._wait_end(identity):
                return None
        return code

    async def _wait_end(self, identity: ProcessId) -> bool:
        """Wait for the end of its process; False: as `wait_daemon_end`."""
        if self.is_mount:
            has_ended = await wait_daemon_end(identity, Path(self.mount_point))
            self.left_code = 0 if has_ended else exit_code_of(identity.pid)
            return has_ended
        await wait_end(identity)
        return True

    async def stop(self) -> None:
        """Ask the process to end, wait, kill it when it does not."""
        self.wanted = False
        if self.pause is not None:
            self.pause.cancel()
        if self.ended.is_set():
            return
        pidfd = await pidfd_of(self.identity) if self.identity else None
        if pidfd is not None:
            try:
                await self._end_process(pidfd)
            finally:
                os.close(pidfd)
        await self.ended.wait()
        if self.is_mount:
            if pidfd is not None:
                self.complaint = self._complaint()
            self._clear_mount_point()

    def _clear_mount_point(self) -> None:
        """Detach what a killed daemon has left; where that fails the others stop as well."""
        try:
            clear_dead_mount(Path(self.mount_point))
        except (FsError, OSError) as error:
            log.error("%s: %s", self.name, error)  # noqa: TRY400 - it says all
            self.complaint = self.complaint or f"{self.mount_point}: {error}"

    async def _end_process(self, pidfd: int) -> None:
        self._set_state("stopping")
        send_signal(pidfd, signal.SIGTERM)
        with trio.move_on_after(MOUNT_STOP_TIMEOUT_S if self.is_mount else STOP_TIMEOUT_S) as scope:
            await self.ended.wait()
        if scope.cancelled_caught:
            log.error("%s did not stop in time and is killed", self.name)
            self.was_killed = True
            send_signal(pidfd, signal.SIGKILL)

    def _complaint(self) -> str:
        """Return what a mount daemon that was stopped could not write; empty: nothing."""
        if self.last_exit in _GOOD_EXITS:
            return ""
        said = last_line(self.upkeep.directory.log_path(self.name))
        is_left = self.last_exit == LEFT_BEHIND
        how = describe_exit(self.left_code) if is_left else self.last_exit
        if self.was_killed or how == describe_exit(-signal.SIGKILL):
            said = f"its daemon did not end in {MOUNT_STOP_TIMEOUT_S:g} s and was killed"
        _, _, lost = said.partition(f"{Status.NOT_FLUSHED.name}: ")
        if is_left and how in _GOOD_EXITS and not (lost or self.was_killed):
            return ""  # it had come to its end: all that it had to do was done
        detail = lost.partition(" (")[2].removesuffix(")")  # what it means is said by who asked
        return f"{self.mount_point}: {detail or said}"
