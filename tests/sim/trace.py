"""What happened, in order, in virtual time: the proof that two runs of one seed are the same."""

import hashlib
from collections.abc import Callable

import trio


class Trace:
    """Lines of (virtual time, what, detail)."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.listen: Callable[..., None] = lambda *_: None
        """Told of each event, too."""

    def add(self, what: str, detail: object) -> None:
        """Add one event at the current virtual time."""
        self.lines.append(f"{trio.current_time():12.6f} {what:10} {detail}")
        self.listen(what, detail)

    def digest(self) -> str:
        """Return a hash over all lines."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]
