"""The file format of a backup.  Pure: bytes in, bytes out.

    file   = "EMBERBAK", format version (LE4), frame*
    frame  = kind (4 letters), length (LE4), xxh3-64 (LE8) of kind, length, index of the
           frame (LE8) and payload; payload
    frames = HEAD (BackupHeadPb), ROWS* (BackupRowsPb), LAST (BackupEndPb); nothing after LAST

Invariants:
    - It is written and read as a stream, without a seek, in memory of one block.
    - Any change of any byte, any frame left out, doubled or moved, and any end that is too early or
      too late, is told: the frame's index is in its checksum, LAST holds the number of rows and a
      digest of every byte before it.
    - Keys ascend strictly, over all blocks.

Format version 1.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message
from xxhash import xxh3_64_intdigest, xxh3_128

from ..kv.api import KeyValue
from ..schema.proto.backup_pb2 import BackupEndPb, BackupHeadPb, BackupRowsPb
from ..schema.proto.kv_pb2 import KvRowPb
from ..schema.status import FsError, Status

MessageT = TypeVar("MessageT", bound=Message)

MAGIC: Final = b"EMBERBAK"
FORMAT_VERSION: Final = 1
BLOCK_BYTES: Final = 1024 * 1024
"""A block is closed when its rows have reached this."""
PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""No frame is longer: a length beyond it is damage."""

HEAD: Final = b"HEAD"
ROWS: Final = b"ROWS"
LAST: Final = b"LAST"

_VERSION: Final = struct.Struct("<L")
_FRAME: Final = struct.Struct("<4sLQ")
_SEED: Final = struct.Struct("<4sLQ")

Read = Callable[[int], bytes]
"""Returns the next bytes, as many as asked for unless the file ends."""


class BackupEncoder:
    """Makes the bytes of one backup, in order."""

    def __init__(self) -> None:
        self._index = 0
        self._digest = xxh3_128()
        self._rows = BackupRowsPb()
        self._row_bytes = 0
        self.row_count = 0
        self.byte_count = 0

    def head(self, head: BackupHeadPb) -> bytes:
        """Return the beginning of the file."""
        return self._note(MAGIC + _VERSION.pack(FORMAT_VERSION)) + self._frame(HEAD, head)

    def add(self, row: KeyValue) -> bytes:
        """Take in the next row; return a block if it is full, else nothing."""
        key, value = row
        self._rows.rows.append(KvRowPb(key=key, value=value))
        self._row_bytes += len(key) + len(value)
        self.row_count += 1
        return self._block() if self._row_bytes >= BLOCK_BYTES else b""

    def end(self) -> bytes:
        """Return the rest of the file."""
        rest = self._block() if self._rows.rows else b""
        end = BackupEndPb(row_count=self.row_count, digest=self._digest.digest())
        return rest + self._frame(LAST, end)

    def _block(self) -> bytes:
        made = self._frame(ROWS, self._rows)
        self._rows = BackupRowsPb()
        self._row_bytes = 0
        return made

    def _frame(self, kind: bytes, message: Message) -> bytes:
        payload = message.SerializeToString(deterministic=True)
        checksum = _checksum(kind, self._index, payload)
        self._index += 1
        return self._note(_FRAME.pack(kind, len(payload), checksum) + payload)

    def _note(self, made: bytes) -> bytes:
        self._digest.update(made)
        self.byte_count += len(made)
        return made


def _checksum(kind: bytes, index: int, payload: bytes) -> int:
    return xxh3_64_intdigest(_SEED.pack(kind, len(payload), index) + payload)


def bad_backup(detail: str) -> FsError:
    """Return the error for a backup that cannot be used."""
    return FsError(Status.BAD_BACKUP, detail)


class BackupDecoder:
    """Reads one backup; every byte of what it returns has been verified."""

    def __init__(self, read: Read, name: str) -> None:
        """Read the head.

        Args:
            read: the file, at its beginning.
            name: for messages.

        Raises:
            FsError: BAD_BACKUP when it is damaged, no backup, or of a newer format.
        """
        self._read = read
        self._name = name
        self._index = 0
        self._digest = xxh3_128()
        self._last_key: bytes | None = None
        self.row_count = 0
        self._check_version(self._take(len(MAGIC) + _VERSION.size))
        kind, payload = self._frame()
        if kind != HEAD:
            raise self._bad("it does not begin with a head")
        self.head = self._decode(BackupHeadPb, payload)

    def _check_version(self, begin: bytes) -> None:
        if not begin.startswith(MAGIC):
            raise self._bad("no backup of EmberFS, or its first bytes are damaged")
        (version,) = _VERSION.unpack(begin[len(MAGIC) :])
        if version != FORMAT_VERSION:
            raise self._bad(
                f"format version {version}, this release knows {FORMAT_VERSION}; use the release "
                "that wrote it"
            )

    def blocks(self) -> Iterator[list[KeyValue]]:
        """Yield the rows of each block; when it ends without an error, the whole file was verified.

        Raises:
            FsError: BAD_BACKUP.
        """
        while True:
            digest = self._digest.digest()
            kind, payload = self._frame()
            if kind == LAST:
                return self._check_end(self._decode(BackupEndPb, payload), digest)
            if kind != ROWS:
                raise self._bad(f"frame {self._index - 1} is of no known kind")
            rows = [(r.key, r.value) for r in self._decode(BackupRowsPb, payload).rows]
            self._check_order(rows)
            yield rows

    def _check_order(self, rows: list[KeyValue]) -> None:
        for key, _ in rows:
            if self._last_key is not None and key <= self._last_key:
                raise self._bad(f"its rows are not in order at {key[:32]!r}")
            self._last_key = key
        self.row_count += len(rows)

    def _check_end(self, end: BackupEndPb, digest: bytes) -> None:
        if end.row_count != self.row_count:
            raise self._bad(f"{self.row_count} rows, it says {end.row_count}")
        if end.digest != digest:
            raise self._bad("its digest does not match its bytes")
        if self._read(1):
            raise self._bad("there is something after its end")

    def _frame(self) -> tuple[bytes, bytes]:
        kind, length, checksum = _FRAME.unpack(self._take(_FRAME.size))
        if length > PAYLOAD_BYTES_MAX:
            raise self._bad(f"frame {self._index} is damaged (length {length})")
        payload = self._take(length)
        if checksum != _checksum(kind, self._index, payload):
            raise self._bad(f"frame {self._index} is damaged (checksum)")
        self._index += 1
        return kind, payload

    def _take(self, count: int) -> bytes:
        found = self._read(count)
        if len(found) < count:
            raise self._bad("it ends too early: the backup was not finished, or the file was cut")
        self._digest.update(found)
        return found

    def _decode(self, kind: type[MessageT], payload: bytes) -> MessageT:
        try:
            return kind.FromString(payload)
        except DecodeError as error:
            raise self._bad(f"frame {self._index - 1} does not decode") from error

    def _bad(self, detail: str) -> FsError:
        return bad_backup(f"{self._name}: {detail}")
