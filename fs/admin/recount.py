"""`ember quota recount`: the counters of usage against what there is, while others work.

Counting is that of a check (fs/meta/fsck_scan.py): one state of the store, of which all usage
is summed up.  A counter that is wrong gets what it lacks added, in a transaction that makes
sure that no directory has moved meanwhile; what others add stays.  So the counters are right
at any load, and nobody waits.

Only counters are judged.  Where records contradict each other (homes, loops, what cannot be read),
usage means nothing: then nothing is repaired, and the report says that `ember fsck` comes first.

Memory: as of a check, some 400 bytes for each directory; and what is wrong.
"""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from ..kv.api import KvEngine, Transaction
from ..kv.lasting import open_snapshot
from ..kv.transact import snapshot_read
from ..meta import records
from ..meta.dentries import load_dentry
from ..meta.fsck_facts import Finding, Kind
from ..meta.fsck_repair import repair
from ..meta.fsck_scan import Scan, Tally
from ..meta.inodes import load_inode
from ..runtime.ports import Runtime
from ..runtime.sorter import Sorter
from ..schema.ids import ROOT_INODE_ID
from ..schema.proto import common_pb2 as pb
from ..schema.status import FsError, Status
from .fsck import PacedSnapshot

ROUNDS_MAX: Final = 8
"""A directory that is moved between counting and repair has its counters judged anew."""

_DEPTH_MAX: Final = 65_536

UNCERTAIN: Final = frozenset(
    {
        Kind.WRONG_HOME,
        Kind.WRONG_PARENT,
        Kind.WRONG_TYPE,
        Kind.WRONG_NLINK,
        Kind.EXTRA_NAME,
        Kind.LOOP,
        Kind.NO_ROOT,
        Kind.NO_DIRECTORY,
        Kind.DANGLING_NAME,
        Kind.ORPHAN_INODE,
        Kind.DAMAGED_RECORD,
        Kind.WRONG_ID,
        Kind.WRONG_FILE,
    }
)
"""Findings beside which nobody can say what a directory holds."""


@dataclass(frozen=True, slots=True)
class WrongUsage:
    """A directory whose counters are not what it holds."""

    inode_id: int
    path: str
    missing: dict[str, int]
    """What must be added: bytes, files, directories; those that are wrong."""
    finding: Finding

    def facts(self) -> dict[str, object]:
        """Return what programs read."""
        return {"inode_id": self.inode_id, "path": self.path, "missing": self.missing}


@dataclass(slots=True)
class Recounted:
    """What was found, and done."""

    wrong: list[WrongUsage] = field(default_factory=list)
    """Of the first round."""
    left: list[WrongUsage] = field(default_factory=list)
    """Of the last one."""
    repaired_count: int = 0
    inode_count: int = 0
    uncertain: list[Finding] = field(default_factory=list)
    """What is to be repaired first."""


_WORDS: Final = {
    records.KIND_BYTES: "bytes",
    records.KIND_FILES: "files",
    records.KIND_DIRECTORIES: "directories",
}


async def find_directory(engine: KvEngine, path: Sequence[bytes]) -> int:
    """Return the directory that names lead to from the root; symbolic links are not followed.

    Raises:
        FsError: NOT_FOUND, NOT_DIRECTORY.
    """

    async def walk(tr: Transaction) -> int:
        here: int = ROOT_INODE_ID
        for name in path:
            dentry = await load_dentry(tr, here, name, snapshot=True)
            if dentry.type != pb.DIRECTORY:
                raise FsError(Status.NOT_DIRECTORY, f"{name!r} in directory {here:#x}")
            here = dentry.inode_id
        return here

    return await snapshot_read(engine, walk)


async def recount(
    engine: KvEngine,
    runtime: Runtime,
    top_id: int,
    *,
    is_repair: bool,
    may_pause: bool = False,
    on_progress: Callable[[Tally], None] = lambda _tally: None,
) -> Recounted:
    """Count all that there is; compare, and repair, the counters of a directory and all below it.

    Args:
        engine: the store.
        runtime: clock and randomness.
        top_id: the directory; the root: everything.
        is_repair: whether to put counters right.
        may_pause: whether changes may be held up where the store keeps no lasting snapshots.
        on_progress: told now and then.

    Raises:
        FsError: the store does not answer.
    """
    report = Recounted()
    for number in range(ROUNDS_MAX):
        found = await _count(engine, runtime, report, may_pause=may_pause, on_progress=on_progress)
        report.left = [w for f in found if (w := await _below(engine, f, top_id)) is not None]
        if not number:
            report.wrong = report.left
        if not is_repair or not report.left or report.uncertain:
            break
        for wrong in report.left:
            report.repaired_count += await repair(engine, runtime, wrong.finding)
    return report


async def _count(
    engine: KvEngine,
    runtime: Runtime,
    report: Recounted,
    *,
    may_pause: bool,
    on_progress: Callable[[Tally], None],
) -> list[Finding]:
    """Return the findings about usage of one state; note what makes them uncertain."""
    sorter, found = Sorter(), []
    report.uncertain = []
    try:
        async with open_snapshot(engine, runtime, may_pause=may_pause) as snapshot:
            paced = snapshot if may_pause else PacedSnapshot(snapshot, runtime.clock)
            scan = Scan(paced, sorter, on_progress=on_progress)
            async with aclosing(scan.findings()) as findings:
                async for finding in findings:
                    if finding.kind is Kind.WRONG_USAGE:
                        found.append(finding)
                    elif finding.kind in UNCERTAIN:
                        report.uncertain.append(finding)
    finally:
        sorter.close()
    report.inode_count = scan.tally.inode_count
    return found


async def _below(engine: KvEngine, finding: Finding, top_id: int) -> WrongUsage | None:
    """Return what is wrong when the directory is, or lies below, `top_id`;
    None: it does not, or is gone by now.
    """

    async def names_above(tr: Transaction) -> list[tuple[int, bytes]]:
        above: list[tuple[int, bytes]] = []
        inode_id = finding.inode_id
        while inode_id != ROOT_INODE_ID and len(above) < _DEPTH_MAX:
            inode = await load_inode(tr, inode_id, snapshot=True)
            above.append((inode_id, inode.directory.name))
            inode_id = inode.directory.parent_inode_id
        return [*above, (ROOT_INODE_ID, b"")]

    try:
        above = await snapshot_read(engine, names_above)
    except FsError as error:
        if error.status is not Status.STALE:
            raise
        return None
    if top_id not in {inode_id for inode_id, _ in above}:
        return None
    path = b"/".join(name for _, name in reversed(above)) or b"/"
    missing = {_WORDS[key[12:]]: count for key, count in finding.adds}
    return WrongUsage(finding.inode_id, path.decode("utf-8", "backslashreplace"), missing, finding)
