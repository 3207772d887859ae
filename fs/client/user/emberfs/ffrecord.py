"""FFRecord files: many samples in one file, read at random, checked by CRC-32.

Purpose: reader and writer of the public format, so that existing data sets can be used and ours by
others.  All numbers are little-endian:

    bytes                   content
    0 .. 4                  u32, CRC-32 (zlib) of the rest of the header; 0 in files of
                            old writers: not known
    4 .. 12                 i64, N: number of samples
    12 .. 12+4N             u32 each, CRC-32 of each sample
    12+4N .. 12+12N         i64 each, where each sample begins in the file; each
                            ends where the next begins
    12+12N .. end of file   the samples

A data set is one file, several, or a directory with files `*.ffr` (by name);
its samples are numbered through.

Invariants:
    - A reader checks a header when it opens the file, and each sample whenever it
      reads it, unless told not to.
    - A writer's file appears under its name when it is complete and durable, or never.
    - A reader that was inherited by a fork, or pickled to another
      process, opens its files anew there.

What this module does not do: say what is in a sample; `pack` does for folders.
"""

import errno
import os
import struct
import sys
import warnings
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import accumulate, islice
from operator import sub
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from .batch import BatchClient, BatchFile, Transfer, whole_number
from .closing import Closing, shown
from .opening import Connect, connect_for
from .publish import replaced
from .rereading import Rereader
from .rows import Rows, new_buffer
from .urls import is_url

SUFFIX = ".ffr"
FIXED_HEADER_BYTES = 12
ENTRY_BYTES = 12
BUFFER_BYTES = 8 << 20
"""What a writer collects before it writes."""


class DamagedRecordError(ValueError):
    """A file is not FFRecord, or its bytes are not those that were written;
    says which file and sample.
    """


class Place(NamedTuple):
    """Where one sample lies: number of the file, byte offset in it, bytes, CRC-32."""

    file: int
    offset: int
    size: int
    checksum: int


class Samples(NamedTuple):
    """Where many samples lie; the columns of `Place`."""

    files: list[int]
    offsets: list[int]
    sizes: list[int]
    checksums: list[int]

    @classmethod
    def of(cls, places: Sequence[Place]) -> Self:
        """Return places as columns."""
        return (
            cls(*(list(column) for column in zip(*places, strict=True)))
            if places
            else cls([], [], [], [])
        )


