"""`ember profile`: what the programs on a mount do, live,
as its daemon tells whoever reads an attribute of the mount.

The daemon counts from the first reading on, and stops some seconds after the last
(fs/client/vfs/profile.py): so a mount at which nobody looks pays nothing.
"""

import errno
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate, islice, repeat
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from ...client.vfs.profile import PROFILE_ATTRIBUTE
from ...runtime.figures import BOUNDS_S
from ...schema.status import FsError, Status
from ..terminal.amounts import bytes_text, duration_text
from ..terminal.cells import cell
from .scraped import quantile
from .top import FILE_WIDTH

ROW_COUNT: Final = 30
FILE_COUNT: Final = 10
DESCRIPTOR_COUNT_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Row:
    """One operation of one process, per second."""

    pid: int
    command: str
    operation: str
    calls_per_s: float
    bytes_per_s: float
    mean_s: float
    p50_s: float
    p99_s: float
    """Of 99 of 100 calls, as far as the buckets of the histogram tell;
    of entries of rings: of the batches.
    """
    share: float
    """So many calls were under way at the same time, in the mean:
    the time of all calls by that of the interval.
    """


@dataclass(frozen=True, slots=True)
class FileRow:
    """One file or directory, per second."""

    inode_id: int
    path: str
    """Where the process has it open; empty: not any more, or not known."""
    calls_per_s: float
    bytes_per_s: float
    pid: int
    """Of the process that used it last."""


@dataclass(frozen=True, slots=True)
class View:
    """What happened between two readings."""

    seconds: float
    rows: list[Row]
    files: list[FileRow]
    left_out: int
    """Processes that there was no room to tell of."""


Profile = dict[str, Any]
"""As fs/client/vfs/profile.py makes it."""


def read_profile(mount_point: Path) -> Profile:
    """Return what the mount's daemon has counted; raises FsError(NOT_RUNNING, NOT_PERMITTED)."""
    try:
        value = os.getxattr(mount_point, PROFILE_ATTRIBUTE)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            detail = f"{mount_point} is no mount of EmberFS, or of a release that tells nothing"
            raise FsError(Status.NOT_RUNNING, detail) from error
        if error.errno == errno.EPERM:
            detail = f"{mount_point}: only root and the user of its daemon may look"
            raise FsError(Status.NOT_PERMITTED, detail) from error
        raise
    found: Profile = json.loads(value)
    return found


def view_between(before: Profile, after: Profile, mount_point: Path) -> View:
    """Return what happened between two readings, the busiest first;
    one of a count begun anew counts from its start.
    """
    if after["began_s"] != before["began_s"]:
        before = {"at_s": after["began_s"], "processes": [], "files": []}
    seconds = max(after["at_s"] - before["at_s"], 1e-3)
    known = {
        (process["pid"], name): one
        for process in before["processes"]
        for name, one in process["operations"].items()
    }
    rows = [
        row
        for process in after["processes"]
        for name, one in process["operations"].items()
        if (row := _row(process, name, known.get((process["pid"], name)), one, seconds)) is not None
    ]
    rows.sort(key=lambda row: (-row.share, row.pid, row.operation))
    return View(seconds, rows, _files(before, after, seconds, mount_point), after["left_out"])


def _row(
    process: Profile, name: str, then: Profile | None, now: Profile, seconds: float
) -> Row | None:
    if then is None or then["calls"] > now["calls"]:  # forgotten, and met again
        then = {"calls": 0, "bytes": 0, "sum_s": 0.0, "counts": [0] * len(now["counts"])}
    calls = now["calls"] - then["calls"]
    if not calls:
        return None
    counts = [a - b for a, b in zip(now["counts"], then["counts"], strict=True)]
    took_s, times = now["sum_s"] - then["sum_s"], sum(counts)
    buckets = dict(zip([*BOUNDS_S, float("inf")], map(float, accumulate(counts)), strict=True))
    return Row(
        process["pid"],
        process["command"],
        name,
        calls_per_s=calls / seconds,
        bytes_per_s=(now["bytes"] - then["bytes"]) / seconds,
        mean_s=took_s / max(times, 1),
        p50_s=quantile(buckets, 0.5),
        p99_s=quantile(buckets, 0.99),
        share=took_s / seconds,
    )


