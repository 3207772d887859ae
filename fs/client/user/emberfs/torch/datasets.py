"""PyTorch data sets that fetch a whole batch in one call.

    RecordDataset   samples of FFRecord files, by number
    PackedDataset   files of a folder that was packed into one FFRecord file
    FilesDataset    one file is one sample
    ArrayDataset    equal pieces of one flat file, such as tokens
    RecordStream    samples of FFRecord files as they come, in shuffled blocks, shared
                    out over ranks and workers

DataLoader asks map-style data sets for a batch by `__getitems__`: the bytes of all its
samples land in one buffer by one batch of reads.  A sample is a tensor of bytes, a view of
that buffer, or what `decode` makes of it.

Invariants: every data set can be used by workers of any start method; a forked worker uses the
parent's client, which opens itself anew there; a spawned one gets a copy that opens its own.

What this module does not do: count what was consumed
(`emberfs.torch.loader`), keep files in memory.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from ..batch import BatchFile, whole_number
from ..ffrecord import RecordReader
from ..opening import Connect, connect_for
from ..order import EpochOrder, need_shares, share
from ..pack import PackedFolder, files_below
from ..rereading import Rereader
from ..rows import Rows, read_rows
from .memory import bytes_of, landing

Decode = Callable[[torch.Tensor], Any]
Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

OPENERS = 8
ALIGNMENT = 16
"""Of samples of several sizes, so that they can be viewed as numbers of any type."""

READ_BYTES = 8 << 20


def rank_and_world() -> tuple[int, int]:
    """Return this process's rank and the number of ranks; (0, 1) without torch.distributed."""
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return 0, 1


