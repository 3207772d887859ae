"""A process that works on a real disk and says what it does, line by line,
until it is stopped or the disk fails.

Lines, each written before or after what it tells:
    began INDEX VERSION HASH      a commit is about to be tried; HASH of the new
                                  content, `-` for a removal
    done INDEX VERSION            it was acknowledged
    sync NUMBER / synced NUMBER   everything done before `sync NUMBER` is durable
    failed STATUS TEXT            the engine has refused; the process ends

`Witness` (witness.py) reads them.  Several threads write, each has chunks of its own.
"""

import random
import threading
from collections.abc import Callable
from unittest.mock import patch

from xxhash import xxh3_64_hexdigest

from fs.chunkengine import allocator
from fs.chunkengine.api import ChunkCommit, ChunkWrite, CommitsAtOnce
from fs.chunkengine.engine import DiskEngine
from fs.chunkengine.factory import open_engine
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status

from .workload import in_pages, ranges_within, tag_of

SECTION = StorageSection(
    checksum_block_bytes=4096, reject_create_free_bytes_min=0, direct_write_bytes_min=4096
)
CHUNK_SIZE_BYTES = 64 << 10
CHUNK_COUNT = 12
RESERVE_BYTES = 1 << 20
"""Space is claimed in smaller steps than usual:
where there is no fallocate, it is emulated by writes.
"""

Say = Callable[[str], None]


def chunk_of(index: int) -> tuple[TargetId, ChunkId]:
    return TargetId(1 + index % 2), ChunkId(InodeId(7), index)


def open_disk(path: str) -> DiskEngine:
    with patch.object(allocator, "RESERVE_BYTES", RESERVE_BYTES):
        return open_engine(path, cluster_id="c", node_id=1, section=SECTION)


def content_of(engine: DiskEngine, index: int) -> tuple[int, bytes | None]:
    """Return version and content of a chunk; (0, None) if there is none."""
    state = engine.get(*chunk_of(index))
    if state is None or not state.commit_ver:
        return 0, None
    return state.commit_ver, engine.read_whole(*chunk_of(index))


def hash_of(content: bytes | None) -> str:
    return "-" if content is None else xxh3_64_hexdigest(content)


