"""Checks of a store that nobody changes meanwhile: for tests, simulation and stopped clusters.

`check` applies the rules of `ember fsck` (fs/meta/fsck.py); it changes nothing.  `load` gives
tests what must fit into memory.
"""

from dataclasses import dataclass, field

from ..kv.api import KeyValue, KvEngine, next_key, prefix_end
from ..kv.transact import snapshot_read
from ..runtime.sorter import Sorter
from ..schema.proto import common_pb2 as pb
from ..schema.proto.record_pb2 import GcRecordPb
from . import records
from .fsck_facts import Finding
from .fsck_scan import Scan

PAGE_COUNT = 1000


class QuietSnapshot:
    """See LastingSnapshot: each page of a snapshot of its own,
    which is one state if nobody changes anything.
    """

    def __init__(self, engine: KvEngine) -> None:
        self.version = 0
        self._engine = engine

    async def page(self, begin: bytes, end: bytes, *, is_whole: bool = False) -> list[KeyValue]:
        """See LastingSnapshot.page."""
        limit = 0 if is_whole else PAGE_COUNT
        return await snapshot_read(
            self._engine, lambda tr: tr.get_range(begin, end, limit=limit, snapshot=True)
        )


@dataclass(slots=True)
class Contents:
    """Some of the metadata records, decoded."""

    inodes: dict[int, pb.InodePb] = field(default_factory=dict)
    gc_files: set[int] = field(default_factory=set)
    gc_directories: set[int] = field(default_factory=set)
    truncations: set[int] = field(default_factory=set)


async def read_all(engine: KvEngine, prefix: bytes) -> list[KeyValue]:
    """Return all pairs under a prefix, page by page."""
    found: list[KeyValue] = []
    begin, end, snapshot = prefix, prefix_end(prefix), QuietSnapshot(engine)
    while page := await snapshot.page(begin, end):
        found.extend(page)
        begin = next_key(page[-1][0])
    return found


async def load(engine: KvEngine) -> Contents:
    """Read and decode inodes, and what is still to be done."""
    contents = Contents()
    for key, value in await read_all(engine, records.INODE):
        contents.inodes[records.unpack_id(key[4:12])] = pb.InodePb.FromString(value)
    for prefix, found in (
        (records.GC_FILE, contents.gc_files),
        (records.GC_DIRECTORY, contents.gc_directories),
    ):
        for _, value in await read_all(engine, prefix):
            found.add(GcRecordPb.FromString(value).inode_id)
    for key, _ in await read_all(engine, records.TRUNCATION):
        contents.truncations.add(records.truncation_inode(key))
    return contents


async def findings(engine: KvEngine) -> list[Finding]:
    """Return everything that is wrong with a namespace that nobody changes meanwhile."""
    sorter = Sorter()
    try:
        return [found async for found in Scan(QuietSnapshot(engine), sorter).findings()]
    finally:
        sorter.close()


async def check(engine: KvEngine) -> list[str]:
    """Return one line per contradiction; empty when the namespace is sound."""
    return [finding.line() for finding in await findings(engine)]
