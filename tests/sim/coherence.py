"""Programs on two mounts, each with the model of Linux's caches in front (`page_cache`): what must a program see that reads, asks, opens?

    python -m tests.sim.coherence SEED [--count N]

Files are changed by one program at a time, as programs do that agree on it: written anew (emptied by their open, or by a rename over them),
in parts, at their end, cut, removed.  Whoever changes a file reads what it wrote, and sees its length, at once; when it has closed or synced
it, so does whoever opens it, on either mount, and what the same mount says of it by name.  All the while others open, read, list and ask
on both mounts without agreeing on anything, keep files open, and memory runs short, so that requests of all kinds are under way and caches
are full of what was there before.  What they see is not looked at.

Beneath: the FUSE server of the direct frontend, the vfs and the metadata service as they are, requests to it lost, repeated and late;
chunks that only take their time.  What storage does when machines vanish the whole simulation shows (`replaced`, which runs here too).
"""

import argparse
import errno
import os
import random
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import trio

from fs.client.fuse.direct.server import Server
from fs.client.vfs.vfs import Vfs
from fs.runtime.ports import Runtime
from fs.schema.config import ClientSection
from tests.client.fakes import FakeClock, run_inline
from tests.client.vfs.unreliable import Service, UnreliableMeta

from .determinism import run_deterministic
from .page_cache import ModelDevice, ModelKernel, OpenFile

MOUNT_COUNT: Final = 2
FILE_COUNT: Final = 3
OTHER_COUNT: Final = 30
"""Files that nobody touches, so that a listing takes several requests."""
PROGRAM_COUNT: Final = 3
ROUND_COUNT: Final = 25
SIZES: Final = (0, 1, 100, 4096, 5000, 12_288, 65_536, 70_000, 150_000)
PIECES: Final = (700, 4096, 20_000, 131_072)
LATE_S: Final = 0.02
GONE: Final = frozenset({errno.ENOENT, errno.ESTALE, errno.EBADF})


class SomeMeta(UnreliableMeta):
    """One mount's way to the service."""

    def __init__(self, service: Service, nursery: trio.Nursery, seed: int, letter: str) -> None:
        super().__init__(service, nursery, seed)
        self.client_id = letter * 32


