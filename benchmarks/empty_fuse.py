# ruff: noqa: ANN001, ANN201, ARG002, D102, PLR0917 - the signatures are those of pyfuse3.Operations
"""The do-nothing pyfuse3 file system: what one that promises what our mount does costs at least.

Directories and files are names and nothing else: every file has FILE_BYTES of the same bytes,
and writes are swallowed.  The kernel may keep names and attributes for as long as our mount
lets it, and reads ahead as far, so that it asks both for the same: without that, each directory
of a path would cost a request more for every operation.  Extended attributes, which ours has,
are refused once and not asked for again.

Run as `python -m benchmarks.empty_fuse MOUNT_POINT`; serves until unmounted.  Who has it mounted
sets the read-ahead (`mount.py`).
"""

import errno
import stat
import sys

import pyfuse3
import trio

from fs.schema.config import ClientSection

FILE_BYTES = 256 << 20
BLOCK = bytes(1 << 20)


class EmptyFs(pyfuse3.Operations):
    """Answers everything from memory."""

    def __init__(self, section: ClientSection = ClientSection()) -> None:  # noqa: B008 - frozen
        """Take the cache times of a mount; default: those of any mount."""
        super().__init__()
        self.section = section
        self.names: dict[tuple[int, bytes], int] = {}
        self.directories = {int(pyfuse3.ROOT_INODE)}
        self.inode_next = 10

    def attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        """Return made-up attributes."""
        entry, section = pyfuse3.EntryAttributes(), self.section
        is_directory = inode in self.directories
        entry.st_mode = (stat.S_IFDIR | 0o777) if is_directory else (stat.S_IFREG | 0o666)
        entry.st_size = 0 if is_directory else FILE_BYTES
        entry.st_ino = inode
        entry.st_nlink = 1
        entry.attr_timeout = section.attr_timeout_s
        entry.entry_timeout = (
            section.dir_entry_timeout_s if is_directory else section.entry_timeout_s
        )
        entry.generation = 0
        return entry

    async def getattr(self, inode, ctx=None):
        return self.attributes(inode)

    async def lookup(self, parent_inode, name, ctx=None):
        inode = self.names.get((parent_inode, bytes(name)))
        if inode is None:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return self.attributes(inode)

    def new_name(self, parent_inode: int, name: bytes) -> int:
        """Give a name a new inode number."""
        self.inode_next += 1
        self.names[parent_inode, bytes(name)] = self.inode_next
        return self.inode_next

    async def create(self, parent_inode, name, mode, flags, ctx):
        inode = self.new_name(parent_inode, name)
        return pyfuse3.FileInfo(fh=inode), self.attributes(inode)

    async def mkdir(self, parent_inode, name, mode, ctx):
        inode = self.new_name(parent_inode, name)
        self.directories.add(inode)
        return self.attributes(inode)

    async def rename(self, parent_inode_old, name_old, parent_inode_new, name_new, flags, ctx):
        inode = self.names.pop((parent_inode_old, bytes(name_old)))
        self.names[parent_inode_new, bytes(name_new)] = inode

    async def open(self, inode, flags, ctx):
        return pyfuse3.FileInfo(fh=inode)

    async def read(self, fh, off, size):
        return BLOCK[:size]

    async def write(self, fh, off, buf):
        return len(buf)

    async def setattr(self, inode, attr, fields, fh, ctx):
        return self.attributes(inode)

    async def unlink(self, parent_inode, name, ctx):
        del self.names[parent_inode, bytes(name)]

    async def flush(self, fh):
        return

    async def fsync(self, fh, datasync):
        return

    async def release(self, fh):
        return


def serve(operations: EmptyFs, mount_point: str) -> None:
    """Mount, and serve until unmounted."""
    options = set(pyfuse3.default_options) | {"fsname=empty"}
    pyfuse3.init(operations, mount_point, options)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    serve(EmptyFs(), sys.argv[1])
