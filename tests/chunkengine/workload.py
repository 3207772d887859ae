"""A random workload on an engine beside a model
that knows what each chunk may hold after a crash.
"""

import mmap
import random
from contextlib import contextmanager
from dataclasses import dataclass, field

from fs.chunkengine.api import ChunkCommit, ChunkWrite, CommitsAtOnce, Note
from fs.chunkengine.engine import DiskEngine
from fs.chunkengine.format import UNDO_PREFIX, chunk_key, place_of
from fs.chunkengine.fsck import check_disk
from fs.chunkengine.ports import DataFiles, MetaStore
from fs.chunkengine.simulated_disk import SimulatedDataFiles, SimulatedDisk
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status

CHUNK_SIZE_BYTES = 256 << 10
CHUNKS = [(TargetId(t), ChunkId(InodeId(i), n)) for t in (1, 2) for i in (7, 9) for n in (0, 3)]


def tag_of(version: int) -> bytes:
    """Return what a pending version is tagged with; every other one is not."""
    return b"whose %d" % version if version % 2 else b""


def in_pages(data: bytes) -> memoryview:
    """Return data as it is received: in memory of whole pages,
    so that it can be written past the page cache.
    """
    memory = mmap.mmap(-1, max(1, len(data)))
    memory[: len(data)] = data
    return memoryview(memory)[: len(data)]


@dataclass(frozen=True)
class Damaged:
    """Content that is known to be bad: only this is left of it."""

    length: int
    checksum: int


Content = bytes | Damaged | None
"""Of a committed version; None: there is none."""


@dataclass
class Model:
    """What one chunk holds, and held since the last sync."""

    version: int = 0
    history: list[Content] = field(default_factory=lambda: [None])
    maybe: list[Content] = field(default_factory=list)
    """Outcome of a commit that a crash cut short."""
    pending: tuple[int, bytes | None] | None = None
    synced_pending: tuple[int, bytes | None] | None = None
    kept: tuple[int, tuple[int, bytes | None]] | None = None
    """A version that was durable when it was committed:
    its place in `history`, and itself as it was pending.
    """

    @property
    def content(self) -> Content:
        return self.history[-1]

    def allowed(self) -> list[Content]:
        return self.history + self.maybe


