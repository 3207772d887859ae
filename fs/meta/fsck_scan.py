"""Gathers what is said of each inode, over the whole store at one state, and has it judged.

Most records are kept by inode and are read side by side; the others (names, GC records, the index
of locks, quotas) are sorted by inode first, on disk if they are many.  Memory: one page per kind,
what is said of one inode, and the directories (fsck_tree.py).

Changes nothing.  Concurrency: one task; others may change the store, of which one state is read.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import astuple, dataclass
from typing import Final

from ..kv.api import KeyValue, next_key, prefix_end
from ..kv.lasting import LastingSnapshot, rows_of
from ..runtime.sorter import Entry, Sorter
from ..schema.proto import common_pb2 as pb
from ..schema.proto.record_pb2 import DentryRecordPb, IdempotencyRecordPb
from ..schema.status import FsError
from . import records
from .damage import gc_record
from .fsck import judge
from .fsck_damage import (
    blocks_of,
    damaged_record,
    damaged_singletons,
    under_another_number,
)
from .fsck_facts import (
    BY_INODE,
    CHUNKS,
    DIRECTORY_LOCK,
    ENTRIES,
    GC,
    LOCK_INDEX,
    NAME,
    QUOTA,
    TRASH_KEY,
    TRASHED,
    ChunkRun,
    Entries,
    Facts,
    Finding,
    Name,
)
from .fsck_tree import Tree
from .shapes import Judge, has_shape, require_shape

_NUMBER: Final = 8
PROGRESS_COUNT: Final = 1000


def judges_nothing(_facts: Facts) -> Iterator[Finding]:
    """A rule that is always kept."""
    return iter(())


@dataclass(slots=True)
class Tally:
    """How far a check has come."""

    row_count: int = 0
    inode_count: int = 0


class _Cursor:
    """Reads the rows of one prefix in order."""

    def __init__(
        self,
        snapshot: LastingSnapshot,
        prefix: bytes,
        tally: Tally,
        keeps: Callable[[bytes, bytes], bool],
    ) -> None:
        """`keeps` says whether a row can be read; others are passed over."""
        self.prefix = prefix
        self._snapshot = snapshot
        self._tally = tally
        self._keeps = keeps
        self._begin, self._end = prefix, prefix_end(prefix)
        self._page: list[KeyValue] = []
        self._at = 0
        self.head: bytes | None = None
        """The inode (LE8) of the next row; None: there is none."""

    async def fill(self) -> None:
        """Have `head` say what comes next."""
        while self._at == len(self._page):
            page = await self._snapshot.page(self._begin, self._end)
            self._tally.row_count += len(page)
            self._page, self._at = [row for row in page if self._keeps(*row)], 0
            if not page:
                break
            self._begin = next_key(page[-1][0])
        self.head = self._page[self._at][0][4:12] if self._page else None

    async def take(self) -> list[KeyValue]:
        """Return all rows of the inode at the head."""
        found, inode = [], self.head
        while self.head == inode and inode is not None:
            found.append(self._page[self._at])
            self._at += 1
            await self.fill()
        return found


class Scan:
    """One check of a whole store."""

    def __init__(
        self,
        snapshot: LastingSnapshot,
        sorter: Sorter,
        *,
        judge_more: Callable[[Facts], Iterator[Finding]] = judges_nothing,
        on_progress: Callable[[Tally], None] = lambda _tally: None,
    ) -> None:
        """Check one state of a store.

        Args:
            snapshot: the state to check.
            sorter: empty, or with what was found about chunks; the caller closes it.
            judge_more: further rules for one inode.
            on_progress: told now and then.
        """
        self._snapshot = snapshot
        self._sorter = sorter
        self._judge_more = judge_more
        self._on_progress = on_progress
        self._damaged: list[Finding] = []
        """Found, and not told yet."""
        self._is_unreadable = False
        """So is some inode or name."""
        self._tick_max = 0
        """The latest that outcomes bear."""
        self.tally = Tally()

    async def findings(self) -> AsyncGenerator[Finding, None]:
        """Yield everything that is wrong.

        Raises:
            FsError: when the state cannot be read to its end.
        """
        rows = await self._snapshot.page(
            records.SINGLETON, prefix_end(records.SINGLETON), is_whole=True
        )
        singletons = {key: value for key, value in rows if has_shape(key, value)}
        counters = blocks_of(singletons, dict(rows))
        await self._sort()
        self._damaged += damaged_singletons(rows, counters, self._tick_max)
        blocks = list(counters.values())
        tree = Tree()
        async with aclosing(self._facts()) as found:
            async for facts in found:
                self.tally.inode_count += facts.inode is not None
                if self.tally.inode_count % PROGRESS_COUNT == 0:
                    self._on_progress(self.tally)
                while self._damaged:  # first: what is added to a counter must not be lost with it
                    yield self._damaged.pop()
                if facts.is_unreadable:
                    for finding in under_another_number(facts):
                        yield finding
                    continue
                tree.add(facts)
                for finding in judge(facts, blocks):
                    yield finding
                for finding in self._judge_more(facts):
                    yield finding
        while self._damaged:
            yield self._damaged.pop()
        if not self._is_unreadable:  # else too much is missing to tell what is wrong above it
            for finding in tree.findings(singletons):
                yield finding

    async def _rows(self, prefix: bytes) -> AsyncIterator[KeyValue]:
        async for page in rows_of(self._snapshot, prefix, prefix_end(prefix)):
            self.tally.row_count += len(page)
            for row in page:
                yield row

    async def _sort(self) -> None:
        """Sort by inode what is kept in another order."""
        add = self._sorter.add
        await self._sort_names()
        for prefix in (records.GC_FILE, records.GC_DIRECTORY):
            async for key, value in self._rows(prefix):
                if self._keeps(key, value, gc_record):
                    inode_id = records.gc_inode_id(key)
                    add(records.pack_id(inode_id), GC, bytes([len(key)]) + key + value)
        indexes = (records.CLIENT_LOCKS, LOCK_INDEX), (records.DIRECTORY_LOCKS, DIRECTORY_LOCK)
        for prefix, kind in indexes:
            async for key, _ in self._readable(prefix):
                client_id, inode_id = records.client_locks_parts(key)
                add(records.pack_id(inode_id), kind, client_id.encode())
        async for key, _ in self._readable(records.TRASH):
            add(records.pack_id(records.trash_parts(key)[1]), TRASH_KEY, key)
        async for key, _ in self._readable(records.QUOTA):
            add(records.pack_id(records.quota_directory(key)), QUOTA, b"")
        async for _ in self._readable(records.LOCK_WAITS):
            pass  # they are about no inode alone: that they can be read is all
        async for _, value in self._readable(records.IDEMPOTENCY):
            self._tick_max = max(self._tick_max, IdempotencyRecordPb.FromString(value).tick)

    async def _readable(self, prefix: bytes) -> AsyncIterator[KeyValue]:
        async for key, value in self._rows(prefix):
            if self._keeps(key, value):
                yield key, value

    async def _sort_names(self) -> None:
        entries, parent = Entries(), b""
        async for key, value in self._rows(records.DENTRY):
            if key[4:12] != parent:
                self._add_entries(parent, entries)
                entries, parent = Entries(), key[4:12]
            entries.name_count += 1
            if not self._keeps(key, value):
                continue
            record = DentryRecordPb.FromString(value)
            entries.subdirectory_count += record.type == pb.DIRECTORY
            packed = len(key).to_bytes(2, "big") + key + value
            self._sorter.add(records.pack_id(record.inode_id), NAME, packed)
            if record.HasField("trash"):
                self._sorter.add(_packed(parent), TRASHED, packed)
        self._add_entries(parent, entries)

    def _add_entries(self, parent: bytes, entries: Entries) -> None:
        if parent:
            counts = (entries.name_count, entries.subdirectory_count)
            packed = b"".join(count.to_bytes(_NUMBER, "big") for count in counts)
            self._sorter.add(_packed(parent), ENTRIES, packed)

    async def _facts(self) -> AsyncGenerator[Facts, None]:
        """Yield what is said of each inode, in the order of the keys of inodes."""
        cursors = [
            _Cursor(self._snapshot, prefix, self.tally, self._keeps_of_inode) for prefix in BY_INODE
        ]
        for cursor in cursors:
            await cursor.fill()
        entries = self._sorter.read()
        entry: Entry | None = next(entries, None)
        while True:
            heads = [cursor.head for cursor in cursors if cursor.head is not None]
            if entry is not None:
                heads.append(entry[0])
            if not heads:
                return
            inode = min(heads)
            facts = Facts(records.unpack_id(inode))
            for cursor in cursors:
                if cursor.head == inode:
                    facts.rows[cursor.prefix] = await cursor.take()
            while entry is not None and entry[0] == inode:
                _add_entry(facts, entry)
                entry = next(entries, None)
            self._read_rows(facts)
            yield facts

    def _read_rows(self, facts: Facts) -> None:
        """Read the inode's record."""
        for key, value in facts.rows.get(records.INODE, ()):
            if self._keeps(key, value):
                facts.inode = pb.InodePb.FromString(value)
            is_own = facts.inode is not None and facts.inode.inode_id == facts.inode_id
            facts.is_unreadable = not is_own
            self._is_unreadable |= not is_own

    def _keeps_of_inode(self, key: bytes, value: bytes) -> bool:
        """As `_keeps`; but an inode that cannot be read is there all the same."""
        is_inode = key.startswith(records.INODE) and len(key) == len(records.inode_key(0))
        return is_inode or self._keeps(key, value)

    def _keeps(self, key: bytes, value: bytes, require: Judge = require_shape) -> bool:
        """Return whether a record can be read; that it cannot is noted."""
        try:
            require(key, value)
        except FsError as error:
            self._damaged.append(damaged_record(key, value, error))
            self._is_unreadable |= key[:4] in (records.INODE, records.DENTRY)
            return False
        return True


