"""`ember fsck`: the whole of a check, with repairs if asked for.

One round reads one state of the store; with a running cluster it lists the chunks of all targets
before, and looks at suspects again afterwards, so what others do meanwhile is never a finding.
After repairs a new round says what is left: some repairs make others possible.

Memory: see fs/meta/fsck_scan.py; and the findings, at most FINDINGS_MAX.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import trio

from ..kv.api import KeyValue, KvEngine, next_key
from ..kv.lasting import LastingSnapshot, open_snapshot
from ..meta import records
from ..meta.fsck_facts import Finding, Kind
from ..meta.fsck_repair import repair, void_caches
from ..meta.fsck_scan import Scan, Tally, judges_nothing
from ..meta.shapes import has_shape
from ..runtime.ports import Clock, Runtime
from ..runtime.sorter import Sorter
from ..schema.proto.record_pb2 import FormatRecordPb
from ..schema.status import FsError, Status
from .backup import UNFINISHED, UNFINISHED_VERSION
from .fsck_chunks import ChunkRules, Cluster, is_still_so, list_all, remove_orphans

log = logging.getLogger(__name__)

FINDINGS_MAX: Final = 100_000
"""Of one round; more of them say the same."""
ROUNDS_MAX: Final = 8
PAUSE_S_MAX: Final = 1.0

Connect = Callable[[], Awaitable[Cluster]]


class PacedSnapshot:
    """Leaves the store alone as long as reading and judging the last page has taken."""

    def __init__(self, snapshot: LastingSnapshot, clock: Clock) -> None:
        self.version = snapshot.version
        self._snapshot = snapshot
        self._clock = clock
        self._began_s = clock.monotonic_s()

    async def page(self, begin: bytes, end: bytes, *, is_whole: bool = False) -> list[KeyValue]:
        """See LastingSnapshot.page."""
        worked_s = self._clock.monotonic_s() - self._began_s
        await trio.sleep(min(worked_s, PAUSE_S_MAX))
        self._began_s = self._clock.monotonic_s()
        return await self._snapshot.page(begin, end, is_whole=is_whole)


async def _require_known(snapshot: LastingSnapshot) -> None:
    """Refuse a store of which this release would misjudge what it holds.

    Raises:
        FsError: KV_BAD_FORMAT: it is of a newer release, or a restore was not finished.
    """
    rows = dict(await snapshot.page(records.FORMAT_KEY, next_key(records.FORMAT_KEY)))
    value = rows.get(records.FORMAT_KEY)
    if value is None or not has_shape(records.FORMAT_KEY, value):
        return  # a finding
    version = FormatRecordPb.FromString(value).format_version
    if version == UNFINISHED_VERSION:
        raise FsError(Status.KV_BAD_FORMAT, UNFINISHED)
    if version > records.FORMAT_VERSION:
        detail = f"meta format {version}, this release knows {records.FORMAT_VERSION}"
        raise FsError(Status.KV_BAD_FORMAT, detail)


@dataclass(slots=True)
class Report:
    """What a check found."""

    findings: list[Finding] = field(default_factory=list)
    """Of the first round, notices too."""
    left: list[Finding] = field(default_factory=list)
    """Of the last round, without notices."""
    repaired_count: int = 0
    inode_count: int = 0
    row_count: int = 0
    chunk_count: int = 0
    is_cut: bool = False
    """There were more findings than FINDINGS_MAX."""


@dataclass(frozen=True, slots=True)
class Check:
    """What is to be checked, and how."""

    engine: KvEngine
    runtime: Runtime
    connect: Connect | None = None
    """Gives the running cluster, anew for each round;
    None: it does not run, chunks are not looked at.
    """
    may_pause: bool = False
    is_paced: bool = True
    removes_chunks: bool = False
    """Whether a repair may remove chunks that belong to nobody: their bytes are gone then."""
    removes_damaged: bool = False
    """Whether a repair may remove inodes that nobody can read: their files are lost then."""
    on_progress: Callable[[Tally], None] = lambda _tally: None

    async def run(self, *, is_repair: bool) -> Report:
        """Check; repair if asked to, and check again until nothing more can be repaired.

        Raises:
            FsError: the store, or the manager, does not answer.
        """
        report = Report()
        for round_ in range(ROUNDS_MAX):
            found, cluster = await self._round(report)
            if not round_:
                report.findings = found
            report.left = [finding for finding in found if not finding.is_notice]
            if not is_repair or not report.left:
                break
            done_count = sum([await self._repair(finding, cluster) for finding in report.left])
            report.repaired_count += done_count
            if not done_count:
                break
            await void_caches(self.engine, self.runtime)
        return report

    async def _round(self, report: Report) -> tuple[list[Finding], Cluster | None]:
        cluster = None if self.connect is None else await self.connect()
        sorter = Sorter()
        try:
            notices = [] if cluster is None else await list_all(cluster, sorter)
            rules = None if cluster is None else ChunkRules(cluster, is_complete=not notices)
            found = notices + await self._scan(sorter, rules, report)
        finally:
            sorter.close()
        if cluster is None:
            return found, None
        report.chunk_count = cluster.chunk_count
        confirmed = [await self._confirmed(cluster, finding) for finding in found]
        return [finding for finding in confirmed if finding is not None], cluster

    async def _scan(
        self, sorter: Sorter, rules: ChunkRules | None, report: Report
    ) -> list[Finding]:
        found: list[Finding] = []
        async with open_snapshot(self.engine, self.runtime, may_pause=self.may_pause) as snapshot:
            await _require_known(snapshot)
            # A pause is to be short.
            is_paced = self.is_paced and not self.may_pause
            scan = Scan(
                PacedSnapshot(snapshot, self.runtime.clock) if is_paced else snapshot,
                sorter,
                judge_more=rules.judge if rules else judges_nothing,
                on_progress=self.on_progress,
            )
            async with aclosing(scan.findings()) as findings:
                async for finding in findings:
                    found.append(finding)
                    if len(found) >= FINDINGS_MAX:
                        report.is_cut = True
                        break
        report.inode_count, report.row_count = scan.tally.inode_count, scan.tally.row_count
        return found

    async def _confirmed(self, cluster: Cluster, finding: Finding) -> Finding | None:
        """Look at a suspect again; what cannot be looked at is mentioned,
        and neither told nor repaired.
        """
        if finding.chunks is None and finding.space is None:
            return finding
        try:
            return finding if await is_still_so(self.engine, cluster, finding) else None
        except FsError as error:
            text = f"{finding.text} (not confirmed: {error})"
            return Finding(Kind.NOT_LOOKED_AT, finding.inode_id, text, is_notice=True)

    async def _repair(self, finding: Finding, cluster: Cluster | None) -> bool:
        """Put one finding right; what cannot be now stays among those that are left."""
        try:
            if finding.kind is Kind.ORPHAN_CHUNK:
                if cluster is None or not self.removes_chunks:
                    return False
                count = await remove_orphans(cluster, finding)
                log.warning("removed %d chunks: %s", count, finding.line())
                return count > 0
            if finding.is_loss and not self.removes_damaged:
                return False
            return await repair(self.engine, self.runtime, finding)
        except FsError as error:
            log.warning("not repaired: %s: %s", finding.line(), error)
            return False
