"""What benchmarks of programs have in common: options, steps that are told, a table, a picture.

    python -m benchmarks.NAME [--full] [--dir=DIRECTORY] [--plot[=FILE]] [--count=N]
        [--at=DIRECTORY [--beside=DIRECTORY]]
        [--inline=BYTES]

`--count`, `--at`, `--beside` and `--inline` only where the benchmark has them.

Ctrl-C, or a kill, ends a benchmark and what it has started; its files are removed.  What cannot be
done where it is to be measured is told in one line.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from fs.app.terminal.errors import error_line, unwrapped
from fs.app.terminal.progress import Progress
from fs.kernels.in_use import kernels_in_use
from fs.schema.status import FsError

from .cluster import keep_small_files
from .plot import is_there, plot_rows
from .table import Row, print_rows

Sizes = TypeVar("Sizes")
Measure = Callable[[Sizes, Path | None, Progress], Sequence[Row]]
"""(how much to do, a directory on the disk to measure, who is told of steps) -> figures."""
MeasureAt = Callable[[Sizes, Path, Progress], Sequence[Row]]
"""(how much to do, a directory of a mounted file system, who is told of steps) -> figures."""
MeasureBeside = Callable[[Sizes, Path, Path, Progress], Sequence[Row]]
"""(how much to do, a directory each of two mounted file systems, who is told of steps) -> figures
of the first beside the second's.
"""


def _parser(name: str, about: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"ember bench {name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--full", action="store_true", help="sizes that outgrow caches; minutes")
    parser.add_argument("--dir", type=Path, help="a directory on the disk to measure")
    parser.add_argument(
        "--plot",
        type=Path,
        nargs="?",
        const=Path(f"ember-bench-{name}.png"),
        metavar="FILE",
        help="also draw the table (default: ember-bench-NAME.png in the working directory)",
    )
    return parser


def bench_command(
    name: str,
    about: str | None,
    sizes: tuple[Sizes, Sizes],
    measure: Measure[Sizes],
    arguments: Sequence[str] | None = None,
    *,
    amount: str | None = None,
    measure_at: MeasureAt[Sizes] | None = None,
    measure_beside: MeasureBeside[Sizes] | None = None,
    has_small_files: bool = False,
) -> int:
    """Run a benchmark as a program; return its exit code.

    Args:
        name: of the benchmark, and of its table.
        about: what `--help` says.
        sizes: without and with `--full`.
        measure: does it.
        arguments: of the command line; default: those of this process.
        amount: where sizes are numbers, what they count: `--count` then gives another one.
        measure_at: measures a directory of any mounted file system alone,
            which is then the one of `--at`.
        measure_beside: measures that one and the one of `--beside` in turn.
        has_small_files: it depends on whether these are in the metadata
            store, which `--inline` says.
    """
    parser = _parser(name, about)
    if amount is not None:
        parser.add_argument("--count", type=_count, help=f"{amount} (default: {sizes[0]:,})")
    _offer_places(parser, has_at=measure_at is not None, has_beside=measure_beside is not None)
    if has_small_files:
        told = (
            "keep files up to so many bytes in the metadata store, 0: none (default: as built in)"
        )
        parser.add_argument("--inline", type=int, metavar="BYTES", help=told)
    options = parser.parse_args(arguments)
    at, beside = _checked_places(parser, options)
    if getattr(options, "inline", None) is not None:
        keep_small_files(options.inline)
    wanted = getattr(options, "count", None) or sizes[options.full]
    if options.plot is not None and not is_there():
        sys.stderr.write("ember: --plot needs matplotlib: pip install emberfs[plot]\n")
        return 1
    before = signal.signal(signal.SIGTERM, _interrupt)  # what has been started is stopped, too
    progress = Progress()
    try:
        with unwrapped():
            if at is not None and beside is not None and measure_beside is not None:
                rows = measure_beside(wanted, at, beside, progress)
            elif at is not None and measure_at is not None:
                rows = measure_at(wanted, at, progress)
            else:
                rows = measure(wanted, options.dir, progress)
    except (FsError, OSError) as error:
        progress.close()
        sys.stderr.write(f"ember: benchmark {name}: {error_line(error)}\n")
        return 1
    except KeyboardInterrupt:
        progress.close()
        sys.stderr.write(f"ember: benchmark {name} was interrupted\n")
        return 130
    except BaseException:
        progress.close()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    progress.close("measured")
    where = "" if at is None else f" in {at}" if beside is None else f" in {at}, beside {beside}"
    title = f"{name}{where}; kernels: {kernels_in_use()}"
    print_rows(title, rows)
    if options.plot is not None:
        plot_rows(title, rows, options.plot)
        sys.stderr.write(f"ember: drawn in {options.plot}\n")
    return 0


def _count(word: str) -> int:
    count = int(word)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{word} is nothing to measure")
    return count


def _offer_places(parser: argparse.ArgumentParser, *, has_at: bool, has_beside: bool) -> None:
    if has_at:
        parser.add_argument("--at", type=Path, help="a directory of a mounted file system, alone")
    if has_beside:
        told = (
            "with --at: one of another mounted file system, in turn; stands in the column machine"
        )
        parser.add_argument("--beside", type=Path, help=told)


def _checked_places(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> tuple[Path | None, Path | None]:
    """Return the directories of `--at` and `--beside`; end the program where one cannot be used."""
    at, beside = getattr(options, "at", None), getattr(options, "beside", None)
    for option, folder in (("--dir", options.dir), ("--at", at), ("--beside", beside)):
        if folder is not None and not folder.is_dir():
            parser.error(f"argument {option}: {folder} is not a directory")
    if beside is not None and at is None:
        parser.error("argument --beside: wants --at, the directory that stands beside it")
    return at, beside


def _interrupt(*_: object) -> None:
    """Do what a Ctrl-C does: trio takes that in where it harms nothing,
    but no error raised within its own loop.
    """
    signal.raise_signal(signal.SIGINT)
