"""Which block lies where, and which segments have to go; pure.

Invariants of `Index`:
    - A digest is found exactly if a known slot holds it that is not doubted; of several, any one.
    - What is dropped, forgotten or deleted is never found again, unless its entry is added anew.
    - `SegmentIndex.known` slots from the first one on are known.
    - A slot whose block was bad is doubted, not forgotten: entries may be there before their
      blocks.  Who looks for the block finds it again after the next refresh, at most once in each
      until it was good; who wants to know whether it has to be put never does.

Invariants of `choose`: the choice depends on its arguments alone, so that several processes that
collect at the same time choose the same; it takes no segment of which `is_own` says that somebody
here writes it, and as few others as the limits allow.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from .kvcache_format import DELETED, Entry, Geometry

LEFTOVER_MS: Final = 3_600_000
"""A file that is no segment and has not changed for so long is not about to become one."""


class Place(NamedTuple):
    """Where a block lies, and what its bytes must be."""

    segment: str
    slot: int
    checksum: int


class SegmentIndex:
    """The entries of one segment, as far as they are known."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.known = 0
        self.digests: dict[int, bytes] = {}
        """Of slots whose block can be had, by slot."""
        self.checksums = array("Q", bytes(8 * geometry.slot_count))
        self.put_ms = array("Q", bytes(8 * geometry.slot_count))
        self.is_seen = bytearray(geometry.slot_count)

    @property
    def seen_count(self) -> int:
        """How many slots are used up, as far as is known."""
        return self.is_seen.count(1)

    @property
    def newest_put_ms(self) -> int:
        """When the last of its blocks was put; 0 without any."""
        return max((self.put_ms[slot] for slot in self.digests), default=0)


class Index:
    """All that one process knows of a cache; see module head."""

    def __init__(self) -> None:
        self.segments: dict[str, SegmentIndex] = {}
        self._places: dict[bytes, tuple[str, int]] = {}
        self._more: dict[bytes, set[tuple[str, int]]] = {}
        """Of digests that lie in several places, the others."""
        self._doubted: dict[tuple[str, int], int] = {}
        """Slots whose block was bad, and the refresh since which it was."""
        self._refresh_count = 0

    def __len__(self) -> int:
        return len(self._places)

    def add_segment(self, name: str, geometry: Geometry) -> None:
        """Know of a segment; nothing in it is known yet."""
        assert name not in self.segments, name
        self.segments[name] = SegmentIndex(geometry)

    def drop_segment(self, name: str) -> None:
        """Forget a segment."""
        segment = self.segments[name]
        for slot in list(segment.digests):
            self.forget(name, slot)
        del self.segments[name]

    def clear_segment(self, name: str) -> None:
        """Know nothing of what lies in a segment."""
        geometry = self.segments[name].geometry
        self.drop_segment(name)
        self.add_segment(name, geometry)

    def add(self, name: str, slot: int, entry: Entry) -> None:
        """Take in an entry; again is harmless."""
        segment = self.segments[name]
        segment.is_seen[slot] = 1
        while segment.known < segment.geometry.slot_count and segment.is_seen[segment.known]:
            segment.known += 1
        if entry.digest == segment.digests.get(slot):
            return
        self.forget(name, slot)
        if entry.digest == DELETED.digest:
            return
        segment.digests[slot] = entry.digest
        segment.checksums[slot] = entry.checksum
        segment.put_ms[slot] = entry.put_ms
        if self._places.setdefault(entry.digest, (name, slot)) != (name, slot):
            self._more.setdefault(entry.digest, set()).add((name, slot))

    def forget(self, name: str, slot: int) -> None:
        """Let what lies in a slot not be found; harmless if nothing does."""
        segment = self.segments.get(name)
        digest = segment.digests.pop(slot, None) if segment else None
        if digest is None:
            return
        self._doubted.pop((name, slot), None)
        more = self._more.get(digest, set())
        if self._places[digest] != (name, slot):
            more.remove((name, slot))
        elif more:
            self._places[digest] = more.pop()
        else:
            del self._places[digest]
        if not more:
            self._more.pop(digest, None)

    def note_refresh(self) -> None:
        """Let what is doubted be looked at again: its writer may have come to an end."""
        self._refresh_count += 1

    def doubt(self, name: str, slot: int) -> None:
        """Note that what was read of a slot is not what its entry says;
        harmless if nothing is known to lie there.
        """
        segment = self.segments.get(name)
        if segment is not None and slot in segment.digests:
            self._doubted[name, slot] = self._refresh_count

    def trust(self, places: Iterable[Place]) -> None:
        """Note that what was read there is what the entries say."""
        if self._doubted:
            for place in places:
                self._doubted.pop((place.segment, place.slot), None)

    def find(self, digest: bytes, put_after_ms: int, *, is_sure: bool = False) -> Place | None:
        """Return where a block lies that was put after a time, best where nobody doubts it;
        with `is_sure` only there.
        """
        first = self._places.get(digest)
        if first is None:
            return None
        doubted = None
        for name, slot in (first, *self._more.get(digest, ())):
            segment = self.segments[name]
            if segment.put_ms[slot] <= put_after_ms:
                continue
            since = self._doubted.get((name, slot)) if self._doubted else None
            if since is None:
                return Place(name, slot, segment.checksums[slot])
            if since < self._refresh_count and not is_sure:
                doubted = Place(name, slot, segment.checksums[slot])
        return doubted

    def all_of(self, digest: bytes) -> list[tuple[str, int]]:
        """Return every (segment, slot) that holds a digest."""
        first = self._places.get(digest)
        return [] if first is None else [first, *self._more.get(digest, ())]


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What decides whether a segment may stay."""

    name: str
    byte_count: int
    """Blocks that were ever put into it; those that were deleted take room, too."""
    used_ms: int
    """When somebody last read or wrote in it."""
    newest_put_ms: int
    is_empty: bool = False
    """All its slots are used up, and none of its blocks can be had."""
    is_own: bool = False
    """This process writes it."""
    is_segment: bool = True
    """It has a header."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a cache may hold."""

    byte_count: int
    segment_count: int
    ttl_ms: int | None
    """How long after it was put a block may be had."""


def choose(segments: Sequence[SegmentFacts], limits: Limits, now_ms: int) -> list[str]:
    """Return the segments to drop: what nobody can use;
    then the least recently used, until the limits are kept.
    """
    gone: list[SegmentFacts] = []
    left: list[SegmentFacts] = []
    for one in segments:
        is_useless = not one.is_own and _is_useless(one, limits, now_ms)
        if is_useless:
            gone.append(one)
        elif one.is_segment:  # others may be about to become one
            left.append(one)
    byte_count, count = sum(one.byte_count for one in left), len(left)
    for one in sorted(left, key=lambda one: (min(one.used_ms, now_ms), one.name)):
        is_one_too_many = count > limits.segment_count
        if byte_count <= limits.byte_count and not is_one_too_many:
            break
        if one.is_own or (one.byte_count == 0 and not is_one_too_many):
            continue  # what has no blocks gives no room, and somebody may be about to fill it
        gone.append(one)
        byte_count -= one.byte_count
        count -= 1
    return [one.name for one in gone]


def _is_useless(one: SegmentFacts, limits: Limits, now_ms: int) -> bool:
    if not one.is_segment:
        return one.used_ms + LEFTOVER_MS <= now_ms
    if one.is_empty:
        return True
    return limits.ttl_ms is not None and one.newest_put_ms + limits.ttl_ms <= now_ms
