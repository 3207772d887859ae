"""How the transactions of one service went:
counted where they are run, said when its metrics are read.
"""

from dataclasses import dataclass, field

from ..runtime.figures import Figures
from ..schema import metrics
from ..schema.status import Status


@dataclass(slots=True)
class Tally:
    """Counts of one service, since its start."""

    commit_count: int = 0
    retries: dict[Status, int] = field(default_factory=dict)
    """Runs that had to be repeated, or were given up after, by their status."""

    def note_retry(self, status: Status) -> None:
        """A run did not commit, or nobody knows."""
        self.retries[status] = self.retries.get(status, 0) + 1

    def say(self, service: str, figures: Figures) -> None:
        """Say it, as of the named service."""
        figures.note(metrics.KV_COMMITS, self.commit_count, service)
        for status, count in self.retries.items():
            figures.note(metrics.KV_RETRIES, count, service, status.name)
