"""By what name the program goes whose thread made a request of the kernel.

A thread that has given itself a name goes by that.  Nothing is kept.
"""

import logging
from pathlib import Path

_log = logging.getLogger(__name__)


def program_of(thread_id: int) -> str:
    """Return the name, of 15 bytes at the most; empty: the thread has gone, or is out of sight."""
    try:
        return Path(f"/proc/{thread_id}/comm").read_text(errors="replace").rstrip("\n")
    except OSError as error:
        _log.debug("program of thread %d: %s", thread_id, error)
        return ""
