"""A small model file system behind the client's two ports: honest, in memory, one process.

Several clients (`FakeCluster.meta("a")`, ...) may share one cluster.  The model is slow and simple, so that it can be
believed: a file's bytes are one bytearray per chunk, the namespace is plain dictionaries.  It checks its callers:
a write beyond dyn_stripe or two overlapping writes to one chunk at the same time are assertion errors.
"""

import random
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace

import trio

from fs.client.api import FileRead
from fs.client.storage_reads import BEGUN_BYTES_MAX
from fs.meta import acl, file_locks
from fs.meta.lock_cycles import CycleSearch, LockWait
from fs.meta.permissions import mode_after_write
from fs.schema.ids import ChainTableId, InodeId
from fs.schema.inode import (
    DirectoryPart,
    FilePart,
    Inode,
    InodeType,
    inode_to_pb,
)
from fs.schema.layout import MAX_FILE_LENGTH_BYTES, FileRef, Layout, extents
from fs.schema.proto import meta_pb2
from fs.schema.status import FsError, Status

CHUNK = 64 * 1024
DIRECTORY_LOCK_NAME = b"ember.lock"
USAGE_PREFIX = b"ember.usage."


@dataclass
class FakeClock:
    """Virtual time of trio; wall time starts at a fixed day and always moves a little."""

    ticks: int = 0

    def wall_ns(self):
        self.ticks += 1
        return 1_700_000_000_000_000_000 + int(trio.current_time() * 1e9) + self.ticks

    def monotonic_s(self):
        return trio.current_time()


def replace_buffer(read, buffer):
    return FileRead(read.file, read.offset, buffer)


async def run_inline(function, /, *args):
    return function(*args)


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
    free_bytes: int = 1 << 39

    async def _pause(self):
        if self.delay_s:
            await trio.sleep(self.rng.random() * self.delay_s)

    async def write(self, file: FileRef, offset, data, *, is_durable=False):
        if self.gate is not None:
            await self.gate.wait()
        await self._pause()
        fault = self.write_faults.pop(0) if self.write_faults else None
        if fault is not None:
            raise fault
        view = memoryview(data)
        for e in extents(file.layout.chunk_size_bytes, offset, len(data)):
            chunk = self.chunks.setdefault((file.inode_id, e.chunk_index), bytearray())
            start = e.file_offset - offset
            if len(chunk) < e.offset:
                chunk.extend(bytes(e.offset - len(chunk)))
            chunk[e.offset : e.offset + e.length] = view[start : start + e.length]
        self.writes.append((file.inode_id, offset, len(data)))
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

    def begin_read(self, reads, on_end, *, is_relaxed=False):
        if sum(len(read.buffer) for read in reads) > BEGUN_BYTES_MAX:
            return None
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
        await self.read(copies, is_relaxed=is_relaxed)
        if begun.has_ended:
            return
        for read, copy in zip(reads, copies, strict=True):
            read.buffer[:], read.hole_bytes = copy.buffer, copy.hole_bytes
        begun.end(is_done=True)

    async def empty_chunks(self, file, first_index, end_index):
        await self._pause()
        for index in range(first_index, end_index):
            if (file.inode_id, index) in self.chunks:
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
        return 1 << 40, self.free_bytes


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


