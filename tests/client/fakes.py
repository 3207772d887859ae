"""A small model file system behind the client's two ports: honest, in memory, one process.

Several clients (`FakeCluster.meta("a")`, ...) may share one cluster.  The model is slow and simple,
so that it can be believed: a file's bytes are one bytearray per chunk, the namespace is plain
dictionaries.  It checks its callers: a write beyond dyn_stripe or two overlapping writes to one
chunk at the same time are assertion errors.
"""

from dataclasses import dataclass, replace

import trio

from fs.client.noted_reads import NotedReads, ReadTimes
from fs.client.vfs.changing_attributes import mode_after_write
from fs.client.vfs.ports import Caller
from fs.meta.lock_cycles import LockWait
from fs.schema.ids import ChainTableId, InodeId
from fs.schema.inode import (
    DirectoryPart,
    Inode,
    InodeType,
)
from fs.schema.layout import FileRef, Layout
from fs.schema.status import FsError, Status

from .fake_chunks import CHUNK, FakeChunks, FakeStore
from .fake_inline import FakeInline, refusal, without_bytes
from .fake_meta import FakeMeta


class BeginsAll:
    """What a fake of the metadata service inherits to begin whatever is asked, in a task for each;
    it defines `_serve`.
    """

    def begin(self, method, request, on_end):
        return object() if self.begin_change(method, request, on_end) else None

    def begin_change(self, method, request, on_end):
        trio.lowlevel.spawn_system_task(self._serve, method, request, on_end)
        return True


@dataclass
class FakeClock:
    """Virtual time of trio; wall time starts at a fixed day and always moves a little."""

    ticks: int = 0
    slept_s: float = 0.0
    """For so long the machine was suspended, and trio's time stood still."""

    def wall_ns(self):
        self.ticks += 1
        return 1_700_000_000_000_000_000 + int(trio.current_time() * 1e9) + self.ticks

    def monotonic_s(self):
        return trio.current_time() + self.slept_s


async def run_inline(function, /, *args):
    return function(*args)


def no_reads() -> NotedReads:
    """What notes no read."""
    clock = FakeClock()
    times = ReadTimes(clock.wall_ns, clock.monotonic_s, 0.0, lambda *_: None)
    return NotedReads(FakeCluster(clock).meta(), Caller(0, 0).to_pb, times, is_off=True)


class FakeCluster:
    """The namespace; see module head."""

    def __init__(self, clock=None, *, chunk_size_bytes=CHUNK, stripe_size=4):
        self.clock = clock or FakeClock()
        self.inline = FakeInline(self)
        self.chunks = FakeChunks(chunk_size_bytes, inline=self.inline)
        self.layout = Layout(ChainTableId(1), 1, chunk_size_bytes, stripe_size, 0, 1)
        self.last_id = 0x1000
        self.inodes: dict[int, Inode] = {}
        self.names: dict[int, dict[bytes, int]] = {}
        self.sessions: dict[int, set[str]] = {}
        self.owners: dict[str, str] = {}
        """Of sessions: whose client's."""
        self.leases: dict[int, str] = {}
        """Of directories: which client alone adds names to each, and is told so."""
        self.xattrs: dict[tuple[int, bytes], bytes] = {}
        self.knows_bare = True
        self.opens_ahead = True
        self.knows_owners = True
        """Attributes tell that there are no extended ones; services of earlier releases do not."""
        self.locks: dict[int, list] = {}
        self.damaged: set[int] = set()
        """Inodes whose records nobody can read."""
        self.lock_waits: dict[tuple, LockWait] = {}
        self.calls: list[str] = []
        self.durable_calls = 0
        self.durable_inodes = {}
        """As they were when the last durable report of each was answered."""
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
        outer = {k: changes.pop(k) for k in ("mtime_ns", "ctime_ns", "mode") if k in changes}
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
        self.get(parent)
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
            if self.inline.data.pop(inode.inode_id, None) is None and inode.file is not None:
                await self.chunks.remove_files([self.ref(inode)])

    def ref(self, inode):
        return FileRef(inode.inode_id, inode.file.layout, inode.file.dyn_stripe)

    def open_session(self, inode_id, session, client_id):
        if session.session_id:
            self.owners[session.session_id] = client_id
            self.sessions.setdefault(inode_id, set()).add(session.session_id)

    async def truncate(self, inode, length):
        if inode.inode_id in self.inline and not length:
            return self.inline.drop(inode)
        inode = self.inline.move(inode)
        has_holes = inode.file.has_holes or length > inode.file.length
        inode = self.put_file(
            inode,
            length=length,
            has_holes=has_holes and length > 0,
            truncate_ver=inode.file.truncate_ver + (length < inode.file.length),
            data_ver=inode.file.data_ver + 1,
            mtime_ns=self.clock_ns(),
        )

        async def is_wanted():
            return True

        await self.chunks.truncate_file(self.ref(inode), length, inode.file.truncate_ver, is_wanted)
        return inode

    async def apply_sync(self, request):
        before = inode = self.get(request.inode_id)
        if request.HasField("inline_data"):
            taken = self.inline.take_once(request)
            if taken is None:
                return refusal(inode)
            if taken == inode:
                return inode
            inode, request = taken, without_bytes(request)
        if request.has_new_data or request.counts_space:
            inode = self.inline.move(inode)
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
            writer = Caller(request.caller.uid, request.caller.gid)
            inode = self.put(inode, mode=mode_after_write(writer, inode))
        if request.is_durable:
            self.durable_calls += 1
            self.durable_inodes[inode.inode_id] = inode
        return inode
