# ruff: noqa: ANN001, ANN201, ARG002, D102 - the signatures are those of pyfuse3.Operations
"""A pyfuse3 file system whose files all have the bytes of one local file, read from the disk.

What any such file system takes for cold reads: the empty one (empty_fuse.py) reads no disk.
Reading in order it reads past the page cache, into huge pages that are used again, 8 MiB at a time
and two more ahead, and answers from there: no byte is copied before the kernel copies it.  One
such reader at a time, who may jump.  Small reads go to the disk as they come, each in a thread.
It verifies nothing, and knows nobody to ask.

Run as `python -m benchmarks.disk_fuse FILE MOUNT_POINT`; serves until unmounted.
"""

import os
import sys

import pyfuse3
import trio

from .disk import huge_memory
from .empty_fuse import EmptyFs

BLOCK_BYTES = 8 << 20
AHEAD_COUNT = 2
SMALL_BYTES_MAX = 16 << 10
"""Nobody who reads in order asks for so little at once."""


class _Block:
    """A part of the file, in memory or on its way there."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.has_come = trio.Event()


class DiskFs(EmptyFs):
    """See module head."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self._small_fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(self._small_fd, 0, 0, os.POSIX_FADV_RANDOM)
        self._length = os.fstat(self._fd).st_size
        self._blocks: dict[int, _Block] = {}
        self._idle: list[memoryview] = []
        self._turn = trio.Lock()
        self.nursery: trio.Nursery | None = None

    def attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        entry = super().attributes(inode)
        if inode not in self.directories:
            entry.st_size = self._length
        return entry

    async def read(self, fh, off, size):
        if size <= SMALL_BYTES_MAX:
            return await trio.to_thread.run_sync(os.pread, self._small_fd, size, off)
        end, parts = min(off + size, self._length), []
        while off < end:
            index, start = divmod(off, BLOCK_BYTES)
            block = self._block(index)
            await block.has_come.wait()
            parts.append(block.memory[start : start + end - off])
            off += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _block(self, index: int) -> _Block:
        """Return a block, and have those behind it read; what is far from it is given up."""
        count = -(-self._length // BLOCK_BYTES)
        wanted = range(index, min(index + 1 + AHEAD_COUNT, count))
        for other, block in list(self._blocks.items()):
            if not index - 1 <= other <= index + AHEAD_COUNT and block.has_come.is_set():
                self._idle.append(self._blocks.pop(other).memory)
        for one in wanted:
            if one not in self._blocks:
                memory = self._idle.pop() if self._idle else huge_memory(BLOCK_BYTES)
                self._blocks[one] = _Block(memory)
                assert self.nursery is not None
                self.nursery.start_soon(self._fetch, one, self._blocks[one])
        return self._blocks[index]

    async def _fetch(self, index: int, block: _Block) -> None:
        async with self._turn:
            place = index * BLOCK_BYTES
            got = await trio.to_thread.run_sync(os.preadv, self._fd, [block.memory], place)
        assert got == min(BLOCK_BYTES, self._length - place), (got, index)
        block.has_come.set()


async def serve(operations: DiskFs) -> None:
    """Serve until unmounted."""
    async with trio.open_nursery() as nursery:
        operations.nursery = nursery
        await pyfuse3.main()
        nursery.cancel_scope.cancel()


def main(path: str, mount_point: str) -> None:
    """Mount, and serve until unmounted."""
    options = set(pyfuse3.default_options) | {"fsname=disk"}
    operations = DiskFs(path)
    pyfuse3.init(operations, mount_point, options)
    try:
        trio.run(serve, operations)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
