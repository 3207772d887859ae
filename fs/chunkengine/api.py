"""The chunk engine's vocabulary: what storage asks of one disk.  No I/O here.

One engine per disk holds the chunks of several targets.  It is synchronous and thread-safe: storage
calls it through `run_blocking`; calls about different chunks may run at once, calls about one chunk
are serialised by storage's chunk lock.

A chunk has a committed version (readable) and at most one pending version (prepared, not yet
committed).  `prepare_*` writes the pending version copy-on-write, or in place behind the committed
bytes for an append; `commit` makes it the committed one in one atomic metadata batch.  Neither
waits for the disk; `sync` makes everything acknowledged so far durable with one grouped flush.

Reading has an interface of its own: fs/chunkengine/read_api.py.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from ..runtime.ports import Buffer
from ..schema.ids import ChunkId, TargetId
from .disk_use import Compacted, SpaceInfo
from .ranges import Range
from .read_api import ChunkReads

NOTE_KEY_BYTES_MAX: Final = 64
NOTE_VALUE_BYTES_MAX: Final = 512
DISK_LOSS_KEY: Final = b"L"
"""Of the note, kept by the engine, that counts (u64,
big-endian) how often the target's disk was opened and found to lack committed versions.
"""
TAG_BYTES_MAX: Final = 255


class Note(msgspec.Struct, frozen=True):
    """What storage remembers of an update, stored in the very batch that commits it.

    One per target and key: a newer note replaces the older one.  What a power loss leaves of notes:

    - A commit that survived has its note, unless a later surviving batch replaced or forgot it.
    - A note never outlives the loss of its batch: it goes with the commit,
      and so does every later batch.
    - A commit that `open` rolled back, because its data was torn, leaves its note.  That
      one names a version that the chunk does not have, so the caller compares version and
      digest with `get`, before the first new update, and forgets what does not match.  The
      note that it had replaced is gone.
    - Forgetting is lazy: a forgotten note may be back.  Whatever was committed after
      it was forgotten is gone then.
    """

    key: bytes
    """1..64 bytes."""
    value: bytes
    """At most 512 bytes."""

    def __post_init__(self) -> None:
        assert 1 <= len(self.key) <= NOTE_KEY_BYTES_MAX, self.key
        assert len(self.value) <= NOTE_VALUE_BYTES_MAX, len(self.value)


class ChunkState(msgspec.Struct, frozen=True):
    """What the engine knows of one chunk of one target."""

    chunk_id: ChunkId
    commit_ver: int
    """0: nothing committed yet."""
    chain_version: int
    """Chain version under which the committed version was committed (0 with commit_ver 0)."""
    length: int
    """Bytes of the committed version."""
    checksum: int
    """xxh3-64 digest of the committed content (over its per-block checksums and length):
    equal content, length and checksum-block size give equal digests on every replica,
    however the content came about.
    """
    chunk_size_bytes: int
    """The file's chunk size: no version may be longer."""
    pending_ver: int = 0
    """0: nothing pending."""
    pending_is_remove: bool = False
    pending_length: int = 0
    pending_checksum: int = 0
    is_damaged: bool = False
    """The committed version's bytes are known to be bad or missing:
    it cannot be read, only replaced or repaired.
    """
    pending_tag: bytes = b""
    """What `prepare_*` was given with the pending version."""


class CommitsAtOnce(msgspec.Struct, frozen=True):
    """How a version is committed by the very batch that makes it:
    for who waits for nobody with that.
    """

    chain_version: int
    note_of: Callable[[ChunkState], Note | None]
    """Returns what the batch holds beside it; called with the version as if it were pending,
    and must not call the engine.
    """


