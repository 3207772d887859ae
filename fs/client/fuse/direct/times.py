"""How long the requests of the kernel took, and which failed:
counted by the loop that serves them.
"""

import errno
from bisect import bisect_left
from collections.abc import Sequence

from ....runtime.figures import BOUNDS_S, Figures, Histogram
from ....runtime.readiness import current_time
from ....schema import metrics
from ...vfs.profile import Profile
from .device import Request
from .protocol import Opcode

_MOVERS = (Opcode.READ, Opcode.WRITE)
_NODE_ID, _PID, _SIZE = 3, 6, 11
"""Of a READ as it came."""
_NAMES: dict[int, str] = {opcode.value: opcode.name.lower() for opcode in Opcode}


class OperationTimes:
    """Of one mount, since its start."""

    def __init__(self, profile: Profile | None = None) -> None:
        """Count from now on; tell `profile` what happens while somebody looks at it."""
        self._profile = profile or Profile()
        self._durations: dict[int, Histogram] = {}
        self._errors: dict[tuple[int, int], int] = {}
        self.moved_bytes = 0
        """By the read or write that was answered last."""
        self.read_bytes = 0
        self.written_bytes = 0

    def note(self, request: Request, began_s: float) -> None:
        """A request that began at this trio time has just been answered, well or not."""
        self.note_took(request, current_time() - began_s)

    def note_took(self, request: Request, took_s: float) -> None:
        """A request that took so long has just been answered, well or not."""
        opcode = request.opcode
        duration = self._durations.get(opcode)
        if duration is None:
            duration = self._durations[opcode] = Histogram()
        duration.counts[bisect_left(BOUNDS_S, took_s)] += 1  # as `note`, without a call
        duration.sum_s += took_s
        if self._profile.is_on:
            moved = self.moved_bytes if opcode in _MOVERS else 0
            self._profile.note(request.pid, name_of(opcode), request.node_id, moved, took_s)

    def note_reads(self, rows: Sequence[tuple[int, ...]], byte_count: int, began_s: float) -> None:
        """READs that began at this trio time, as `READ_REQUEST` has them,
        have just been answered well, with so many bytes in all.
        """
        self.read_bytes += byte_count
        duration = self._durations.get(Opcode.READ)
        if duration is None:
            duration = self._durations[Opcode.READ] = Histogram()
        took_s = current_time() - began_s
        duration.note(took_s, len(rows))
        if self._profile.is_on:
            for row in rows:
                node_id, pid, size = row[_NODE_ID], row[_PID], row[_SIZE]
                self._profile.note(pid, name_of(Opcode.READ), node_id, size, took_s)

    def note_error(self, opcode: int, error_number: int) -> None:
        """A request was answered with an errno."""
        key = opcode, error_number
        self._errors[key] = self._errors.get(key, 0) + 1

    def say(self, figures: Figures) -> None:
        """Say everything."""
        figures.note(metrics.MOUNT_READ, self.read_bytes)
        figures.note(metrics.MOUNT_WRITTEN, self.written_bytes)
        for opcode, duration in self._durations.items():
            figures.note_histogram(metrics.MOUNT_DURATION, duration, name_of(opcode))
        for (opcode, number), count in self._errors.items():
            error = errno.errorcode.get(number, str(number))
            figures.note(metrics.MOUNT_ERRORS, count, name_of(opcode), error)


def name_of(opcode: int) -> str:
    """Return how people call an operation; its number if we do not know it."""
    return _NAMES.get(opcode) or str(opcode)
