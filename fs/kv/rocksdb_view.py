"""One state of a RocksDB store, read while later commits go on.

The cursor is made together with the snapshot, because the binding's `Snapshot.iter` reads the newest state instead of
the snapshot's; a plain cursor stays at the state in which it was made.

Concurrency: one event loop.
"""

from typing import Final

from rocksdict import Rdict, RdictIter, Snapshot

from ..schema.status import FsError, Status
from .api import KeyValue

ROW_MISSING: Final = ("key not found",)
"""Arguments of the exception by which a snapshot reports an absent key."""


class RocksDbView:
    """One state of the store; shared by the transactions that begin between two commits."""

    __slots__ = ("__weakref__", "_cursor", "_snapshot", "version")

    def __init__(self, db: Rdict, version: int) -> None:
        self._snapshot: Snapshot | None = db.snapshot()
        self._cursor: RdictIter | None = db.iter()
        self.version = version

    def release(self) -> None:
        """Let go of the store; later reads are a bug."""
        self._snapshot = None
        self._cursor = None

    def get(self, key: bytes) -> bytes | None:
        """See View.get."""
        snapshot = self._snapshot
        assert snapshot is not None, "the engine is closed"
        try:
            value: bytes = snapshot[key]
        except Exception as error:
            if error.args == ROW_MISSING:
                return None
            raise FsError(Status.IO_ERROR, f"key-value store: get {key!r}: {error}") from error
        return value

    def scan(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        """See View.scan."""
        cursor = self._cursor
        assert cursor is not None, "the engine is closed"
        collect = _backward if reverse else _forward
        try:
            rows = collect(cursor, begin, end, limit)
            cursor.status()  # a cursor that failed looks like one at its end
        except Exception as error:
            raise FsError(
                Status.IO_ERROR, f"key-value store: scan {begin!r}..{end!r}: {error}"
            ) from error
        return rows


def _forward(cursor: RdictIter, begin: bytes, end: bytes, limit: int) -> list[KeyValue]:
    rows: list[KeyValue] = []
    cursor.seek(begin)
    while cursor.valid() and (key := cursor.key()) < end:
        rows.append((key, cursor.value()))
        if len(rows) == limit:
            break
        cursor.next()
    return rows


def _backward(cursor: RdictIter, begin: bytes, end: bytes, limit: int) -> list[KeyValue]:
    rows: list[KeyValue] = []
    cursor.seek_for_prev(end)
    if cursor.valid() and cursor.key() >= end:
        cursor.prev()
    while cursor.valid() and (key := cursor.key()) >= begin:
        rows.append((key, cursor.value()))
        if len(rows) == limit:
            break
        cursor.prev()
    return rows
