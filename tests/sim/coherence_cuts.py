"""A file that one program of one mount empties and writes anew, or cuts, again and again,
while others have it open and read it.

It never has a zero byte in it, so nobody reads one: not of what storage has cut already, nor of
what it does not have yet, nor of what the kernel has filled up where a READ was answered short.

Two exceptions, which no mount can prevent (decision 0138).  A reply that told attributes
while a READ was under way makes Linux overlook that its answer is short, and the mount of a
reader cannot know before that the file is being cut on another one.  And where another one
has made the file longer, Linux shows the new size before it drops the page with the old
end, behind which it has zeros.

Not part of the usual runs, but for seeds that failed once: mounts hold answers back for a second at
the most, and look-ups, opens and READs of one file may be under way for longer.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from fs.client.vfs import told_lengths

from .kernel_calls import ModelKernel
from .page_cache import OpenFile

NAME: Final = b"cut"
SIZES: Final = (1, 100, 4096, 5000, 12_288, 65_536, 70_000)
PIECES: Final = (700, 4096, 20_000, 131_072)
OFFSETS: Final = (0, 1, 100, 4096, 5000, 12_288, 65_536)
DIRECT_SHARE: Final = 0.15
OVERLOOKED_S: Final = 1.0
"""So long what a READ has left in a page may be seen."""
ACTED_ON_S: Final = 0.03
"""The model's threads act on a reply up to 20 ms late."""


@contextmanager
def threads_are_late() -> Iterator[None]:
    """Have mounts reckon with threads as late as those of the model."""
    before = told_lengths.ACTED_ON_S
    told_lengths.ACTED_ON_S = ACTED_ON_S  # type: ignore[misc]
    try:
        yield
    finally:
        told_lengths.ACTED_ON_S = before  # type: ignore[misc]


class CutFile:
    """See module head; `rewrite` is one program's, on one mount."""

    def __init__(
        self, kernels: list[ModelKernel], source: random.Random, say: Callable[..., None]
    ) -> None:
        self._kernels = kernels
        self._random = source
        self._say = say
        self._cutter: ModelKernel | None = None
        self.read_count = self.overlooked_count = 0
        """Reads that found bytes; reads of which nothing is required."""

    async def rewrite(self, kernel: ModelKernel, _name: bytes) -> None:
        """Write the file anew, or cut it."""
        if self._cutter is not None and self._random.random() < 0.3:
            file = await kernel.open(NAME, os.O_RDWR)
            length = await kernel.fstat(file)
            try:
                await kernel.truncate(file.node, file, self._random.randrange(length + 1))
            finally:
                await kernel.close(file)
            return
        file = await kernel.open(NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._cutter = kernel
        try:
            await self._write(kernel, file)
        finally:
            await kernel.close(file)

    async def _write(self, kernel: ModelKernel, file: OpenFile) -> None:
        data, step = b"x" * self._random.choice(SIZES), self._random.choice(PIECES)
        for at in range(0, len(data), step):
            await kernel.write(file, at, data[at : at + step])

    async def look(self, kernel: ModelKernel, _name: bytes) -> None:
        """Read the file; who opens it asks how long it is, as most programs do."""
        is_direct = self._random.random() < DIRECT_SHARE
        file = await kernel.open(NAME, os.O_RDONLY | (os.O_DIRECT if is_direct else 0))
        try:
            await kernel.fstat(file)
            for _ in range(self._random.randrange(1, 6)):
                await trio.sleep(self._random.random() ** 3 * 0.1)
                await self._read(kernel, file)
        finally:
            await kernel.close(file)

    async def _read(self, kernel: ModelKernel, file: OpenFile) -> None:
        offset, since_s = self._random.choice(OFFSETS), trio.current_time() - OVERLOOKED_S
        found = await kernel.read(file, offset, self._random.choice(PIECES))
        self._say("cut file", self._kernels.index(kernel), offset, len(found), file.is_direct)
        self.read_count += bool(found)
        if kernel is not self._cutter and file.node.overlooked_s > since_s:
            self.overlooked_count += 1
            return
        at = found.find(0)
        assert at < 0, f"{NAME!r} has a zero at {offset + at}, of {len(found)} from {offset}"
