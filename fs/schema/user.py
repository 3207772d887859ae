"""Users of a closed cluster, as everybody sees them.  Pure."""

from dataclasses import dataclass
from typing import Final

ID_MAX: Final = 2**32 - 2
"""Of users and groups; the next one means nobody's."""


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may hold tokens."""

    uid: int
    name: str
    gid: int
    groups: frozenset[int] = frozenset()
    """Supplementary groups."""
    is_root: bool = False
    """May speak for everybody: a mount daemon for which the kernel vouches."""
    is_admin: bool = False
    """May call what changes the cluster."""
