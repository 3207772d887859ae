"""`ember warmup`: has the storage nodes read files into their page caches, on every replica.

Files are taken in the order of their paths, so that an interrupted run is resumed after the last
one it finished. They are listed first, and the tree may change meanwhile: a file that is gone when
its turn comes is counted, and no failure.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ...client.blocking import BlockingFile, BlockingFs
from ...schema.inode import Inode, InodeType
from ...schema.status import FsError, Retry, Status
from ..mounts.paths_on_mounts import path_inside
from ..reach.meant_cluster import connected
from ..terminal.amounts import bytes_text
from ..terminal.errors import named

PIECE_BYTES = 128 * 1024 * 1024
"""Between two steps of the progress."""
OPENED_AT_ONCE = 128
"""Of small files: one call opens them all, and brings the bytes that meta keeps."""
TRIES = 3
TRY_AGAIN_S = 1.0
"""A process that starts anew, or a chain that changes, is back within that."""
GONE = {Status.NOT_FOUND, Status.STALE, Status.NOT_DIRECTORY, Status.IS_DIRECTORY}
"""What opening a path says when the file that was listed there is not there any more."""


@dataclass(slots=True)
class Outcome:
    """What was done."""

    file_count: int = 0
    byte_count: int = 0
    """Of the files."""
    read_bytes: int = 0
    """By all replicas together."""
    last_path: str = ""
    """The last one that was finished: a run with --after goes on behind it."""
    is_complete: bool = False
    gone_count: int = 0
    """Files removed or renamed since they were listed."""
    failures: list[tuple[str, FsError]] = field(default_factory=list)
    """(path, why)."""

    def told(self) -> dict[str, Any]:
        """Return all of it for programs."""
        return {
            **{one.name: getattr(self, one.name) for one in fields(self)},
            "failures": [(path, str(error)) for path, error in self.failures],
        }


def _behind(after: str, insides: Sequence[str]) -> str:
    """Return what the file system calls the path after which a run goes on; empty: begin.

    Raises:
        FsError: INVALID_ARGUMENT: it lies in none of the directories. By its letters it would
            leave out all files or none, and the run would say that all is well.
    """
    if not after:
        return ""
    behind = path_inside(after, follow=True)
    if not any(PurePosixPath(behind).is_relative_to(inside) for inside in insides):
        detail = f"--after {after}: {behind} is not in {', '.join(insides)}"
        raise FsError(Status.INVALID_ARGUMENT, detail)
    return behind


def _files(fs: BlockingFs, named_paths: dict[str, str], after: str) -> list[tuple[str, Inode]]:
    """Return the regular files at and below paths, as the file system calls them, in order,
    without those up to `after`.

    Args:
        fs: the file system.
        named_paths: what was given, by what the file system calls it.
        after: as the file system calls it.
    """
    found: dict[str, Inode] = {}
    for inside, path in named_paths.items():
        with named(path):
            inode = fs.stat(inside)
        if inode.is_dir:
            found.update((one.path, one.inode) for one in fs.find(inside))
        else:
            found[inside] = inode
    regular = (pair for pair in found.items() if pair[1].type is InodeType.FILE)
    return sorted(pair for pair in regular if pair[0] > after)


def _warm_piece(file: BlockingFile, start: int, count: int) -> tuple[int, list[FsError]]:
    """Have every replica read a piece, a few times where what failed may pass by itself;
    return bytes read and failures.
    """
    read_bytes, failures = file.prefetch(start, count)
    for _ in range(TRIES - 1):
        if all(error.retry is Retry.NEVER for error in failures):
            break
        time.sleep(TRY_AGAIN_S)
        read_bytes, failures = file.prefetch(start, count)
    return read_bytes, failures


def _groups(files: Sequence[tuple[str, Inode]]) -> Iterator[list[str]]:
    """Yield the paths of neighbours that are opened together: a large one is opened at its turn,
    since it may change while others are read.
    """
    group: list[str] = []
    room = PIECE_BYTES
    for path, inode in files:
        if group and (len(group) == OPENED_AT_ONCE or inode.length > room):
            yield group
            group, room = [], PIECE_BYTES
        group.append(path)
        room -= inode.length
    if group:
        yield group


def _open_in_turn(
    fs: BlockingFs, files: Sequence[tuple[str, Inode]]
) -> Iterator[tuple[str, BlockingFile | FsError]]:
    """Yield each path with its file, or with why it could not be opened."""
    for group in _groups(files):
        opened: Sequence[BlockingFile | FsError]
        try:
            opened = fs.open_many(group)
        except FsError as error:  # nobody answers: each file counts, and the others get their turn
            opened = [error] * len(group)
        yield from zip(group, opened, strict=True)


def _warm_chunks(opened: BlockingFile, path: str, outcome: Outcome) -> Iterator[int]:
    with opened as file:
        for start in range(0, file.length, PIECE_BYTES):
            count = min(PIECE_BYTES, file.length - start)
            read_bytes, failures = _warm_piece(file, start, count)
            outcome.read_bytes += read_bytes
            outcome.failures += [(path, error) for error in failures]
            yield count


def _warm(opened: BlockingFile | FsError, path: str, outcome: Outcome) -> Iterator[int]:
    """Warm one file; yield the bytes of each step."""
    if isinstance(opened, FsError):
        raise opened
    if opened.is_inline:  # meta has read it to open it; what was only read has nothing to end
        yield opened.length
    else:
        yield from _warm_chunks(opened, path, outcome)
    outcome.file_count += 1
    outcome.last_path = path


def warm_up(paths: Sequence[str], *, directory: Path | None, after: str, as_json: bool) -> None:
    """Do what `ember warmup` does; Ctrl-C ends it early, and says how to go on.

    Raises:
        FsError: INVALID_ARGUMENT: `after` is in none of the paths; a path is not there; a replica
            could not read something: with the first one's status.
    """
    outcome = Outcome()
    columns = (TextColumn("warming"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    stderr = Console(stderr=True)
    shown = Progress(*columns, console=stderr, disable=as_json or not stderr.is_terminal)
    named_paths = {path_inside(path, follow=True): path for path in paths}
    behind = _behind(after, list(named_paths))
    with connected(directory, paths, follow=True) as fs, suppress(KeyboardInterrupt), shown:
        files = _files(fs, named_paths, behind)
        task = shown.add_task("", total=sum(inode.length for _, inode in files))
        for path, opened in _open_in_turn(fs, files):
            try:
                for count in _warm(opened, path, outcome):
                    outcome.byte_count += count
                    shown.advance(task, count)
            except FsError as error:
                if error.status in GONE:
                    outcome.gone_count += 1
                else:
                    outcome.failures.append((path, error))
        outcome.is_complete = True
    if as_json:
        typer.echo(json.dumps(outcome.told(), indent=2))
    else:
        _say(outcome)
    if outcome.failures:
        path, why = outcome.failures[0]
        more = f", and {len(outcome.failures) - 1} more" if len(outcome.failures) > 1 else ""
        raise FsError(why.status, f"{path}: {why.detail}{more}")
    if not outcome.is_complete:
        raise typer.Exit(130)


def _say(outcome: Outcome) -> None:
    gone = f"; {outcome.gone_count} were gone" if outcome.gone_count else ""
    typer.echo(
        f"{outcome.file_count} {'file' if outcome.file_count == 1 else 'files'}, "
        f"{bytes_text(outcome.byte_count)}: replicas read {bytes_text(outcome.read_bytes)}{gone}"
    )
    if outcome.is_complete:
        return
    if outcome.last_path:
        typer.echo(f"interrupted; go on with --after {outcome.last_path!r}")
    else:
        typer.echo("interrupted in the first file; begin again, what was read stays")
