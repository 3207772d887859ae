"""Keeps one process running where no systemd does: `python3 keeper.py FOLDER NAME COMMAND...`.

Run by its path and with the standard library alone, so that a keeper
costs next to nothing.  In FOLDER:

    NAME.lock     locked by the keeper while it lives (a POSIX lock: the kernel tells whose)
    NAME.ready    there while the process serves: when it said so, and where its metrics are
    NAME.log      what the process writes

Invariants:
    - At most one keeper per name: it holds the lock.
    - The process ends with its keeper, however that ends.

A process that dies is started again, sooner after a long life; one that ends with exit
code 0 was asked to, by somebody else, and its keeper ends, too.  SIGTERM is passed on and
waited for; SIGHUP is passed on.
"""

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Final

READY_VARIABLE: Final = "EMBERFS_READY_FD"
LOG_BYTES_VARIABLE: Final = "EMBERFS_LOG_BYTES_MAX"
PR_SET_PDEATHSIG: Final = 1
PAUSE_S_MIN: Final = 0.1
PAUSE_S_MAX: Final = 5.0
HEALTHY_AFTER_S: Final = 10.0
"""A process that ran this long starts again after the shortest pause."""
STOP_TIMEOUT_S: Final = 90
"""Then it is killed."""
LOG_BYTES_MAX: Final = 64 * 1024 * 1024
EXIT_ALREADY: Final = 3
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Keeper:
    """The life of one process."""

    def __init__(self, folder: Path, name: str, command: list[str]) -> None:
        """Take the place of the only keeper; raises BlockingIOError or PermissionError
        when there is one.
        """
        self._folder, self._name, self._command = folder, name, command
        self._child: subprocess.Popen[bytes] | None = None
        self._is_wanted = True
        self._ready = folder / f"{name}.ready"
        self._lock = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGALRM, self._kill)
        signal.signal(signal.SIGHUP, self._pass_on)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._is_wanted = False
        signal.alarm(STOP_TIMEOUT_S)
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)

    def _kill(self, _number: int, _frame: FrameType | None) -> None:
        if self._child is not None:
            self._child.kill()

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if self._child is not None:
            self._child.send_signal(number)

    def run(self) -> None:
        """Run until told to stop, or until the process ends by itself without an error."""
        pause_s = PAUSE_S_MIN
        while self._is_wanted:
            began_s = time.monotonic()
            if self._run_once() == 0:
                break
            if time.monotonic() - began_s > HEALTHY_AFTER_S:
                pause_s = PAUSE_S_MIN
            if self._is_wanted:
                time.sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, pause_s * 2)

    def _run_once(self) -> int:
        """Start the process, note when it serves, wait for its end."""
        self._ready.unlink(missing_ok=True)
        log = self._folder / f"{self._name}.log"
        if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
            log.replace(log.with_suffix(".log.1"))
        told, tell = os.pipe()
        with log.open("ab") as output:
            self._child = subprocess.Popen(  # noqa: S603 - what the installer wrote
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[tell],
                env={
                    **os.environ,
                    READY_VARIABLE: str(tell),
                    LOG_BYTES_VARIABLE: str(LOG_BYTES_MAX),
                },
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - no threads here
            )
        os.close(tell)
        if not self._is_wanted:  # told while it was being started
            self._child.send_signal(signal.SIGTERM)
        with os.fdopen(told, "rb") as file:
            if line := file.readline():
                self._ready.write_bytes(line)
        code = self._child.wait()
        self._child = None
        self._ready.unlink(missing_ok=True)
        return code


def _end_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main(words: list[str]) -> int:
    """Run a keeper; exit code 3: there is one."""
    try:
        keeper = Keeper(Path(words[0]), words[1], words[2:])
    except (BlockingIOError, PermissionError):  # POSIX allows either
        return EXIT_ALREADY
    keeper.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
