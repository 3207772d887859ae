"""Which process is it: a pid alone may belong to a stranger after the original has gone.

An identity is (pid, start time in clock ticks since boot); a process with the same pair is the same
process.  Signals go through a pidfd, so that no pid is reused between the check and the kill.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from ...schema.lacks import is_lack


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Names one process for ever (until the next boot)."""

    pid: int
    start_ticks: int

    def __str__(self) -> str:
        return f"{self.pid}:{self.start_ticks}"


def parse_process_id(text: str) -> ProcessId:
    """Return the identity that `str` made a text of; raises ValueError."""
    pid, _, start_ticks = text.partition(":")
    return ProcessId(int(pid), int(start_ticks))


def process_id(pid: int) -> ProcessId | None:
    """Return the identity of a running process; None if there is none or it is a zombie."""
    try:
        return _look(pid)
    except OSError:
        return None


def _look(pid: int) -> ProcessId | None:
    """As `process_id`; raises OSError where there is no process, or it cannot be looked at."""
    text = Path(f"/proc/{pid}/stat").read_text()
    state, *fields = text.rpartition(")")[2].split()
    if state in {"Z", "X"}:
        return None
    return ProcessId(pid, int(fields[18]))


def real_user(pid: int) -> int:
    """Return who has started a process; not whose rights it has, which a program with the
    set-user-id bit gets, whoever starts it.  Raises OSError where there is no process.
    """
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").split("\n")
    (fields,) = [line.split() for line in lines if line.startswith("Uid:")]
    return int(fields[1])


def is_alive(identity: ProcessId) -> bool:
    """True while that very process runs."""
    return process_id(identity.pid) == identity


def catches(identity: ProcessId, number: signal.Signals) -> bool:
    """True if the process has a handler for a signal; meaningful while it is alive."""
    try:
        lines = Path(f"/proc/{identity.pid}/status").read_text().splitlines()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")]
    return bool(masks) and bool(masks[0] >> (number - 1) & 1)


def open_pidfd(identity: ProcessId) -> int | None:
    """Return a descriptor that is readable once the process has ended; None if it has already.

    Raises:
        OSError: a lack of descriptors or memory, which says nothing of that process.
    """
    try:
        pidfd = os.pidfd_open(identity.pid)
    except OSError as error:
        if is_lack(error):
            raise
        return None
    is_it = False
    try:
        is_it = _look(identity.pid) == identity
    except OSError as error:
        if is_lack(error):
            raise
    finally:
        if not is_it:
            os.close(pidfd)
    return pidfd if is_it else None


def send_signal(pidfd: int, number: signal.Signals) -> None:
    """Signal the process behind a pidfd; harmless when it has ended."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return
