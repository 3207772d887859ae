"""On whose behalf a thread waits for a lock of fcntl: its process, or an open file description.

The kernel's request does not say: both come as owners of the same kind.  The system
call does, which /proc shows while the thread waits in it, to who may trace it; root
may, who usually serves a mount.
"""

import fcntl
import logging
from pathlib import Path

_log = logging.getLogger(__name__)

_F_SETLKW64 = 14
"""What 32-bit programs say."""
_OF_PROCESS = frozenset({fcntl.F_SETLKW, _F_SETLKW64})
_COMMAND_WORD = 2
"""Number of the system call, descriptor, command; then the other arguments."""


def waits_as_process(thread_id: int) -> bool | None:
    """Return whether a thread that waits for a lock does so for its process.

    None: it is not in a system call that waits, so far; False also when nobody says.
    """
    try:
        text = Path(f"/proc/{thread_id}/syscall").read_text(encoding="ascii")
    except OSError as error:
        _log.debug("system call of thread %d: %s", thread_id, error)
        return False
    if text.startswith("running"):
        return None
    words = text.split()
    return len(words) > _COMMAND_WORD and int(words[_COMMAND_WORD], 16) in _OF_PROCESS
