"""`ember stat`: what one mount does, a line per interval,
from the metrics that its daemon shows.
"""

import time
from pathlib import Path
from typing import Final

import typer

from ...runtime.mount_table import is_same_place
from ...schema.status import FsError, Status
from ..machine.cluster_dir import ClusterDir
from ..machine.running import mount_daemon_at, refuse_others_mount
from ..supervision import supervisor_link
from ..terminal.amounts import bytes_text, duration_text
from .scraped import Reading, Span, fetch, parse
from .top import KERNEL

HEAD: Final = (
    "ops/s",
    "mean",
    "p99",
    "read/s",
    "written/s",
    "dirty",
    "lookup",
    "open",
    "read",
    "write",
    "err/s",
)
HEAD_EVERY: Final = 20
WIDTH: Final = 11
_OPERATIONS: Final = (
    ("lookup", ("lookup",)),
    ("open", ("open", "create")),
    ("read", ("read",)),
    ("write", ("write",)),
)


def metrics_of_mount(mount_point: Path) -> str:
    """Return `HOST:PORT` where the daemon of a mount shows its metrics.

    Raises:
        FsError: NOT_RUNNING when no daemon is mounted there, or it shows none; NOT_PERMITTED when
            it is another user's.
    """
    wanted = mount_point.absolute()
    found = mount_daemon_at(wanted)
    if found is None:
        refuse_others_mount(wanted)
        raise FsError(Status.NOT_RUNNING, f"no mount daemon serves {wanted}")
    command, config = found
    address = config.process.metrics_address
    if (directory := command.directory) is not None:
        services = supervisor_link.ask(ClusterDir(directory), command="status")["services"]
        address = next(
            (s["metrics_address"] for s in services if is_same_place(s["mount_point"], wanted)),
            address,
        )
    if not address or address.endswith(":0"):
        raise FsError(
            Status.NOT_RUNNING,
            f"the daemon of {wanted} shows no metrics: set process.metrics_address in "
            f"{command.path}",
        )
    return address.removeprefix("tcp:")


def cells(span: Span) -> list[str]:
    """Return what happened between two readings, in the order of HEAD."""
    counts = [
        sum(span.rate(f"{KERNEL}_count", operation=name) for name in names)
        for _, names in _OPERATIONS
    ]
    return [
        f"{span.rate(f'{KERNEL}_count'):.0f}",
        duration_text(span.mean_s(KERNEL)),
        duration_text(span.quantile_s(KERNEL, 0.99)),
        bytes_text(span.rate("ember_mount_read_bytes_total")),
        bytes_text(span.rate("ember_mount_written_bytes_total")),
        bytes_text(span.after.total("ember_mount_dirty_bytes")),
        *(f"{count:.0f}" for count in counts),
        f"{span.rate('ember_mount_operation_errors_total'):.1f}",
    ]


def _line(texts: list[str]) -> str:
    return "".join(text.rjust(WIDTH) for text in texts)


def run_stat(mount_point: Path, *, interval_s: float, count: int | None) -> None:
    """Print a line per interval until interrupted, or `count` times.

    Raises:
        FsError: NOT_RUNNING, RPC_CONNECT_FAILED.
    """
    address = metrics_of_mount(mount_point)
    before = _reading(address)
    printed = 0
    while count is None or printed < count:
        time.sleep(interval_s)
        after = _reading(address)
        if printed % HEAD_EVERY == 0:
            typer.echo(_line(list(HEAD)))
        typer.echo(_line(cells(Span(before, after))))
        before = after
        printed += 1


def _reading(address: str) -> Reading:
    return parse(fetch(address), time.monotonic())
