"""Recount: gives a file system its homes, link records and usage counters,
by one walk over all records.

For metadata written by a release that did not count, before the first service serves it; and, while
no service runs, for counters that `check` found wrong.

Invariants:
    - Nobody else changes the namespace meanwhile.  Should several services start at once, each
      counts; the first to finish marks the state, and the others then change nothing any more.
    - Interrupted, it is begun anew: the mark comes last.

Needs memory for all names of inodes that are no directories (about 200 bytes each).  Idempotent.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ..kv.api import KvEngine, Transaction, next_key, prefix_end
from ..kv.transact import snapshot_read, transact
from ..runtime.ports import Runtime
from ..schema.ids import ROOT_INODE_ID
from ..schema.proto import common_pb2 as pb
from . import records
from .damage import dentry_record, inode_record
from .homes import Place
from .lineage import begin_epoch
from .usage import usage_of
from .usage_sum import NOTHING, ONE_DIRECTORY, Usage

log = logging.getLogger(__name__)

PAGE_COUNT: Final = 1000
STATE_COUNTED: Final = b"1"

_Pair = tuple[bytes, bytes]
_Change = Callable[[Transaction], None]


class _AlreadyCountedError(Exception):
    """Another service was faster."""


@dataclass(slots=True)
class _Found:
    names: dict[int, list[Place]] = field(default_factory=dict)
    """Of inodes that are no directories."""
    parents: dict[int, int] = field(default_factory=dict)
    """Of directories with names."""
    own: dict[int, Usage] = field(default_factory=dict)
    """What lies in a directory itself."""

    def add(self, home_id: int, usage: Usage) -> None:
        self.own[home_id] = self.own.get(home_id, NOTHING) + usage


async def is_counted(engine: KvEngine) -> bool:
    """Return whether the counters of this file system can be relied on."""
    key = records.USAGE_STATE_KEY
    return await snapshot_read(engine, lambda tr: tr.get(key, snapshot=True)) is not None


class Recount:
    """One walk."""

    def __init__(self, engine: KvEngine, runtime: Runtime) -> None:
        self._engine = engine
        self._runtime = runtime
        self._found = _Found()

    async def run(self) -> int:
        """Count; return how many directories hold anything.

        Raises:
            FsError: of the key-value layer; then nothing is marked as counted.
        """
        try:
            return await self._run()
        except _AlreadyCountedError:
            log.info("another service has counted")
            return 0

    async def _run(self) -> int:
        await self._clear(records.LINK)
        await self._clear(records.USAGE)
        await self._read_names()
        await self._settle_homes()
        totals = self._totals()
        pages = list(_pages(sorted(totals.items())))
        for page in pages:
            await self._write(partial(_store_totals, page=page))
        now_ns = self._runtime.clock.wall_ns()
        await self._write(partial(mark_counted, now_ns=now_ns))
        return len(totals)

    async def _page(self, begin: bytes, prefix: bytes) -> list[_Pair]:
        end = prefix_end(prefix)
        return await snapshot_read(
            self._engine, lambda tr: tr.get_range(begin, end, limit=PAGE_COUNT, snapshot=True)
        )

    async def _write(self, change: _Change) -> None:
        async def guarded(tr: Transaction) -> None:
            if await tr.get(records.USAGE_STATE_KEY) is not None:
                raise _AlreadyCountedError
            change(tr)

        await transact(self._engine, guarded, runtime=self._runtime)

    async def _clear(self, prefix: bytes) -> None:
        await self._write(lambda tr: tr.clear_range(prefix, prefix_end(prefix)))

    async def _read_names(self) -> None:
        begin = records.DENTRY
        while page := await self._page(begin, records.DENTRY):
            for key, value in page:
                dentry = dentry_record(key, value)
                parent_id = int.from_bytes(key[4:12], "big")
                if dentry.type == pb.DIRECTORY:
                    self._found.parents[dentry.inode_id] = parent_id
                    self._found.add(parent_id, ONE_DIRECTORY)
                else:
                    place = parent_id, records.dentry_name(key)
                    self._found.names.setdefault(dentry.inode_id, []).append(place)
            begin = next_key(page[-1][0])

    async def _settle_homes(self) -> None:
        begin = records.INODE
        while page := await self._page(begin, records.INODE):
            changed: list[tuple[pb.InodePb, bool, Sequence[Place]]] = []
            for key, value in page:
                inode = inode_record(records.unpack_id(key[4:12]), value)
                if inode.type != pb.DIRECTORY:
                    is_new, others = self._settle_home(inode)
                    if is_new or others:
                        changed.append((inode, is_new, others))
            await self._write(partial(_store_homes, changed=changed))
            begin = next_key(page[-1][0])

    def _settle_home(self, inode: pb.InodePb) -> tuple[bool, Sequence[Place]]:
        """Return whether the inode got another home, and its names but the one there."""
        names = self._found.names.get(inode.inode_id, [])
        at_home = [place for place in names if place[0] == inode.home_inode_id]
        home = (at_home or names or [(0, b"")])[0]
        is_new = inode.home_inode_id != home[0]
        inode.home_inode_id = home[0]
        if home[0]:
            self._found.add(home[0], usage_of(inode))
        return is_new, [place for place in names if place != home]

    def _totals(self) -> dict[int, Usage]:
        totals: dict[int, Usage] = {}
        for home_id, usage in self._found.own.items():
            here: int | None = home_id
            lineage = []
            while here is not None and here != ROOT_INODE_ID:
                lineage.append(here)
                here = self._found.parents.get(here)
            if here is None:
                continue  # in a removed tree
            for directory_id in (*lineage, ROOT_INODE_ID):
                totals[directory_id] = totals.get(directory_id, NOTHING) + usage
        return totals


def _pages(items: Sequence[tuple[int, Usage]]) -> Iterator[Sequence[tuple[int, Usage]]]:
    for start in range(0, len(items), PAGE_COUNT):
        yield items[start : start + PAGE_COUNT]


def _store_homes(
    tr: Transaction, changed: Sequence[tuple[pb.InodePb, bool, Sequence[Place]]]
) -> None:
    for inode, is_new, others in changed:
        if is_new:
            tr.set(records.inode_key(inode.inode_id), inode.SerializeToString())
        for place in others:
            tr.set(records.link_key(inode.inode_id, *place), b"")


def _store_totals(tr: Transaction, page: Sequence[tuple[int, Usage]]) -> None:
    for directory_id, usage in page:
        for kind, count in (
            (records.KIND_BYTES, usage.byte_count),
            (records.KIND_FILES, usage.file_count),
            (records.KIND_DIRECTORIES, usage.directory_count),
        ):
            tr.set(records.usage_key(directory_id, kind), records.pack_count(count))


def mark_counted(tr: Transaction, now_ns: int) -> None:
    """Note that all counters are right from here on, and begin the first epoch."""
    tr.set(records.USAGE_STATE_KEY, STATE_COUNTED)
    begin_epoch(tr, b"", now_ns)