def find_files(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the paths of a data set: of a directory its `*.ffr`, sorted by name.

    Raises:
        FileNotFoundError: the directory has none.
        ValueError: an empty list, as of a pattern that nothing fits.
    """
    if not isinstance(source, str | os.PathLike):
        paths = [os.fspath(path) for path in source]
        if not paths:
            raise ValueError("a data set of no files: the list of their paths is empty")
        return paths
    path = Path(source)
    if is_url(source) or not path.is_dir():
        return [os.fspath(source)]
    found = sorted(str(entry) for entry in path.iterdir() if entry.name.endswith(SUFFIX))
    if not found:
        raise FileNotFoundError(errno.ENOENT, f"no *{SUFFIX} in this directory", str(path))
    return found


class _Table:
    """The header of one file: where its samples lie."""

    def __init__(self, client: BatchClient, file: BatchFile) -> None:
        self._path = file.path
        length = file.length()
        fixed = self._read(client, file, 0, FIXED_HEADER_BYTES)
        stored, self.count = struct.unpack("<Iq", fixed)
        self.begin = FIXED_HEADER_BYTES + ENTRY_BYTES * self.count
        if self.count < 0 or self.begin > length:
            raise self.damage(f"header says {self.count} samples, file has {length} bytes")
        rest = self._read(client, file, FIXED_HEADER_BYTES, ENTRY_BYTES * self.count)
        found = zlib.crc32(rest, zlib.crc32(fixed[4:]))
        if stored == 0 and found != 0:
            warnings.warn(f"{self._path}: header without checksum is not checked", stacklevel=4)
        elif stored != found:
            raise self.damage(f"CRC-32 of the header is {found:#010x}, not {stored:#010x}")
        self.checksums = _numbers("I", rest[: 4 * self.count])
        self.offsets = _numbers("q", rest[4 * self.count :])
        self.offsets.append(length)
        self.size_min, self.size_max = (
            of(map(sub, islice(self.offsets, 1, None), self.offsets), default=0)
            for of in (min, max)
        )
        if self.offsets[0] != self.begin or self.size_min < 0:
            raise self.damage("offsets of samples do not ascend from the end of the header")

    def damage(self, what: str) -> DamagedRecordError:
        """Return the error to raise."""
        return DamagedRecordError(
            f"{self._path}: {what}: damaged or not FFRecord; write or copy it anew from its source"
        )

    def _read(self, client: BatchClient, file: BatchFile, offset: int, size: int) -> bytes:
        buffer = bytearray(size)
        (count,) = client.read([Transfer(file, offset, memoryview(buffer))])
        if count < size:
            raise self.damage(f"header ends after {offset + count} bytes")
        return bytes(buffer)


def _numbers(code: str, content: bytes) -> "array[int]":
    numbers = array(code)
    numbers.frombytes(content)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


class RecordReader(Closing):
    """Samples of FFRecord files by number, many in one batch.

    Args:
        source: a file, several, or a directory.
        connect: makes the client to read through, once per process;
            default: `connect_for` the files.
        check: compare each sample with its CRC-32.

    Raises:
        OSError: a file cannot be opened or read.
        DamagedRecordError: a header is wrong.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        connect: Connect | None = None,
        *,
        check: bool = True,
    ) -> None:
        self.paths = find_files(source)
        self._connect = connect or connect_for(self.paths)
        self._check = check
        self._client = self._connect()
        try:
            self._files = [self._client.open(path) for path in self.paths]
            self._tables = [_Table(self._client, file) for file in self._files]
            self._rereader = Rereader(self._client, self._files)
        except BaseException:
            self._client.close()
            raise
        self._ends = list(accumulate(table.count for table in self._tables))
        held = [table for table in self._tables if table.count]
        self.has_one_size = len({size for t in held for size in (t.size_min, t.size_max)}) <= 1
        """Whether all samples, of all files, have the same number of bytes."""

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __repr__(self) -> str:
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"<RecordReader of {len(self)} samples: {self.paths[0]!r}{more}>"

    def place(self, index: int) -> Place:
        """Return where a sample lies.

        Raises:
            IndexError: there is no such sample.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"no sample {index}: {self.paths[0]} ... has {len(self)}")
        number = bisect_right(self._ends, index)
        table = self._tables[number]
        local = index - (self._ends[number] - table.count)
        begin, end = table.offsets[local], table.offsets[local + 1]
        return Place(number, begin, end - begin, table.checksums[local])

    def find(self, indices: Iterable[int]) -> Samples:
        """Return where samples lie; raises IndexError: there is no such sample."""
        wanted = indices if isinstance(indices, Sequence) else list(indices)
        if len(self._tables) > 1 or not wanted:
            return Samples.of([self.place(index) for index in wanted])
        for index in (min(wanted), max(wanted)):
            self.place(index)
        (table,) = self._tables
        begins, checksums = table.offsets, table.checksums
        offsets = [begins[index] for index in wanted]
        sizes = [begins[index + 1] - begins[index] for index in wanted]
        return Samples([0] * len(wanted), offsets, sizes, [checksums[index] for index in wanted])

    def read(self, indices: Iterable[int]) -> list[memoryview]:
        """Return the samples in the order asked for:
        read in one batch, all of them views of one buffer.

        Raises:
            IndexError: there is no such sample.
            OSError: a read failed.
            DamagedRecordError: a sample's bytes are not those that were written.
        """
        samples = self.find(indices)
        begins = list(accumulate(samples.sizes, initial=0))
        buffer = new_buffer(self._client, begins.pop())
        return self.read_into(samples, begins, buffer)

    def read_one(self, index: int) -> memoryview:
        """Return one sample; errors as of `read`."""
        (sample,) = self.read([index])
        return sample

    def read_into(
        self, samples: Samples, begins: Sequence[int], buffer: memoryview
    ) -> list[memoryview]:
        """Read samples in one batch, each to where it is to begin in the buffer;
        return its views, errors as of `read`.
        """
        files = [self._files[number] for number in samples.files]
        rows = Rows(files, samples.offsets, samples.sizes, begins)
        counts = self._rereader.read(rows, buffer)
        if counts != samples.sizes:
            index = next(i for i, size in enumerate(samples.sizes) if counts[i] < size)
            damage = self._tables[samples.files[index]].damage
            raise damage(f"file ends within the sample at {samples.offsets[index]}")
        views = [
            buffer[begin : begin + size] for begin, size in zip(begins, samples.sizes, strict=True)
        ]
        if self._check and list(map(zlib.crc32, views)) != samples.checksums:
            for *place, view in zip(*samples, views, strict=True):
                self._compare(Place(*place), view)
        return views

    def verify(self) -> None:
        """Read and check every sample, whatever `check` says; errors as of `read`."""
        for index in range(len(self)):
            place = self.place(index)
            view = memoryview(bytearray(place.size))
            self.read_into(Samples.of([place]), [0], view)
            self._compare(place, view)

    def close(self) -> None:
        """Close the files; twice is harmless."""
        self._client.close()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return partial(RecordReader, self.paths, self._connect, check=self._check), ()

    def _compare(self, place: Place, view: memoryview) -> None:
        found = zlib.crc32(view)
        if found != place.checksum:
            raise self._tables[place.file].damage(
                f"CRC-32 of the {place.size} bytes at {place.offset} is {found:#010x},"
                f" not {place.checksum:#010x}"
            )


class RecordWriter:
    """Writes one file of a number of samples that is known before, because the header comes first.

    As a context manager it closes at the end; if the block fails, it leaves nothing behind.

    Args:
        path: where the file appears when it is complete; a file there is replaced.
        count: how many samples will be written.
        connect: makes the client to write through; default: `connect_for` the path.

    Raises:
        ValueError: the name does not end in `.ffr`, by which readers find it.
        TypeError: the count is no integer.
        OSError: the file cannot be made.
    """

    def __init__(
        self, path: str | os.PathLike[str], count: int, connect: Connect | None = None
    ) -> None:
        self.path = os.fspath(path)
        if not self.path.endswith(SUFFIX):
            raise ValueError(f"{self.path}: names of FFRecord files end in {SUFFIX}")
        if whole_number(count, f"samples of {self.path!r}") < 0:
            raise ValueError(f"{self.path}: {count} samples")
        self._count = count
        self._checksums = array("I")
        self._offsets = array("q")
        self._end = FIXED_HEADER_BYTES + ENTRY_BYTES * count
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._is_open = True
        with ExitStack() as stack:
            beside = stack.enter_context(replaced(self.path))
            self._client = stack.enter_context((connect or connect_for([self.path]))())
            self._file = stack.enter_context(self._client.open(beside, "x"))
            self._stack = stack.pop_all()

    def __repr__(self) -> str:
        what = f"of {self.path!r}: {len(self._checksums)} samples of {self._count}"
        return shown(self, what, is_closed=not self._is_open)

    def write(self, sample: bytes | bytearray | memoryview) -> None:
        """Add a sample, a copy of it.

        Raises:
            ValueError: all have been written, or the file is closed.
            TypeError: no bytes.
            OSError: a write failed.
        """
        if isinstance(sample, int | str):  # which `bytes` would take for a number of zeros
            raise TypeError(f"{self.path}: a sample is {type(sample).__name__}, not bytes")
        if not self._is_open:
            raise ValueError(f"{self.path}: is closed")
        if len(self._checksums) == self._count:
            raise ValueError(f"{self.path}: sample {self._count + 1} of {self._count}")
        copied = bytes(sample)
        self._checksums.append(zlib.crc32(copied))
        self._offsets.append(self._end)
        self._waiting.append(copied)
        self._waiting_bytes += len(copied)
        self._end += len(copied)
        if self._waiting_bytes >= BUFFER_BYTES:
            self._flush()

    def close(self) -> None:
        """Complete the file and make it appear; twice is harmless.

        Raises:
            ValueError: samples are missing; nothing is left.
            OSError: a write failed; nothing is left.
        """
        if not self._is_open:
            return
        self._is_open = False
        with self._stack:
            if len(self._checksums) < self._count:
                raise ValueError(
                    f"{self.path}: {len(self._checksums)} samples of {self._count} were written"
                )
            self._flush()
            self._client.write([Transfer(self._file, 0, memoryview(self._header()))])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif self._is_open:
            self._is_open = False
            self._stack.__exit__(kind, error, trace)  # leaves nothing behind

    def _flush(self) -> None:
        """Write what waits: neighbours, so that it is one transfer however small
        the samples are.
        """
        content = memoryview(b"".join(self._waiting))
        begin = self._end - len(content)
        self._waiting, self._waiting_bytes = [], 0
        if content:
            self._client.write([Transfer(self._file, begin, content)])

    def _header(self) -> bytes:
        if sys.byteorder == "big":
            self._checksums.byteswap()
            self._offsets.byteswap()
        rest = struct.pack("<q", self._count) + self._checksums.tobytes() + self._offsets.tobytes()
        return struct.pack("<I", zlib.crc32(rest)) + rest
