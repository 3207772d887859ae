"""Processor time of all who move bytes for a program:
itself, the mount daemon, the storage processes, the others.

On a machine that others use, too, rates tell what was left over; this
tells what moving the bytes takes.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .cluster import Nodes
from .machine import processor_s

GB = 1e9


@dataclass(slots=True)
class Used:
    """Processor seconds, kernel included: in all,
    or for each GB (1e9 bytes) that a program asked for.
    """

    program: float = 0.0
    mount: float = 0.0
    """Of mount daemons."""
    storage: float = 0.0
    """Of all storage processes together."""
    others: float = 0.0
    """Of managers, metadata services and the key-value store."""

    @property
    def total(self) -> float:
        """Of all of them."""
        return self.program + self.mount + self.storage + self.others

    def add(self, other: "Used", factor: float = 1.0) -> None:
        """Add, or with -1 take away."""
        self.program += factor * other.program
        self.mount += factor * other.mount
        self.storage += factor * other.storage
        self.others += factor * other.others

    def per_gb(self, byte_count: float) -> "Used":
        """Return what moving so many bytes comes to for each GB;
        copies on replicas are not counted.
        """
        found = Used()
        found.add(self, GB / byte_count)
        return found

    def __str__(self) -> str:
        """Return the sum and its parts, in two digits or more,
        in the order in which they stand above.
        """
        parts = (self.program, self.mount, self.storage, self.others)
        return f"{self.total:.2f} = " + " + ".join(f"{part:.2f}" for part in parts)


class Meter:
    """Reads what the processes of a local cluster have used;
    they are those that run when it is made.
    """

    def __init__(self, directory: Path | None = None) -> None:
        """Take the directory of a cluster; without one there is nobody but the program."""
        roles = {"mountd": "mount", "storage": "storage"}
        services = Nodes(directory).status()["services"] if directory else []
        self._parts = {s["pid"]: roles.get(s["role"], "others") for s in services if s["pid"]}

    @contextmanager
    def used(self) -> Iterator[Used]:
        """Yield what will hold, after the block, what was used in it; `program` is this process."""
        found = self._now()
        found.add(found, -2.0)
        yield found
        found.add(self._now())

    def _now(self) -> Used:
        found = Used(program=time.process_time())
        for pid, part in self._parts.items():
            setattr(found, part, getattr(found, part) + processor_s(pid))
        return found
