"""Tables written row by row into files: Parquet, or JSON lines.

A file is complete or not there: it is written beside its place, flushed to disk and
then renamed.  Memory: one batch.

Parquet needs pyarrow; JSON lines need nothing.  Bytes are binary
in Parquet, and text with surrogate escapes (as of `os.fsdecode`) in JSON.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import IO, Any, Final, Protocol

from ..runtime.extras import install_command
from ..schema.status import FsError, Status

BATCH_ROWS: Final = 10_000

Row = Mapping[str, Any]


class Column(Enum):
    """What a column holds."""

    UINT64 = "uint64"
    INT64 = "int64"
    UINT32 = "uint32"
    BOOL = "bool_"
    TEXT = "string"
    BYTES = "binary"


Columns = Mapping[str, Column]


class Format(Enum):
    """How a table is written."""

    PARQUET = "parquet"
    JSON_LINES = "jsonl"


class TableWriter(Protocol):
    """Takes rows with exactly the keys of the columns."""

    row_count: int

    def add(self, row: Row) -> None:
        """Write a row, now or with its batch."""
        ...

    def flush(self) -> None:
        """Write what has been gathered."""
        ...

    def close(self) -> None:
        """End the table, whole or not."""
        ...


class _JsonLines:
    def __init__(self, file: IO[bytes]) -> None:
        self.row_count = 0
        self._file = file

    def add(self, row: Row) -> None:
        shown = {
            key: os.fsdecode(value) if isinstance(value, bytes) else value
            for key, value in row.items()
        }
        self._file.write(json.dumps(shown).encode() + b"\n")
        self.row_count += 1

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Nothing is left to be done: each row is whole."""


class _Parquet:
    def __init__(self, file: IO[bytes], columns: Columns) -> None:
        try:
            import pyarrow as pa  # noqa: PLC0415 - an extra
            from pyarrow import parquet  # noqa: PLC0415
        except ImportError as error:
            detail = f"Parquet needs pyarrow: {install_command('parquet')}, or say --format jsonl"
            raise FsError(Status.NOT_SUPPORTED, detail) from error
        self.row_count = 0
        self._arrow = pa
        fields = [(name, getattr(pa, kind.value)()) for name, kind in columns.items()]
        self._schema = pa.schema(fields)
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[Row] = []

    def add(self, row: Row) -> None:
        self._rows.append(row)
        self.row_count += 1
        if len(self._rows) >= BATCH_ROWS:
            self._write()

    def _write(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, self._schema))
            self._rows = []

    def flush(self) -> None:
        self._write()

    def close(self) -> None:
        self._writer.close()


@contextmanager
def open_table(path: Path, columns: Columns, format_: Format) -> Iterator[TableWriter]:
    """Write a table; the file is there only when the block has ended well.

    Raises:
        FsError: NOT_SUPPORTED without pyarrow.
        OSError: the file cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            writer = _Parquet(file, columns) if format_ is Format.PARQUET else _JsonLines(file)
            try:
                yield writer
                writer.flush()
            finally:
                writer.close()
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
