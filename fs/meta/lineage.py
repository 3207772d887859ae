"""Lineages: which directories lie above one, up to the root, from a cache that is never wrong.

What the cache holds of a directory (its parent, its quota, its fence) changes only in
transactions that write the epoch: a move of a directory to another parent, the removal of a tree,
a new limit, a fence.  A transaction that relies on a lineage reads the epoch with a conflict, so
it commits only if none of these came in between; under the same epoch everything cached still
holds.  An epoch is named after the request that began it and its time, so it never comes again,
not even after commits were lost.

Invariants:
    - What is cached was read at a snapshot whose epoch the cache carries.
    - Nothing lies above what is in a removed tree: its lineage is empty.

Source: FoundationDB's metadataVersion key, the same idea for the caches of a layer.

Concurrency: any number of transactions at once, of different snapshots.
"""

from dataclasses import dataclass, field
from typing import Final

from ..kv.api import Transaction
from ..schema.ids import ROOT_INODE_ID
from ..schema.proto import common_pb2 as pb
from ..schema.proto.record_pb2 import QuotaRecordPb, UsageFenceRecordPb
from . import records
from .damage import damaged, decoded, inode_record, quota_record

PLACES_MAX: Final = 65_536
"""Directories remembered; beyond that all are forgotten."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Keeps the usage below a directory still for the one request that is to move it."""

    owner_request_id: bytes
    until_ns: int

    def binds(self, request_id: bytes, now_ns: int) -> bool:
        """Return whether a request must wait."""
        return request_id != self.owner_request_id and now_ns < self.until_ns


@dataclass(frozen=True, slots=True)
class Ancestor:
    """What changes of usage need to know of one directory."""

    directory_id: int
    parent_id: int
    bytes_max: int
    """Limit on all below; 0: none."""
    inodes_max: int
    fence: Fence | None
    bytes_key: bytes
    files_key: bytes
    directories_key: bytes


@dataclass(slots=True)
class _Epoch:
    """What is known under one epoch."""

    name: bytes | None
    places: dict[int, Ancestor] = field(default_factory=dict)
    lineages: dict[int, tuple[Ancestor, ...]] = field(default_factory=dict)


def _ancestor(inode: pb.InodePb, quota: bytes | None, fence: bytes | None) -> Ancestor:
    directory_id = inode.inode_id
    limits = QuotaRecordPb()
    if quota is not None:
        limits = quota_record(records.quota_key(directory_id), quota)
    known_fence = None
    if fence is not None:
        record = decoded(UsageFenceRecordPb, records.usage_fence_key(directory_id), fence)
        known_fence = Fence(record.owner_request_id, record.until_ns)
    return Ancestor(
        directory_id,
        inode.directory.parent_inode_id,
        limits.bytes_max,
        limits.inodes_max,
        known_fence,
        records.usage_key(directory_id, records.KIND_BYTES),
        records.usage_key(directory_id, records.KIND_FILES),
        records.usage_key(directory_id, records.KIND_DIRECTORIES),
    )


async def _load(tr: Transaction, directory_id: int) -> Ancestor | None:
    keys = [
        records.inode_key(directory_id),
        records.quota_key(directory_id),
        records.usage_fence_key(directory_id),
    ]
    # The epoch, which was read with a conflict, stands for all of them.
    stored, quota, fence = await tr.get_many(keys, snapshot=True)
    if stored is None:
        return None
    inode = inode_record(directory_id, stored)
    return _ancestor(inode, quota, fence) if inode.nlink else None


def begin_epoch(tr: Transaction, request_id: bytes, now_ns: int) -> None:
    """Make all that is cached void and all who relied on it run again,
    when this transaction commits.
    """
    tr.set(records.USAGE_EPOCH_KEY, request_id + records.pack_u64(now_ns))


class Lineages:
    """The cache of one service."""

    def __init__(self) -> None:
        self._epoch = _Epoch(None)

    async def above(self, tr: Transaction, directory_id: int) -> tuple[Ancestor, ...]:
        """Return a directory and all above it, nearest first; empty in a removed tree.

        The transaction then conflicts with whatever begins another epoch.

        Raises:
            FsError: METADATA_DAMAGED: parents lead in a circle.
        """
        name = await tr.get(records.USAGE_EPOCH_KEY)
        epoch = self._epoch
        if name != epoch.name or len(epoch.places) > PLACES_MAX:
            # Others may still be filling in the old one: theirs stays theirs.
            epoch = self._epoch = _Epoch(name)
        found = epoch.lineages.get(directory_id)
        return await self._walk(tr, epoch, directory_id) if found is None else found

    async def _walk(
        self, tr: Transaction, epoch: _Epoch, directory_id: int
    ) -> tuple[Ancestor, ...]:
        lineage: list[Ancestor] = []
        seen: set[int] = set()
        here = directory_id
        while True:
            place = epoch.places.get(here)
            if place is None:
                place = await _load(tr, here)
                if place is None:
                    return ()
                epoch.places[here] = place
            lineage.append(place)
            if here == ROOT_INODE_ID:
                break
            seen.add(here)
            here = place.parent_id
            if here in seen:
                raise damaged(records.inode_key(here), "this directory lies below itself")
        found = epoch.lineages[directory_id] = tuple(lineage)
        return found