class FakeCluster:
    """The namespace; see module head."""

    def __init__(self, clock=None, *, chunk_size_bytes=CHUNK, stripe_size=4):
        self.clock = clock or FakeClock()
        self.chunks = FakeChunks(chunk_size_bytes)
        self.layout = Layout(ChainTableId(1), 1, chunk_size_bytes, stripe_size, 0, 1)
        self.last_id = 0x1000
        self.inodes: dict[int, Inode] = {}
        self.names: dict[int, dict[bytes, int]] = {}
        self.sessions: dict[int, set[str]] = {}
        self.xattrs: dict[tuple[int, bytes], bytes] = {}
        self.knows_bare = True
        """Attributes tell that there are no extended ones; services of earlier releases do not."""
        self.locks: dict[int, list] = {}
        self.lock_waits: dict[tuple, LockWait] = {}
        self.calls: list[str] = []
        self.durable_calls = 0
        self.counted: list[int] = []
        self.meta_gate = None
        self.meta_faults: dict[str, list] = {}
        now = self.clock_ns()
        self.inodes[1] = Inode(
            InodeId(1), InodeType.DIRECTORY, 0o777, 0, 0, 2, now, now, now, now,
            directory=DirectoryPart(InodeId(1), b""),
        )  # fmt: skip
        self.names[1] = {}

    def clock_ns(self):
        try:
            return self.clock.wall_ns()
        except RuntimeError:  # outside trio
            return 1_600_000_000_000_000_000

    def meta(self, client_id="client"):
        return FakeMeta(self, client_id)

    def store(self):
        return FakeStore(self.chunks)

    def usage(self, directory_id):
        """What lies below a directory, by walking."""
        total = {b"bytes": 0, b"files": 0, b"directories": 0}
        for inode_id in self.names.get(directory_id, {}).values():
            inode = self.get(inode_id)
            total[b"directories" if inode.is_dir else b"files"] += 1
            total[b"bytes"] += inode.length if inode.file is not None else 0
            if inode.is_dir:
                for what, count in self.usage(inode_id).items():
                    total[what] += count
        return total

    def get(self, inode_id):
        inode = self.inodes.get(inode_id)
        if inode is None:
            raise FsError(Status.STALE, f"inode {inode_id}")
        return inode

    def require_expected(self, r):
        names = self.names.get(r.expected_parent_inode_id, {})
        if r.expected_name and names.get(r.expected_name) != r.inode_id:
            raise FsError(Status.STALE, repr(r.expected_name))

    def put(self, inode, **changes):
        changes.setdefault("ctime_ns", self.clock_ns())
        inode = replace(self.get(inode.inode_id), **changes)
        self.inodes[inode.inode_id] = inode
        return inode

    def put_file(self, inode, **changes):
        outer = {k: changes.pop(k) for k in ("mtime_ns", "mode") if k in changes}
        inode = self.get(inode.inode_id)
        return self.put(inode, file=replace(inode.file, **changes), **outer)

    def child(self, parent, name):
        if len(name) > 255:
            raise FsError(Status.NAME_TOO_LONG, repr(name))
        if not self.get(parent).is_dir:
            raise FsError(Status.NOT_DIRECTORY, f"{parent}")
        if name == b".":
            return self.get(parent)
        if name == b"..":
            return self.get(self.get(parent).directory.parent_inode_id)
        found = self.names[parent].get(name)
        if found is None:
            raise FsError(Status.NOT_FOUND, repr(name))
        return self.get(found)

    def add(self, caller, parent, name, type_, mode, **parts):
        if name in self.names[parent]:
            raise FsError(Status.EXISTS, repr(name))
        if len(name) > 255:
            raise FsError(Status.NAME_TOO_LONG, repr(name))
        now = self.clock_ns()
        self.last_id += 1
        nlink = 2 if type_ is InodeType.DIRECTORY else 1
        inode = Inode(
            InodeId(self.last_id), type_, mode, caller.uid, caller.gid, nlink, now, now, now, now,
            is_bare=self.knows_bare, **parts,
        )  # fmt: skip
        self.inodes[inode.inode_id] = inode
        self.names[parent][name] = inode.inode_id
        self.touch(parent, 1 if type_ is InodeType.DIRECTORY else 0)
        if type_ is InodeType.DIRECTORY:
            self.names[inode.inode_id] = {}
        return inode

    def touch(self, parent, nlink_step=0):
        inode = self.get(parent)
        now = self.clock_ns()
        self.put(inode, mtime_ns=now, ctime_ns=now, nlink=inode.nlink + nlink_step)

    async def drop_link(self, inode):
        inode = self.put(inode, nlink=inode.nlink - 1)
        await self.collect(inode)
        return inode

    async def collect(self, inode):
        """What garbage collection does, at once."""
        if inode.nlink == 0 and not self.sessions.get(inode.inode_id):
            del self.inodes[inode.inode_id]
            if inode.file is not None:
                await self.chunks.remove_files([self.ref(inode)])

    def ref(self, inode):
        return FileRef(inode.inode_id, inode.file.layout, inode.file.dyn_stripe)

    def open_session(self, inode_id, session):
        if session.session_id:
            self.sessions.setdefault(inode_id, set()).add(session.session_id)

    async def truncate(self, inode, length):
        inode = self.put_file(
            inode,
            length=length,
            truncate_ver=inode.file.truncate_ver + 1,
            data_ver=inode.file.data_ver + 1,
            mtime_ns=self.clock_ns(),
        )

        async def is_wanted():
            return True

        await self.chunks.truncate_file(self.ref(inode), length, inode.file.truncate_ver, is_wanted)
        return inode

    async def apply_sync(self, request):
        before = inode = self.get(request.inode_id)
        if request.has_new_data:
            hint = request.length_hint
            if request.HasField("length_hint") and hint.truncate_ver == inode.file.truncate_ver:
                length = max(inode.file.length, hint.length)
            else:
                length, _ = await self.chunks.file_length(self.ref(inode))
                inode = self.get(request.inode_id)
                length = max(length, inode.file.length)
            inode = self.put_file(inode, length=length, data_ver=inode.file.data_ver + 1)
        if request.counts_space:
            self.counted.append(inode.inode_id)
            _, used_bytes = await self.chunks.file_length(self.ref(inode))
            inode = self.put_file(inode, has_holes=used_bytes < inode.length)
            inode = self.put(inode, used_bytes=used_bytes)
        may_be_late = before.ctime_ns > request.times_set_ns
        for what in ("mtime", "atime"):
            told, seen = f"{what}_ns", f"{what}_seen_ns"
            known = getattr(before, told)
            is_other = request.HasField(seen) and known != getattr(request, seen)
            if request.HasField(told):
                time_ns = known if is_other and may_be_late else getattr(request, told)
                inode = self.put(inode, **{told: time_ns})
        if request.clears_suid:
            inode = self.put(inode, mode=mode_after_write(inode.mode))
        if request.is_durable:
            self.durable_calls += 1
        return inode


