"""How long the requests of the kernel took, and which failed: counted by the loop that serves them."""

import errno

import trio

from ....runtime.figures import Figures, Histogram
from ....schema import metrics
from .protocol import Opcode


class OperationTimes:
    """Of one mount, since its start."""

    def __init__(self) -> None:
        self._durations: dict[int, Histogram] = {}
        self._errors: dict[tuple[int, int], int] = {}
        self.read_bytes = 0
        self.written_bytes = 0

    def note(self, opcode: int, began_s: float) -> None:
        """A request that began at this trio time has been answered, well or not."""
        duration = self._durations.get(opcode)
        if duration is None:
            duration = self._durations[opcode] = Histogram()
        duration.note(trio.current_time() - began_s)

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
    known = opcode in Opcode.__members__.values()
    return Opcode(opcode).name.lower() if known else str(opcode)
