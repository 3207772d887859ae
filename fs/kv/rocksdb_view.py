"""One state of a RocksDB store, read while later commits go on.

Newest and fixed.  A view of the newest state reads the store itself.  Most views are gone when the
next commit comes.  One that is still held then is fixed before that commit is written, by a
snapshot and a cursor together: the binding's `Snapshot.iter` reads the newest state instead of the
snapshot's, while a plain cursor stays at the state in which it was made.

Cursors.  A cursor that looks for the first row of a range passes over all that was deleted from
there on, also beyond the range, until it meets a row that is there.  So each range of the newest
state is read by a cursor that knows where the range ends.  A view that is fixed has only the one
that it was fixed with.  Backwards the binding's cursors know no bound.

What is remembered (`KnownRows`): what has been read of the newest state, or written to it.  Most
transactions read the same few records, directories and counters, and every commit adds to some of
them.  And what one has made another reads soon.

Concurrency: one event loop.
"""

from typing import Final

from rocksdict import Rdict, RdictIter, ReadOptions, Snapshot

from ..schema.status import FsError, Status
from .api import KeyValue
from .buffer import Mutations

ROW_MISSING: Final = ("key not found",)
"""Arguments of the exception by which a snapshot reports an absent key."""

KNOWN_ROWS_MAX: Final = 16_384
"""Of each of the two generations."""
KNOWN_ROW_BYTES_MAX: Final = 1024
"""Larger values are not remembered: so all of them take some 40 MiB
at the very most, 10 as a rule.
"""


class KnownRows(dict[bytes, bytes | None]):
    """Rows of one state, as far as they have been read or written; None: absent.

    When there are enough, they become the older generation, in place of the one before: what is
    asked for again while it is there is kept, what is not goes.

    Invariant: no key is in both generations.
    """

    __slots__ = ("older",)

    def __init__(self) -> None:
        super().__init__()
        self.older: dict[bytes, bytes | None] = {}

    def note(self, key: bytes, value: bytes | None) -> None:
        """Remember what was read or written, and is in neither generation, if it is small."""
        if value is None or len(value) <= KNOWN_ROW_BYTES_MAX:
            if len(self) >= KNOWN_ROWS_MAX:
                self.older = self.copy()
                self.clear()
            self[key] = value

    def follow(self, mutations: Mutations) -> None:
        """Become rows of the state that a commit has made."""
        if mutations.ranges:
            self.clear()
            self.older = {}
        for key, value in mutations.points:
            if key in self:
                generation: dict[bytes, bytes | None] = self
            elif key in self.older:
                generation = self.older
            else:
                if value is not None:  # what has just been made is mostly asked for soon
                    self.note(key, value)
                continue
            if value is None or len(value) <= KNOWN_ROW_BYTES_MAX:
                generation[key] = value
            else:
                del generation[key]


class RocksDbView:
    """One state of the store; shared by the transactions that begin between two commits."""

    __slots__ = ("__weakref__", "_cursor", "_db", "_snapshot", "known", "version")

    def __init__(self, db: Rdict, version: int, known: KnownRows) -> None:
        """Show the newest state; `known` is of it, and shared with the engine until `fix`."""
        self._db: Rdict | None = db
        self._snapshot: Snapshot | None = None
        self._cursor: RdictIter | None = None
        self.known = known
        self.version = version

    def fix(self) -> None:
        """Stay at this state, and use no longer what is known of the newest one:
        the next commit is about to be written.
        """
        assert self._db is not None, "the engine is closed"
        self._cursor = self._db.iter()
        self._snapshot = self._db.snapshot()
        self._db = None
        self.known = KnownRows()

    def release(self) -> None:
        """Let go of the store; later reads are a bug."""
        self._db = None
        self._snapshot = None
        self._cursor = None
        self.known = KnownRows()

    def _cursor_up_to(self, end: bytes) -> RdictIter:
        """Return a cursor for rows before `end`, which has to live as long as it:
        the binding does not copy a bound.
        """
        if self._cursor is not None:
            return self._cursor
        assert self._db is not None, "the engine is closed"
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        return self._db.iter(options)

    def get(self, key: bytes) -> bytes | None:
        """See View.get."""
        known = self.known
        if key in known:
            return known[key]
        value = known.older.pop(key) if key in known.older else self._read(key)
        known.note(key, value)
        return value

    def _read(self, key: bytes) -> bytes | None:
        db, snapshot = self._db, self._snapshot
        try:
            if db is not None:
                value: bytes | None = db.get(key)
            else:
                assert snapshot is not None, "the engine is closed"
                value = snapshot[key]
        except Exception as error:
            if error.args == ROW_MISSING:
                return None
            raise FsError(Status.IO_ERROR, f"key-value store: get {key!r}: {error}") from error
        return value

    def scan(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        """See View.scan."""
        cursor = self._cursor_up_to(end)
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
