"""Distributed checkpoints: what torch.distributed.checkpoint writes and reads through,
over the batch interface.

    import torch.distributed.checkpoint as dcp

    dcp.save(state, storage_writer=CheckpointWriter("/mnt/run/step-000000100"))
    dcp.load(state, storage_reader=CheckpointReader("/mnt/run/step-000000100"))

`dcp.async_save` works, too.  `CheckpointFolder` (emberfs.publish) names, finds and
prunes the checkpoints of a run.

A checkpoint is a folder: one file per rank with the raw bytes of its tensors and other items one
after the other, each at a multiple of `ALIGNMENT`; and `.metadata`, the planner's description and
for each item file, offset, size and XXH3.

Invariants:
    - The folder gets its name last, by one rename, after every file in it is durable: when any rank
      dies before, there is no checkpoint, and the next attempt removes what is left.
    - What is loaded has been compared with its checksum; what differs
      raises `DamagedCheckpointError`.
    - A tensor that is loaded whole into contiguous memory of the processor is read right into it.

What this module does not do: speak to a cluster without a mount (the folder is made and renamed by
system calls); save without collectives.
"""

import errno
import io
import os
import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import StorageReader, StorageWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from xxhash import xxh3_64, xxh3_64_hexdigest

from ..appending import Appender
from ..batch import BatchClient, BatchFile, Transfer
from ..in_order import read_in_order
from ..opening import Connect, connect_for
from ..publish import check_free, make_partial_folder, publish_folder, refuse_url
from .memory import bytes_of, is_plain, plain

ALIGNMENT = 64
METADATA_NAME = ".metadata"
MAGIC = b"emberfs-checkpoint-1\n"
DIGEST_BYTES = 17


class DamagedCheckpointError(RuntimeError):
    """Bytes of a checkpoint are not those that were written; says which file and where."""


class StoredItem(NamedTuple):
    """Where an item of a checkpoint lies: file in the folder, byte offset, bytes,
    XXH3 in hexadecimal.
    """

    file: str
    offset: int
    size: int
    checksum: str


class _Destination(NamedTuple):
    """What the coordinator tells each rank: the folder to write to, and the name of its file."""

    folder: str
    file: str


def _checked(path: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    """Return a path that is none of a URL; raises ValueError."""
    if path is not None:
        refuse_url(path)
    return path


class CheckpointWriter(StorageWriter):
    """Writes one checkpoint.

    Args:
        path: its folder; the `checkpoint_id` of a save takes its place.
        overwrite: replace a checkpoint of that name.
        connect: makes the client to write through; default: `connect_for` the folder.

    Raises:
        ValueError: a URL; also of a `checkpoint_id`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        overwrite: bool = False,
        connect: Connect | None = None,
    ) -> None:
        super().__init__()
        self._path = _checked(path)
        self._overwrite = overwrite
        self._connect = connect
        self._partial = ""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another save."""
        self._path = _checked(checkpoint_id or self._path)
        self._partial = ""

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **options: Any) -> None:
        """Check that this kind of save is known."""
        del is_coordinator
        if not options.get("use_collectives", True):
            raise ValueError(
                "use_collectives=False is not supported: one rank completes a checkpoint"
            )

    def storage_meta(self) -> StorageMeta:
        """Return the name of the checkpoint."""
        return StorageMeta(checkpoint_id=self._path)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Leave the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Make the folder beside, and tell every rank its file in it.

        Raises:
            FileExistsError: there is a checkpoint of that name.
        """
        target = self._target()
        check_free(target, overwrite=self._overwrite)
        self._partial = make_partial_folder(target)
        return [
            replace(plan, storage_data=_Destination(self._partial, f"rank-{rank:05d}"))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's items; they are durable when it returns.

        Raises:
            OSError: ENOSPC, EDQUOT, EIO ...; the space is free again.  ENOENT: another save has
                removed what this one began.
        """
        destination: _Destination = plan.storage_data
        results: list[WriteResult] = []
        if plan.items:
            path = Path(*destination)
            connect = self._connect or connect_for([path])
            with connect() as client:
                file = self._new_file(client, path)
                try:
                    with file, Appender(client, file) as stream:
                        results = _write_items(stream, path.name, plan.items, planner)
                except BaseException:
                    # The folder goes with the next save of that name; what filled the disk
                    # must not stay until then.
                    with suppress(OSError):  # the first failure is the one to tell
                        path.unlink(missing_ok=True)
                    raise
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    @staticmethod
    def _new_file(client: BatchClient, path: Path) -> BatchFile:
        try:
            return client.open(path, "x")  # one that is there is another rank's, and stays
        except FileNotFoundError as error:
            what = (
                "the folder of this save is gone: another one of the same checkpoint has begun "
                "since, or not all ranks see the same file system"
            )
            raise FileNotFoundError(errno.ENOENT, what, str(path.parent)) from error

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the description, and give the folder its name.

        Raises:
            RuntimeError: what a rank has written is not in the folder.
        """
        _check_files(Path(self._partial), results)
        metadata.storage_data = {
            result.index: tuple(result.storage_data) for written in results for result in written
        }
        metadata.storage_meta = self.storage_meta()
        content = pickle.dumps(metadata)
        head = MAGIC + xxh3_64_hexdigest(content).encode() + b"\n"
        path = Path(self._partial, METADATA_NAME)
        connect = self._connect or connect_for([path])
        with connect() as client, client.open(str(path), "x") as file:
            client.write([Transfer(file, 0, memoryview(head + content))])
        publish_folder(self._partial, self._target(), overwrite=self._overwrite)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether it is a path."""
        return "://" not in os.fspath(checkpoint_id)

    def _target(self) -> Path:
        if self._path is None:
            raise ValueError("no path: CheckpointWriter(path), or checkpoint_id=path of the save")
        return Path(self._path)


