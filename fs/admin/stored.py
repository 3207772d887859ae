"""What the key-value store alone tells of a cluster, when no service answers,
or of what services keep to themselves.

Changes nothing.  Ranges that may be large are read page by page, each at an instant of its own:
what is made or removed meanwhile may or may not be seen, what stays is seen.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from ..kv.api import KeyValue, KvEngine, Transaction, next_key, prefix_end
from ..kv.transact import snapshot_read
from ..meta import records
from ..meta.damage import decoded
from ..meta.dentries import load_dentry
from ..meta.inodes import load_complete
from ..mgmtd.store import Loaded, read_all, read_events
from ..schema.ids import ROOT_INODE_ID, InodeId
from ..schema.proto.common_pb2 import InodePb
from ..schema.proto.mgmtd_pb2 import RoutingEventPb
from ..schema.proto.record_pb2 import FileSessionRecordPb, GcRecordPb

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
    prefix = records.FILE_SESSION
    async with aclosing(pages(engine, prefix, prefix_end(prefix))) as found:
        async for rows in found:
            for key, value in rows:
                inode_id = records.file_session_inode(key)
                yield FileSession(inode_id, decoded(FileSessionRecordPb, key, value))


@dataclass(frozen=True, slots=True)
class Garbage:
    """Something removed that is still to be cleared away."""

    kind: str
    """file or tree."""
    inode_id: int
    due_ns: int
    record: GcRecordPb


KINDS: Final = {records.GC_FILE: "file", records.GC_DIRECTORY: "tree"}


async def garbage(engine: KvEngine) -> AsyncGenerator[Garbage, None]:
    """Yield what waits for garbage collection, of each kind what is due first."""
    for prefix, kind in KINDS.items():
        async with aclosing(pages(engine, prefix, prefix_end(prefix))) as found:
            async for rows in found:
                for key, value in rows:
                    record = decoded(GcRecordPb, key, value)
                    yield Garbage(kind, records.gc_inode_id(key), records.gc_due_ns(key), record)


async def truncation_count(engine: KvEngine) -> int:
    """Return how many truncations are not finished."""
    prefix = records.TRUNCATION
    return sum([len(rows) async for rows in pages(engine, prefix, prefix_end(prefix))])
