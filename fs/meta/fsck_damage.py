"""What a check says of records that cannot be read, and what would put them right.  Pure.

A damaged record goes: what it was about is then judged without it.  Not so
    - an inode, whose names still lead to its chunks: it goes where a person says so;
    - the roots, and the store's format: nothing is done;
    - a counter that must never go back: it goes on where nobody has been.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ..kv.api import KeyValue
from ..schema.ids import FIRST_INODE_ID
from ..schema.proto import common_pb2 as pb
from ..schema.status import FsError
from . import records
from .fsck_facts import Facts, Finding, Kind
from .inode_ids import BLOCK_MAX, SHARD_COUNT
from .shapes import require_shape

BLOCKS_APART: Final = 1 << 20
"""So much further than all others no shard of inode ids is:
services take each block from a shard of chance.
"""


def damaged_record(
    key: bytes, value: bytes, error: FsError, *, corrected: bytes | None = None
) -> Finding:
    """Return what is said of a record that cannot be read."""
    is_inode = key.startswith(records.INODE) and len(key) == len(records.inode_key(0))
    is_kept = key == records.FORMAT_KEY or (
        is_inode and records.unpack_id(key[4:]) < FIRST_INODE_ID
    )
    return Finding(
        Kind.DAMAGED_RECORD,
        0,
        error.detail,
        guards=((key, value),),
        writes=() if is_kept else ((key, corrected),),
        is_loss=is_inode,
    )


def under_another_number(facts: Facts) -> Iterator[Finding]:
    """Say of an inode whose record bears another number what may have happened.

    The number may be wrong, or the record may be that of the other inode.  By the latter names and
    chunks would be judged, and go, that have nothing to do with it.  So it is taken for this one's
    only if there is no other inode, and the names here are of its type.
    """
    inode = facts.inode
    if inode is None or inode.inode_id == facts.inode_id:
        return
    is_directory = inode.type == pb.DIRECTORY
    is_alike = all(name.record.type == inode.type for name in facts.names) and (
        is_directory or not facts.entries.name_count
    )
    corrected = pb.InodePb.FromString(inode.SerializeToString())
    corrected.inode_id = facts.inode_id
    text = f"{facts.text}: its record says {inode.inode_id:#x}"
    yield Finding(
        Kind.WRONG_ID,
        facts.inode_id,
        text,
        guards=(facts.seen, (records.inode_key(inode.inode_id), None)),
        writes=((facts.key, corrected.SerializeToString()),) if is_alike else (),
    )
    if facts.inode_id >= FIRST_INODE_ID:
        yield Finding(
            Kind.DAMAGED_RECORD,
            facts.inode_id,
            f"record {facts.key!r}: it says it is inode {inode.inode_id:#x}",
            guards=(facts.seen,),
            writes=((facts.key, None),),
            is_loss=True,
        )


def blocks_of(singletons: Mapping[bytes, bytes], stored: Mapping[bytes, bytes]) -> dict[bytes, int]:
    """Return how many blocks of inode ids were given out, at the most, by the key of each shard.

    Args:
        singletons: what can be read.
        stored: that, and what is damaged.
    """
    keys = [records.inode_ids_key(shard) for shard in range(SHARD_COUNT)]
    known = {key: records.unpack_u64(singletons.get(key)) for key in keys}
    beyond = min(BLOCK_MAX, max(known.values()) + BLOCKS_APART)
    return {key: beyond if key in stored and key not in singletons else known[key] for key in keys}


def damaged_singletons(
    rows: Sequence[KeyValue], blocks: Mapping[bytes, int], tick_max: int
) -> list[Finding]:
    """Return what is said of single records that cannot be read.

    Args:
        rows: all of them.
        blocks: as `blocks_of` tells.
        tick_max: the latest tick that a remembered outcome bears.
    """
    found = []
    if records.FORMAT_KEY not in dict(rows):
        text = f"record {records.FORMAT_KEY!r} is missing: no service starts without it"
        found.append(Finding(Kind.DAMAGED_RECORD, 0, text))
    further = dict(blocks) | {records.OUTCOME_TICK_KEY: tick_max + 1}
    for key, value in rows:
        try:
            require_shape(key, value)
        except FsError as error:
            corrected = records.pack_u64(further[key]) if key in further else None
            found.append(damaged_record(key, value, error, corrected=corrected))
    return found