class Workload:
    """Runs random operations and keeps the model; survives any number of crashes."""

    pending_share = 0.15
    """So many updates are left pending."""

    at_once_share = 0.3
    """So many writes are committed by the batch that makes them."""

    whole_share = 0.3
    """So many of a group are whole chunks, as resync brings them."""

    def __init__(self, seed: int, chunks=CHUNKS) -> None:
        self.rng = random.Random(seed)
        self.chunks = list(chunks)
        self.models = {chunk: Model() for chunk in self.chunks}

    def data(self, length_max: int = 40_000) -> bytes:
        length = self.rng.choice((1, 100, 4096, self.rng.randint(0, 40_000)))
        return self.rng.randbytes(min(length, length_max))

    def step(self, engine: DiskEngine) -> None:
        chunk = self.rng.choice(self.chunks)
        kinds = (self.write, self.append, self.write, self.replace, self.truncate, self.remove)
        others = (self.drop, self.commit_later, self.sync, self.write_group, self.write_ranges)
        kind = self.rng.choices((*kinds, *others), (4, 5, 2, 3, 2, 1, 1, 3, 2, 2, 3))[0]
        kind(engine, chunk)

    def write(self, engine: DiskEngine, chunk) -> None:
        self.put(engine, chunk, self.rng.randint(0, 120_000), self.data())

    def write_ranges(self, engine: DiskEngine, chunk) -> None:
        """Write at several places of a chunk at once."""
        ranges = ranges_within(self.rng, 120_000)
        self.put_ranges(engine, chunk, ranges)

    def put_ranges(self, engine: DiskEngine, chunk, ranges: list[tuple[int, int]]) -> None:
        new, data = self.models[chunk].content or b"", b""
        for offset, length in ranges:
            part = self.rng.randbytes(length)
            new = new.ljust(offset, b"\0")[:offset] + part + new[offset + length :]
            data += part
        version = self.models[chunk].version + 1
        self._write(
            engine, chunk, version, new, offset=ranges[0][0], data=in_pages(data), ranges=ranges
        )

    def append(self, engine: DiskEngine, chunk) -> None:
        offset = len(self.models[chunk].content or b"")
        self.put(engine, chunk, offset, self.data(CHUNK_SIZE_BYTES - offset))

    def put(self, engine: DiskEngine, chunk, offset: int, data: bytes) -> None:
        old = self.models[chunk].content or b""
        new = old.ljust(offset, b"\0")[:offset] + data + old[offset + len(data) :]
        version = self.models[chunk].version + 1
        self._write(engine, chunk, version, new, offset=offset, data=data)

    def replace(self, engine: DiskEngine, chunk) -> None:
        data, version = self.data(), self.models[chunk].version + self.rng.randint(1, 3)
        paged = in_pages(data)
        self._write(engine, chunk, version, data, offset=0, data=paged, is_full_replace=True)

    def _write(self, engine: DiskEngine, chunk, version: int, new: bytes, **what) -> None:
        """Make `new` the pending version, or at once the committed one."""
        what |= {"version": version, "chunk_size_bytes": CHUNK_SIZE_BYTES, "tag": tag_of(version)}
        if self.rng.random() >= self.at_once_share:
            engine.prepare_write(*chunk, **what)
            self._finish(engine, chunk, version, new)
            return
        model = self.models[chunk]
        model.maybe = [new]
        try:
            commits = CommitsAtOnce(5, lambda _: self.note(chunk))
            state = engine.prepare_write(*chunk, **what, commits=commits)
        except FsError as error:
            if error.status is not Status.IO_ERROR:
                model.maybe = []
            raise
        assert (state.pending_ver, state.pending_length) == (version, len(new))
        self._committed(chunk, version, new)
        model.synced_pending = None

    def write_group(self, engine: DiskEngine, chunk) -> None:
        """Write into several chunks of a target in one batch, and commit them in one:
        the same, or another.
        """
        of_target = [c for c in self.chunks if c[0] == chunk[0]]
        group = self.rng.sample(of_target, self.rng.randint(1, len(of_target)))
        writes, made = [], []
        for one in group:
            old, data = self.models[one].content or b"", in_pages(self.data())
            offset = self.rng.choice((0, min(len(old), CHUNK_SIZE_BYTES - len(data))))
            version = self.models[one].version + 1
            new = old.ljust(offset, b"\0")[:offset] + bytes(data) + old[offset + len(data) :]
            is_full = self.rng.random() < self.whole_share
            if is_full:
                offset, new, version = 0, bytes(data), version + self.rng.randint(0, 2)
            tag = tag_of(version)
            writes.append(ChunkWrite(one[1], version, CHUNK_SIZE_BYTES, offset, data, tag, is_full))
            made.append((one, version, new))
        if self.rng.random() < self.at_once_share:
            notes = {one[1]: self.note(one) for one in group}
            commits = CommitsAtOnce(5, lambda state: notes[state.chunk_id])
            with self._committing(made):
                engine.prepare_writes(chunk[0], writes, commits=commits)
            return
        engine.prepare_writes(chunk[0], writes)
        for one, version, new in made:
            model = self.models[one]
            model.pending, model.synced_pending = (version, new), None
        if self.rng.random() >= self.pending_share:
            with self._committing(made):
                commit = [ChunkCommit(one[1], version, self.note(one)) for one, version, _ in made]
                engine.commit_writes(chunk[0], commit, chain_version=5)

    @contextmanager
    def _committing(self, made):
        """Around a batch that commits all of `made` or none."""
        for one, _, new in made:
            self.models[one].maybe = [new]
        try:
            yield
        except FsError as error:
            if error.status is not Status.IO_ERROR:
                for one, _, _ in made:
                    self.models[one].maybe = []
            raise
        for one, version, new in made:
            self._committed(one, version, new)
            self.models[one].synced_pending = None

    def truncate(self, engine: DiskEngine, chunk) -> None:
        length = self.rng.choice((0, 1, 4096, self.rng.randint(0, CHUNK_SIZE_BYTES)))
        version = self.models[chunk].version + 1
        new = (self.models[chunk].content or b"")[:length].ljust(length, b"\0")
        engine.prepare_truncate(
            *chunk,
            version=version,
            chunk_size_bytes=CHUNK_SIZE_BYTES,
            length=length,
            tag=tag_of(version),
        )
        self._finish(engine, chunk, version, new)

    def remove(self, engine: DiskEngine, chunk) -> None:
        version = self.models[chunk].version + 1
        engine.prepare_remove(*chunk, version=version, tag=tag_of(version))
        self._finish(engine, chunk, version, None)

    def drop(self, engine: DiskEngine, chunk) -> None:
        self.models[chunk].synced_pending = None
        engine.drop_pending(*chunk)
        self.models[chunk].pending = None

    def commit_later(self, engine: DiskEngine, chunk) -> None:
        """Commit what was left pending, and maybe synced since."""
        model = self.models[chunk]
        if model.pending is None:
            return
        pending, is_durable = model.pending, model.pending == model.synced_pending
        self._commit(engine, chunk, *pending)
        if is_durable and pending[1] is not None:
            model.kept = len(model.history) - 1, pending
        model.synced_pending = None

    def sync(self, engine: DiskEngine, _chunk=None) -> None:
        marks = {chunk: len(model.history) - 1 for chunk, model in self.models.items()}
        pendings = {chunk: model.pending for chunk, model in self.models.items()}
        engine.sync()
        for chunk, model in self.models.items():
            model.history = model.history[marks[chunk] :]
            if model.kept is not None:
                place, kept = model.kept
                model.kept = (place - marks[chunk], kept) if place > marks[chunk] else None
            if model.pending == pendings[chunk]:
                model.synced_pending = model.pending

    def _finish(self, engine: DiskEngine, chunk, version: int, new: bytes | None) -> None:
        model = self.models[chunk]
        model.pending, model.synced_pending = (version, new), None
        if self.rng.random() >= self.pending_share:
            self._commit(engine, chunk, version, new)

    def _commit(self, engine: DiskEngine, chunk, version: int, new: bytes | None) -> None:
        model = self.models[chunk]
        model.maybe = [new]
        note = self.note(chunk)
        engine.commit(*chunk, version=version, chain_version=5, note=note)
        self._committed(chunk, version, new)

    def _committed(self, chunk, version: int, new: bytes | None) -> None:
        model = self.models[chunk]
        model.maybe = []
        model.history.append(new)
        model.version = version if new is not None else 0
        model.pending = None

    def note(self, _chunk) -> Note | None:
        """What to store with a commit."""
        return None

    def check_now(self, engine: DiskEngine) -> None:
        """Without a crash: exactly the last acknowledged content."""
        for chunk, model in self.models.items():
            assert read(engine, chunk) == model.content, chunk

    def check_after_crash(self, engine: DiskEngine, *, is_power_loss: bool) -> None:
        """Each chunk is whole and at a version that may be there; take it as the new truth."""
        for chunk, model in self.models.items():
            found = read(engine, chunk)
            allowed = model.allowed() if is_power_loss else [model.content, *model.maybe]
            assert found in allowed, (chunk, size(found), [size(a) for a in allowed])
            state = engine.get(*chunk)
            pending = None
            if state is not None and state.pending_ver:
                content = None
                if not state.pending_is_remove:
                    content = engine.read_whole(*chunk, version=state.pending_ver)
                    assert len(content) == state.pending_length
                pending = (state.pending_ver, content)
            if model.synced_pending is not None and not (model.maybe and found in model.maybe):
                assert pending == model.synced_pending, chunk
            if model.kept is not None:
                place, kept = model.kept
                assert found in model.history[place:] + model.maybe or pending == kept, chunk
            version = state.commit_ver if state else 0
            self.models[chunk] = Model(version, [found], [], pending, pending)


