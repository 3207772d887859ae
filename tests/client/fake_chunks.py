"""The chunks of the model file system (fakes.py):
one bytearray each, and what checks that a client keeps its order.
"""

import random
from dataclasses import dataclass, field
from itertools import pairwise

import trio

from fs.client.file_read import FileRead
from fs.client.storage_reads import BEGUN_BYTES_MAX
from fs.schema.layout import FileRef, extents
from fs.schema.status import FsError

CHUNK = 64 * 1024


def replace_buffer(read, buffer):
    return FileRead(read.file, read.offset, buffer)


class BegunRead:
    """Small reads that nobody waits for, and how they go on."""

    def __init__(self, on_end):
        self._on_end = on_end
        self.has_ended = False

    def fail(self, _error):
        self.end(is_done=False)

    def end(self, *, is_done):
        if not self.has_ended:
            self.has_ended = True
            self._on_end(is_done)


@dataclass
class FakeChunks:
    """ChunkStore over bytearrays, with delays and faults."""

    chunk_size_bytes: int = CHUNK
    chunks: dict = field(default_factory=dict)
    delay_s: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    write_faults: list = field(default_factory=list)
    """FsErrors for the next writes; None lets one pass."""
    gate: trio.Event | None = None
    """Writes wait for it."""
    begun: list = field(default_factory=list)
    begun_gate: trio.Event | None = None
    """Begun reads wait for it."""
    has_other_writers: bool = False
    """Whoever reads may know of fewer chunks than there are."""
    can_begin: bool = True
    """Reads may be begun."""
    begin_faults: list = field(default_factory=list)
    """Errors for the next reads that are begun."""
    has_begun_faults: bool = False
    """Reads that were begun have to be done the ordinary way."""
    writes: list = field(default_factory=list)
    reads: list = field(default_factory=list)
    sync_count: int = 0
    next_data_count: int = 0
    """How often it was asked where there is data again."""
    durable_writes: int = 0
    """How many were asked to be."""
    can_flush: bool = False
    """Storage makes writes durable on their way."""
    capacity_bytes: int = 1 << 40
    free_bytes: int = 1 << 39
    inline: object = ()
    """Holds the inode ids of files that may have no chunks."""

    async def _pause(self):
        if self.delay_s:
            await trio.sleep(self.rng.random() * self.delay_s)

    async def write(self, file: FileRef, offset, data, *, is_durable=False):
        if self.gate is not None:
            await self.gate.wait()
        await self._pause()
        fault = self.write_faults.pop(0) if self.write_faults else None
        if fault is not None:
            raise type(fault)(fault.status, fault.detail)  # it refers to nobody's bytes
        self.put(file, offset, data)
        self.writes.append((file.inode_id, offset, len(data)))
        self.durable_writes += is_durable
        return is_durable and self.can_flush

    def put(self, file, offset, data):
        assert file.inode_id not in self.inline, f"written to a chunk of inline {file.inode_id}"
        view = memoryview(data)
        for e in extents(file.layout.chunk_size_bytes, offset, len(data)):
            chunk = self.chunks.setdefault((file.inode_id, e.chunk_index), bytearray())
            start = e.file_offset - offset
            if len(chunk) < e.offset:
                chunk.extend(bytes(e.offset - len(chunk)))
            chunk[e.offset : e.offset + e.length] = view[start : start + e.length]

    async def write_ranges(self, file, ranges, *, is_durable=False):
        assert len({offset // self.chunk_size_bytes for offset, _ in ranges}) == 1
        made = [(offset, b"".join(buffers)) for offset, buffers in ranges]
        assert len(made) > 1
        assert all(a + len(data) < b for (a, data), (b, _) in pairwise(made)), (
            "joined, or in the way"
        )
        if self.gate is not None:
            await self.gate.wait()
        await self._pause()
        fault = self.write_faults.pop(0) if self.write_faults else None
        if fault is not None:
            raise fault
        for offset, data in made:
            self.put(file, offset, data)
        self.writes.append((file.inode_id, [(offset, len(data)) for offset, data in made]))
        self.durable_writes += is_durable
        return is_durable and self.can_flush

    async def read(self, reads, *, is_relaxed=False):  # noqa: ARG002 - the port has it
        await self._pause()
        for read in reads:
            size = read.file.layout.chunk_size_bytes
            read.hole_bytes = 0
            self.reads.append((read.file.inode_id, read.offset, len(read.buffer)))
            for e in extents(size, read.offset, len(read.buffer)):
                slot = e.chunk_index % read.file.layout.stripe_size
                chunk = self.chunks.get((read.file.inode_id, e.chunk_index), b"")
                if slot >= read.file.dyn_stripe:
                    assert not chunk or self.has_other_writers
                    chunk = b""
                part = memoryview(chunk)[e.offset : e.offset + e.length]
                start = e.file_offset - read.offset
                read.buffer[start : start + len(part)] = part
                read.hole_bytes += e.length - len(part)
                if len(part) < e.length:
                    read.buffer[start + len(part) : start + e.length] = bytes(e.length - len(part))

    def begin_read(self, reads, on_end, *, is_relaxed=False, bytes_max=BEGUN_BYTES_MAX):
        if not self.can_begin or sum(len(read.buffer) for read in reads) > bytes_max:
            return None
        if self.begin_faults:
            raise self.begin_faults.pop(0)
        self.begun.append(BegunRead(on_end))
        trio.lowlevel.spawn_system_task(self._go_on, reads, self.begun[-1], is_relaxed)
        return self.begun[-1]

    async def _go_on(self, reads, begun, is_relaxed):
        copies = [replace_buffer(read, memoryview(bytearray(len(read.buffer)))) for read in reads]
        if self.begun_gate is not None:
            await self.begun_gate.wait()
        if self.has_begun_faults:
            begun.end(is_done=False)
            return
        try:
            await self.read(copies, is_relaxed=is_relaxed)
        except Exception:  # noqa: BLE001 - who asks in the ordinary way is told
            begun.end(is_done=False)
        if begun.has_ended:
            return
        for read, copy in zip(reads, copies, strict=True):
            read.buffer[:], read.hole_bytes = copy.buffer, copy.hole_bytes
        begun.end(is_done=True)

    async def empty_chunks(self, file, first_index, end_index):
        await self._pause()
        for index in range(first_index, end_index):
            is_in_use = index % file.layout.stripe_size < file.dyn_stripe
            if is_in_use and (file.inode_id, index) in self.chunks:
                self.chunks[file.inode_id, index].clear()

    async def sync(self, files):
        assert list(files)
        await self._pause()
        self.sync_count += 1

    async def remove_files(self, files):
        for file in files:
            for key in [k for k in self.chunks if k[0] == file.inode_id]:
                del self.chunks[key]

    async def truncate_file(self, file, length, _truncate_ver, is_wanted):
        assert await is_wanted()
        size = file.layout.chunk_size_bytes
        for key in [k for k in self.chunks if k[0] == file.inode_id]:
            keep = max(0, length - key[1] * size)
            del self.chunks[key][keep:]

    async def fill_file(self, file, data, _truncate_ver, is_wanted):
        assert 0 < len(data) <= file.layout.chunk_size_bytes
        if await is_wanted():
            self.chunks[file.inode_id, 0] = bytearray(data)

    async def file_length(self, file):
        size = file.layout.chunk_size_bytes
        ends = [k[1] * size + len(c) for k, c in self.chunks.items() if k[0] == file.inode_id and c]
        used_bytes = sum(len(c) for k, c in self.chunks.items() if k[0] == file.inode_id)
        return max(ends, default=0), used_bytes

    async def next_data(self, file, first_index):
        self.next_data_count += 1
        indices = [k[1] for k, c in self.chunks.items() if k[0] == file.inode_id and c]
        return min((i for i in indices if i >= first_index), default=None)

    async def space(self):
        return self.capacity_bytes, self.free_bytes


class FakeStore:
    """ChunkStore of one client: checks that this client keeps its order per chunk."""

    def __init__(self, chunks):
        self.chunks = chunks
        self.busy = set()
        self.asked_to_begin = 0

    def __getattr__(self, name):
        return getattr(self.chunks, name)

    async def write(self, file, offset, data, *, is_durable=False):
        parts = list(extents(file.layout.chunk_size_bytes, offset, len(data)))
        keys = {(file.inode_id, e.chunk_index) for e in parts}
        assert not keys & self.busy, f"two writes to one chunk at a time: {keys & self.busy}"
        for e in parts:
            assert e.chunk_index % file.layout.stripe_size < file.dyn_stripe, "beyond dyn_stripe"
        self.busy |= keys
        try:
            return await self.chunks.write(file, offset, data, is_durable=is_durable)
        finally:
            self.busy -= keys

    async def write_ranges(self, file, ranges, *, is_durable=False):
        key = (file.inode_id, ranges[0][0] // file.layout.chunk_size_bytes)
        assert key not in self.busy, f"two writes to one chunk at a time: {key}"
        assert key[1] % file.layout.stripe_size < file.dyn_stripe, "beyond dyn_stripe"
        self.busy.add(key)
        try:
            return await self.chunks.write_ranges(file, ranges, is_durable=is_durable)
        finally:
            self.busy.discard(key)

    def begin_write(self, file, offset, data, on_end):
        """Begin every second one; what fails is tried once more."""
        self.asked_to_begin += 1
        if self.asked_to_begin % 2:
            return False

        def again():
            return self.write(file, offset, data, is_durable=True)

        async def work():
            try:
                on_end(await again(), None)
            except FsError:
                on_end(False, again)

        trio.lowlevel.spawn_system_task(work)
        return True