class Writer:
    """Changes some of the chunks, one after another."""

    def __init__(self, engine: DiskEngine, say: Say, seed: int, indices: list[int]) -> None:
        self.engine = engine
        self.say = say
        self.rng = random.Random(seed)
        self.contents = {index: content_of(engine, index) for index in indices}

    def step(self) -> None:
        if self.rng.random() < 0.15:
            self.write_group()
            return
        if self.rng.random() < 0.15:
            self.write_ranges()
            return
        index = self.rng.choice(list(self.contents))
        version, old = self.contents[index]
        version, kind = version + 1, self.rng.random()
        if kind < 0.1 and old is not None:
            self.engine.prepare_remove(*chunk_of(index), version=version, tag=tag_of(version))
            self._commit(index, version, None)
            return
        old = old or b""
        offset = len(old) if kind < 0.6 else self.rng.randint(0, len(old))
        sizes: tuple[int, ...] = (100, 4096, 20_000)
        if kind >= 0.85:  # all of it anew
            offset, sizes = 0, (len(old), max(len(old), 8192), CHUNK_SIZE_BYTES)
        room = CHUNK_SIZE_BYTES - offset
        data = self.rng.randbytes(min(room, self.rng.choice(sizes)))
        new = old[:offset] + data + old[offset + len(data) :]
        if room == 0:
            new = old[: self.rng.randint(0, 1000)]
            self.engine.prepare_truncate(
                *chunk_of(index),
                version=version,
                chunk_size_bytes=CHUNK_SIZE_BYTES,
                length=len(new),
                tag=tag_of(version),
            )
        else:
            is_at_once = self.rng.random() < 0.4
            if is_at_once:
                self.say(f"began {index} {version} {hash_of(new)}")
            self.engine.prepare_write(
                *chunk_of(index),
                version=version,
                chunk_size_bytes=CHUNK_SIZE_BYTES,
                offset=offset,
                data=in_pages(data),
                tag=tag_of(version),
                commits=CommitsAtOnce(1, lambda _: None) if is_at_once else None,
            )
            if is_at_once:
                self._say_done(index, version, new)
                return
        self._commit(index, version, new)

    def write_group(self) -> None:
        """Replace the beginnings of several chunks of a target, in one batch;
        commit them by that, or by another.
        """
        first = chunk_of(self.rng.choice(list(self.contents)))
        of_target = [index for index in self.contents if chunk_of(index)[0] == first[0]]
        group = self.rng.sample(of_target, min(len(of_target), self.rng.randint(2, 4)))
        made, writes = [], []
        for index in group:
            version, old = self.contents[index]
            data = self.rng.randbytes(self.rng.choice((100, 8192, CHUNK_SIZE_BYTES)))
            made.append((index, version + 1, data + (old or b"")[len(data) :]))
            writes.append(
                ChunkWrite(
                    chunk_of(index)[1],
                    version + 1,
                    CHUNK_SIZE_BYTES,
                    0,
                    in_pages(data),
                    tag_of(version + 1),
                )
            )
        is_at_once = self.rng.random() < 0.5
        if not is_at_once:
            self.engine.prepare_writes(first[0], writes)
        for index, version, new in made:
            self.say(f"began {index} {version} {hash_of(new)}")
        if is_at_once:
            self.engine.prepare_writes(first[0], writes, commits=CommitsAtOnce(1, lambda _: None))
        else:
            commits = [ChunkCommit(chunk_of(index)[1], version) for index, version, _ in made]
            self.engine.commit_writes(first[0], commits, chain_version=1)
        for index, version, new in made:
            self._say_done(index, version, new)

    def write_ranges(self) -> None:
        """Write at several places of a chunk at once."""
        index = self.rng.choice(list(self.contents))
        version, old = self.contents[index]
        new, data, version = old or b"", b"", version + 1
        ranges = ranges_within(self.rng, CHUNK_SIZE_BYTES)
        for offset, length in ranges:
            part = self.rng.randbytes(length)
            new = new.ljust(offset, b"\0")[:offset] + part + new[offset + length :]
            data += part
        self.engine.prepare_write(
            *chunk_of(index),
            version=version,
            chunk_size_bytes=CHUNK_SIZE_BYTES,
            offset=ranges[0][0],
            data=in_pages(data),
            tag=tag_of(version),
            ranges=ranges,
        )
        self._commit(index, version, new)

    def _commit(self, index: int, version: int, new: bytes | None) -> None:
        self.say(f"began {index} {version} {hash_of(new)}")
        self.engine.commit(*chunk_of(index), version=version, chain_version=1)
        self._say_done(index, version, new)

    def _say_done(self, index: int, version: int, new: bytes | None) -> None:
        self.say(f"done {index} {version}")
        self.contents[index] = (version, new) if new is not None else (0, None)


def work(path: str, seed: int, send: Say, *, threads: int = 1, steps: int = 1 << 60) -> None:
    """Open the disk and write to it, with a sync now and then;
    returns when the engine refuses or `steps` are done.
    """
    lock, numbers = threading.Lock(), iter(range(1 << 60))

    def say(line: str) -> None:
        with lock:
            send(line)

    try:
        engine = open_disk(path)
    except FsError as error:
        say(f"failed {error.status.name} {error}")
        return
    say("opened")
    writers = [
        Writer(engine, say, seed * 100 + n, list(range(n, CHUNK_COUNT, threads)))
        for n in range(threads)
    ]

    def run(writer: Writer) -> None:
        try:
            for _ in range(steps):
                if writer.rng.random() < 0.08:
                    number = next(numbers)
                    say(f"sync {number}")
                    engine.sync()
                    say(f"synced {number}")
                try:
                    writer.step()
                except FsError as error:
                    if error.status is not Status.NO_SPACE:
                        raise
        except FsError as error:
            say(f"failed {error.status.name} {error}")

    others = [threading.Thread(target=run, args=(writer,)) for writer in writers[1:]]
    for thread in others:
        thread.start()
    run(writers[0])
    for thread in others:
        thread.join()
    try:
        engine.close()
        say("closed")
    except FsError as error:
        say(f"failed {error.status.name} {error}")