def _lay_out(sizes: Sequence[int], *, is_even: bool) -> tuple[torch.Tensor, list[int]]:
    """Return memory for a batch and where in it samples begin:
    aligned, or without gaps, to be one tensor.

    Args:
        sizes: of the samples.
        is_even: all samples of the whole data set have one size.  Those that happen to have it
            in one batch are aligned as in any other, or what `decode` does with a part of them
            would fail then and only then.
    """
    steps = sizes if is_even else [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    begins = list(accumulate(steps, initial=0))
    return landing(begins.pop()), begins


def _parts(buffer: torch.Tensor, begins: Sequence[int], sizes: Sequence[int]) -> list[torch.Tensor]:
    return [buffer[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]


def _read_records(reader: RecordReader, indices: Sequence[int]) -> list[torch.Tensor]:
    samples = reader.find(indices)
    buffer, begins = _lay_out(samples.sizes, is_even=reader.has_one_size)
    reader.read_into(samples, begins, bytes_of(buffer))
    return _parts(buffer, begins, samples.sizes)


class _Samples(Dataset[Any]):
    """A map-style data set over `_fetch`."""

    _decode: Decode | None

    def _fetch(self, indices: Sequence[int]) -> list[torch.Tensor]:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Any:
        (sample,) = self.__getitems__([whole_number(index, "in place of a sample's number")])
        return sample

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return many samples, read in one batch."""
        samples = self._fetch(indices)
        return samples if self._decode is None else [self._decode(sample) for sample in samples]


class RecordDataset(_Samples):
    """Samples of FFRecord files by number.

    Args:
        source: a file, several, or a directory of `*.ffr`.
        decode: makes a sample of its bytes.
        connect: makes the client to read through; default: `connect_for` the files.
        check: compare each sample with its checksum; what differs raises `DamagedRecordError`.
    """

    def __init__(
        self,
        source: Source,
        decode: Decode | None = None,
        connect: Connect | None = None,
        *,
        check: bool = True,
    ) -> None:
        self.reader = RecordReader(source, connect, check=check)
        self._decode = decode

    def __len__(self) -> int:
        return len(self.reader)

    def __repr__(self) -> str:
        return f"<RecordDataset over {self.reader!r}>"

    def _fetch(self, indices: Sequence[int]) -> list[torch.Tensor]:
        return _read_records(self.reader, indices)


class PackedDataset(_Samples):
    """Files of a packed folder (`emberfs.pack`):
    one is one sample, its path below the folder that was packed is in `names`.

    Args:
        path: the FFRecord file.
        decode: makes a sample of its bytes.
        connect: makes the client to read through; default: `connect_for` the file.
        allow_pickle: as of `PackedFolder`.

    Raises:
        DamagedRecordError: no packed folder: `RecordDataset` reads other FFRecord files.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        decode: Decode | None = None,
        connect: Connect | None = None,
        *,
        allow_pickle: bool = False,
    ) -> None:
        folder = PackedFolder(path, connect, allow_pickle=allow_pickle)
        self.reader = folder.reader
        self.names = folder.names
        self._numbers = folder.numbers
        self._decode = decode

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<PackedDataset of {len(self)} files: {self.reader.paths[0]!r}>"

    def _fetch(self, indices: Sequence[int]) -> list[torch.Tensor]:
        for index in indices:
            if not 0 <= index < len(self):  # behind them lies the index
                raise IndexError(f"no sample {index}: {self.reader.paths[0]} has {len(self)}")
        return _read_records(self.reader, [self._numbers[index] for index in indices])


class FilesDataset(_Samples):
    """One file is one sample; its path is in `paths`.

    Args:
        source: a folder, for all regular files below it by name, or the files themselves.
        decode: makes a sample of its bytes.
        connect: makes the client to read through; default: `connect_for` the files.
    """

    def __init__(
        self, source: Source, decode: Decode | None = None, connect: Connect | None = None
    ) -> None:
        if isinstance(source, str | os.PathLike):
            self.paths = [str(Path(source, name)) for name in files_below(source)]
        else:
            self.paths = [os.fspath(path) for path in source]
        if not self.paths:
            raise ValueError(f"a data set of no files: {source}")
        self._decode = decode
        self._connect = connect or connect_for(self.paths)
        self._client = self._connect()

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"<FilesDataset of {len(self)} files: {self.paths[0]!r} ...>"

    def _fetch(self, indices: Sequence[int]) -> list[torch.Tensor]:
        paths = [self.paths[index] for index in indices]
        with ThreadPoolExecutor(min(OPENERS, max(len(paths), 1))) as pool:
            opened = [pool.submit(self._open, path) for path in paths]
        failure = next((found.exception() for found in opened if found.exception()), None)
        files = [found.result() for found in opened if not found.exception()]
        try:
            if failure:
                raise failure
            return self._read(files)
        finally:
            for file, _ in files:
                file.close()

    def _read(self, files: Sequence[tuple[BatchFile, int]]) -> list[torch.Tensor]:
        sizes = [size for _, size in files]
        buffer, begins = _lay_out(sizes, is_even=False)
        rows = Rows([file for file, _ in files], [0] * len(files), sizes, begins)
        counts = read_rows(self._client, rows, bytes_of(buffer))
        return _parts(buffer, begins, counts)  # a file that was cut since gives a shorter sample

    def _open(self, path: str) -> tuple[BatchFile, int]:
        file = self._client.open(path)
        return file, file.length()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._client = self._connect()


class ArrayDataset(_Samples):
    """Equal pieces of one flat file; `stack_neighbours` makes a batch of them without a copy.

    Args:
        path: the file; what is left at its end and too short for a sample is not used.
        shape: of one sample.
        dtype: of its numbers, as they lie in the file.
        offset: bytes at the beginning of the file to pass over.
        decode: makes a sample of the tensor.
        connect: makes the client to read through; default: `connect_for` the files.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        offset: int = 0,
        decode: Decode | None = None,
        connect: Connect | None = None,
    ) -> None:
        options: dict[str, Any] = {"offset": offset, "decode": decode, "connect": connect}
        self._options = (os.fspath(path), tuple(shape), dtype, options)
        self._decode = decode
        self._shape, self._dtype, self._offset = tuple(shape), dtype, offset
        self._size = prod(shape) * torch.empty(0, dtype=dtype).element_size()
        if self._size < 1 or offset < 0:
            raise ValueError(f"samples of {self._size} bytes from offset {offset}")
        self._client = (connect or connect_for([path]))()
        self._file = self._client.open(os.fspath(path))
        self._rereader = Rereader(self._client, [self._file])
        self._count: int = max(self._file.length() - offset, 0) // self._size

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        path, shape, dtype, _ = self._options
        return f"<ArrayDataset of {len(self)} samples of {shape} {dtype}: {path!r}>"

    def _fetch(self, indices: Sequence[int]) -> list[torch.Tensor]:
        for index in indices:
            if not 0 <= index < self._count:
                raise IndexError(f"no sample {index}: {self._file.path} has {self._count}")
        buffer = landing(len(indices) * self._size)
        offsets = [self._offset + index * self._size for index in indices]
        begins = [number * self._size for number in range(len(indices))]
        rows = Rows([self._file] * len(indices), offsets, [self._size] * len(indices), begins)
        counts = self._rereader.read(rows, bytes_of(buffer))
        if any(count < self._size for count in counts):
            raise EOFError(f"{self._file.path} has become shorter than when it was opened")
        return list(buffer.view(self._dtype).view(len(indices), *self._shape))

    def __reduce__(self) -> tuple[Any, ...]:
        path, shape, dtype, options = self._options
        return partial(ArrayDataset, path, shape, dtype, **options), ()


class RecordStream(IterableDataset[Any]):
    """Samples of FFRecord files in shuffled blocks;
    every rank and worker gets an equal share of each epoch.

    Neighbouring samples are read together, up to `READ_BYTES` ahead.
    `ResumableLoader` tells it epoch and position.

    Args:
        source: a file, several, or a directory of `*.ffr`.
        decode: makes a sample of its bytes.
        block: neighbouring samples that stay together.
        window: blocks whose samples are mixed.
        seed: of the order; the same on all ranks; None: not shuffled.
        rank: of this process, and `world`, their number: default, those of torch.distributed.
        world: see `rank`.
        connect: makes the client to read through; default: `connect_for` the files.
        check: compare each sample with its checksum.

    Raises:
        ValueError: no such rank, or fewer samples than ranks; of workers when they begin.
    """

    def __init__(
        self,
        source: Source,
        decode: Decode | None = None,
        *,
        block: int = 64,
        window: int = 16,
        seed: int | None = 0,
        rank: int | None = None,
        world: int | None = None,
        connect: Connect | None = None,
        check: bool = True,
    ) -> None:
        self.reader = RecordReader(source, connect, check=check)
        self._decode = decode
        self._block, self._window, self._seed = block, window, seed
        found = rank_and_world()
        self.rank = found[0] if rank is None else rank
        self.world = found[1] if world is None else world
        need_shares(len(self.reader), self.rank, self.world)
        self._position = torch.zeros(3, dtype=torch.int64).share_memory_()  # workers see it change

    def __len__(self) -> int:
        """Return the samples of this rank per epoch with one worker;
        with more, up to workers-1 fewer.
        """
        return len(self.reader) // int(self.world)

    def __repr__(self) -> str:
        return f"<RecordStream of rank {self.rank} of {self.world} over {self.reader!r}>"

    def shape(self) -> dict[str, Any]:
        """Return what a position means nothing without."""
        order = {"block": self._block, "window": self._window, "seed": self._seed}
        return {"samples": len(self.reader), **order, "world": self.world}

    def set_position(self, epoch: int, batches: int, batch_size: int) -> None:
        """Let the next iteration begin after this rank's loader has delivered `batches`
        batches of an epoch.
        """
        self._position[:] = torch.tensor([epoch, batches, batch_size])

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        epoch, batches, batch_size = (int(value) for value in self._position)
        # Workers take turns, and the first one is always the first.
        role = (number + batches) % workers
        need_shares(len(self.reader), self.rank * workers + role, self.world * workers)
        own = batches // workers + (role < batches % workers)
        begin, end = share(len(self.reader), self.rank * workers + role, self.world * workers)
        order = EpochOrder(len(self.reader), self._block, self._window, self._seed, epoch)
        waiting: list[int] = []
        waiting_bytes = 0
        for index in order.between(min(begin + own * batch_size, end), end):
            waiting.append(index)
            waiting_bytes += self.reader.place(index).size
            if waiting_bytes >= READ_BYTES:
                yield from self._take(waiting)
                waiting, waiting_bytes = [], 0
        yield from self._take(waiting)

    def _take(self, indices: list[int]) -> Iterator[Any]:
        for sample in _read_records(self.reader, indices):
            yield sample if self._decode is None else self._decode(sample)
