"""Disks that served under another store of this cluster:
the managers' store is gone, and chains were made anew in an empty one.

The first chains of a store get its birth, the time at which they were made, and each target that
serves notes that of its chain on its disk (fs/storage/standings.py).  So a disk that comes with
another birth holds files whose names are in the store that is gone.  It counts as away: it would
serve their chunks under the inode numbers of new files, and be overwritten by a resync.

Invariant: a target is refused for as long as its disk says another birth than its chain; an emptied
disk says none. A birth that is not known, of a release that noted none, refuses nobody.

Pure but for the table itself.  Decision: specs/decisions/0140-births-of-stores.md.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime

from ..schema.ids import TargetId
from ..schema.proto.mgmtd_pb2 import TargetReportPb
from ..schema.routing import Chain, RoutingInfo
from ..schema.standing import Standing, standing_from_pb
from ..schema.status import FsError, Status

logger = logging.getLogger(__name__)


class Births:
    """Who came with a disk of another store."""

    def __init__(self) -> None:
        self._refused: dict[TargetId, FsError] = {}

    def hear(self, chain: Chain | None, report: TargetReportPb) -> bool:
        """Take in what a member of a chain reports;
        return whether it began, or ceased, to be refused.
        """
        target_id = TargetId(report.target_id)
        was_refused = target_id in self._refused
        noted = standing_from_pb(report.standing)
        if chain is None or not noted.is_of_other_store(chain.birth_ns):
            self._refused.pop(target_id, None)
            return was_refused
        if not was_refused:
            self._refused[target_id] = _refusal(target_id, noted.birth_ns, chain)
            logger.error("chain %d: %s", chain.chain_id, self._refused[target_id])
        return not was_refused

    def refusal(self, target_id: TargetId) -> FsError | None:
        """Return why a target counts as away, for people; None: it does not, by this."""
        return self._refused.get(target_id)


def of_other_stores(
    info: RoutingInfo, noted: Mapping[TargetId, Standing | None]
) -> frozenset[TargetId]:
    """Return the targets, also those in no chain, whose disks hold what belongs to another store:
    nothing of it is ever dropped unasked.
    """
    birth_ns = next((c.birth_ns for c in info.chains.values() if c.birth_ns), 0)
    return frozenset(t for t, s in noted.items() if s is not None and s.is_of_other_store(birth_ns))


def _refusal(target_id: TargetId, birth_ns: int, chain: Chain) -> FsError:
    return FsError(
        Status.FOREIGN_DISK,
        f"target {target_id}: its disk served chains of another store, made {_time(birth_ns)}: "
        "bring that store back, or restore a backup of it (the chains of this one were made "
        f"{_time(chain.birth_ns)})",
    )


def _time(birth_ns: int) -> str:
    try:
        return datetime.fromtimestamp(birth_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # of a clock that was far off
        return f"at {birth_ns} ns"
