"""What was said before a command of `ember admin`:
how to reach a cluster that is not of this machine.
"""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """Options of `ember admin` itself; empty: not given."""

    at: str = ""
    kv: str = ""
    cluster_id: str = ""


NO_ENTRY = Entry()
_ENTRY: ContextVar[Entry] = ContextVar("_ENTRY")


def current_entry() -> Entry:
    """Return what counts for the commands that run now."""
    return _ENTRY.get(NO_ENTRY)


def set_entry(entry: Entry) -> None:
    """Have it count from now on, in this process."""
    _ENTRY.set(entry)
