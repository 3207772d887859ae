"""What a restore changes in the records of a backup: numbers that must never be given out twice.

Pure.

A restore may come later than its backup.  Disks, nodes and clients remember numbers that were given
out in between: chunks carry inode ids and chain versions, nodes the routing version and the epoch
of the manager.  Were one of these given to something else, a new file could get the bytes of an old
one.  So each counter goes on far beyond, and those of inode ids, of routing versions, of
truncations and of epochs from a number that grows with the time of the restore: the same backup may
be restored again after the cluster has gone on from it.

Who had the newest data of a chain then may have missed what was written since: so nobody serves a
chain before those have been heard who can know.

Everything else is restored as it was, file sessions and locks too: clients that are still there go
on, and the sessions of others are ended in the usual way, which settles lengths and quotas.
"""

from typing import Final

from google.protobuf.message import DecodeError

from ..kv.api import KeyValue
from ..meta import records
from ..meta.inode_ids import NEW_STORE_BLOCK, SHARD_COUNT
from ..meta.shapes import has_shape
from ..mgmtd import store as mgmtd
from ..mgmtd.damage import NUMBER_MAX, counted, decoded, version_in
from ..mgmtd.lease import LeaseRecord
from ..mgmtd.move_book import pack_book, unpack_book
from ..mgmtd.restored import guarded
from ..schema.proto.common_pb2 import InodePb
from ..schema.proto.record_pb2 import ChainRecordPb, FormatRecordPb, MoveBookRecordPb
from ..schema.routing import Chain, chain_from_pb, chain_to_pb
from .backup import UNFINISHED_VERSION

BEGAN_NS: Final = 1_735_689_600 * 10**9
"""From here on time counts in numbers: the year 2025."""
BLOCK_NS: Final = 1 << 16
"""Nobody takes a block of each shard so often, year after year;
ids last for a century at this pace.
"""
VERSION_NS: Final = 10**6
"""Nor are routing versions published, or primaries elected, so often."""
INODE_BLOCKS: Final = 1 << 20
"""Per shard: 137 billion files may have been made since."""
ROUTING_VERSIONS: Final = 1 << 32
EPOCHS: Final = 1 << 32
TRUNCATIONS: Final = 1 << 32
"""Of one file."""
MOVES: Final = 1 << 16

_INODE_IDS: Final = frozenset(map(records.inode_ids_key, range(SHARD_COUNT)))
FORMATS: Final = (records.FORMAT_KEY, mgmtd.FORMAT_KEY)
HELD: Final = frozenset({*FORMATS, mgmtd.LEASE_KEY, mgmtd.BOOK_KEY})
"""Written last, in one transaction: only then the store is one that services open."""


def unfinished_formats(cluster_id: str, restore_id: str) -> list[KeyValue]:
    """Return the format records of a store into which this restore goes:
    every release refuses to serve it.
    """
    record = FormatRecordPb(
        format_version=UNFINISHED_VERSION,
        cluster_id=cluster_id,
        what=f"unfinished restore {restore_id}",
    )
    value = record.SerializeToString(deterministic=True)
    return [(key, value) for key in FORMATS]


def is_unfinished(value: bytes | None, cluster_id: str) -> bool:
    """True if this format record was written by a restore of the same cluster
    that has not finished.
    """
    try:
        record = FormatRecordPb.FromString(value or b"")
    except DecodeError:
        return False
    return record.format_version == UNFINISHED_VERSION and record.cluster_id == cluster_id


def beyond(value: int, step: int, now_ns: int, unit_ns: int) -> int:
    """Return a number beyond all that were given out since the backup,
    also after an earlier restore of it.

    By `step` only, where a clock was ahead: then a second restore of
    the same backup gives the same.
    """
    by_time = max(0, now_ns - BEGAN_NS) // unit_ns
    return by_time if by_time > value else value + step


def _unpack_chain(value: bytes) -> Chain:
    return chain_from_pb(ChainRecordPb.FromString(value).chain)


