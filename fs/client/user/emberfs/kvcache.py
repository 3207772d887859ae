"""`KVCache`: blocks of one size by key, kept in large files that many processes share;
for the KV caches of inference engines.

    cache = KVCache("/mnt/ember/kv", block_bytes=2 << 20, capacity_bytes=1 << 40, ttl_s=86_400)
    iov = cache.allocate(32)  # memory that blocks reach without a copy
    found = cache.get_into(keys, [iov.view[i * size :][:size] for i in range(32)])
    cache.put([(key, block) for key, block in made])

Purpose: what one process has computed for a key, any other has for one batch of reads.
specs/kvcache.md tells how it lies on disk.

Invariants:
    - What `get` says it found are bytes that were put under that key, all of them: a block that was
      torn, cut off, overwritten or removed is a miss.  Who can write to the folder can put
      anything: its permissions are the guard.
    - A process that dies leaves what it had put; of what it was just
      putting some blocks may be missing.
    - Who looked for a block while it was still being put finds it after his next refresh.
    - A key names its content: the first block that was put stays until it is
      deleted, expires, or makes room.
    - Calls come from any number of threads and processes; the child of a fork goes
      on with a segment of its own.
    - A mount daemon that dies fails the calls of that time (ENOTCONN); once the mount is
      served again the next ones go on.

What this module does not do: say what a key is, compress, keep blocks in memory.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from .batch import BatchClient, Iov, need_bytes, need_view, whole_number
from .closing import Closing, shown
from .kvcache_folder import make_folder, open_folder
from .kvcache_format import SLOTS_MAX, Geometry, key_digest
from .kvcache_index import Limits, Place
from .kvcache_opened import OpenedSegments
from .kvcache_removal import Collected, collect_segments, delete_blocks
from .kvcache_search import Search
from .kvcache_segments import Reserved, Segment, Segments
from .kvcache_writing import write_blocks
from .opening import Connect, connect_for
from .urls import is_url

SEGMENT_BYTES: Final = 64 << 20
SEGMENTS_MAX: Final = 512
"""Each is an open file of every process."""
_CAPACITY_SHARE: Final = 256
"""A large cache has about so many segments."""
_SMALL_SHARE: Final = 4
"""And a small one at least so many, so that dropping one leaves most."""
_ROUNDS: Final = 3
"""How many copies of a block are tried, and how often a segment is made: more than once is rare."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What one process knows and has done."""

    block_count: int
    """That can be had, as far as is known here."""
    segment_count: int
    hit_count: int
    miss_count: int
    damaged_count: int
    """Times that a block was not what had been put:
    torn by a crash, dropped just then, or still on its way.
    """
    put_count: int
    collected: Collected


def _wall_ms(clock: Callable[[], float]) -> int:
    return int(clock() * 1000)