def _packed(parent: bytes) -> bytes:
    """Return the id in a dentry's key as the keys of inodes have it."""
    return records.pack_id(int.from_bytes(parent, "big"))


def _add_entry(facts: Facts, entry: Entry) -> None:
    _, kind, packed = entry
    match kind:
        case b"N" | b"M":
            length = int.from_bytes(packed[:2], "big")
            name = Name(packed[2 : 2 + length], packed[2 + length :])
            (facts.names if kind == NAME else facts.trashed).append(name)
        case b"T":
            facts.trash_keys.add(packed)
        case b"E":
            facts.entries = Entries(
                int.from_bytes(packed[:_NUMBER], "big"), int.from_bytes(packed[_NUMBER:], "big")
            )
        case b"G":
            length = packed[0]
            facts.gc.append((packed[1 : 1 + length], packed[1 + length :]))
        case b"L":
            facts.locking_clients.add(packed.decode())
        case b"D":
            facts.directory_lockers.add(packed.decode())
        case b"Q":
            facts.has_quota = True
        case _:
            assert kind == CHUNKS, kind
            facts.chunk_runs.append(unpack_chunks(packed))


def add_chunks(sorter: Sorter, inode_id: int, run: ChunkRun) -> None:
    """Have a check know of chunks of an inode."""
    packed = b"".join(number.to_bytes(_NUMBER, "big") for number in astuple(run))
    sorter.add(records.pack_id(inode_id), CHUNKS, packed)


def unpack_chunks(packed: bytes) -> ChunkRun:
    """Return what `add_chunks` packed."""
    numbers = [
        int.from_bytes(packed[at : at + _NUMBER], "big") for at in range(0, len(packed), _NUMBER)
    ]
    return ChunkRun(*numbers)