def _files(before: Profile, after: Profile, seconds: float, mount_point: Path) -> list[FileRow]:
    known = {file["inode_id"]: file for file in before["files"]}
    grown = []
    for file in after["files"]:
        then = known.get(file["inode_id"])
        if then is None or then["calls"] > file["calls"]:
            then = {"calls": 0, "bytes": 0}
        if calls := file["calls"] - then["calls"]:
            grown.append((calls, file["bytes"] - then["bytes"], file))
    grown.sort(key=lambda item: (-item[0], -item[1]))
    return [
        FileRow(
            file["inode_id"],
            path_of(file["pid"], file["inode_id"], mount_point),
            calls / seconds,
            byte_count / seconds,
            file["pid"],
        )
        for calls, byte_count, file in grown[:FILE_COUNT]
    ]


def path_of(pid: int, inode_id: int, mount_point: Path) -> str:
    """Return where a process has something of a mount open,
    as far as its descriptors tell; "" otherwise.
    """
    try:
        device = mount_point.stat().st_dev
        if mount_point.stat().st_ino == inode_id:
            return str(mount_point)
        for entry in islice(Path(f"/proc/{pid}/fd").iterdir(), DESCRIPTOR_COUNT_MAX):
            link = str(entry.readlink())
            if link.startswith(f"{mount_point}/"):
                found = entry.stat()
                if found.st_ino == inode_id and found.st_dev == device:
                    return link
    except OSError:  # it has gone, or is another user's
        return ""
    return ""


def tables_of(view: View) -> Group:
    """Return a view for people."""
    return Group(_process_table(view), "", _file_table(view))


def _new_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        is_text = column in {"command", "operation", "file"}
        table.add_column(column, justify="left" if is_text else "right", no_wrap=True)
    return table


def _process_table(view: View) -> Table:
    table = _new_table(
        "pid", "command", "operation", "calls/s", "bytes/s", "mean", "p50", "p99", "at once"
    )
    for row in view.rows[:ROW_COUNT]:
        table.add_row(
            str(row.pid),
            cell(row.command),
            row.operation,
            f"{row.calls_per_s:.1f}",
            bytes_text(row.bytes_per_s),
            duration_text(row.mean_s),
            duration_text(row.p50_s),
            duration_text(row.p99_s),
            f"{row.share:.2f}",
        )
    return table


def _file_table(view: View) -> Table:
    table = _new_table("calls/s", "bytes/s", "pid", "file")
    for file in view.files:
        table.add_row(
            f"{file.calls_per_s:.1f}",
            bytes_text(file.bytes_per_s),
            str(file.pid),
            cell(file.path or f"inode {file.inode_id}"),
        )
    return table


def run_profile(mount_point: Path, *, interval_s: float, count: int | None, as_json: bool) -> None:
    """Show what happens until interrupted, or `count` times.

    Raises:
        FsError: NOT_RUNNING, NOT_PERMITTED.
    """
    mount_point = mount_point.absolute()
    views = _views(mount_point, interval_s, count)
    console = Console()
    if as_json:
        for view in views:
            typer.echo(json.dumps(asdict(view)))
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for view in views:
                live.update(tables_of(view), refresh=True)
    else:
        console = Console(width=FILE_WIDTH)
        for view in views:
            console.print(tables_of(view))


def _views(mount_point: Path, interval_s: float, count: int | None) -> Iterator[View]:
    """Yield a view after each interval, without end or `count` times."""
    before = read_profile(mount_point)
    for _ in repeat(None) if count is None else range(count):
        time.sleep(interval_s)
        after = read_profile(mount_point)
        yield view_between(before, after, mount_point)
        before = after
