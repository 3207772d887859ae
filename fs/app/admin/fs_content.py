"""`ember admin fs cat`, `write`: the content of files, piece by piece."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from ...client.native import EmberFs
from ...schema.layout import MIB
from ...schema.status import FsError, Status
from ..reach.where import ConfigOption, DirOption
from ..terminal.amounts import parse_number
from ..terminal.listing import JsonOption, print_facts, progress_bar
from .fs_names import PathArgument
from .standing import absolute, run_fs, shown

PIECE_BYTES = 8 * MIB
HEX_BYTES = 16
"""On one line."""

OffsetOption = Annotated[str, typer.Option("--offset", help="First byte: 500, 10M.")]
LengthOption = Annotated[
    str, typer.Option("--length", help="Bytes: 500, 10M.", show_default="to the end")
]


def hex_lines(data: bytes, offset: int) -> Iterator[str]:
    """Yield bytes as people compare them: where, in hexadecimal, as text."""
    for begin in range(0, len(data), HEX_BYTES):
        row = data[begin : begin + HEX_BYTES]
        text = re.sub("[^ -~]", ".", row.decode("latin-1"))
        yield f"{offset + begin:012x}  {row.hex(' '):<{3 * HEX_BYTES - 1}}  {text}"


@contextmanager
def _sink(output: Path | None) -> Iterator[BinaryIO]:
    if output is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    else:
        with output.open("wb") as made:
            yield made


def cat(
    path: PathArgument,
    *,
    offset: OffsetOption = "0",
    length: LengthOption = "",
    as_hex: Annotated[bool, typer.Option("--hex", help="Print it in hexadecimal.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Of this machine, to write to."),
    ] = None,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Read a file, or a part of it; holes are zeros.

    Example: ember admin fs cat /admin-example --offset 1M --length 64 --hex

    Example: ember admin fs cat /admin-example --output copy
    """
    first = parse_number(offset)

    async def use(found: EmberFs) -> None:
        async with await found.open(absolute(path)) as file:
            end = min(file.length, first + parse_number(length)) if length else file.length
            with _sink(output) as sink, progress_bar("bytes", max(0, end - first)) as step:
                for at in range(first, end, PIECE_BYTES):
                    piece = await file.read(at, min(PIECE_BYTES, end - at))
                    if as_hex:
                        sink.write("".join(f"{line}\n" for line in hex_lines(piece, at)).encode())
                    else:
                        sink.write(piece)
                    if output is not None:
                        step(at + len(piece) - first)

    run_fs(use, directory, config, path=path)


def write(
    path: PathArgument,
    *,
    value: Annotated[
        str | None,
        typer.Option("--value", help="The text to write; default: what comes from standard input."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option("-i", "--input", metavar="FILE", help="Of this machine, to copy.")
    ] = None,
    offset: OffsetOption = "0",
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Leave what the file holds besides; else it is emptied first."),
    ] = False,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Write to a file, which is made if it is not there; durable when the command is done.

    Example: ember admin fs write /admin-written --value hello

    Example: ember admin fs write /admin-written --value there --offset 5 --keep
    """
    if value is not None and source is not None:
        raise FsError(Status.INVALID_ARGUMENT, "say --value or --input, not both")
    first = parse_number(offset)

    async def use(found: EmberFs) -> int:
        at = first
        async with await found.create(absolute(path), truncate=not keep) as file:
            with progress_bar("bytes") as step:
                for piece in pieces(value, source):
                    await file.write(at, piece)
                    at += len(piece)
                    step(at - first)
        return at - first

    count = run_fs(use, directory, config, path=path)
    if as_json:
        print_facts({"path": shown(absolute(path)), "offset": first, "bytes": count}, as_json=True)
    else:
        typer.echo(f"{count} bytes written")


def pieces(value: str | None, source: Path | None) -> Iterator[bytes]:
    """Yield what is to be written."""
    if value is not None:
        yield value.encode(errors="surrogateescape")
        return
    with source.open("rb") if source else open(sys.stdin.fileno(), "rb", closefd=False) as stream:
        while piece := stream.read(PIECE_BYTES):
            yield piece