def ranges_within(rng: random.Random, end_max: int) -> list[tuple[int, int]]:
    """Return some ranges (offset, length), in order and apart or next
    to each other, up to an end.
    """
    points = sorted(rng.sample(range(end_max), 2 * rng.choice((1, 2, 5, 20))))
    if rng.random() < 0.3:
        points = [point // 4096 * 4096 for point in points]
    ranges = zip(points[::2], points[1::2], strict=True)
    return [(low, min(high - low, 9000)) for low, high in ranges if high > low] or [(0, 4096)]


def size(content: Content) -> object:
    """Say of a content what an error message has room for."""
    return len(content) if isinstance(content, bytes) else content


def read(engine: DiskEngine, chunk) -> Content:
    try:
        return engine.read_whole(*chunk)
    except FsError as error:
        state = engine.get(*chunk)
        if error.status is Status.CHUNK_NOT_FOUND:
            return None
        if error.status is Status.CHECKSUM_MISMATCH and state is not None and state.is_damaged:
            return Damaged(state.length, state.checksum)
        raise


def check_books(meta: MetaStore, files: DataFiles | None = None) -> None:
    """The stored records agree with each other and, if given, with every byte of the data files."""
    blocks = files or SimulatedDataFiles(SimulatedDisk())
    found = list(check_disk(meta, blocks, has_data=files is not None))
    wrong = [finding.line() for finding in found if not finding.is_notice]
    assert not wrong, "\n".join(wrong)


def undo_count(meta: MetaStore) -> int:
    return len(list(meta.scan(UNDO_PREFIX, bytes([UNDO_PREFIX[0] + 1]))))


def place(engine: DiskEngine, chunk):
    """Return (data file, offset) of a chunk's committed version."""
    record = engine._books.ledger.record(chunk_key(*chunk))
    assert record is not None
    return place_of(record.position)
