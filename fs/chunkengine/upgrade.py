"""Brings a disk of an older format to the present one, in place.

One step per version, each one synced batch: the disk is of the old format or of the new one, whole.

Concurrency: runs while the disk is being opened.
"""

import logging
from collections.abc import Iterator

import msgspec

from ..schema.ids import TargetId
from .format import (
    CHUNK_PREFIX,
    FORMAT_KEY,
    PENDING_PREFIX,
    TARGET_HELD,
    ChunkKey,
    DiskFormat,
    target_key,
    target_of_key,
    target_prefix,
)
from .ports import MetaStore

_log = logging.getLogger(__name__)


def upgrade(meta: MetaStore, found: DiskFormat) -> DiskFormat:
    """Return the format record of the disk, now of the present version;
    `found` is older or the same.
    """
    if found.format_version == 1:
        found = _add_target_records(meta, found)
    return found


def _add_target_records(meta: MetaStore, found: DiskFormat) -> DiskFormat:
    """1 to 2: every target with a chunk gets a record;
    an empty one gets it from the configuration.
    """
    made = msgspec.structs.replace(found, format_version=2)
    held = {t for prefix in (CHUNK_PREFIX, PENDING_PREFIX) for t in _targets_below(meta, prefix)}
    batch: list[tuple[bytes, bytes | None]] = [(target_key(t), TARGET_HELD) for t in sorted(held)]
    meta.write_synced([*batch, (FORMAT_KEY, made.pack())])
    _log.warning("disk %s: format 1 upgraded to 2, targets %s", found.disk_uuid, sorted(held))
    return made


def _targets_below(meta: MetaStore, prefix: bytes) -> Iterator[TargetId]:
    """Yield the targets that own a key, by skipping from one to the next."""
    start, end = prefix, bytes([prefix[0] + 1])
    while (first := next(iter(meta.scan(start, end)), None)) is not None:
        target_id = target_of_key(ChunkKey(first[0][1:]))
        yield target_id
        start = prefix + target_prefix(TargetId(target_id + 1))
