"""Whether a thread that waits for the kernel is in open(2), and does nothing but open for reading.

The file of a thread in /proc stays open: to read it takes 2 us, to open it each time 6 more.  The
file of a thread that has ended says so, also when its number is another thread's by now.  Nothing
is read that can wait: the memory of a program, with the path in it, can, since a page of it may be
of a file of this very mount.

Nothing is said of threads of whom /proc does not tell, and nothing at all where it tells of another
process namespace than that in which this process is: the numbers are those of others there.
"""

import logging
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ...runtime.oldest import forget_oldest
from .sent_back import call_in

THREAD_COUNT_MAX: Final = 128
"""Threads whose files are kept open; the oldest go first."""
UNSEEN_COUNT_MAX: Final = 1024
"""Threads remembered that are out of sight; the oldest go first."""

OTHERWISE: Final = (
    os.O_ACCMODE
    | os.O_CREAT
    | os.O_TRUNC
    | os.O_DIRECTORY
    | os.O_NOATIME  # refused to who does not own the file
    | os.O_NONBLOCK  # refused while somebody has a lease
    | os.O_PATH
)
"""With one of these flags it is not sure that an open for reading follows a look-up."""
_BYTES_MAX: Final = 256
_FLAGS_AT: Final[Mapping[str, Mapping[str, int]]] = MappingProxyType(
    {"x86_64": {"2": 2, "257": 3}, "aarch64": {"56": 3}}
)
"""By machine, and number of open and openat: which word of the call has the flags."""

_log = logging.getLogger(__name__)


class SystemCalls:
    """See module head; `close` it at the end."""

    def __init__(self, machine: str = platform.machine(), proc: Path = Path("/proc")) -> None:
        """`machine` is what programs are compiled for; `proc` is where the kernel tells of them."""
        self._proc = proc
        self._flags_at = _FLAGS_AT.get(machine, {}) if _is_of_this_namespace(proc) else {}
        self._files: dict[int, int] = {}
        """Descriptors, by thread."""
        self._unseen: dict[int, None] = {}

    def is_opening(self, thread_id: int) -> bool:
        """Return whether a thread waits in open(2) or openat(2), and does nothing but open for
        reading there; it may be out of sight.
        """
        if not self._flags_at or thread_id in self._unseen:
            return False
        descriptor = self._files.get(thread_id)
        try:
            if descriptor is not None:
                return self._is_to_read(descriptor)
        except OSError as error:  # that one has ended
            _log.debug("thread %d: %s", thread_id, error)
            self._forget(thread_id)
        try:
            return self._is_to_read(self._open(thread_id))
        except OSError as error:
            _log.debug("thread %d is out of sight: %s", thread_id, error)
            self._forget(thread_id)
            self._unseen[thread_id] = None
            forget_oldest(self._unseen, UNSEEN_COUNT_MAX)
        return False

    def close(self) -> None:
        """Close all files."""
        for thread_id in list(self._files):
            self._forget(thread_id)

    def _is_to_read(self, descriptor: int) -> bool:
        text = os.pread(descriptor, _BYTES_MAX, 0).decode("ascii", "replace")
        words = call_in(text).split()
        place = self._flags_at.get(words[0]) if words else None
        return place is not None and len(words) > place and not int(words[place], 16) & OTHERWISE

    def _open(self, thread_id: int) -> int:
        path = f"{self._proc}/{thread_id}/syscall"
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        while len(self._files) >= THREAD_COUNT_MAX:
            self._forget(next(iter(self._files)))
        self._files[thread_id] = descriptor
        return descriptor

    def _forget(self, thread_id: int) -> None:
        descriptor = self._files.pop(thread_id, None)
        if descriptor is not None:
            os.close(descriptor)


def _is_of_this_namespace(proc: Path) -> bool:
    """Return whether /proc numbers threads as this process does."""
    try:
        text = (proc / "self" / "status").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        _log.debug("what /proc tells of this process: %s", error)
        return False
    # A number in each namespace from that of /proc on, down to that of the process itself.
    numbers = [line.split()[1:] for line in text.splitlines() if line.startswith("NSpid:")]
    return all(len(found) == 1 for found in numbers)  # none: this kernel has one namespace