def _check_files(folder: Path, results: Iterable[Iterable[WriteResult]]) -> None:
    """See that every rank has written where the coordinator sees it,
    before that is given a name.
    """
    ends: dict[str, int] = {}
    for written in results:
        for result in written:
            stored: StoredItem = result.storage_data
            ends[stored.file] = max(ends.get(stored.file, 0), stored.offset + stored.size)
    for name, end in ends.items():
        path = folder / name
        found = path.stat().st_size if path.exists() else -1
        if found < end:
            what = "is not there" if found < 0 else f"has {found} bytes, not {end}"
            raise RuntimeError(
                f"{path}: {what}: do all ranks see the same file system, and does nobody else "
                "save here?"
            )


def _write_items(
    stream: Appender, name: str, items: Iterable[WriteItem], planner: SavePlanner
) -> list[WriteResult]:
    """Append items one after the other, and say where;
    the checksum of each is of what was copied.
    """
    results: list[WriteResult] = []
    for item in items:
        stream.append(memoryview(bytes(-stream.offset % ALIGNMENT)))
        offset = stream.offset
        owner, buffer = _content(planner.resolve_data(item), item)
        digest = xxh3_64()
        stream.append(buffer, digest.update)
        del owner
        stored = StoredItem(name, offset, len(buffer), digest.hexdigest())
        results.append(WriteResult(item.index, len(buffer), stored))
    stream.finish()
    return results


def _content(resolved: Any, item: WriteItem) -> tuple[Any, memoryview]:
    """Return an item's bytes, and what owns them."""
    if item.type == WriteItemType.BYTE_IO:
        return resolved, resolved.getbuffer()
    tensor = plain(resolved)
    return tensor, bytes_of(tensor)


@dataclass
class _Reading:
    """One stored item on its way to those who asked for it."""

    stored: StoredItem
    requests: list[ReadItem]
    owner: Any  # of the memory that it is read into
    buffer: memoryview
    is_in_place: bool
    digest: xxh3_64 = field(default_factory=xxh3_64)
    """Of the bytes that have come."""
    count: int = 0
    """Of these."""