def _segment_slots(block_bytes: int, capacity_bytes: int) -> int:
    """Return how many blocks make a segment of a cache."""
    share = max(
        min(SEGMENT_BYTES, capacity_bytes // _SMALL_SHARE), capacity_bytes // _CAPACITY_SHARE
    )
    return max(1, min(SLOTS_MAX, share // max(1, block_bytes)))


class KVCache(Closing):
    """See module head.

    Args:
        folder: on a mount, on a local disk, or `ember://.../FOLDER`; made if it is not there.  Of a
            path none above it is: a misspelt one would fill another disk.
        block_bytes: of every block; all who use a folder say the same.
        capacity_bytes: what all blocks together may take, at least two.  It may be exceeded by a
            segment for each process that writes: this many bytes / 256, but 64 MiB if that is more
            and a quarter if that is less.
        ttl_s: a block cannot be had when so long has passed since it was put; None: always.
        connect: makes the batch client; default: what fits the folder (`emberfs.opening`).
        refresh_s: how soon at the latest what others have put or deleted is seen,
            by calls that miss something.
        touch_s: how exactly it is known when a segment was last used.
        clock: seconds since 1970.

    Whoever uses a folder with the smallest capacity, or the shortest time, collects for all.

    Raises:
        OSError: the folder cannot be made or read.
        ValueError: sizes that do not go together, or a folder with blocks of another size.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        block_bytes: int,
        capacity_bytes: int,
        ttl_s: float | None = None,
        connect: Connect | None = None,
        refresh_s: float = 1.0,
        touch_s: float = 30.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings: dict[str, Any] = {
            "block_bytes": block_bytes,
            "capacity_bytes": capacity_bytes,
            "ttl_s": ttl_s,
            "connect": connect,
            "refresh_s": refresh_s,
            "touch_s": touch_s,
            "clock": clock,
        }
        self._path = os.fspath(folder)
        for name in ("block_bytes", "capacity_bytes"):
            whole_number(self._settings[name], f"as {name} of {self._path!r}")
        self._geometry = Geometry(block_bytes, _segment_slots(block_bytes, capacity_bytes))
        segment_bytes = self._geometry.slot_count * block_bytes
        if capacity_bytes < 2 * segment_bytes:
            raise ValueError(f"capacity_bytes {capacity_bytes}: two blocks are {2 * block_bytes}")
        if ttl_s is not None and ttl_s <= 0:
            raise ValueError(f"ttl_s {ttl_s} must be above 0")
        ttl_ms = None if ttl_s is None else max(1, int(ttl_s * 1000))
        self._limits = Limits(capacity_bytes, SEGMENTS_MAX, ttl_ms)
        self._clock = clock
        self._is_closed = False
        if connect is None:
            if not is_url(self._path):  # which client fits is asked of the folder
                make_folder(self._path)
            connect = connect_for([f"{self._path}/segment"])
        self._client: BatchClient = connect()
        try:
            self._folder = open_folder(self._client, self._path)
            self._begin()
            self._check_others()
        except BaseException:
            self._client.close()
            raise

    def _begin(self) -> None:
        """Know nothing yet: at first, and in the child of a fork."""
        self._opened = OpenedSegments(
            self._path, lambda: Segments(self._client, self._folder, self._geometry)
        )
        self._put_lock = threading.Lock()
        self._count_lock = threading.Lock()
        self._counts = {"hit": 0, "miss": 0, "damaged": 0, "put": 0}
        self._collected = Collected(0, 0)
        self._refreshed_s = self._clock()
        # Last: a child that could not begin must not go on with what is its parent's.
        self._pid = os.getpid()

    def _check_others(self) -> None:
        segments = self._opened.segments
        sizes = {h.geometry.block_bytes for h in segments.foreign.values() if h is not None}
        if sizes - {self._geometry.block_bytes} and not segments.opened:
            segments.close()
            raise ValueError(
                f"{self._path}: has blocks of {min(sizes)} bytes, not "
                f"{self._geometry.block_bytes}: use another folder, or remove its segments"
            )

    def _enter(self) -> OpenedSegments:
        """Begin a call.

        Raises:
            OSError: the cache is closed; after a fork, the folder cannot be read.
        """
        if self._is_closed:
            raise OSError(errno.EBADF, "the cache is closed", self._path)
        if self._pid != os.getpid():
            # The parent goes on filling its segment, and its locks may be held by threads that are
            # not here: so its files are not closed, either, before the client is.
            self._begin()
        return self._opened

    def __repr__(self) -> str:
        what = f"{self._path!r} of blocks of {self.block_bytes} bytes"
        return shown(self, what, is_closed=self._is_closed)

    @property
    def block_bytes(self) -> int:
        """The size of every block."""
        return self._geometry.block_bytes

    @property
    def stats(self) -> Stats:
        """What this process knows and has done."""
        segments = self._enter().segments
        with segments.lock:
            known = len(segments.index), len(segments.opened)
        with self._count_lock:
            counts = self._counts
            hits = counts["hit"], counts["miss"], counts["damaged"], counts["put"]
            return Stats(*known, *hits, self._collected)

    def _count(self, **more: int) -> None:
        with self._count_lock:
            for name, count in more.items():
                self._counts[name] += count

    def allocate(self, block_count: int) -> Iov:
        """Return memory for so many blocks, which they reach without a copy; raises OSError."""
        self._enter()
        return self._client.allocate(block_count * self.block_bytes)

    # -- looking up -------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Learn now what other processes have put, deleted and dropped; raises OSError."""
        self._refreshed_s = self._clock()
        self._enter().do(Segments.refresh)

    def _refresh_if_due(self, segments: Segments) -> bool:
        now_s = self._clock()
        if 0 <= now_s - self._refreshed_s < self._settings["refresh_s"]:
            return False
        self._refreshed_s = now_s
        segments.refresh(wait=False)
        return True

    def _put_after_ms(self) -> int:
        """When what can still be had was put at the earliest."""
        ttl_ms = self._limits.ttl_ms
        return -1 if ttl_ms is None else _wall_ms(self._clock) - ttl_ms

    def _look_up(
        self, segments: Segments, digests: Sequence[bytes], *, is_sure: bool = False
    ) -> list[Place | None]:
        """Return where blocks lie, with `is_sure` those that nobody doubts;
        what is missing is looked for among what is new.
        """
        places = self._find(segments, digests, is_sure=is_sure)
        if None in places and self._refresh_if_due(segments):
            places = self._find(segments, digests, is_sure=is_sure)
        return places

    def _find(
        self, segments: Segments, digests: Iterable[bytes], *, is_sure: bool
    ) -> list[Place | None]:
        after_ms = self._put_after_ms()
        with segments.lock:
            find = segments.index.find
            return [find(digest, after_ms, is_sure=is_sure) for digest in digests]

    def contains(self, keys: Iterable[bytes]) -> list[bool]:
        """Return for each key whether its block can probably be had;
        nothing is read but what is new.

        Raises:
            OSError: the folder cannot be read.
        """
        digests = [key_digest(key) for key in keys]
        places = self._enter().do(lambda segments: self._look_up(segments, digests))
        return [place is not None for place in places]

    def get_into(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> list[bool]:
        """Read blocks, all in one batch.

        Args:
            keys: any bytes but none.
            buffers: for each key `block_bytes` of writable memory, best of `allocate`.

        Returns:
            For each key whether its buffer has the block; if not, what
            the buffer has means nothing.

        Raises:
            OSError: a segment that is there cannot be read.
        """
        search = Search([key_digest(key) for key in keys], list(map(self._block, buffers)))
        self._enter().do(lambda segments: self._search(segments, search))
        hit_count = search.found.count(True)
        miss_count = len(search.found) - hit_count
        self._count(hit=hit_count, miss=miss_count, damaged=search.damaged_count)
        return search.found

    def _search(self, segments: Segments, search: Search) -> None:
        """Read what is known to be there, then what else there may be since."""
        self._read(segments, search)
        if False in search.found and self._refresh_if_due(segments):
            self._read(segments, search)
        self._touch(search.used.values())

    def _read(self, segments: Segments, search: Search) -> None:
        for _ in range(_ROUNDS):
            if not search.read_round(segments, self._put_after_ms()):
                break

    def get(self, keys: Sequence[bytes]) -> list[bytearray | None]:
        """Return the block of each key, or None; see `get_into`, which needs no new memory."""
        blocks = [bytearray(self.block_bytes) for _ in keys]
        found = self.get_into(keys, [memoryview(block) for block in blocks])
        return [block if is_found else None for block, is_found in zip(blocks, found, strict=True)]

    def _touch(self, used: Iterable[Segment]) -> None:
        """Let others know what is in use, not too often."""
        now_ms = _wall_ms(self._clock)
        for segment in used:
            if not 0 <= now_ms - segment.used_ms < self._settings["touch_s"] * 1000:
                segment.used_ms = now_ms
                self._folder.touch(segment.name)

    # -- putting ----------------------------------------------------------------------------------

    def put(self, items: Iterable[tuple[bytes, memoryview]]) -> int:
        """Write the blocks of keys that have none, in one batch; return how many those were.

        All processes on this mount, or machine, find them when it returns, others when the bytes'
        own way is through: at once by rings and native clients.  Durable after `sync`.  What fills
        a segment waits until that is durable, and for `collect`.

        Args:
            items: key and `block_bytes` of memory, best of `allocate`.

        Raises:
            OSError: ENOSPC, EDQUOT, EIO ...; blocks that were not written are misses.
        """
        wanted: dict[bytes, memoryview] = {}
        for key, block in items:
            wanted.setdefault(key_digest(key), self._block(block))
        written: set[bytes] = set()
        try:
            self._enter().do(lambda segments: self._put_new(segments, wanted, written), puts=True)
        finally:
            self._count(put=len(written))
        return len(written)

    def _put_new(
        self, segments: Segments, wanted: dict[bytes, memoryview], written: set[bytes]
    ) -> None:
        digests = list(wanted)
        places = self._look_up(segments, digests, is_sure=True)
        new = [(d, wanted[d]) for d, place in zip(digests, places, strict=True) if place is None]
        start = 0
        while start < len(new):
            reserved = self._reserve(segments, len(new) - start)
            some = new[start : start + reserved.slot_count]
            write_blocks(segments, reserved, some, _wall_ms(self._clock))
            self._touch([reserved.own.segment])
            written.update(digest for digest, _ in some)
            start += reserved.slot_count

    def _block(self, given: memoryview) -> memoryview:
        """Return memory of a block as the bytes that it is, whatever the caller keeps there;
        raises TypeError, ValueError.
        """
        need_view(self._path, given)
        if given.nbytes != self.block_bytes:
            raise ValueError(
                f"a buffer for {self._path!r} has {given.nbytes} bytes, a block has "
                f"{self.block_bytes}"
            )
        block = given.cast("B") if given.c_contiguous else given
        need_bytes(self._path, block)
        return block

    def _reserve(self, segments: Segments, count: int) -> Reserved:
        """Return so many slots of the own segment, or as many as it has; of a new one if none."""
        while True:
            with self._put_lock:
                reserved = segments.reserve(count)
                if reserved is not None:
                    return reserved
                segments.give_up_own()
                self._collect(segments, self._geometry.slot_count * self.block_bytes)
                self._make(segments)

    def _make(self, segments: Segments) -> None:
        """Begin a segment; one that others drop before anything lies in it,
        because the cache is full, is made again.
        """
        for attempt in range(_ROUNDS):
            try:
                segments.make(_wall_ms(self._clock))
            except FileNotFoundError:
                if attempt == _ROUNDS - 1:
                    raise
            else:
                return

    def sync(self) -> None:
        """Return when all that this process has put would survive a power loss.

        Raises:
            OSError: it may not: EIO, once, when the mount daemon has died since something was put.
        """
        self._enter().sync()

    # -- removing ---------------------------------------------------------------------------------

    def delete(self, keys: Iterable[bytes]) -> int:
        """Let the blocks of keys not be found; return how many there were.

        Other processes may find them until they `refresh`, or one that puts the same key meanwhile
        may keep it.  Space comes back with the segment; bytes are not erased.

        Raises:
            OSError: a segment cannot be written.
        """
        digests = [key_digest(key) for key in keys]
        self.refresh()
        return self._enter().do(lambda segments: delete_blocks(segments, self._folder, digests))

    def collect(self) -> Collected:
        """Drop segments that nobody can use, and the least recently used ones beyond the limits;
        return what was dropped.

        Any process may do it at any time, also several at once; `put`
        does, before it begins a segment.

        Raises:
            OSError: the folder cannot be read, or a segment not removed.
        """
        return self._enter().do(lambda segments: self._collect(segments, 0))

    def _collect(self, segments: Segments, room_bytes: int) -> Collected:
        """Collect so that `room_bytes` more fit."""
        self._refreshed_s = self._clock()
        listed = segments.refresh()
        limits = Limits(
            self._limits.byte_count - room_bytes,
            self._limits.segment_count - bool(room_bytes),
            self._limits.ttl_ms,
        )
        collected = collect_segments(segments, self._folder, listed, limits, _wall_ms(self._clock))
        with self._count_lock:
            before = self._collected
            self._collected = Collected(
                before.segment_count + collected.segment_count,
                before.byte_count + collected.byte_count,
            )
        return collected

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Make durable what was put, and close all files; twice is harmless.

        Raises:
            OSError: something that was put could not be made durable.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._pid == os.getpid():
                self._opened.close()
        finally:
            self._client.close()

    def __reduce__(self) -> tuple[Callable[[], "KVCache"], tuple[()]]:
        return partial(KVCache, self._path, **self._settings), ()  # another process opens its own
