"""`ember top`: what every process of a local cluster does, second by second,
from the metrics that it shows.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Final

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from ...rpc.observer import WAITING
from ...schema.status import FsError
from ..machine.cluster_dir import ClusterDir
from ..terminal.amounts import bytes_text, duration_text
from .metrics_commands import shown
from .scraped import Reading, Span, fetch, parse

SERVED: Final = "ember_rpc_server_request_duration_seconds"
KERNEL: Final = "ember_mount_operation_duration_seconds"
BUSIEST_COUNT: Final = 3
READ_TIMEOUT_S: Final = 3.0
FILE_WIDTH: Final = 160
"""Columns of the table where it goes to a file or a pipe."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one process did, per second."""

    name: str
    requests_per_s: float
    """Served for other processes; of a mount daemon, for the kernel."""
    mean_s: float
    p99_s: float
    """At most so long took 99 of 100, as far as the buckets of the histogram tell."""
    in_flight: int
    errors_per_s: float
    received_per_s: float
    sent_per_s: float
    cpu_share: float
    resident_bytes: int
    loop_wait_s: float
    busiest: str
    """The methods that took most of the time."""


def read(addresses: Mapping[str, str]) -> dict[str, Reading]:
    """Return what each process shows now, but for those that do not answer."""
    found = {}
    for name, address in addresses.items():
        with contextlib.suppress(FsError):  # its row is left out until it answers
            found[name] = parse(fetch(address, READ_TIMEOUT_S), time.monotonic())
    return found


def row_of(name: str, span: Span) -> Row:
    """Return what a process did between two readings, but for requests that wait on purpose."""
    span = Span(*(reading.without("method", WAITING) for reading in (span.before, span.after)))
    is_mount = KERNEL + "_count" in span.after.samples
    times, label = (KERNEL, "operation") if is_mount else (SERVED, "method")
    prefix = "ember_mount_operation" if is_mount else "ember_rpc_server"
    received, sent = (
        ("ember_mount_written_bytes_total", "ember_mount_read_bytes_total")
        if is_mount
        else ("ember_rpc_server_received_bytes_total", "ember_rpc_server_sent_bytes_total")
    )
    in_flight = "ember_rpc_client_calls_in_flight" if is_mount else f"{prefix}_requests_in_flight"
    return Row(
        name,
        requests_per_s=span.rate(f"{times}_count"),
        mean_s=span.mean_s(times),
        p99_s=span.quantile_s(times, 0.99),
        in_flight=int(span.after.total(in_flight)),
        errors_per_s=span.rate(f"{prefix}_errors_total"),
        received_per_s=span.rate(received),
        sent_per_s=span.rate(sent),
        cpu_share=span.rate("process_cpu_seconds_total"),
        resident_bytes=int(span.after.total("process_resident_memory_bytes")),
        loop_wait_s=span.after.total("ember_process_event_loop_wait_seconds"),
        busiest=_busiest(span, times, label),
    )


def _busiest(span: Span, times: str, label: str) -> str:
    took = {
        value: span.grown(f"{times}_sum", **{label: value})
        for value in span.after.values(f"{times}_sum", label)
    }
    names = sorted((n for n in took if took[n] > 0), key=lambda n: (-took[n], n))
    return " ".join(name.rpartition(".")[2] for name in names[:BUSIEST_COUNT])


def table_of(rows: list[Row]) -> Table:
    """Return the rows for people."""
    table = Table(box=None, pad_edge=False)
    for column in (
        "process",
        "req/s",
        "mean",
        "p99",
        "open",
        "err/s",
        "in/s",
        "out/s",
        "cpu",
        "memory",
        "loop",
    ):
        table.add_column(column, justify="left" if column == "process" else "right", no_wrap=True)
    table.add_column("most time", overflow="ellipsis", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            f"{row.requests_per_s:.0f}",
            duration_text(row.mean_s),
            duration_text(row.p99_s),
            str(row.in_flight),
            f"{row.errors_per_s:.1f}",
            bytes_text(row.received_per_s),
            bytes_text(row.sent_per_s),
            f"{row.cpu_share:.0%}",
            bytes_text(row.resident_bytes),
            duration_text(row.loop_wait_s),
            row.busiest,
        )
    return table


def rows_between(before: Mapping[str, Reading], after: Mapping[str, Reading]) -> list[Row]:
    """Return a row for each process that showed something both times."""
    return [row_of(name, Span(before[name], after[name])) for name in after if name in before]


def run_top(directory: ClusterDir, *, interval_s: float, count: int | None, as_json: bool) -> None:
    """Show what happens until interrupted, or `count` times.

    Raises:
        FsError: NOT_RUNNING.
    """
    views = _views(directory, interval_s, count)
    console = Console()
    if as_json:
        for rows in views:
            typer.echo(json.dumps([asdict(row) for row in rows]))
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for rows in views:
                live.update(table_of(rows), refresh=True)
    else:
        console = Console(width=FILE_WIDTH)
        for rows in views:
            console.print(table_of(rows))


def _views(directory: ClusterDir, interval_s: float, count: int | None) -> Iterator[list[Row]]:
    """Yield the rows of all processes after each interval, without end or `count` times."""
    before = read(shown(directory))
    for _ in repeat(None) if count is None else range(count):
        time.sleep(interval_s)
        after = read(shown(directory))
        yield rows_between(before, after)
        before = after
