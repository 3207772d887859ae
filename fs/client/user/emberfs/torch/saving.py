"""Single files of tensors: torch.save and safetensors, by batches of writes and reads,
with a checksum inside.

`save` and `load` are torch.save and torch.load; `save_tensors` and `load_tensors` are for
dictionaries of tensors in the safetensors format.  The files are ordinary ones, which torch.load
and safetensors read, too: the checksum of the first kind stands in the comment of the zip archive,
of the second in `__metadata__`.

Invariants:
    - A file appears under its name when it is complete and durable, or never.
    - What has a checksum is compared with it before it is returned.
    - Safetensors are read right into the tensors' memory.

What this module does not do: tensors that are spread over ranks (`emberfs.torch.checkpoint`).
"""

import io
import json
import os
import struct
import zipfile
from collections.abc import Mapping
from contextlib import closing
from math import prod
from operator import index
from typing import Any

import torch
from xxhash import xxh3_64

from ..appending import Appender
from ..batch import BatchClient, BatchFile, Transfer
from ..in_order import read_in_order
from ..opening import Connect, connect_for
from ..publish import replaced
from .checkpoint import DamagedCheckpointError
from .memory import bytes_of, plain

ZIP_END = struct.Struct("<4s4H2LH")
"""End of a zip archive's directory; its last field is the length of the comment that follows."""

COMMENT = b"emberfs-xxh3="
COMMENT_BYTES = len(COMMENT) + 16
METADATA = "__metadata__"
METADATA_KEY = "emberfs-xxh3"
NO_SUM = "0" * 16
"""Stands in the header in the place of the checksum
while it is computed over header and tensors.
"""

TAR_HEAD_BYTES = 262
"""Up to the end of what says that it is one."""

LENGTH_BYTES = 8
HEADER_BYTES_MAX = 100_000_000

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class _Summed(io.RawIOBase):
    """What torch.save writes to: appends it, but for the last bytes until they are known
    to be the last, and sums up.
    """

    def __init__(self, stream: Appender) -> None:
        super().__init__()
        self._stream = stream
        self._tail = b""
        self._sum = xxh3_64()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._stream.offset + len(self._tail)

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        keep = ZIP_END.size
        if len(view) < keep:
            self._tail += view
            self._append(memoryview(self._tail[:-keep]))
            self._tail = self._tail[-keep:]
        else:
            self._append(memoryview(self._tail))
            self._append(view[:-keep])
            self._tail = bytes(view[-keep:])
        return len(view)

    def _append(self, content: memoryview) -> None:
        self._stream.append(content, self._sum.update)

    def finish(self) -> None:
        """Write the rest, and the sum of all as a comment of the zip archive, which ends here."""
        end = bytearray(self._tail)
        assert end[:4] == b"PK\5\6", (
            "what torch.save writes ends with the directory of a zip archive"
        )
        end[-2:] = struct.pack("<H", COMMENT_BYTES)
        self._append(memoryview(end))
        comment = COMMENT + self._sum.hexdigest().encode()
        self._stream.append(memoryview(comment))
        self._stream.finish()