class CheckpointReader(StorageReader):
    """Reads one checkpoint.

    Args:
        path: its folder; the `checkpoint_id` of a load takes its place.
        connect: makes the client to read through; default: `connect_for` the folder.
        check: compare what is loaded with its checksums.

    Raises:
        ValueError: a URL; also of a `checkpoint_id`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        connect: Connect | None = None,
        check: bool = True,
    ) -> None:
        super().__init__()
        self._path = _checked(path)
        self._connect = connect
        self._check = check
        self._metadata: Metadata | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another load."""
        self._path = _checked(checkpoint_id or self._path)
        self._metadata = None

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the description.

        Raises:
            FileNotFoundError: no checkpoint.
            DamagedCheckpointError: it is damaged, or of another writer.
        """
        if self._path is None:
            raise ValueError("no path: CheckpointReader(path), or checkpoint_id=path of the load")
        path = Path(self._path, METADATA_NAME)
        content = path.read_bytes()
        digest, pickled = content[len(MAGIC) :][:DIGEST_BYTES], content[len(MAGIC) + DIGEST_BYTES :]
        if not content.startswith(MAGIC):
            raise DamagedCheckpointError(
                f"{path}: not written by emberfs: read it with "
                "torch.distributed.checkpoint.FileSystemReader, or it is damaged"
            )
        if digest != xxh3_64_hexdigest(pickled).encode() + b"\n":
            raise DamagedCheckpointError(f"{path}: damaged: go back to an older checkpoint")
        found = pickle.loads(pickled)  # noqa: S301 - as every checkpoint of PyTorch: load only your own
        assert isinstance(found, Metadata), type(found)
        return found

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any
    ) -> None:
        """Remember where everything lies."""
        del is_coordinator
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Leave the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Leave the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan asks for, each stored item once.

        Raises:
            DamagedCheckpointError: a checksum differs; tensors already read
                are overwritten all the same.
        """
        connect = self._connect or connect_for([Path(self._path or "", METADATA_NAME)])
        with connect() as client:
            readings: deque[_Reading] = deque()
            transfers = self._transfers(client, self._readings(plan, planner), readings)
            with closing(read_in_order(client, transfers)) as parts:
                for part in parts:
                    reading = readings[0]
                    self._take(reading, part.buffer)
                    if part.is_last:
                        self._verify(reading)
                        self._deliver(reading, planner)
                        readings.popleft()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @property
    def checkpoint_id(self) -> str | os.PathLike[str] | None:
        """The folder."""
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether it is a path."""
        return "://" not in os.fspath(checkpoint_id)

    def _readings(self, plan: LoadPlan, planner: LoadPlanner) -> Iterator[_Reading]:
        """Yield what to read, in the order of the files."""
        assert self._metadata is not None, "set_up_storage_reader comes first"
        wanted: dict[MetadataIndex, list[ReadItem]] = {}
        for request in plan.items:
            wanted.setdefault(request.storage_index, []).append(request)
        places = {i: StoredItem(*self._metadata.storage_data[i]) for i in wanted}
        for index in sorted(wanted, key=lambda i: places[i][:2]):
            yield self._prepare(places[index], wanted[index], planner)

    def _transfers(
        self, client: BatchClient, readings: Iterable[_Reading], begun: "deque[_Reading]"
    ) -> Iterator[Transfer]:
        """Yield how each is read, and add it to those that are begun."""
        files: dict[str, BatchFile] = {}
        for reading in readings:
            name = reading.stored.file
            if name not in files:
                files[name] = client.open(str(Path(self._path or "", name)))
            begun.append(reading)
            yield Transfer(files[name], reading.stored.offset, reading.buffer)

    def _prepare(
        self, stored: StoredItem, requests: list[ReadItem], planner: LoadPlanner
    ) -> _Reading:
        """Decide where the bytes land: in the tensor that wants them,
        if it is alone and wants all of them.
        """
        first = requests[0]
        if first.type == LoadItemType.BYTE_IO:
            plain = bytearray(stored.size)
            return _Reading(stored, requests, plain, memoryview(plain), is_in_place=False)
        dtype, sizes = self._shape(first.storage_index)
        if len(requests) == 1 and tuple(first.lengths) == sizes:
            target = planner.resolve_tensor(first).detach()
            if (
                type(target) is torch.Tensor
                and target.device.type == "cpu"
                and target.dtype == dtype
                and is_plain(target)
                and tuple(target.shape) == sizes
            ):
                return _Reading(stored, requests, target, bytes_of(target), is_in_place=True)
        beside = torch.empty(sizes, dtype=dtype)
        return _Reading(stored, requests, beside, bytes_of(beside), is_in_place=False)

    def _shape(self, index: MetadataIndex) -> tuple[torch.dtype, tuple[int, ...]]:
        """Return type and size of a stored piece of a tensor."""
        assert self._metadata is not None, "set_up_storage_reader comes first"
        described = self._metadata.state_dict_metadata[index.fqn]
        for chunk in described.chunks:
            if index.offset is None or tuple(chunk.offsets) == tuple(index.offset):
                return described.properties.dtype, tuple(chunk.sizes)
        raise DamagedCheckpointError(f"{self._path}: {index} is not described: another checkpoint?")

    def _take(self, reading: _Reading, content: memoryview) -> None:
        """Count the next bytes of an item, and sum them up."""
        reading.count += len(content)
        if self._check:
            reading.digest.update(content)

    def _verify(self, reading: _Reading) -> None:
        stored = reading.stored
        where = f"{self._path}/{stored.file}: {stored.size} bytes at {stored.offset}"
        name = reading.requests[0].storage_index.fqn
        if len(reading.buffer) != stored.size or reading.count < stored.size:
            raise DamagedCheckpointError(f"{where} ({name}): only {reading.count} are there")
        if self._check and reading.digest.hexdigest() != stored.checksum:
            raise DamagedCheckpointError(
                f"{where} ({name}) differ from what was written: go back to an older checkpoint"
            )

    def _deliver(self, reading: _Reading, planner: LoadPlanner) -> None:
        for request in reading.requests:
            if request.type == LoadItemType.BYTE_IO:
                planner.load_bytes(request, io.BytesIO(reading.buffer))
            elif reading.is_in_place:
                planner.commit_tensor(request, reading.owner)
            else:
                piece = reading.owner
                for dimension, (begin, length) in enumerate(
                    zip(request.storage_offsets, request.lengths, strict=True)
                ):
                    piece = piece.narrow(dimension, begin, length)
                target = planner.resolve_tensor(request).detach()
                target.copy_(piece)
                planner.commit_tensor(request, target)
