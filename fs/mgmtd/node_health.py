"""What a primary remembers of a node that it does not publish: when it was heard, and which of its processes.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from .destinations import Disk

REFUSED_COUNT_MAX: Final = 16
"""Remembered incarnations per node; an older one cannot have a heartbeat under way any more."""


@dataclass(slots=True)
class NodeHealth:
    """What the primary heard of one node since its reign began."""

    heard_s: float
    """Arrival of the last heartbeat; of the reign or the registration before the first."""
    demoted_version: int
    heartbeat_version: int = 0
    began_s: float = 0.0
    """When this incarnation was heard first in this reign."""
    is_known: bool = False
    """Heard or judged: nothing is presumed of its targets any more."""
    is_judged: bool = False
    """Counts as failed since it was last heard."""
    refused: list[str] = field(default_factory=list)
    """Incarnations whose heartbeats are not taken."""
    disks: Mapping[int, Disk] = field(default_factory=dict)
    """Of a storage node, by disk index; empty before its first heartbeat."""

    def refuse(self, incarnation: str) -> None:
        """Take no heartbeat of an incarnation any more."""
        if incarnation and incarnation not in self.refused:
            self.refused = [*self.refused, incarnation][-REFUSED_COUNT_MAX:]

    def restart(self, replaced: str) -> None:
        """Begin anew for the process that replaced an incarnation."""
        self.refuse(replaced)
        self.heartbeat_version = 0
        self.is_known = True