class ChunkWrite(msgspec.Struct, frozen=True):
    """One write of several; see `ChunkEngine.prepare_write`."""

    chunk_id: ChunkId
    version: int
    chunk_size_bytes: int
    offset: int
    data: Buffer
    tag: bytes = b""
    is_full_replace: bool = False
    ranges: Sequence[Range] = ()
    """See `ChunkEngine.prepare_write`."""

    @property
    def first_end(self) -> int:
        """End of the bytes that are given from `offset` on without a gap, or of some of them."""
        return sum(self.ranges[0]) if self.ranges else self.offset + len(self.data)


class ChunkCommit(msgspec.Struct, frozen=True):
    """One commit of several; see `ChunkEngine.commit`."""

    chunk_id: ChunkId
    version: int
    note: Note | None = None


class ChunkEngine(ChunkReads, Protocol):
    """One disk.  Every method may raise FsError(IO_ERROR):
    then the disk is not to be trusted any more.
    """

    checksum_block_bytes: int
    """What the disk was formatted with: digests of chunks depend on it,
    so all disks of a chain must have the same.
    """

    def get(self, target_id: TargetId, chunk_id: ChunkId) -> ChunkState | None:
        """Return the chunk, None if it has neither a committed nor a pending version."""
        ...

    def takes_at_once(
        self, target_id: TargetId, chunk_id: ChunkId, offset: int, length: int
    ) -> bool:
        """Return whether `prepare_write` of some bytes would only copy them to memory
        of the kernel, and write a record.

        Nothing would have to be read, claimed, opened, flushed or given back before.  A hint:
        another thread may change that until then.

        Raises:
            FsError: NOT_SERVING, IO_ERROR: the disk is not served any more.
        """
        ...

    def removes_at_once(self) -> bool:
        """Return whether `prepare_remove` and `remove` would only write a record,
        and give back no space before; a hint, as above.

        Raises:
            FsError: IO_ERROR.
        """
        ...

    def prepare_write(
        self,
        target_id: TargetId,
        chunk_id: ChunkId,
        *,
        version: int,
        chunk_size_bytes: int,
        offset: int,
        data: Buffer,
        is_full_replace: bool = False,
        tag: bytes = b"",
        commits: CommitsAtOnce | None = None,
        ranges: Sequence[Range] = (),
    ) -> ChunkState:
        """Make the pending version: the committed bytes with `data` put at `offset`,
        gaps zero-filled.

        With `ranges`, the first of which begins at `offset`, `data` is put there piece by piece,
        see fs/chunkengine/ranges.py.

        `version` must be commit_ver + 1 unless `is_full_replace`, which takes any version > 0,
        starts from nothing (offset 0, data = the whole content) and replaces a pending version.  A
        pending version of the same number is replaced too.  `tag` (at most 255 bytes) is kept with
        the pending version, and no longer: whose update it is.

        With `commits` it is the committed version at once, never a pending one; what is
        returned is as if it were pending.

        Raises:
            FsError: NO_SPACE; INVALID_ARGUMENT if the result is longer than the chunk size;
                CHECKSUM_MISMATCH if the committed bytes to be copied are damaged; if the chunk is
                marked as damaged, unless `data` covers all of the old version; TARGET_UNKNOWN while
                the target is being removed.
        """
        ...

    def prepare_writes(
        self,
        target_id: TargetId,
        writes: Sequence[ChunkWrite],
        *,
        commits: CommitsAtOnce | None = None,
    ) -> list[ChunkState]:
        """Do what `prepare_write` does for several chunks, all different, in one batch:
        all of them or none.

        Raises:
            FsError: as `prepare_write`, whichever of them it is about; nothing has happened then.
        """
        ...

    def prepare_truncate(
        self,
        target_id: TargetId,
        chunk_id: ChunkId,
        *,
        version: int,
        chunk_size_bytes: int,
        length: int,
        tag: bytes = b"",
    ) -> ChunkState:
        """Make a pending version of exactly `length` bytes: cut, or extended with zeros.

        Raises:
            FsError: as `prepare_write`; CHECKSUM_MISMATCH if the chunk is marked as
                damaged and `length` is not 0.
        """
        ...

    def prepare_remove(
        self, target_id: TargetId, chunk_id: ChunkId, *, version: int, tag: bytes = b""
    ) -> ChunkState:
        """Make a pending removal."""
        ...

    def remove(self, target_id: TargetId, chunk_id: ChunkId, *, version: int) -> ChunkState:
        """Do what `prepare_remove` and `commit` do, in one atomic batch;
        return what `prepare_remove` would have.
        """
        ...

    def commit(
        self,
        target_id: TargetId,
        chunk_id: ChunkId,
        *,
        version: int,
        chain_version: int,
        note: Note | None = None,
    ) -> ChunkState | None:
        """Make pending version `version` the committed one; None after a removal.

        Repeating is harmless.

        `note` becomes part of the same atomic batch, also of a removal; a
        repeated commit puts it again.
        """
        ...

    def commit_writes(
        self, target_id: TargetId, commits: Sequence[ChunkCommit], *, chain_version: int
    ) -> None:
        """Do what `commit` does for several pending writes, of different chunks, in one batch:
        all of them or none.

        Raises:
            FsError: MISSING_UPDATE if one of them is not pending; nothing has happened then.
        """
        ...

    def drop_pending(self, target_id: TargetId, chunk_id: ChunkId) -> None:
        """Forget the pending version, if there is one."""
        ...

    def list_chunks(
        self, target_id: TargetId, *, after: bytes = b"", limit: int = 1024
    ) -> list[ChunkState]:
        """Return up to `limit` chunks in chunk-id order, packed id > `after`,
        pending ones included.
        """
        ...

    def list_file(
        self,
        target_id: TargetId,
        inode_id: int,
        *,
        first_index: int = 0,
        end_index: int = 2**32,
        limit: int = 1024,
    ) -> list[ChunkState]:
        """Return up to `limit` chunks of one file with first_index <= index <
        end_index, in order.
        """
        ...

    def last_chunk(self, target_id: TargetId, inode_id: int) -> ChunkState | None:
        """Return the committed chunk of the file with the largest index that is not empty."""
        ...

    def repair(self, target_id: TargetId, chunk_id: ChunkId, *, version: int, data: Buffer) -> bool:
        """Write the bytes of the committed version anew, at another place;
        the version stays the same.

        The chunk is not damaged any more then.

        Returns:
            False, and nothing happened, if `data` is not exactly what that version holds by its
            digest, if another version is committed, or one is pending.

        Raises:
            FsError: NO_SPACE.
        """
        ...

    def mark_damaged(self, target_id: TargetId, chunk_id: ChunkId, *, version: int = 0) -> bool:
        """Note that the bytes of the committed version are bad: from now on it cannot be read here.

        Durable with the next `sync`; ended by `repair`, by `end_damage`, by a new version
        that keeps none of the old bytes, and by removal.  The block keeps the bad bytes until
        then.  A pending version stays.

        Args:
            target_id: the target.
            chunk_id: the chunk.
            version: nothing happens unless this one is committed; 0: whichever is.

        Returns:
            Whether the chunk is marked now; False if there is no such version, or an empty one.
        """
        ...

    def end_damage(self, target_id: TargetId, chunk_id: ChunkId, *, version: int) -> bool:
        """Reread a version that is marked as damaged,
        and end the mark if its bytes match their checksums now.

        A disk that gave errors may give the bytes later: after a reset, behind another cable.
        Durable with the next `sync`.

        Returns:
            Whether it is marked no more; False if it has no bytes here, or
            another version is committed.
        """
        ...

    def put_damaged(
        self,
        target_id: TargetId,
        chunk_id: ChunkId,
        *,
        version: int,
        chain_version: int,
        length: int,
        checksum: int,
        chunk_size_bytes: int,
    ) -> ChunkState:
        """Make a version the committed one of which everything is known but its bytes.

        Whatever the chunk held here gives way, a pending version too; but if it holds exactly
        this version undamaged (by version, length and checksum), that stays and takes the chain
        version.  An empty version is never damaged.  Takes no block; reads are CHECKSUM_MISMATCH
        until the end of `mark_damaged`.

        Raises:
            FsError: INVALID_ARGUMENT if longer than the chunk size;
                TARGET_UNKNOWN as in `prepare_write`.
        """
        ...

    def notes(self, target_id: TargetId) -> list[Note]:
        """Return all notes of a target, by key."""
        ...

    def put_notes(
        self, target_id: TargetId, notes: Sequence[Note], *, is_durable: bool = False
    ) -> None:
        """Store notes that come with no commit of ours, in one batch; durable with the next `sync`.

        With `is_durable` when it returns, without a flush of data; waits for the disk.
        """
        ...

    def forget_notes(self, target_id: TargetId, keys: Sequence[bytes]) -> None:
        """Delete notes; lazily, see `Note`.  Unknown keys are no error."""
        ...

    def target_ids(self) -> list[TargetId]:
        """Return the targets that this disk holds by its own record, in order;
        not one being removed.
        """
        ...

    def add_target(self, target_id: TargetId) -> None:
        """Record that the disk holds a target, durably; waits for the disk.

        Nothing happens if it does.

        Raises:
            FsError: TARGET_UNKNOWN while it is being removed.
        """
        ...

    def begin_removal(self, target_id: TargetId) -> None:
        """Record, durably, that a target is to be removed: who opens the disk next does it.

        Until `remove_target` it is all there.
        """
        ...

    def remove_target(self, target_id: TargetId, *, lot_count_max: int = 0) -> bool:
        """Remove a target with all its chunks and notes, durably;
        waits for the disk, may take minutes.

        Nothing happens if the disk does not hold it.  From the beginning on it takes no updates,
        and after a crash in the middle `open` goes on.  Space comes back bit by bit.

        Args:
            target_id: of the target.
            lot_count_max: of some hundred chunks each; when so many are gone it is left for
                another call.  0: no bound.

        Returns:
            Whether it is gone.
        """
        ...

    def compact(self, bytes_max: int) -> Compacted:
        """Move chunks out of sparse groups of blocks, about `bytes_max` of them,
        and return free space to the disk.

        Runs beside everything else; a chunk that is updated meanwhile stays.  The last step,
        which has nothing left to move, flushes and punches.  The caller paces: to move R bytes
        per second, call it with R every second until it is finished, and begin again some
        minutes later.  A disk that is nearly full need not be compacted first: updates reclaim
        the space of free blocks themselves.
        """
        ...

    def used_bytes(self, target_id: TargetId) -> int:
        """Return the bytes of blocks that a target occupies, without a scan."""
        ...

    def space(self) -> SpaceInfo:
        """Return the space of the disk."""
        ...

    def make_way(self) -> None:
        """Give space of free blocks back that is kept at hand,
        if others have taken much of the disk; waits for the disk.

        To be called every second or so: whoever else writes to the same
        file system cannot ask for it.
        """
        ...

    def give_up(self, reason: str) -> None:
        """Let nobody in from now on, as after a failure of the disk;
        waits for nothing, not even for those who are inside.
        """
        ...

    def room_after_refusal(self) -> int | None:
        """Return the bytes that an engine opened anew would have room for,
        if this one failed for want of space.

        None while it works, and also when anything failed but the metadata store, or
        for another reason: then only a person can tell what the disk is worth.  Also to
        be called when it is closed.

        Raises:
            FsError: IO_ERROR.
        """
        ...

    def sync(self) -> None:
        """Return when everything prepared and committed before the call would survive a power loss.

        Concurrent callers share one flush.  A failed flush is IO_ERROR
        for ever: it is never retried.
        """
        ...

    def close(self) -> None:
        """Sync and release the disk; every other call is NOT_SERVING from then on."""
        ...
