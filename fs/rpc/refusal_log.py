"""Tells the log of refused peers: each once with its reason,
and not so often that the log is filled by them.
"""

import logging
from dataclasses import dataclass
from typing import Final

import trio

from ..schema.status import FsError, Status

log = logging.getLogger(__name__)

QUIET_S: Final = 10.0
"""The same refusal of the same peer is told again after this long,
with how often it happened meanwhile.
"""

NOTES_MAX: Final = 256
"""Remembered; the oldest gives way."""


@dataclass(slots=True)
class _Note:
    told_s: float
    silent_count: int = 0


def host_of(peer_name: str) -> str:
    """Return a peer's name without its port, which is another one for every connection."""
    host, _, port = peer_name.rpartition(":")
    return host if port.isdecimal() else peer_name


class RefusalLog:
    """See the module head.  One of each server."""

    def __init__(self) -> None:
        self._notes: dict[tuple[str, str, Status], _Note] = {}

    def note(self, peer_name: str, what: str, error: FsError) -> None:
        """Log a refusal of a peer, unless the same was logged just now."""
        now_s = trio.current_time()
        key = host_of(peer_name), what, error.status
        note = self._notes.get(key)
        if note is not None and now_s - note.told_s < QUIET_S:
            note.silent_count += 1
            return
        more = f" ({note.silent_count} more times before)" if note and note.silent_count else ""
        self._notes.pop(key, None)
        while len(self._notes) >= NOTES_MAX:
            del self._notes[next(iter(self._notes))]
        self._notes[key] = _Note(now_s)
        log.warning("%s: %s: %s%s", peer_name, what, error, more)
