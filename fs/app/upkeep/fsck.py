"""`ember fsck`: is the namespace of a cluster sound, and does every chunk belong to a file?

Exit codes: 0 nothing wrong (notices may be shown), 1 something is wrong (with --repair: something
is left), 2 it could not be checked.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from ...admin.fsck import Check, Report
from ...admin.fsck_chunks import Cluster
from ...meta.fsck_scan import Tally
from ...node.mgmtd_link import MgmtdLink
from ...runtime.log import set_up_logging
from ...schema.proto.mgmtd_pb2 import ListClientSessionsReq
from ...schema.services import MGMTD_LIST_CLIENT_SESSIONS
from ...schema.status import FsError
from ..reach.mgmtd_link import newest_routing
from ..stores.store_access import OpenStore, StoreChoice, check_exists, open_chosen
from ..terminal.errors import unwrapped

if TYPE_CHECKING:
    from rich.progress import Progress

FOUND: Final = 1
CANNOT: Final = 2
MGMTD_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class _How:
    """The options, as `fsck` gets them."""

    managers: list[str]
    is_repair: bool
    removes_chunks: bool
    removes_damaged: bool
    may_pause: bool
    is_paced: bool
    step: Callable[[Tally], None]


def fsck(
    choice: StoreChoice,
    managers: list[str] | None,
    *,
    is_repair: bool,
    removes_chunks: bool,
    removes_damaged: bool,
    as_json: bool,
    may_pause: bool,
    is_paced: bool,
) -> int:
    """Check, report, repair if asked to; return the exit code.

    Args:
        choice: the store.
        managers: addresses of the managers of the cluster; none: it does not run, and only the
            store is checked; None: only a store was named.
        is_repair: whether to put right what can be.
        removes_chunks: whether to remove chunks without a file, too.
        removes_damaged: whether to remove inodes that nobody can read, too.
        as_json: for programs.
        may_pause: whether changes may be held up where the store keeps no lasting snapshots.
        is_paced: whether to leave half of the time to others.
    """
    is_repair = is_repair or removes_chunks or removes_damaged
    if is_repair:  # each of them is logged
        set_up_logging("warning")
    try:
        check_exists(choice)
        with unwrapped(), show_progress() as step:
            how = _How(
                managers or [],
                is_repair,
                removes_chunks,
                removes_damaged,
                may_pause,
                is_paced,
                step,
            )
            report = trio.run(_run, choice, how)
    except FsError as error:
        sys.stderr.write(f"ember: {error}\n")
        return CANNOT
    _tell(choice, report, managers, as_json=as_json)
    return FOUND if report.left else 0


async def _run(choice: StoreChoice, how: _How) -> Report:
    async with open_chosen(choice) as store:
        check = Check(
            store.engine,
            store.runtime,
            partial(_connect, store, how.managers) if how.managers else None,
            may_pause=how.may_pause,
            is_paced=how.is_paced,
            removes_chunks=how.removes_chunks,
            removes_damaged=how.removes_damaged,
            on_progress=how.step,
        )
        return await check.run(is_repair=how.is_repair)


async def _connect(store: OpenStore, managers: list[str]) -> Cluster:
    mgmtd = MgmtdLink(store.channels, managers, store.runtime)
    info = await newest_routing(mgmtd, MGMTD_TIMEOUT_S)
    reply = await mgmtd.call(
        MGMTD_LIST_CLIENT_SESSIONS, ListClientSessionsReq(), timeout_s=MGMTD_TIMEOUT_S
    )
    living = frozenset(session.client_id for session in reply.sessions)
    return Cluster(
        store.channels,
        info,
        living if reply.is_complete else None,
        store.runtime.clock.wall_ns(),
    )


def _tell(
    choice: StoreChoice, report: Report, managers: list[str] | None, *, as_json: bool
) -> None:
    told = {
        "store": choice.text,
        "is_clean": not report.left,
        "finding_count": sum(not f.is_notice for f in report.findings),
        "notice_count": sum(f.is_notice for f in report.findings),
        "repaired_count": report.repaired_count,
        "left_count": len(report.left),
        "inode_count": report.inode_count,
        "record_count": report.row_count,
        "chunk_count": report.chunk_count if managers else None,
        "is_cut": report.is_cut,
        "findings": [finding.facts() for finding in report.findings],
        "left": [finding.facts() for finding in report.left],
    }
    if as_json:
        sys.stdout.write(json.dumps(told) + "\n")
        return
    for finding in report.findings:
        sys.stdout.write(finding.line() + "\n")
    for finding in report.left if report.repaired_count else ():
        sys.stdout.write(f"LEFT {finding.line()}\n")
    why = (
        "the cluster does not run" if managers is not None else "name its cluster by --config FILE"
    )
    sys.stdout.write(_summary(told, why) + "\n")


def _summary(told: dict[str, object], without_chunks: str) -> str:
    parts = [
        f"{told['store']}: {'clean' if told['is_clean'] else 'NOT CLEAN'}",
        f"{told['finding_count']} findings, {told['notice_count']} notices",
    ]
    if told["repaired_count"]:
        parts.append(f"{told['repaired_count']} repairs, {told['left_count']} left")
    chunks = f"chunks not looked at: {without_chunks}"
    if told["chunk_count"] is not None:
        chunks = f"{told['chunk_count']} copies of chunks"
    parts.append(f"{told['inode_count']} inodes, {told['record_count']} records, {chunks}")
    if told["is_cut"]:
        parts.append("stopped early, there are more")
    return "; ".join(parts)


@contextmanager
def show_progress() -> Iterator[Callable[[Tally], None]]:
    """Show on a terminal how far a check has come."""
    if not sys.stderr.isatty():
        yield lambda _tally: None
        return
    bar = _bar()
    task = bar.add_task("checking", total=None)

    def step(tally: Tally) -> None:
        bar.update(task, description=f"{tally.inode_count} inodes, {tally.row_count} records")

    with bar:
        yield step


def _bar() -> "Progress":
    """Return a spinner; rich is loaded only for people who look."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    text = TextColumn("ember: {task.description}")
    console = Console(stderr=True, highlight=False, markup=False)
    return Progress(SpinnerColumn(), text, TimeElapsedColumn(), console=console)
