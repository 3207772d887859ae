"""`ember admin dump`: metadata in tables, for whatever reads Parquet or JSON lines."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer

from ...admin.dump import (
    CHUNK_COLUMNS,
    DENTRY_COLUMNS,
    INODE_COLUMNS,
    SESSION_COLUMNS,
    chunk_rows,
    dentry_rows,
    inode_rows,
    session_rows,
)
from ...admin.table_file import Columns, Format, Row, TableWriter, open_table
from ...kv.api import KvEngine
from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...schema.ids import TargetId
from ...schema.status import FsError, Status
from ..reach.mgmtd_link import newest_routing
from ..reach.where import TIMEOUT_S, ConfigOption, DirOption, find
from ..terminal.listing import progress_bar
from .completion import complete_target

dump = typer.Typer(help="Metadata in tables: Parquet or JSON lines.", no_args_is_help=True)

STEP_ROWS = 1000

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="It is there only when it is complete.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="Parquet needs pyarrow.")]


async def _copy(rows: AsyncIterator[Row], writer: TableWriter, step: Callable[[int], None]) -> None:
    async for row in rows:
        writer.add(row)
        if not writer.row_count % STEP_ROWS:
            step(writer.row_count)


def _write(
    path: Path,
    columns: Columns,
    format_: Format,
    fill: Callable[[TableWriter, Callable[[int], None]], None],
) -> None:
    with progress_bar("rows") as step, open_table(path, columns, format_) as writer:
        fill(writer, step)
    typer.echo(f"{path}: {writer.row_count} rows")


def _of_store(
    rows_of: Callable[[KvEngine], AsyncIterator[Row]],
    columns: Columns,
    path: Path,
    format_: Format,
    read_store: Callable[[Callable[[KvEngine], Awaitable[None]]], None],
) -> None:
    def fill(writer: TableWriter, step: Callable[[int], None]) -> None:
        read_store(lambda engine: _copy(rows_of(engine), writer, step))

    _write(path, columns, format_, fill)


@dump.command("inodes")
def dump_inodes(
    path: FileArgument,
    format_: FormatOption = Format.PARQUET,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Write all inodes into a table: type, owner, times, length, layout.

    Example: ember admin dump inodes inodes.parquet

    Example: ember admin dump inodes inodes.jsonl --format jsonl
    """
    read_store = find(directory, config).read_store
    _of_store(inode_rows, INODE_COLUMNS, path, format_, read_store)


@dump.command("dentries")
def dump_dentries(
    path: FileArgument,
    format_: FormatOption = Format.PARQUET,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Write all names into a table: directory, name, inode.

    Example: ember admin dump dentries dentries.parquet
    """
    read_store = find(directory, config).read_store
    _of_store(dentry_rows, DENTRY_COLUMNS, path, format_, read_store)


@dump.command("sessions")
def dump_sessions(
    path: FileArgument,
    format_: FormatOption = Format.PARQUET,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Write into a table which client has which file open.

    Example: ember admin dump sessions sessions.jsonl --format jsonl
    """
    read_store = find(directory, config).read_store
    _of_store(session_rows, SESSION_COLUMNS, path, format_, read_store)


@dump.command("chunks")
def dump_chunks(
    path: FileArgument,
    format_: FormatOption = Format.PARQUET,
    *,
    target_ids: Annotated[
        list[int] | None,
        typer.Option(
            "--target", help="Only of this one; may be repeated.", autocompletion=complete_target
        ),
    ] = None,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Write all chunks of all targets, or of some, into a table: versions, lengths, checksums.

    A target whose node does not answer is named, and left out; the exit code is 1 then.

    Example: ember admin dump chunks chunks.parquet

    Example: ember admin dump chunks one.jsonl --format jsonl --target 11001
    """
    where, silent = find(directory, config), list[str]()

    def fill(writer: TableWriter, step: Callable[[int], None]) -> None:
        async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> None:
            info = await newest_routing(mgmtd, TIMEOUT_S)
            chosen = {TargetId(t) for t in target_ids or info.targets}
            for target_id in sorted(chosen):
                target = info.target(target_id)
                try:
                    await _copy(chunk_rows(channels, info, target), writer, step)
                except FsError as error:
                    silent.append(f"target {target_id}: {error}")

        where.run(use)

    _write(path, CHUNK_COLUMNS, format_, fill)
    for line in silent:
        typer.echo(line, err=True)
    if silent:
        detail = f"{len(silent)} targets are not, or not wholly, in {path}"
        raise FsError(Status.IO_ERROR, detail)
