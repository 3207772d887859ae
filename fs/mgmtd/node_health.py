"""What the primary heard of one node since its reign began; it is lost with the reign.

Invariants:
    - At most REFUSED_COUNT_MAX incarnations are remembered as refused, the last ones.
    - A process that takes the place of another one begins with nothing that was heard of
      that, but for what is refused.

Does not judge: who has ended or is silent together.py says, and state.py acts on it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from .destinations import Disk

REFUSED_COUNT_MAX = 16
"""Remembered incarnations per node; an older one cannot have a heartbeat under way any more."""


@dataclass(slots=True)
class NodeHealth:
    """What the primary heard of one node since its reign began."""

    heard_s: float
    """Arrival of the last heartbeat; of the reign or the registration before the first."""
    demoted_version: int
    alive_s: float = -math.inf
    """When it was last heard, or answered a probe, in this reign."""
    ended: str = ""
    """The incarnation that has ended, and is to be judged with all others
    that have (together.py).
    """
    heartbeat_version: int = 0
    is_known: bool = False
    """Heard or judged: nothing is presumed of its targets any more."""
    is_judged: bool = False
    """Counts as failed since it was last heard."""
    is_beyond: bool = False
    """It acts on a routing version that this store has never had."""
    is_too_old: bool = False
    """Its storage process knows less than it has to (levels.py)."""
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
        self.ended = ""