class Programs:
    """All that runs on both mounts; see module head."""

    def __init__(self, kernels: list[ModelKernel], source: random.Random) -> None:
        self.kernels = kernels
        self.random = source
        self.names = [b"file-%d" % i for i in range(FILE_COUNT)]
        self.contents: dict[bytes, bytes | None] = dict.fromkeys(self.names)
        self.locks = {name: trio.Lock() for name in self.names}
        self.checked_count = 0
        self._version = 0
        self.story: list[str] = []

    def say(self, *words: object) -> None:
        """Note what a program does, for whoever looks for why it went wrong."""
        self.story.append(f"{trio.current_time():.6f} {' '.join(map(str, words))}")

    # ---- those who agree -----------------------------------------------------------------------------

    async def work(self, number: int) -> None:
        """Change files and look at them."""
        for _ in range(ROUND_COUNT):
            await trio.sleep(self.random.random() ** 2 * 0.3)
            name = self.random.choice(self.names)
            kernel = self.random.choice(self.kernels)
            async with self.locks[name]:
                await self._change(number, kernel, name)
                await self._check(number, kernel, name)

    async def _change(self, number: int, kernel: ModelKernel, name: bytes) -> None:
        there = self.contents[name] is not None
        acts: list[Callable[[ModelKernel, bytes], Awaitable[None]]]
        acts = [self._write_anew, self._put_over]
        if there:
            acts += [self._write_parts, self._write_parts, self._append, self._cut, self._remove]
        act = self.random.choice(acts)
        self.say(number, self.kernels.index(kernel), act.__name__, name)
        await act(kernel, name)

    def _some(self, size: int) -> bytes:
        self._version += 1
        line = b"%06d|" % self._version
        return (line * (size // len(line) + 1))[:size]

    async def _write(self, kernel: ModelKernel, file: OpenFile, offset: int, data: bytes) -> None:
        step = self.random.choice(PIECES)
        for at in range(0, len(data), step):
            await kernel.write(file, offset + at, data[at : at + step])

    async def _write_anew(self, kernel: ModelKernel, name: bytes) -> None:
        content = self._some(self.random.choice(SIZES))
        mode = self.random.choice([os.O_WRONLY, os.O_RDWR])
        await self._end(kernel, name, content, await self._written(kernel, name, content, mode))

    async def _written(
        self, kernel: ModelKernel, name: bytes, content: bytes, mode: int
    ) -> OpenFile:
        file = await kernel.open(name, mode | os.O_CREAT | os.O_TRUNC)
        await self._write(kernel, file, 0, content)
        return file

    async def _put_over(self, kernel: ModelKernel, name: bytes) -> None:
        content = self._some(self.random.choice(SIZES))
        other = b"%s.part" % name
        file = await self._written(kernel, other, content, os.O_WRONLY)
        await kernel.fsync(file)
        await kernel.close(file)
        await kernel.rename(other, name)
        self.contents[name] = content

    async def _write_parts(self, kernel: ModelKernel, name: bytes) -> None:
        file = await kernel.open(name, os.O_RDWR)
        content = bytearray(self.contents[name] or b"")
        for _ in range(self.random.randrange(1, 4)):
            offset = self.random.randrange(len(content) + 5000)
            data = self._some(self.random.choice(SIZES[1:-1]))
            await self._write(kernel, file, offset, data)
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + len(data)] = data
            if self.random.random() < 0.5:
                await self._check_open(kernel, file, name, bytes(content))
        await self._end(kernel, name, bytes(content), file)

    async def _append(self, kernel: ModelKernel, name: bytes) -> None:
        file = await kernel.open(name, os.O_WRONLY | os.O_APPEND)
        content = self.contents[name] or b""
        for _ in range(self.random.randrange(1, 4)):
            data = self._some(self.random.choice(SIZES[1:4]))
            await kernel.write(file, 0, data)
            content += data
        await self._end(kernel, name, content, file)

    async def _cut(self, kernel: ModelKernel, name: bytes) -> None:
        size = self.random.choice(SIZES)
        before = self.contents[name] or b""
        content = before[:size].ljust(size, b"\0")
        if self.random.random() < 0.3:
            await kernel.truncate_path(name, size)
            self.contents[name] = content
            return
        file = await kernel.open(name, os.O_RDWR)
        await kernel.truncate(file.node, file, size)
        await self._end(kernel, name, content, file)

    async def _remove(self, kernel: ModelKernel, name: bytes) -> None:
        await kernel.unlink(name)
        self.contents[name] = None

    async def _end(self, kernel: ModelKernel, name: bytes, content: bytes, file: OpenFile) -> None:
        """Sync or close what was written, or both; before it the writer sees it already."""
        found = await kernel.fstat(file)
        assert found == len(content), f"{name!r}: fstat says {found}, not {len(content)}"
        if self.random.random() < 0.4:
            await kernel.fsync(file)
            if self.random.random() < 0.5:
                self.contents[name] = content
                self.say("synced", name, len(content))
                await self._check(-1, kernel, name)
        await kernel.close(file)
        self.say("closed", name, len(content))
        self.contents[name] = content

    async def _check(self, number: int, writer: ModelKernel, name: bytes) -> None:
        """See what whoever looks now must see."""
        content = self.contents[name]
        for _ in range(self.random.randrange(1, 4)):
            kernel = self.random.choice([writer, *self.kernels])
            self.say(number, self.kernels.index(kernel), "looks at", name)
            if content is None:
                try:
                    await kernel.open(name, os.O_RDONLY)
                except FileNotFoundError:
                    continue
                raise AssertionError(f"{name!r} was removed")
            if kernel is writer and self.random.random() < 0.5:
                found = await kernel.stat(name)
                assert found == len(content), f"{name!r}: stat says {found}, not {len(content)}"
            file = await kernel.open(name, os.O_RDONLY)
            await self._check_open(kernel, file, name, content)
            await kernel.close(file)
            await trio.sleep(self.random.choice([0.0, 0.0, 0.01, 1.5]))

    async def _check_open(
        self, kernel: ModelKernel, file: OpenFile, name: bytes, content: bytes
    ) -> None:
        if self.random.random() < 0.5:
            size = await kernel.fstat(file)
            assert size == len(content), f"{name!r}: fstat says {size}, not {len(content)}"
        step, found = self.random.choice(PIECES), bytearray()
        while part := await kernel.read(file, len(found), step):
            found += part
        self.checked_count += 1
        assert found == content, f"{name!r} is not what was written: {difference(found, content)}"

    # ---- those who do not ------------------------------------------------------------------------------

    async def disturb(self, kernel: ModelKernel) -> None:
        """Do what anybody may do at any time, for as long as the others work."""
        while True:
            await trio.sleep(self.random.random() ** 2 * 0.2)
            name = self.random.choice(self.names)
            act = self.random.choice([self._stat, self._look, self._look, self._list, self._forget])
            try:
                await act(kernel, name)
            except OSError as error:
                if error.errno not in GONE:
                    raise

    async def _stat(self, kernel: ModelKernel, name: bytes) -> None:
        await kernel.stat(name)

    async def _look(self, kernel: ModelKernel, name: bytes) -> None:
        file = await kernel.open(name, os.O_RDONLY)
        try:
            for _ in range(self.random.randrange(6)):
                offset = self.random.choice(SIZES)
                await kernel.read(file, offset, self.random.choice(PIECES))
                await trio.sleep(self.random.random() ** 3)
        finally:
            await kernel.close(file)

    async def _list(self, kernel: ModelKernel, _name: bytes) -> None:
        await kernel.listing(lambda: self.random.random() ** 3 * 0.5)

    async def _forget(self, kernel: ModelKernel, name: bytes) -> None:
        if self.random.random() < 0.5:
            await kernel.drop_cache(name)
        else:
            kernel.evict(name)


def difference(found: bytes, content: bytes) -> str:
    """Say where two contents differ."""
    if len(found) != len(content):
        return f"{len(found)} bytes, not {len(content)}"
    first = next(i for i, (a, b) in enumerate(zip(found, content, strict=True)) if a != b)
    return f"from {first} of {len(content)} on {bytes(found[first : first + 16])!r}, not {content[first : first + 16]!r}"


async def _shake(callers: list[SomeMeta], source: random.Random) -> None:
    while True:
        await trio.sleep(source.expovariate(1.0))
        source.choice(callers).reset()


def section(source: random.Random) -> ClientSection:
    """Return the settings of a mount."""
    return ClientSection(
        write_buffer_bytes=source.choice([16 * 1024, 64 * 1024]),
        dirty_bytes_max=1 << 20,
        readahead_bytes_max=source.choice([0, 128 * 1024]),
        write_back_interval_s=source.choice([0.1, 1.0]),
        durable_close=source.choice([True, False]),
    )


async def run(seed: int, told: list[Programs] | None = None) -> Programs:
    """Run one seed; raises AssertionError when something was seen that must not be."""
    source, service = random.Random(seed), Service(seed)
    kernels, callers = list[ModelKernel](), list[SomeMeta]()
    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            service.chunks.has_other_writers = True
            service.mgmtd.client_ids = [letter * 32 for letter in "ab"]
            for number in range(MOUNT_COUNT):
                caller = SomeMeta(service, nursery, seed + number, "ab"[number])
                runtime = Runtime(FakeClock(), None, run_inline, random.Random(seed + number))
                vfs: Any = Vfs(caller, service.store(), runtime, section(source))
                device = ModelDevice()
                kernel = ModelKernel(device, source, nursery, LATE_S)
                vfs.connect_kernel(kernel)
                await nursery.start(vfs.run)
                nursery.start_soon(Server(device, vfs, runtime).run)  # type: ignore[arg-type]
                kernels.append(kernel)
                callers.append(caller)
            programs = Programs(kernels, source)
            if told is not None:
                told.append(programs)
                for number, kernel in enumerate(kernels):
                    kernel.say = partial(programs.say, "kernel", number)
            for number in range(OTHER_COUNT):
                await kernels[0].close(await kernels[0].open(b"other-%d" % number, os.O_CREAT))
            async with trio.open_nursery() as disturbing:
                disturbing.start_soon(_shake, callers, source)
                for kernel in kernels:
                    for _ in range(2):
                        disturbing.start_soon(programs.disturb, kernel)
                async with trio.open_nursery() as working:
                    for number in range(PROGRAM_COUNT):
                        working.start_soon(programs.work, number)
                disturbing.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
    return programs


def main() -> int:
    """Run seeds; tell which fail."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.coherence")
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--story", action="store_true", help="what the programs did")
    arguments = parser.parse_args()
    failed, checked = list[int](), 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        told: list[Programs] | None = [] if arguments.story else None
        try:
            checked += run_deterministic(partial(run, seed, told), seed).checked_count
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            failed.append(seed)
            found: Any = error
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            print(f"seed {seed}: {found!r}", flush=True)
            if arguments.count == 1:
                if told:
                    print("\n".join(told[0].story[-4000:]))
                raise
    print(f"{arguments.count} seeds, {checked} contents as they must be, failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
