"""A file system that keeps unsynced writes in memory, and can lose or tear them:
what a power cut does, call by call.

    python -m tests.chunkengine.lossy_layer BACKING MOUNT_POINT

Names (create, rename, unlink ...) reach the backing directory at once; bytes reach it by fsync of
their file.  Commands are written into the file `.control`:

    arm KIND N WHEN    cut the power before or after the N-th call of a kind from now on
    fail KIND N ERRNO  let the N-th call of a kind from now on fail, once; nothing of it is done
    cut                cut it now
    recover SEED       what is unsynced falls into parts, 2 to 8 of each write; of each part none,
                       some first or all writes are kept; power is back

Parts begin and end at sectors, which a disk writes as a whole, and a part never has a later write
without the earlier ones, as the kernel writes what its pages hold.  While the power is cut every
call fails with EIO.  Reading `.control` gives the calls counted since `arm`, and whether the
power is cut or a call has failed.
"""

import errno
import os
import random
import stat
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pyfuse3
import trio

CONTROL = b".control"
CONTROL_INODE = 1 << 60
PARTS = (2, 8)
SECTOR_BYTES = 512


def sector_edges(offset: int, length: int, rng: random.Random) -> list[int]:
    """Return where the parts of a write begin and end:
    at sectors, the first at or before it, the last at or behind it.
    """
    first, last = offset // SECTOR_BYTES, -(-(offset + length) // SECTOR_BYTES)
    parts = min(rng.randint(*PARTS), last - first)
    inner = rng.sample(range(first + 1, last), parts - 1) if parts > 1 else []
    return [sector * SECTOR_BYTES for sector in (first, *inner, last)]


def kept_count(count: int, share: float, rng: random.Random) -> int:
    """Return how many of the writes to a part the disk has; share 0: none of any part, 1: all."""
    if not share:
        return 0
    return count if rng.random() < share else rng.randint(0, count)


