"""`ember admin bench`: how fast names, files and reads go through a running cluster,
seen by one client of this machine.

Everything is made in a directory of its own below the one that is named, and removed at
the end, also when the command is interrupted.  What is read is compared with what was
written: a wrong byte is an error.

Does not measure the most that a cluster can do: that takes many clients.
"""

import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import trio
import typer

from ...client.native import EmberFs
from ...client.native_file import EmberFile
from ...schema.layout import MIB
from ...schema.status import FsError, Status
from ..reach.where import ConfigOption, DirOption
from ..terminal.amounts import bytes_text, parse_number
from ..terminal.errors import named
from ..terminal.listing import JsonOption, print_rows, progress_bar
from .fs_names import PathArgument
from .standing import absolute, run_fs

bench = typer.Typer(help="Measure a running cluster, through it.", no_args_is_help=True)

SecondsOption = Annotated[float, typer.Option("--seconds", min=0.1, max=3600, help="How long.")]
TasksOption = Annotated[int, typer.Option("--tasks", min=1, max=1024, help="Side by side.")]
SizeOption = Annotated[str, typer.Option("--size", help="Of each file: 500K, 16M.")]

PATTERN: Final = random.Random(3).randbytes(MIB + 257)  # noqa: S311 - to be told apart, not to be secret
"""Content of all files, over and over; its length is none that anything is cut at."""
PIECE_BYTES: Final = 8 * MIB


@dataclass(slots=True)
class Tally:
    """What one kind of operation did."""

    times_s: list[float] = field(default_factory=list)
    byte_count: int = 0


@dataclass(slots=True)
class Bench:
    """One run."""

    fs: EmberFs
    folder: str
    until_s: float = 0.0
    elapsed_s: float = 0.0
    tallies: dict[str, Tally] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """True when the time is up."""
        return trio.current_time() >= self.until_s

    async def timed(self, what: str, call: Awaitable[Any], byte_count: int = 0) -> Any:
        """Await a call and note how long it took."""
        tally = self.tallies.setdefault(what, Tally())
        began_s = trio.current_time()
        result = await call
        tally.times_s.append(trio.current_time() - began_s)
        tally.byte_count += byte_count
        return result

    def report(self) -> list[dict[str, Any]]:
        """Return a row for each kind of operation."""
        return [
            {
                "operation": what,
                "count": len(tally.times_s),
                "per_s": len(tally.times_s) / self.elapsed_s,
                "bytes_per_s": tally.byte_count / self.elapsed_s,
                "mean_ms": 1e3 * sum(tally.times_s) / len(tally.times_s),
                "p50_ms": percentile_ms(tally.times_s, 0.50),
                "p99_ms": percentile_ms(tally.times_s, 0.99),
                "max_ms": percentile_ms(tally.times_s, 1.0),
            }
            for what, tally in self.tallies.items()
        ]


def percentile_ms(times_s: list[float], share: float) -> float:
    """Return the time, in milliseconds, within which this share of the operations was done."""
    return 1e3 * sorted(times_s)[max(0, math.ceil(share * len(times_s)) - 1)]


def content(offset: int, length: int) -> bytes:
    """Return what every file of a bench holds at [offset, offset + length)."""
    begin = offset % len(PATTERN)
    count = -(-(begin + length) // len(PATTERN))
    return (PATTERN * count)[begin : begin + length]


def check(path: str, offset: int, got: bytes, length: int) -> None:
    """Raise FsError(CHECKSUM_MISMATCH) unless this is what was written."""
    if got != content(offset, length):
        detail = f"{path}: bytes [{offset}, {offset + length}) are not what was written"
        raise FsError(Status.CHECKSUM_MISMATCH, detail)


@asynccontextmanager
async def _folder(fs: EmberFs, path: str) -> AsyncIterator[str]:
    """Make a directory for a run below `path`; remove it with all that is in it."""
    made = f"{path.rstrip('/')}/ember-bench-{random.SystemRandom().getrandbits(48):012x}"
    with named(path, is_inside=True):
        await fs.mkdir(made)
    try:
        yield made
    finally:
        with trio.CancelScope(shield=True):
            await fs.remove_tree(made)


Work = Callable[[Bench, int], Awaitable[None]]


async def _write_file(fs: EmberFs, path: str, size: int) -> None:
    async with await fs.create(path) as file:
        for at in range(0, size, PIECE_BYTES):
            await file.write(at, content(at, min(PIECE_BYTES, size - at)))


async def _read_file(fs: EmberFs, path: str, size: int) -> None:
    async with await fs.open(path) as file:
        for at in range(0, size, PIECE_BYTES):
            length = min(PIECE_BYTES, size - at)
            check(path, at, await file.read(at, length), length)


async def names_work(run: Bench, task: int) -> None:
    """Make, look up, rename and remove empty files."""
    number = 0
    while not run.is_over:
        path = f"{run.folder}/{task}-{number}"
        file = await run.timed("create", run.fs.create(path, exclusive=True))
        await run.timed("close", file.close())
        await run.timed("stat", run.fs.stat(path))
        await run.timed("rename", run.fs.rename(path, f"{path}-renamed"))
        await run.timed("unlink", run.fs.unlink(f"{path}-renamed"))
        number += 1


def files_work(size: int) -> Work:
    """Return what writes files, durably, reads them back and removes them."""

    async def work(run: Bench, task: int) -> None:
        path = f"{run.folder}/{task}"
        while not run.is_over:
            await run.timed("write", _write_file(run.fs, path, size), size)
            await run.timed("read", _read_file(run.fs, path, size), size)
            await run.timed("unlink", run.fs.unlink(path))

    return work


def read_work(files: list[EmberFile], block: int) -> Work:
    """Return what reads blocks at random places of all files."""

    async def work(run: Bench, task: int) -> None:
        chance = random.Random(task)  # noqa: S311 - places to read
        while not run.is_over:
            file = chance.choice(files)
            at = chance.randrange(max(1, file.length - block + 1))
            length = min(block, file.length - at)
            check(file.path, at, await run.timed("read", file.read(at, block), length), length)

    return work


async def _run(run: Bench, work: Work, *, seconds: float, tasks: int) -> None:
    began_s = trio.current_time()
    run.until_s = began_s + seconds
    with progress_bar("seconds", math.ceil(seconds)) as step:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_tick, run, seconds, step)
            for task in range(tasks):
                nursery.start_soon(work, run, task)
    run.elapsed_s = trio.current_time() - began_s


