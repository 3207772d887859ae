"""What the key-value store alone tells of a cluster, when no service answers,
or of what services keep to themselves.

Changes nothing.  Ranges that may be large are read page by page, each at an instant of its own:
what is made or removed meanwhile may or may not be seen, what stays is seen.  A damaged record is
named in the log and left out: `ember fsck` says more.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import product
from typing import Final, TypeVar

from ..kv.api import KeyValue, KvEngine, Transaction, next_key, prefix_end
from ..kv.transact import snapshot_read
from ..meta import records
from ..meta.damage import MessageT, decoded, gc_record
from ..meta.dentries import load_dentry
from ..meta.inodes import load_complete
from ..meta.shapes import require_shape
from ..mgmtd.store import Loaded, read_all, read_events
from ..schema.ids import ROOT_INODE_ID, InodeId
from ..schema.proto.common_pb2 import InodePb
from ..schema.proto.mgmtd_pb2 import RoutingEventPb
from ..schema.proto.record_pb2 import FileSessionRecordPb, GcRecordPb
from ..schema.status import FsError, Status

log = logging.getLogger(__name__)

T = TypeVar("T")

PAGE_COUNT: Final = 1000


async def pages(engine: KvEngine, begin: bytes, end: bytes) -> AsyncGenerator[list[KeyValue], None]:
    """Yield the rows of a range in order; raises FsError as `snapshot_read`."""
    while True:

        async def body(tr: Transaction, start: bytes = begin) -> list[KeyValue]:
            return await tr.get_range(start, end, limit=PAGE_COUNT, snapshot=True)

        rows = await snapshot_read(engine, body)
        if not rows:
            return
        yield rows
        begin = next_key(rows[-1][0])


async def _judged(
    engine: KvEngine, keys: tuple[bytes, bytes], judge: Callable[[bytes, bytes], T]
) -> AsyncGenerator[tuple[bytes, T], None]:
    async with aclosing(pages(engine, *keys)) as found:
        async for rows in found:
            for key, value in rows:
                try:
                    record = judge(key, value)
                except FsError as error:
                    if error.status is not Status.METADATA_DAMAGED:
                        raise
                    log.warning("left out: %s", error)
                else:
                    yield key, record


async def readable(
    engine: KvEngine, prefix: bytes, type_: type[MessageT]
) -> AsyncGenerator[tuple[bytes, MessageT], None]:
    """Yield the keys of all records of a kind that can be read, and what they say."""

    def judge(key: bytes, value: bytes) -> MessageT:
        require_shape(key, value)
        return decoded(type_, key, value)

    async with aclosing(_judged(engine, (prefix, prefix_end(prefix)), judge)) as found:
        async for row in found:
            yield row


async def stored_cluster(engine: KvEngine, cluster_id: str) -> Loaded:
    """Return nodes, targets, chains, tables, moves and users;
    what nodes report of themselves is not stored.
    """
    return await snapshot_read(engine, lambda tr: read_all(tr, cluster_id))


async def stored_events(engine: KvEngine, before_id: int, count: int) -> list[RoutingEventPb]:
    """Return events of the history, the newest first."""
    return await snapshot_read(engine, lambda tr: read_events(tr, before_id, count))


async def stored_inode(engine: KvEngine, path: bytes, inode_id: int = 0) -> InodePb:
    """Return an inode by its id, or, when that is 0, by its path from the root;
    symbolic links are not followed.

    Raises:
        FsError: NOT_FOUND, STALE (no such inode).
    """

    async def body(tr: Transaction) -> InodePb:
        found = inode_id
        if not found:
            found = ROOT_INODE_ID
            for name in (part for part in path.split(b"/") if part):
                found = (await load_dentry(tr, found, name, snapshot=True)).inode_id
        return await load_complete(tr, found, snapshot=True)

    return await snapshot_read(engine, body)


@dataclass(frozen=True, slots=True)
class FileSession:
    """A file that a client has open."""

    inode_id: InodeId
    record: FileSessionRecordPb


async def file_sessions(engine: KvEngine) -> AsyncGenerator[FileSession, None]:
    """Yield all file sessions, by inode."""
    async with aclosing(readable(engine, records.FILE_SESSION, FileSessionRecordPb)) as found:
        async for key, record in found:
            yield FileSession(records.file_session_inode(key), record)


@dataclass(frozen=True, slots=True)
class Garbage:
    """Something removed that is still to be cleared away."""

    kind: str
    """file or tree."""
    inode_id: int
    due_ns: int
    record: GcRecordPb
    is_large: bool
    """It is in the lane of what is large."""

    @property
    def length_bytes(self) -> int:
        """Of a file, as far as its record says."""
        return max(self.record.byte_count, self.record.file.length)


KINDS: Final = {records.GC_FILE: "file", records.GC_DIRECTORY: "tree"}


def _gc_record(key: bytes, value: bytes) -> GcRecordPb:
    """Return what a record says; of a damaged one its key tells which inode waits."""
    try:
        return gc_record(key, value)
    except FsError as error:
        if not records.is_gc_key(key):
            raise
        log.warning("no more is known than its inode: %s", error)
        return GcRecordPb(inode_id=records.gc_inode_id(key))


async def garbage(engine: KvEngine) -> AsyncGenerator[Garbage, None]:
    """Yield what waits for garbage collection, of each kind what is large first,
    and of that what is due first.
    """
    for (prefix, kind), is_large in product(KINDS.items(), (True, False)):
        lane = records.gc_lane(prefix, is_large=is_large)
        async with aclosing(_judged(engine, lane, _gc_record)) as found:
            async for key, record in found:
                due_ns = records.gc_due_ns(key)
                yield Garbage(kind, records.gc_inode_id(key), due_ns, record, is_large)


async def truncation_count(engine: KvEngine) -> int:
    """Return how many truncations are not finished."""
    prefix = records.TRUNCATION
    return sum([len(rows) async for rows in pages(engine, prefix, prefix_end(prefix))])
