"""How blocks of a `KVCache` go: the deletion of single ones, and the collection of whole segments.

kvcache.py says what its callers may expect; kvcache_index.py which segments go first.  Other
processes may do the same at the same time: what is gone already is as it should be.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from .batch import Transfer
from .kvcache_folder import Folder, Listed
from .kvcache_format import DELETED, STAMP_BYTES, STAMP_OFFSET, pack_entry
from .kvcache_index import Limits, SegmentFacts, choose
from .kvcache_segments import Segment, Segments


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection has dropped."""

    segment_count: int
    byte_count: int
    """Of blocks."""


def delete_blocks(segments: Segments, folder: Folder, digests: Sequence[bytes]) -> int:
    """Let the blocks of keys with these digests not be found, as far as is known here;
    return how many keys had any.

    Raises:
        OSError: a segment cannot be written.
    """
    with segments.alone():
        with segments.lock:
            by_name: dict[str, list[int]] = {}
            count = 0
            for digest in dict.fromkeys(digests):
                places = segments.index.all_of(digest)
                count += bool(places)
                for name, slot in places:
                    by_name.setdefault(name, []).append(slot)
            chosen = [(segments.opened[name], slots) for name, slots in by_name.items()]
        for segment, slots in chosen:
            _delete_in(segments, folder, segment, slots)
    return count


def _delete_in(segments: Segments, folder: Folder, segment: Segment, slots: Sequence[int]) -> None:
    header, client = segment.header, segments.client
    try:
        file = client.open(folder.path(segment.name), "r+")
    except FileNotFoundError:
        return  # dropped meanwhile: gone is what they should be
    with file:
        client.write(
            [
                Transfer(
                    file,
                    header.geometry.entry_offset(slot),
                    memoryview(pack_entry(header.id, slot, DELETED)),
                )
                for slot in slots
            ]
        )
        client.write([Transfer(file, STAMP_OFFSET, memoryview(os.urandom(STAMP_BYTES)))])
    with segments.lock:
        for slot in slots:
            segments.index.forget(segment.name, slot)


def collect_segments(
    segments: Segments, folder: Folder, listed: Sequence[Listed], limits: Limits, now_ms: int
) -> Collected:
    """Drop, of the segments that were just listed, those that nobody can use,
    and those beyond the limits.

    Raises:
        OSError: a segment cannot be removed.
    """
    with segments.lock:
        facts = [_facts(segments, one) for one in listed]
    names = choose(facts, limits, now_ms)
    removed = [name for name in names if folder.remove(name)]
    segments.drop(names)
    sizes = {one.name: one.byte_count for one in facts}
    return Collected(len(removed), sum(sizes[name] for name in removed))


def _facts(segments: Segments, one: Listed) -> SegmentFacts:
    """Say what is known of a segment, under the lock."""
    opened = segments.opened.get(one.name)
    if opened is None:
        header = segments.foreign.get(one.name)
        made_ms = header.made_ms if header else 0  # with blocks of another size, or no segment
        return SegmentFacts(
            one.name,
            one.length,
            one.used_ms,
            max(made_ms, one.used_ms),
            is_segment=header is not None,
        )
    known = segments.index.segments[one.name]
    geometry = known.geometry
    return SegmentFacts(
        one.name,
        known.seen_count * geometry.block_bytes,
        max(one.used_ms, opened.used_ms),
        max(known.newest_put_ms, opened.header.made_ms),
        is_empty=not known.digests and known.seen_count == geometry.slot_count,
        is_own=segments.own is not None and segments.own.segment is opened,
    )
