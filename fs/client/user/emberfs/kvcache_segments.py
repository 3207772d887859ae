"""The files of a KV cache: finding, reading and making segments, and knowing what lies in them.

Invariants:
    - A stamp is read before the entries that it stands for: whoever deletes
      changes the entry, then the stamp.
    - A file is closed only when nobody reads or writes it, so no block goes to a descriptor
      that means something else by now.
    - All that several threads share changes under `lock`, and never while a file is waited for.

What this module does not do: keys, checksums of blocks, the choice of what
goes (`kvcache`, `kvcache_index`).
"""

import errno
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .batch import BatchClient, BatchFile, Transfer
from .kvcache_folder import Folder, Listed, segment_name
from .kvcache_format import (
    DELETED,
    ENTRY_BYTES,
    HEAD_BYTES,
    ID_BYTES,
    STAMP_BYTES,
    STAMP_OFFSET,
    Entry,
    Geometry,
    Header,
    pack_header,
    parse_entries,
    parse_header,
)
from .kvcache_index import Index, Place

_GONE: Final = {errno.ENOENT, errno.ESTALE, errno.ENODATA}
"""What a file answers that was removed by another process."""

_ENTRIES_AT_FIRST: Final = 128
"""What is read of a segment at each refresh: more only if all of these are there."""
_ENTRIES_PER_READ: Final = 8192


class SharedFile:
    """An open file, closed when it has been given up and nobody uses it any more.

    `hold`, `give_up`: under the lock.
    """

    def __init__(self, file: BatchFile, lock: threading.Lock) -> None:
        self.file = file
        self._lock = lock
        self._user_count = 0
        self._is_given_up = False

    def hold(self) -> None:
        """Keep it open until `release`."""
        assert not self._is_given_up, self.file.path
        self._user_count += 1

    def release(self) -> None:
        """End one `hold`; the last one after `give_up` closes the file,
        and raises what that raises.
        """
        with self._lock:
            self._user_count -= 1
            is_last = self._is_given_up and self._user_count == 0
        if is_last:
            self.file.close()

    def give_up(self) -> BatchFile | None:
        """Let nobody hold it any more; return the file if the caller has to close it."""
        if self._is_given_up:
            return None
        self._is_given_up = True
        return self.file if self._user_count == 0 else None


@dataclass(slots=True)
class Segment:
    """A segment that can be read."""

    name: str
    header: Header
    reader: SharedFile
    stamp: bytes
    used_ms: int
    """When it was last touched, as far as is known here."""


@dataclass(slots=True)
class Own:
    """The segment that this process fills."""

    segment: Segment
    writer: SharedFile
    used_count: int = 0
    """Slots given out, from the first one on."""
    writing: set[int] = field(default_factory=set)
    """Slots whose blocks are on their way.

    What lies there is known when they have arrived; until then entries that are read there say
    nothing.
    """


class Reserved(NamedTuple):
    """Slots of the own segment that somebody is about to write."""

    own: Own
    first: int
    slot_count: int


def _is_whole(header: Header, file: BatchFile, name: str) -> bool:
    return segment_name(header.id) == name and file.length() >= header.geometry.file_bytes


def close_all(files: Iterable[BatchFile | None]) -> None:
    """Close files; raises the first failure when all are closed."""
    failed: OSError | None = None
    for file in files:
        try:
            if file is not None:
                file.close()
        except OSError as error:
            failed = failed or error
    if failed is not None and failed.errno not in _GONE:
        raise failed


def release_all(held: Iterable[SharedFile]) -> None:
    """End a hold of each; raises the first failure when all are released."""
    failed: OSError | None = None
    for file in held:
        try:
            file.release()
        except OSError as error:
            failed = failed or error
    if failed is not None:
        raise failed