async def _tick(run: Bench, seconds: float, step: Callable[[int], None]) -> None:
    while not run.is_over:
        await trio.sleep(min(0.5, seconds))
        step(round(seconds - (run.until_s - trio.current_time())))


def _print(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    milliseconds = "{:.2f}".format
    columns = {
        "operation": None,
        "count": None,
        "per_s": "{:.0f}".format,
        "bytes_per_s": lambda n: bytes_text(round(n)),
        "mean_ms": milliseconds,
        "p50_ms": milliseconds,
        "p99_ms": milliseconds,
        "max_ms": milliseconds,
    }
    print_rows(rows, columns, as_json=as_json)


@bench.command("names")
def names(
    path: PathArgument = "/",
    *,
    seconds: SecondsOption = 10.0,
    tasks: TasksOption = 16,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Make, look up, rename and remove empty files.

    Example: ember admin bench names / --seconds 1 --tasks 4
    """

    async def use(fs: EmberFs) -> list[dict[str, Any]]:
        async with _folder(fs, absolute(path)) as folder:
            run = Bench(fs, folder)
            await _run(run, names_work, seconds=seconds, tasks=tasks)
            return run.report()

    _print(run_fs(use, directory, config), as_json=as_json)


@bench.command("files")
def files(
    path: PathArgument = "/",
    *,
    size: SizeOption = "16M",
    seconds: SecondsOption = 10.0,
    tasks: TasksOption = 4,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Write files, durably, read them back, compare, and remove them.

    Example: ember admin bench files / --size 1M --seconds 1 --tasks 2
    """
    file_bytes = parse_number(size)

    async def use(fs: EmberFs) -> list[dict[str, Any]]:
        async with _folder(fs, absolute(path)) as folder:
            run = Bench(fs, folder)
            await _run(run, files_work(file_bytes), seconds=seconds, tasks=tasks)
            return run.report()

    _print(run_fs(use, directory, config), as_json=as_json)


@bench.command("read")
def read(
    path: PathArgument = "/",
    *,
    size: SizeOption = "64M",
    count: Annotated[
        int, typer.Option("--files", min=1, max=10_000, help="Files that are written first.")
    ] = 4,
    block: Annotated[str, typer.Option("--block", help="Bytes of each read: 4K, 1M.")] = "64K",
    seconds: SecondsOption = 10.0,
    tasks: TasksOption = 16,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Write some files, then read blocks at random places of them, and compare.

    Example: ember admin bench read / --size 2M --files 2 --seconds 1 --tasks 4 --json
    """
    file_bytes, block_bytes = parse_number(size), parse_number(block)
    if not file_bytes or not block_bytes:
        raise FsError(Status.INVALID_ARGUMENT, "--size and --block: at least 1")

    async def use(fs: EmberFs) -> list[dict[str, Any]]:
        async with _folder(fs, absolute(path)) as folder:
            made: list[EmberFile] = []
            with progress_bar("files written", count) as step:
                for number in range(count):
                    await _write_file(fs, f"{folder}/{number}", file_bytes)
                    made.append(await fs.open(f"{folder}/{number}"))
                    step(number + 1)
            run = Bench(fs, folder)
            await _run(run, read_work(made, block_bytes), seconds=seconds, tasks=tasks)
            return run.report()

    _print(run_fs(use, directory, config), as_json=as_json)
