"""`ember fsck-disk`: is a disk that no process uses what its records say?

Exit codes: 0 nothing wrong (notices may be shown), 1 something is wrong (with --repair: something
is left), 2 the disk could not be checked.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...chunkengine.findings import Finding
from ...chunkengine.fsck_data import Tally
from ...chunkengine.fsck_disk import check_path, repair_path
from ...schema.status import FsError

if TYPE_CHECKING:
    from rich.progress import Progress

FOUND: Final = 1
CANNOT: Final = 2

_FINDINGS_MAX: Final = 100_000
"""Shown and repaired in one run; more of them say the same."""


def fsck_disk(path: Path, *, is_repair: bool, as_json: bool, has_data: bool) -> int:
    """Check, report, repair if asked to; return the exit code."""
    try:
        findings, tally = _check(path, has_data=has_data, as_json=as_json)
        repaired_count = repair_path(path, findings) if is_repair else 0
        left = [f for f in findings if not f.is_notice]
        if repaired_count:
            _say("repaired; checking again", as_json=as_json)
            again, tally = _check(path, has_data=has_data, as_json=as_json)
            left = [f for f in again if not f.is_notice]
    except FsError as error:
        sys.stderr.write(f"ember: {error}\n")
        return CANNOT
    summary = {
        "path": str(path),
        "is_clean": not left,
        "finding_count": sum(not f.is_notice for f in findings),
        "notice_count": sum(f.is_notice for f in findings),
        "repaired_count": repaired_count,
        "left_count": len(left),
        "chunk_count": tally.chunk_count,
        "data_bytes": tally.data_bytes,
        "findings": [f.facts() for f in findings],
    }
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
    else:
        sys.stdout.write(_summary(summary) + "\n")
    return FOUND if left else 0


def _check(path: Path, *, has_data: bool, as_json: bool) -> tuple[list[Finding], Tally]:
    tally, findings = Tally(), list[Finding]()
    with _progress(tally) as step:
        for finding in check_path(path, has_data=has_data, tally=tally, on_step=step):
            findings.append(finding)
            _say(finding.line(), as_json=as_json)
            if len(findings) >= _FINDINGS_MAX:
                _say(f"stopped after {_FINDINGS_MAX} findings", as_json=as_json)
                break
    return findings, tally


def _say(line: str, *, as_json: bool) -> None:
    if not as_json:
        sys.stdout.write(line + "\n")


def _summary(summary: dict[str, object]) -> str:
    parts = [
        f"{summary['path']}: {'clean' if summary['is_clean'] else 'NOT CLEAN'}",
        f"{summary['finding_count']} findings, {summary['notice_count']} notices",
    ]
    if summary["repaired_count"]:
        parts.append(f"{summary['repaired_count']} repaired, {summary['left_count']} left")
    parts.append(f"{summary['chunk_count']} chunks, {summary['data_bytes']} bytes of data verified")
    return "; ".join(parts)


@contextmanager
def _progress(tally: Tally) -> Iterator[Callable[[], None]]:
    """Show how far the check has come, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    bar = _bar()
    task = bar.add_task("checking", total=None)

    def step() -> None:
        bar.update(
            task,
            description=f"{tally.chunk_count} chunks",
            total=tally.data_bytes_total or None,
            completed=tally.data_bytes,
        )

    with bar:
        yield step


def _bar() -> "Progress":
    """Return a progress bar; rich is loaded only for people who look."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = TextColumn("ember: {task.description}"), BarColumn(), DownloadColumn()
    console = Console(stderr=True, highlight=False, markup=False)
    return Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console)