class Segments:
    """The segments of a cache, as one process sees them.

    Args:
        client: opens and reads; not closed here.
        folder: where they lie.
        geometry: of segments to be made; those with blocks of another size are left alone.
    """

    def __init__(self, client: BatchClient, folder: Folder, geometry: Geometry) -> None:
        self.client = client
        self.folder = folder
        self.geometry = geometry
        self.lock = threading.Lock()
        self.index = Index()
        self.opened: dict[str, Segment] = {}
        self.own: Own | None = None
        self.foreign: dict[str, Header | None] = {}
        """Names with blocks of another size; None: no segment when it was looked at."""
        self.has_unsynced = False
        """Whether a segment that was filled here was given up without becoming durable."""
        self.is_closed = False
        self._refresh_lock = threading.Lock()

    # -- what is there ----------------------------------------------------------------------------

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let nobody here refresh during a block."""
        with self._refresh_lock:
            yield

    def refresh(self, *, wait: bool = True) -> list[Listed]:
        """Learn what others have put, deleted and dropped; return all names.

        Args:
            wait: if another thread refreshes just now: wait for it and do it again;
                else return nothing at once.

        Raises:
            OSError: the folder or a segment cannot be read.
        """
        if not self._refresh_lock.acquire(blocking=wait):
            return []
        try:
            listed = self.folder.segments()
            self._drop_missing({one.name for one in listed})
            self._open_new(listed)
            self._learn()
            with self.lock:
                self.index.note_refresh()
            return listed
        finally:
            self._refresh_lock.release()

    def _drop_missing(self, names: set[str]) -> None:
        self.foreign = {name: known for name, known in self.foreign.items() if name in names}
        with self.lock:
            gone = [name for name in self.opened if name not in names]
        self.drop(gone)

    def drop(self, names: Sequence[str]) -> None:
        """Forget segments that are gone."""
        files: list[BatchFile | None] = []
        with self.lock:
            for name in names:
                segment = self.opened.pop(name, None)
                if segment is None:
                    continue
                self.index.drop_segment(name)
                files.append(segment.reader.give_up())
                if self.own is not None and self.own.segment is segment:
                    files.append(self.own.writer.give_up())
                    self.own = None
        close_all(files)

    def _open_new(self, listed: Sequence[Listed]) -> None:
        files: dict[str, tuple[BatchFile, Listed]] = {}
        try:
            for one in listed:
                if one.name in self.opened or self.foreign.get(one.name) is not None:
                    continue
                try:
                    files[one.name] = (self.client.open(self.folder.path(one.name)), one)
                except OSError as error:
                    if error.errno not in _GONE:
                        raise
            self._take_in_new(files)
        except BaseException:
            with suppress(OSError):  # the first failure is the one to tell
                close_all(file for name, (file, _) in files.items() if name not in self.opened)
            raise

    def _take_in_new(self, files: dict[str, tuple[BatchFile, Listed]]) -> None:
        heads = {name: bytearray(HEAD_BYTES) for name in files}
        self.read([Transfer(files[name][0], 0, memoryview(head)) for name, head in heads.items()])
        for name, (file, one) in files.items():
            header = parse_header(bytes(heads[name]))
            if header is not None and not _is_whole(header, file, name):
                header = None  # or not yet: its maker may have got no further
            if header is not None and header.geometry.block_bytes == self.geometry.block_bytes:
                self._add(header, file, bytes(heads[name][STAMP_OFFSET:]), one.used_ms)
            else:
                self.foreign[name] = header
                file.close()

    def _add(self, header: Header, file: BatchFile, stamp: bytes, used_ms: int) -> Segment:
        name = segment_name(header.id)
        segment = Segment(name, header, SharedFile(file, self.lock), stamp, used_ms)
        with self.lock:
            self.opened[name] = segment
            self.index.add_segment(name, header.geometry)
        return segment

    # -- what lies in it --------------------------------------------------------------------------

    def _learn(self) -> None:
        """Read stamps and new entries of all segments, in as few batches as there is to read."""
        with self.lock:
            held = list(self.opened.values())
            for segment in held:
                segment.reader.hold()
        try:
            waiting = held
            is_first = True
            while waiting:
                waiting = self._learn_once(waiting, with_stamps=is_first)
                is_first = False
        finally:
            release_all(segment.reader for segment in held)

    def _learn_once(self, segments: Sequence[Segment], *, with_stamps: bool) -> list[Segment]:
        """Read on in each segment; return those in which there may be more."""
        stamps = [bytearray(STAMP_BYTES) for _ in segments] if with_stamps else []
        tails: list[tuple[Segment, int, bytearray]] = []
        most = _ENTRIES_AT_FIRST if with_stamps else _ENTRIES_PER_READ
        transfers = [
            Transfer(segment.reader.file, STAMP_OFFSET, memoryview(stamp))
            for segment, stamp in zip(segments, stamps, strict=False)
        ]
        with self.lock:
            for segment in segments:
                known = self.index.segments.get(segment.name)
                if known is not None and known.known < known.geometry.slot_count:
                    count = min(most, known.geometry.slot_count - known.known)
                    tails.append((segment, known.known, bytearray(count * ENTRY_BYTES)))
        for segment, first, content in tails:
            offset = segment.header.geometry.entry_offset(first)
            transfers.append(Transfer(segment.reader.file, offset, memoryview(content)))
        counts = self.read(transfers)
        again = []
        with self.lock:
            for (segment, first, content), count in zip(tails, counts[len(stamps) :], strict=True):
                if self._take_in(segment, first, bytes(content[:count])):
                    again.append(segment)
            for segment, stamp, count in zip(segments, stamps, counts, strict=False):
                if count == STAMP_BYTES and stamp != segment.stamp:
                    segment.stamp = bytes(stamp)
                    if segment.name in self.opened:
                        self.index.clear_segment(segment.name)
                        again.append(segment)
        return again

    def _take_in(self, segment: Segment, first: int, content: bytes) -> bool:
        """Add entries that were read, under the lock;
        return whether all were entries and there are more.
        """
        known = self.index.segments.get(segment.name)
        if known is None:  # dropped meanwhile
            return False
        own = self.own
        writing = own.writing if own is not None and own.segment is segment else ()
        for slot, entry in parse_entries(segment.header.id, first, content):
            if slot not in writing:
                self.index.add(segment.name, slot, entry)
        end = first + len(content) // ENTRY_BYTES
        return first < end <= known.known < known.geometry.slot_count

    def hold(self, places: Iterable[Place]) -> list[Segment]:
        """Return the segment of each place, held, under the lock.

        Raises:
            OSError: EBADF: another thread has closed the cache.
        """
        if self.is_closed:
            raise OSError(errno.EBADF, "the cache is closed")
        segments = [self.opened[place.segment] for place in places]
        for segment in segments:
            segment.reader.hold()
        return segments

    def read(self, transfers: Sequence[Transfer]) -> list[int]:
        """Read a batch; what lies in files that are gone is 0 bytes.

        Raises:
            OSError: anything else.
        """
        try:
            return self.client.read(transfers) if transfers else []
        except OSError as error:
            if len(transfers) > 1:
                return [count for transfer in transfers for count in self.read([transfer])]
            if error.errno not in _GONE:
                raise
            return [0]

    # -- the own segment --------------------------------------------------------------------------

    def make(self, now_ms: int) -> None:
        """Make a segment and have it be the own one.

        Raises:
            OSError: FileNotFoundError: another process has dropped it at once; ENOTCONN: the
                folder's file system is not mounted.
        """
        self.folder.require_same()
        header = Header(os.urandom(ID_BYTES), self.geometry, now_ms)
        name = segment_name(header.id)
        path = self.folder.path(name)
        writer = self.client.open(path, "x")
        try:
            # The whole length from the beginning: no other mount has to be told of a longer file.
            self.folder.lengthen(writer, self.geometry.file_bytes)
            head = bytearray(HEAD_BYTES)
            packed = pack_header(header)
            head[: len(packed)] = packed
            self.client.write([Transfer(writer, 0, memoryview(head))])
            reader = self.client.open(path)
        except BaseException:
            with suppress(OSError):  # the first failure is the one to tell
                writer.close()
                self.folder.remove(name)
            raise
        with self._refresh_lock:
            if name in self.opened:  # a refresh has found it already
                reader.close()
                segment = self.opened[name]
            else:
                segment = self._add(header, reader, bytes(STAMP_BYTES), now_ms)
        with self.lock:
            self.own = Own(segment, SharedFile(writer, self.lock))

    def give_up_own(self) -> None:
        """Fill the own segment no further; what lies in it becomes durable.  Raises OSError."""
        with self.lock:
            own, self.own = self.own, None
            file = own.writer.give_up() if own is not None else None
        try:
            close_all([file])
        except OSError:
            self.has_unsynced = True
            raise

    def reserve(self, count: int) -> Reserved | None:
        """Return as many of the next slots of the own segment, at most `count`, as it has,
        with its writer held until `end_write`; None: there is no own segment with any.
        """
        with self.lock:
            own = self.own
            if own is None or own.used_count == self.geometry.slot_count:
                return None
            own.writer.hold()
            first = own.used_count
            own.used_count = min(first + count, self.geometry.slot_count)
            own.writing.update(range(first, own.used_count))
            return Reserved(own, first, own.used_count - first)

    def end_write(self, reserved: Reserved, entries: Sequence[Entry]) -> None:
        """Know what lies in slots that were reserved: `DELETED`: it could not be written.

        Raises:
            OSError: the segment was given up meanwhile, and cannot be closed.
        """
        own, first, count = reserved
        with self.lock:
            own.writing.difference_update(range(first, first + count))
            if own.segment.name in self.opened:
                for slot, entry in enumerate(entries, first):
                    self.index.add(own.segment.name, slot, entry)
            if DELETED in entries:  # others would look for entries in this gap for ever
                own.used_count = own.segment.header.geometry.slot_count
        own.writer.release()

    def close(self) -> None:
        """Close all files; raises what kept bytes that were put from being made durable."""
        with self.lock:
            readers = [segment.reader.give_up() for segment in self.opened.values()]
            writer = self.own.writer.give_up() if self.own is not None else None
            self.opened.clear()
            self.own = None
            self.is_closed = True
        with suppress(OSError):  # the mount daemon has died: nothing was written to these
            close_all(readers)
        close_all([writer])