class Rebase:
    """Takes in the rows of one backup, in order."""

    def __init__(self, now_ns: int) -> None:
        """`now_ns`: wall time of the restore."""
        self._now_ns = now_ns
        self._held: dict[bytes, bytes] = {}
        self._target_id_max = 0
        self._unused_shards = set(_INODE_IDS)

    def row(self, key: bytes, value: bytes) -> bytes | None:
        """Return the value to restore; None for what `last_rows` returns later.

        Raises:
            FsError: KV_DAMAGED: a record of the manager that nobody may guess.
        """
        if key in HELD:
            self._held[key] = value
            return None
        if key in _INODE_IDS:
            self._unused_shards.discard(key)
            if not has_shape(key, value):
                return value  # for `ember fsck` to tell
            return records.pack_u64(self._block_after(records.unpack_u64(value)))
        if key == mgmtd.ROUTING_VERSION_KEY:
            version = version_in(key, value)
            return beyond(version, ROUTING_VERSIONS, self._now_ns, VERSION_NS).to_bytes(8, "big")
        if key.startswith(records.INODE):
            return self._inode(value)
        if key.startswith(mgmtd.CHAIN_PREFIX):
            chain = decoded(key, value, _unpack_chain)
            counted(key, chain.chain_version)
            record = ChainRecordPb(chain=chain_to_pb(guarded(chain, self._now_ns)))
            return record.SerializeToString(deterministic=True)
        if key.startswith(mgmtd.TARGET_PREFIX):
            target_id = int.from_bytes(key[len(mgmtd.TARGET_PREFIX) :], "big")
            self._target_id_max = max(self._target_id_max, counted(key, target_id))
        return value

    def _inode(self, value: bytes) -> bytes:
        """Have the next truncation of a file be a newer one than all that storage knows to be over:
        else it does nothing.

        So does the next move of inline bytes to a chunk, also of a file that holds none yet.
        """
        try:
            inode = InodePb.FromString(value)
        except DecodeError:  # for `ember fsck` to tell
            return value
        if not inode.HasField("file"):
            return value
        part = inode.file
        number = part.truncate_ver
        if number >= NUMBER_MAX:  # for `ember fsck` to tell
            return value
        part.truncate_ver = beyond(number, TRUNCATIONS, self._now_ns, VERSION_NS)
        if part.truncate_pending and part.cut_ver == number:
            part.cut_ver = part.truncate_ver  # it has been done
        return inode.SerializeToString(deterministic=True)

    def _block_after(self, block: int) -> int:
        if block < NEW_STORE_BLOCK:  # of a store whose release knows no larger ids
            return block + INODE_BLOCKS
        taken = block - NEW_STORE_BLOCK
        return NEW_STORE_BLOCK + beyond(taken, INODE_BLOCKS, self._now_ns, BLOCK_NS)

    def last_rows(self) -> list[KeyValue]:
        """Return what is written in the last transaction."""
        rows = {key: value for key, value in self._held.items() if key in FORMATS}
        if records.FORMAT_KEY in rows:
            # A shard of which no id had been given out has no record, but may have been used since.
            rows |= {key: records.pack_u64(INODE_BLOCKS) for key in self._unused_shards}
        if mgmtd.FORMAT_KEY in rows:
            rows[mgmtd.LEASE_KEY] = self._lease()
            rows[mgmtd.BOOK_KEY] = self._book()
        return sorted(rows.items())

    def _lease(self) -> bytes:
        """The lease of nobody, in a later epoch: whoever is first becomes primary."""
        held = self._held.get(mgmtd.LEASE_KEY)
        before = (
            LeaseRecord() if held is None else decoded(mgmtd.LEASE_KEY, held, mgmtd.unpack_lease)
        )
        epoch = beyond(counted(mgmtd.LEASE_KEY, before.epoch), EPOCHS, self._now_ns, VERSION_NS)
        return mgmtd.pack_lease(LeaseRecord(epoch=epoch))

    def _book(self) -> bytes:
        value = self._held.get(mgmtd.BOOK_KEY) or pack_book(unpack_book(None))
        record = decoded(mgmtd.BOOK_KEY, value, MoveBookRecordPb.FromString)
        record.next_move_id = counted(mgmtd.BOOK_KEY, record.next_move_id) + MOVES
        highest = max(counted(mgmtd.BOOK_KEY, record.next_target_id), self._target_id_max + 1)
        record.next_target_id = highest + MOVES
        return record.SerializeToString(deterministic=True)