class FakeMeta:
    """MetaCaller of one client."""

    def __init__(self, cluster, client_id):
        self.cluster = cluster
        self.client_id = client_id

    async def call(self, method, request, *, timeout_s=None):  # noqa: ARG002 - the port has it
        self.cluster.calls.append(method.name)
        await trio.lowlevel.checkpoint()
        if self.cluster.meta_gate is not None:
            await self.cluster.meta_gate.wait()
        faults = self.cluster.meta_faults.get(method.name)
        if faults:
            raise faults.pop(0)
        name = re.sub(r"(?<!^)([A-Z])", r"_\1", method.name).lower()
        reply = await getattr(self, name)(request)
        if isinstance(reply, Inode):
            reply = meta_pb2.InodeRsp(inode=inode_to_pb(reply))
        assert isinstance(reply, method.reply_type), (method.name, reply)
        self._tell_directories(method, request, reply)
        return reply

    def _tell_directories(self, method, request, reply):
        ids = [
            getattr(request, field)
            for field in ("parent_inode_id", "old_parent_inode_id", "new_parent_inode_id")
            if hasattr(request, field) and method.name != "Lookup"
        ]
        for inode_id in dict.fromkeys(ids):
            reply.directories.append(inode_to_pb(self.cluster.get(inode_id)))

    async def lookup(self, r):
        return self.cluster.child(r.parent_inode_id, r.name)

    async def get_attr(self, r):
        return self.cluster.get(r.inode_id)

    async def stat_fs(self, _request):
        capacity_bytes, free_bytes = await self.cluster.chunks.space()
        return meta_pb2.StatFsRsp(
            capacity_bytes=capacity_bytes, free_bytes=free_bytes, inode_count=3
        )

    async def create(self, r):
        c = self.cluster
        existing = c.names[r.parent_inode_id].get(r.name)
        if existing is not None:
            if r.is_exclusive:
                raise FsError(Status.EXISTS, repr(r.name))
            inode = c.get(existing)
            if inode.is_dir:
                raise FsError(Status.IS_DIRECTORY, repr(r.name))
            c.open_session(existing, r.session)
            if r.is_truncate and inode.file.length:
                inode = await c.truncate(inode, 0)
        else:
            file = FilePart(0, 0, c.layout, 1, 0)
            mode = r.mode & ~r.umask
            inode = c.add(r.caller, r.parent_inode_id, r.name, InodeType.FILE, mode, file=file)
            c.open_session(inode.inode_id, r.session)
        return meta_pb2.CreateRsp(inode=inode_to_pb(inode), was_created=existing is None)

    async def mkdir(self, r):
        part = DirectoryPart(InodeId(r.parent_inode_id), r.name)
        return self.cluster.add(
            r.caller,
            r.parent_inode_id,
            r.name,
            InodeType.DIRECTORY,
            r.mode & ~r.umask,
            directory=part,
        )

    async def symlink(self, r):
        return self.cluster.add(
            r.caller, r.parent_inode_id, r.name, InodeType.SYMLINK, 0o777, symlink_target=r.target
        )

    async def mknod(self, r):
        return self.cluster.add(
            r.caller,
            r.parent_inode_id,
            r.name,
            InodeType(r.type),
            r.mode & ~r.umask,
            rdev=r.rdev,
        )

    async def link(self, r):
        c = self.cluster
        c.require_expected(r)
        inode = c.get(r.inode_id)
        if r.name in c.names[r.parent_inode_id]:
            raise FsError(Status.EXISTS, repr(r.name))
        c.names[r.parent_inode_id][r.name] = r.inode_id
        c.touch(r.parent_inode_id)
        return c.put(inode, nlink=inode.nlink + 1)

    async def unlink(self, r):
        c = self.cluster
        inode = c.child(r.parent_inode_id, r.name)
        if inode.is_dir:
            raise FsError(Status.IS_DIRECTORY, repr(r.name))
        if r.keep_inode_id == inode.inode_id:
            c.open_session(inode.inode_id, r.keep_session)
        del c.names[r.parent_inode_id][r.name]
        c.touch(r.parent_inode_id)
        return meta_pb2.RemoveRsp(removed=inode_to_pb(await c.drop_link(inode)))

    async def rmdir(self, r):
        c = self.cluster
        inode = c.child(r.parent_inode_id, r.name)
        if not inode.is_dir:
            raise FsError(Status.NOT_DIRECTORY, repr(r.name))
        if c.names[inode.inode_id]:
            raise FsError(Status.NOT_EMPTY, repr(r.name))
        del c.names[r.parent_inode_id][r.name]
        del c.names[inode.inode_id]
        del c.inodes[inode.inode_id]
        c.touch(r.parent_inode_id, -1)
        return meta_pb2.RemoveRsp(removed=inode_to_pb(replace(inode, nlink=0)))

    async def rename(self, r):
        c = self.cluster
        moved = c.child(r.old_parent_inode_id, r.old_name)
        target_id = c.names[r.new_parent_inode_id].get(r.new_name)
        reply = meta_pb2.RenameRsp()
        if r.no_replace and target_id is not None:
            raise FsError(Status.EXISTS, repr(r.new_name))
        if r.exchange:
            other = c.child(r.new_parent_inode_id, r.new_name)
            c.names[r.old_parent_inode_id][r.old_name] = other.inode_id
            other = self._reparent(other, r.old_parent_inode_id, r.old_name)
            reply.replaced.CopyFrom(inode_to_pb(other))
        elif target_id == moved.inode_id:
            reply.moved.CopyFrom(inode_to_pb(moved))
            return reply
        elif target_id is not None:
            old = c.get(target_id)
            if old.is_dir and c.names[target_id]:
                raise FsError(Status.NOT_EMPTY, repr(r.new_name))
            if old.is_dir:
                del c.names[target_id], c.inodes[target_id]
            else:
                if r.keep_inode_id == target_id:
                    c.open_session(target_id, r.keep_session)
                reply.replaced.CopyFrom(inode_to_pb(await c.drop_link(old)))
        if not r.exchange:
            del c.names[r.old_parent_inode_id][r.old_name]
        c.names[r.new_parent_inode_id][r.new_name] = moved.inode_id
        moved = self._reparent(moved, r.new_parent_inode_id, r.new_name)
        c.touch(r.old_parent_inode_id)
        c.touch(r.new_parent_inode_id)
        reply.moved.CopyFrom(inode_to_pb(moved))
        return reply

    def _reparent(self, inode, parent, name):
        if inode.is_dir:
            part = DirectoryPart(InodeId(parent), name)
            return self.cluster.put(inode, directory=part)
        return self.cluster.put(inode)

    async def open(self, r):
        c = self.cluster
        inode = c.get(r.inode_id)
        c.require_expected(r)
        if inode.is_dir and r.wants_write:
            raise FsError(Status.IS_DIRECTORY, f"{r.inode_id}")
        c.open_session(r.inode_id, r.session)
        if r.is_truncate and inode.file.length:
            inode = await c.truncate(inode, 0)
        return inode

    async def sync(self, r):
        return await self.cluster.apply_sync(r)

    async def close(self, r):
        c = self.cluster
        inode = await c.apply_sync(r.sync)
        c.sessions.get(r.sync.inode_id, set()).discard(r.session_id)
        await c.collect(inode)
        return inode

    async def prune_sessions(self, r):
        assert r.is_settled
        for ended in r.sessions:
            self.cluster.sessions.get(ended.inode_id, set()).discard(ended.session_id)
            if ended.inode_id in self.cluster.inodes:
                await self.cluster.collect(self.cluster.get(ended.inode_id))
        return meta_pb2.PruneSessionsRsp()

    async def list(self, r):
        c = self.cluster
        names = sorted(n for n in c.names[r.inode_id] if n > r.after)
        page = names[: r.entry_count_max]
        parent_id = c.get(r.inode_id).directory.parent_inode_id
        reply = meta_pb2.ListRsp(has_more=len(names) > len(page), parent_inode_id=parent_id)
        for name in page:
            inode = c.get(c.names[r.inode_id][name])
            entry = reply.entries.add(name=name, inode_id=inode.inode_id)
            entry.inode.CopyFrom(inode_to_pb(inode))
        return reply

    async def set_attr(self, r):
        c = self.cluster
        c.require_expected(r)
        inode = c.get(r.inode_id)
        wants_explicit = r.HasField("atime_ns") or r.HasField("mtime_ns")
        is_owner = r.caller.uid in (0, inode.uid)
        if not is_owner and (wants_explicit or r.HasField("mode")):
            raise FsError(Status.NOT_PERMITTED, f"{r.inode_id}")
        changes = {k: getattr(r, k) for k in ("mode", "uid", "gid", "atime_ns", "mtime_ns")
                   if r.HasField(k)}  # fmt: skip
        if r.atime_now:
            changes["atime_ns"] = c.clock_ns()
        if r.mtime_now:
            changes["mtime_ns"] = c.clock_ns()
        if r.HasField("length"):
            if r.length > MAX_FILE_LENGTH_BYTES:
                raise FsError(Status.FILE_TOO_LARGE, f"{r.length}")
            hint = r.length_hint
            if r.HasField("length_hint") and hint.truncate_ver == inode.file.truncate_ver:
                inode = c.put_file(inode, length=max(inode.file.length, hint.length))
            inode = await c.truncate(inode, r.length)
        return c.put(inode, **changes)

    async def set_xattr(self, r):
        self.cluster.require_expected(r)
        if r.name == acl.ACCESS_NAME:
            return await self._set_acl(r)
        if r.name == DIRECTORY_LOCK_NAME:
            self.cluster.xattrs.pop((r.inode_id, r.name), None)
            if r.value == b"lock":
                holder = self.client_id.encode().rjust(32, b"0")  # as long as a real one
                self.cluster.xattrs[r.inode_id, r.name] = holder
            return meta_pb2.SetXattrRsp()
        exists = (r.inode_id, r.name) in self.cluster.xattrs
        if r.mode == meta_pb2.XATTR_CREATE and exists:
            raise FsError(Status.EXISTS, repr(r.name))
        if r.mode == meta_pb2.XATTR_REPLACE and not exists:
            raise FsError(Status.NO_ATTRIBUTE, repr(r.name))
        self.cluster.xattrs[r.inode_id, r.name] = r.value
        self._note_bare(r.inode_id)
        return meta_pb2.SetXattrRsp()

    def _note_bare(self, inode_id):
        held = {n for i, n in self.cluster.xattrs if i == inode_id}
        is_bare = self.cluster.knows_bare and held <= set(acl.NAMES)
        self.cluster.put(self.cluster.get(inode_id), is_bare=is_bare)

    async def _set_acl(self, r):
        message = inode_to_pb(self.cluster.get(r.inode_id))
        acl.set_access_acl(message, acl.unpack(r.value))
        self.cluster.xattrs.pop((r.inode_id, r.name), None)
        if message.HasField("acl"):
            self.cluster.xattrs[r.inode_id, r.name] = r.value
        self.cluster.put(self.cluster.get(r.inode_id), mode=message.mode)
        return meta_pb2.SetXattrRsp()

    async def get_xattr(self, r):
        value = self.cluster.xattrs.get((r.inode_id, r.name))
        if r.name.startswith(USAGE_PREFIX):
            value = str(self.cluster.usage(r.inode_id)[r.name.removeprefix(USAGE_PREFIX)]).encode()
        if value is None:
            raise FsError(Status.NO_ATTRIBUTE, repr(r.name))
        return meta_pb2.GetXattrRsp(value=value)

    async def list_xattrs(self, r):
        names = [n for i, n in self.cluster.xattrs if i == r.inode_id]
        return meta_pb2.ListXattrsRsp(names=names)

    async def remove_xattr(self, r):
        self.cluster.require_expected(r)
        if self.cluster.xattrs.pop((r.inode_id, r.name), None) is None:
            raise FsError(Status.NO_ATTRIBUTE, repr(r.name))
        self._note_bare(r.inode_id)
        return meta_pb2.RemoveXattrRsp()

    async def set_lock(self, r):
        wanted = self._wanted_lock(r)
        before = self.cluster.locks.get(r.inode_id, [])
        conflict = None if r.is_unlock else file_locks.conflict_of(before, wanted)
        if conflict is not None:
            if r.wait_id:
                self._begin_wait(LockWait(r.wait_id, r.inode_id, wanted), before)
            return meta_pb2.SetLockRsp(conflict=file_locks.lock_to_pb(conflict))
        self.cluster.lock_waits.pop((wanted.holder, r.wait_id), None)
        change = file_locks.without_range if r.is_unlock else file_locks.with_lock
        self.cluster.locks[r.inode_id] = change(before, wanted)
        return meta_pb2.SetLockRsp(is_done=True)

    def _begin_wait(self, wait, locks):
        waits = self.cluster.lock_waits
        search = CycleSearch(wait.lock, locks)
        while search.owners:
            asked = [one for (owner, _), one in waits.items() if owner in search.owners]
            search.step(asked, defaultdict(list, self.cluster.locks))
        if search.is_found:
            raise FsError(Status.DEADLOCK, "crosswise")
        waits[wait.lock.holder, wait.wait_id] = wait

    async def end_lock_wait(self, r):
        owner = file_locks.Holder(self.client_id, r.owner)
        self.cluster.lock_waits.pop((owner, r.wait_id), None)
        return meta_pb2.EndLockWaitRsp()

    async def find_lock_conflict(self, r):
        deadline_s = trio.current_time() + r.wait_ms / 1000
        while True:
            locks = self.cluster.locks.get(r.inode_id, [])
            conflict = file_locks.conflict_of(locks, self._wanted_lock(r))
            if conflict is None:
                return meta_pb2.FindLockConflictRsp()
            if trio.current_time() >= deadline_s:
                return meta_pb2.FindLockConflictRsp(conflict=file_locks.lock_to_pb(conflict))
            await trio.sleep(0.05)

    def _wanted_lock(self, r):
        return replace(
            file_locks.lock_from_pb(r.lock),
            holder=file_locks.Holder(self.client_id, r.lock.owner),
        )

    async def reserve_append(self, r):
        c = self.cluster
        inode = c.get(r.inode_id)
        offset = inode.file.length
        hint = r.length_hint
        if r.HasField("length_hint") and hint.truncate_ver == inode.file.truncate_ver:
            offset = max(offset, hint.length)
        mtime_ns = r.mtime_ns if r.HasField("mtime_ns") else c.clock_ns()
        inode = c.put_file(inode, length=offset + r.length, mtime_ns=mtime_ns)
        return meta_pb2.ReserveAppendRsp(offset=offset, inode=inode_to_pb(inode))

    async def extend_stripe(self, r):
        c = self.cluster
        inode = c.get(r.inode_id)
        return c.put_file(inode, dyn_stripe=max(inode.file.dyn_stripe, r.dyn_stripe_min))

    async def sync_meta(self, _request):
        self.cluster.durable_calls += 1
        return meta_pb2.SyncMetaRsp()

    async def access(self, r):
        inode = self.cluster.get(r.inode_id)
        if r.caller.uid != 0 and (inode.mode & r.mask) != r.mask:
            raise FsError(Status.ACCESS_DENIED, f"{r.inode_id}")
        return meta_pb2.AccessRsp()