class LossyLayer(pyfuse3.Operations):
    def __init__(self, backing: Path) -> None:
        super().__init__()
        self.paths = {pyfuse3.ROOT_INODE: backing}
        self.files: dict[int, int] = {}
        """Descriptors of the backing files, by inode."""
        self.unsynced: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self.counts: Counter[str] = Counter()
        self.armed: tuple[str, int, str] | None = None
        self.is_cut = False
        self.failing: tuple[str, int] | None = None
        self.error = 0
        self.has_failed = False

    # ------------------------------------------------------------------ power

    def before(self, kind: str) -> None:
        """Count a call; fail if the power is cut, or is to be cut right before it."""
        if self.is_cut:
            raise pyfuse3.FUSEError(errno.EIO)
        self.counts[kind] += 1
        if self.failing == (kind, self.counts[kind]):
            self.failing, self.has_failed = None, True
            raise pyfuse3.FUSEError(self.error)
        if self.armed == (kind, self.counts[kind], "before"):
            self.is_cut = True
            raise pyfuse3.FUSEError(errno.EIO)

    def after(self, kind: str) -> None:
        if self.armed == (kind, self.counts[kind], "after"):
            self.is_cut = True
            raise pyfuse3.FUSEError(errno.EIO)

    def command(self, words: list[str]) -> None:
        if words[0] == "arm":
            self.counts.clear()
            self.armed = words[1], int(words[2]), words[3]
        elif words[0] == "fail":
            self.counts.clear()
            self.failing, self.error = (words[1], int(words[2])), int(words[3])
        elif words[0] == "cut":
            self.is_cut = True
        elif words[0] == "recover":
            self.recover(random.Random(int(words[1])))
        else:
            raise pyfuse3.FUSEError(errno.EINVAL)

    def recover(self, rng: random.Random) -> None:
        for inode, writes in sorted(self.unsynced.items()):
            edges = {
                edge for offset, data in writes for edge in sector_edges(offset, len(data), rng)
            }
            share = rng.choice((0.0, 0.5, 1.0))
            for start, end in pairwise(sorted(edges)):
                inside = [w for w in writes if w[0] < end and start < w[0] + len(w[1])]
                for offset, data in inside[: kept_count(len(inside), share, rng)]:
                    first, last = max(start, offset), min(end, offset + len(data))
                    os.pwrite(self.files[inode], data[first - offset : last - offset], first)
        self.unsynced.clear()
        self.armed, self.failing = None, None
        self.is_cut = self.has_failed = False

    # ------------------------------------------------------------------ names

    def path(self, parent: int, name: bytes) -> Path:
        return self.paths[parent] / os.fsdecode(name)

    def attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino, entry.entry_timeout, entry.attr_timeout = inode, 0, 0
        if inode == CONTROL_INODE:
            entry.st_mode, entry.st_size = stat.S_IFREG | 0o600, 4096
            return entry
        found = os.fstat(self.files[inode]) if inode in self.files else os.lstat(self.paths[inode])
        for name in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_blocks"):
            setattr(entry, name, getattr(found, name))
        for name in ("st_atime_ns", "st_mtime_ns", "st_ctime_ns"):
            setattr(entry, name, getattr(found, name))
        ends = [offset + len(data) for offset, data in self.unsynced.get(inode, [])]
        entry.st_size = max([found.st_size, *ends])
        return entry

    def entry(self, path: Path) -> pyfuse3.EntryAttributes:
        try:
            inode = os.lstat(path).st_ino
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from error
        self.paths[inode] = path
        return self.attributes(inode)

    async def lookup(self, parent_inode, name, ctx=None):
        if name == CONTROL:
            return self.attributes(CONTROL_INODE)
        self.before("lookup")
        return self.entry(self.path(parent_inode, name))

    async def getattr(self, inode, ctx=None):
        if inode not in (CONTROL_INODE, pyfuse3.ROOT_INODE):
            self.before("getattr")
        return self.attributes(inode)

    async def setattr(self, inode, attr, fields, fh, ctx):
        if inode == CONTROL_INODE:
            return self.attributes(inode)
        self.before("setattr")
        if fields.update_size:
            kept = [(o, d[: max(0, attr.st_size - o)]) for o, d in self.unsynced.get(inode, [])]
            self.unsynced[inode] = [(o, d) for o, d in kept if d]
            os.truncate(self.paths[inode], attr.st_size)
        self.after("setattr")
        return self.attributes(inode)

    async def mkdir(self, parent_inode, name, mode, ctx):
        return self.named("mkdir", lambda p: p.mkdir(), self.path(parent_inode, name))

    def named(self, kind: str, act, path: Path) -> pyfuse3.EntryAttributes:
        self.before(kind)
        try:
            act(path)
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from error
        self.after(kind)
        return self.entry(path)

    async def unlink(self, parent_inode, name, ctx):
        self.before("unlink")
        path = self.path(parent_inode, name)
        try:
            inode = os.lstat(path).st_ino
            path.unlink()
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from error
        self.unsynced.pop(inode, None)
        self.after("unlink")

    async def rmdir(self, parent_inode, name, ctx):
        self.before("rmdir")
        self.path(parent_inode, name).rmdir()

    async def rename(self, parent_inode_old, name_old, parent_inode_new, name_new, flags, ctx):
        old, new = self.path(parent_inode_old, name_old), self.path(parent_inode_new, name_new)
        self.before("rename")
        inode = os.lstat(old).st_ino
        old.rename(new)
        self.paths[inode] = new
        self.after("rename")

    async def opendir(self, inode, ctx):
        self.before("opendir")
        return inode

    async def readdir(self, fh, start_id, token):
        self.before("readdir")
        names = sorted(path.name for path in self.paths[fh].iterdir())
        for number, name in enumerate(names[start_id:], start_id + 1):
            entry = self.entry(self.paths[fh] / name)
            if not pyfuse3.readdir_reply(token, os.fsencode(name), entry, number):
                return

    async def statfs(self, ctx):
        found, made = os.statvfs(self.paths[pyfuse3.ROOT_INODE]), pyfuse3.StatvfsData()
        for name in (
            "f_bsize",
            "f_frsize",
            "f_blocks",
            "f_bfree",
            "f_bavail",
            "f_files",
            "f_ffree",
        ):
            setattr(made, name, getattr(found, name))
        return made

    # ------------------------------------------------------------------ bytes

    def handle(self, inode: int) -> pyfuse3.FileInfo:
        if inode not in self.files:
            self.files[inode] = os.open(self.paths[inode], os.O_RDWR)
        return pyfuse3.FileInfo(fh=inode, direct_io=True)

    async def create(self, parent_inode, name, mode, flags, ctx):
        path = self.path(parent_inode, name)
        made = self.named(
            "create", lambda p: os.close(os.open(p, os.O_CREAT | os.O_RDWR, 0o600)), path
        )
        return self.handle(made.st_ino), made

    async def open(self, inode, flags, ctx):
        if inode == CONTROL_INODE:
            return pyfuse3.FileInfo(fh=inode, direct_io=True)
        self.before("open")
        if flags & os.O_TRUNC:
            self.unsynced.pop(inode, None)
            os.truncate(self.paths[inode], 0)
        return self.handle(inode)

    async def read(self, fh, off, size):
        if fh == CONTROL_INODE:
            counts = " ".join(f"{name}={n}" for name, n in sorted(self.counts.items()))
            state = "cut" if self.is_cut else "failed" if self.has_failed else "on"
            return f"{state} {counts}\n".encode()[off : off + size]
        self.before("read")
        data = bytearray(os.pread(self.files[fh], size, off))
        for offset, written in self.unsynced.get(fh, []):
            low, high = max(off, offset), min(off + size, offset + len(written))
            if low < high:
                data.extend(bytes(max(0, high - off - len(data))))
                data[low - off : high - off] = written[low - offset : high - offset]
        return bytes(data)

    async def write(self, fh, off, buf):
        if fh == CONTROL_INODE:
            self.command(buf.decode().split())
            return len(buf)
        self.before("write")
        self.unsynced[fh].append((off, bytes(buf)))
        self.after("write")
        return len(buf)

    async def fsync(self, fh, datasync):
        self.before("fsync")
        for offset, data in self.unsynced.pop(fh, []):
            os.pwrite(self.files[fh], data, offset)
        self.after("fsync")

    async def fsyncdir(self, fh, datasync):
        self.before("fsyncdir")
        self.after("fsyncdir")

    async def flush(self, fh):
        """Closing makes nothing durable."""

    async def release(self, fh):
        """Files stay open here: their unsynced bytes outlive their users."""

    async def releasedir(self, fh):
        """Nothing to do."""


def main() -> None:
    backing, mount_point = sys.argv[1:]
    options = {*pyfuse3.default_options, "fsname=lossy"} - {"default_permissions"}
    pyfuse3.init(LossyLayer(Path(backing)), mount_point, options)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close()


if __name__ == "__main__":
    main()