class _Bytes(io.RawIOBase):
    """Memory as a file; `io.BytesIO` would copy it."""

    def __init__(self, content: memoryview) -> None:
        super().__init__()
        self._content, self._at = content, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._content)}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        piece = self._content[self._at : self._at + len(target)]
        target[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def save(value: Any, path: str | os.PathLike[str], connect: Connect | None = None) -> None:
    """Save as torch.save does.

    Args:
        value: what torch.save takes.
        path: the file; one that is there is replaced when the new one is durable.
        connect: makes the client to write through; default: `connect_for` the path.
    """
    connect = connect or connect_for([path])
    with (
        replaced(path) as partial,
        connect() as client,
        client.open(partial, "x") as file,
        Appender(client, file) as stream,
    ):
        summed = _Summed(stream)
        torch.save(value, summed)
        summed.finish()


def load(
    path: str | os.PathLike[str],
    connect: Connect | None = None,
    *,
    map_location: Any = None,
    weights_only: bool = True,
) -> Any:
    """Load as torch.load does, from `save` or torch.save; what has a checksum is compared with it.

    Args:
        path: the file.
        connect: makes the client to read through; default: `connect_for` the path.
        map_location: as of torch.load.
        weights_only: as of torch.load; False lets the file run code.

    Raises:
        DamagedCheckpointError: the bytes are not those that were written, or
            nothing that torch.save writes.
    """
    connect = connect or connect_for([path])
    with connect() as client, client.open(os.fspath(path)) as file:
        content = client.allocate(max(file.length(), 1)).view
        digest, summed, count = xxh3_64(), max(0, len(content) - COMMENT_BYTES), 0
        with closing(read_in_order(client, [Transfer(file, 0, content)])) as parts:
            for part in parts:
                digest.update(part.buffer[: max(0, summed - count)])
                count += len(part.buffer)
    if count < len(content):  # it has become shorter
        content = content[:count]
        digest = xxh3_64(content[:-COMMENT_BYTES])
    comment = bytes(content[-COMMENT_BYTES:])
    if comment.startswith(COMMENT) and comment != COMMENT + digest.hexdigest().encode():
        raise DamagedCheckpointError(f"{path}: damaged: go back to an older file")
    _check_kind(content, path)
    try:
        return torch.load(_Bytes(content), map_location=map_location, weights_only=weights_only)
    except (EOFError, LookupError) as error:  # what its unpickler makes of bytes that are no pickle
        raise DamagedCheckpointError(f"{path}: {_NO_FILE}: {error!r}") from error


_NO_FILE = "no file of torch.save, or damaged"


def _check_kind(content: memoryview, path: str | os.PathLike[str]) -> None:
    """Raise DamagedCheckpointError for what torch.save has not written:
    torch.load advises to try it with weights_only=False.
    """
    head = bytes(content[:TAR_HEAD_BYTES])
    if head.startswith(b"PK\3\4"):
        if not zipfile.is_zipfile(_Bytes(content)):
            raise DamagedCheckpointError(f"{path}: its end is missing or damaged")
    elif not (head.startswith(b"\x80") or head.endswith(b"ustar")):  # as earlier releases wrote
        raise DamagedCheckpointError(f"{path}: {_NO_FILE}")


def save_tensors(
    tensors: Mapping[str, torch.Tensor],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    connect: Connect | None = None,
) -> None:
    """Save a dictionary of tensors as safetensors.

    Raises:
        TypeError: what is no tensor, or metadata that is no text.
        ValueError: a type or name that the format does not have, or a tensor without bytes.
    """
    given = {name: text for name, text in (metadata or {}).items() if name != METADATA_KEY}
    for name, said in given.items():
        if not isinstance(name, str) or not isinstance(said, str):
            raise TypeError(f"metadata {name!r}: {said!r}: names and values are text")
    header: dict[str, Any] = {METADATA: {METADATA_KEY: NO_SUM, **given}}
    kept, end = [], 0
    for name, tensor in sorted(tensors.items(), key=_largest_items_first):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: is {type(tensor).__name__}, not a tensor")
        if tensor.dtype not in _NAMES:
            raise ValueError(f"{name}: safetensors files have no {tensor.dtype}")
        if tensor.layout is not torch.strided or tensor.is_meta:
            raise ValueError(f"{name}: a {_kind(tensor)} tensor has no bytes to save")
        if name == METADATA:
            raise ValueError(f"{name}: safetensors files have no tensor of this name")
        content = plain(tensor)
        begin, end = end, end + content.numel() * content.element_size()
        kept.append(content)
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = xxh3_64(text)
    for content in kept:
        digest.update(bytes_of(content))
    text = text.replace(NO_SUM.encode(), digest.hexdigest().encode(), 1)
    head = struct.pack("<Q", len(text)) + text
    connect = connect or connect_for([path])
    with (
        replaced(path) as partial,
        connect() as client,
        client.open(partial, "x") as file,
        Appender(client, file) as stream,
    ):
        stream.append(memoryview(head))
        for content in kept:
            stream.append(bytes_of(content))
        stream.finish()


def _kind(tensor: torch.Tensor) -> str:
    return "meta" if tensor.is_meta else str(tensor.layout).removeprefix("torch.")


def _largest_items_first(named: tuple[str, Any]) -> tuple[int, str]:
    """Return by what tensors are ordered, so that all are aligned;
    what is none comes as it may, and is refused.
    """
    name, tensor = named
    return -tensor.element_size() if isinstance(tensor, torch.Tensor) else 0, name


def load_tensors(
    path: str | os.PathLike[str], connect: Connect | None = None
) -> dict[str, torch.Tensor]:
    """Load all tensors of a safetensors file: its header first,
    then the rest right into their memory.

    Raises:
        DamagedCheckpointError: no safetensors file, or the bytes are not those that were written.
    """
    connect = connect or connect_for([path])
    with connect() as client, client.open(os.fspath(path)) as file:
        text, header = _read_header(client, file)
        begin = LENGTH_BYTES + len(text)
        stored = _stored_sum(header.pop(METADATA, {}), file.path)
        room = file.length() - begin
        tensors = {name: _empty(name, entry, room, file.path) for name, entry in header.items()}
        order = sorted(header, key=lambda name: header[name]["data_offsets"])
        buffers = [bytes_of(tensors[name]) for name in order]
        digest = xxh3_64(text.replace((stored or NO_SUM).encode(), NO_SUM.encode(), 1))
        count = 0
        transfers = [
            Transfer(file, begin + header[name]["data_offsets"][0], buffer)
            for name, buffer in zip(order, buffers, strict=True)
        ]
        with closing(read_in_order(client, transfers)) as parts:
            for part in parts:
                digest.update(part.buffer)
                count += len(part.buffer)
    if count < sum(map(len, buffers)) or stored not in {None, digest.hexdigest()}:
        raise DamagedCheckpointError(f"{path}: damaged: go back to an older file")
    return tensors


def _read_header(client: BatchClient, file: BatchFile) -> tuple[bytes, dict[str, Any]]:
    """Return the header, as it is and parsed."""
    size = bytearray(LENGTH_BYTES)
    client.read([Transfer(file, 0, memoryview(size))])
    (length,) = struct.unpack("<Q", size)
    if not len("{}") <= length <= min(HEADER_BYTES_MAX, file.length() - LENGTH_BYTES):
        raise DamagedCheckpointError(f"{file.path}: no safetensors file, or damaged")
    text = bytearray(length)
    client.read([Transfer(file, LENGTH_BYTES, memoryview(text))])
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"{file.path}: header is damaged: {error}") from None
    if not isinstance(header, dict):
        raise DamagedCheckpointError(f"{file.path}: header is damaged: no object")
    return bytes(text), header


def _stored_sum(metadata: Any, path: str) -> str | None:
    """Return the checksum that stands in a header; None: none does."""
    found = metadata.get(METADATA_KEY) if isinstance(metadata, dict) else metadata
    if found is not None and not isinstance(found, str):
        raise DamagedCheckpointError(f"{path}: {METADATA} is damaged")
    stored: str | None = found
    return stored


def _empty(name: str, entry: Any, room: int, path: str) -> torch.Tensor:
    """Return memory for a tensor that an entry of the header describes;
    `room`: bytes behind the header.
    """
    try:
        dtype, shape = _DTYPES[entry["dtype"]], [*map(index, entry["shape"])]
        begin, end = map(index, entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedCheckpointError(f"{path}: header of {name!r} is damaged: {error}") from None
    fits = 0 <= begin <= end <= room and min(shape, default=0) >= 0
    if not fits or end - begin != prod(shape) * dtype.itemsize:
        raise DamagedCheckpointError(f"{path}: header of {name!r} is damaged: {entry}")
    return torch.empty(shape, dtype=dtype)
