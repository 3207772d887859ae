"""Programs on two mounts, each with the model of Linux's caches in front (`page_cache`):
what they do, and what they must see.

Files are changed by one program at a time, as programs do that agree on it: written anew (emptied
by their open, or by a rename over them), in parts, at their end, cut, cut and lengthened again,
given other names and times, removed; through one descriptor or two, past the cache, from both
mounts at once where they write other bytes, and by one when the other one has cut what it has open.
Where asked for, files are unpacked, which ends with a cut where they end, and get holes; or a
further file is emptied, written anew and cut without any agreement, while others read it
(`coherence_cuts`).  Whoever changes a file reads what it wrote, and sees its length, at once; when
it has closed or synced it, so does whoever opens it, on either mount, by reading or by a map, and
what the same mount says of it by name.  All the while others open, read, list and ask on both
mounts without agreeing on anything, keep files open, and memory runs short, so that requests of all
kinds are under way and caches are full of what was there before.  What they see is not looked at.
"""

import errno
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import Final

import trio

from fs.client.vfs.vfs import Vfs

from .coherence_cuts import CutFile, threads_are_late
from .coherence_names import WORKER_COUNT, Names, leases_are_long
from .kernel_calls import ModelKernel
from .page_cache import OpenFile

FILE_COUNT: Final = 3
OTHER_COUNT: Final = 30
"""Files that nobody touches, so that a listing takes several requests."""
PROGRAM_COUNT: Final = 3
DISTURBER_COUNT: Final = 2
"""On each mount."""
SIZES: Final = (0, 1, 100, 4096, 5000, 12_288, 65_536, 70_000, 150_000, 300_000)
PIECES: Final = (700, 4096, 20_000, 131_072)
DIRECT_SHARE: Final = 0.15
"""Of the files are opened with O_DIRECT."""
MAP_SHARE: Final = 0.25
GONE: Final = frozenset({errno.ENOENT, errno.ESTALE, errno.EBADF})
Act = Callable[[ModelKernel, bytes], Awaitable[None]]


class Programs:
    """All that runs on both mounts; see module head."""

    def __init__(
        self, kernels: list[ModelKernel], source: random.Random, *, clocks_agree: bool = True
    ) -> None:
        """Do nothing yet.

        Args:
            kernels: of the mounts.
            source: of all decisions.
            clocks_agree: False: which of two mounts set times last is not
                told apart (decision 0124).
        """
        self.kernels = kernels
        self._clocks_agree = clocks_agree
        self.random = source
        self.story: list[str] = []
        self.names = [b"file-%d" % i for i in range(FILE_COUNT)]
        self.cut_file: CutFile | None = None
        self.directories: Names | None = None
        self.absent_count = 0
        self.ahead_count = 0
        """Look-ups that the mounts have answered by themselves, once all is over."""
        self.opened_ahead_count = 0
        """Opens that were done with their look-up."""
        self.contents: dict[bytes, bytes | None] = dict.fromkeys(self.names)
        self.mtimes: dict[bytes, int] = {}
        """As whoever looked first after a change saw them, or as they were set."""
        self.locks = {name: trio.Lock() for name in self.names}
        self.checked_count = 0
        self.makes_holes = False
        """Files are unpacked, and get holes, as programs do that know of holes."""
        self.may_fail = False
        """Who reads while something is being lost may be told of it."""
        self._version = 0
        self.closed = set[bytes]()
        """What was closed last with all that was changed."""
        self.lengthened = set[bytes]()
        """What a change of attributes has made longer:
        that no later sync tells of its loss, if a power loss takes it before.
        """

    def say(self, *words: object) -> None:
        """Note what a program does, for whoever looks for why it went wrong."""
        self.story.append(f"{trio.current_time():.6f} {' '.join(map(str, words))}")

    def cut_a_file(self) -> None:
        """Have a file cut while others read it."""
        self.cut_file = CutFile(self.kernels, self.random, self.say)

    def change_names(self) -> None:
        """Have names made and taken away in directories of their own, too."""
        self.directories = Names(
            self.kernels, self.random, self.say, clocks_agree=self._clocks_agree
        )

    def tell_all(self, told: list["Programs"]) -> None:
        """Have the kernels tell what they do, too; whoever looks finds all that happened."""
        told.append(self)
        for number, kernel in enumerate(self.kernels):
            kernel.say = partial(self.say, "kernel", number)

    async def run(self, is_over: Callable[[int], bool]) -> None:
        """Work until each of those who agree has done so many rounds that `is_over` says so."""
        with (
            threads_are_late() if self.cut_file else nullcontext(),
            leases_are_long() if self.directories else nullcontext(),
        ):
            await self._run(is_over)

    async def _run(self, is_over: Callable[[int], bool]) -> None:
        await self.prepare()
        async with trio.open_nursery() as disturbing:
            if self.directories is not None:
                await self.directories.prepare()
                for _ in range(WORKER_COUNT):
                    disturbing.start_soon(self.directories.work)
            for kernel in self.kernels:
                for _ in range(DISTURBER_COUNT):
                    disturbing.start_soon(self.disturb, kernel)
                if self.cut_file is not None:
                    disturbing.start_soon(self.disturb, kernel, self.cut_file.look)
            if self.cut_file is not None:
                cutter = self.random.choice(self.kernels)
                disturbing.start_soon(self.disturb, cutter, self.cut_file.rewrite)
            async with trio.open_nursery() as working:
                for number in range(PROGRAM_COUNT):
                    working.start_soon(self.work, number, is_over)
            disturbing.cancel_scope.cancel()

    async def prepare(self) -> None:
        """Make the files that nobody touches."""
        for number in range(OTHER_COUNT):
            first = self.kernels[0]
            await first.close(await first.open(b"other-%d" % number, os.O_CREAT))

    # ---- those who agree -------------------------------------------------------------------------

    async def work(self, number: int, is_over: Callable[[int], bool]) -> None:
        """Change files and look at them."""
        done_count = 0
        while not is_over(done_count):
            done_count += 1
            await trio.sleep(self.random.random() ** 2 * 0.3)
            name = self.random.choice(self.names)
            kernel = self.random.choice(self.kernels)
            async with self.locks[name]:
                await self.turn(number, kernel, name)

    async def turn(self, number: int, kernel: ModelKernel, name: bytes) -> None:
        """Change a file and look at it."""
        await self.check(number, await self.change(number, kernel, name), name)

    async def change(self, number: int, kernel: ModelKernel, name: bytes) -> ModelKernel | None:
        """Change a file; return the mount that alone did so, None if both did."""
        there = self.contents[name] is not None
        acts: list[Act]
        acts = [self._write_anew, self._put_over]
        if there:
            acts += [self._write_parts, self._write_parts, self._append, self._cut, self._remove]
            acts += [self._cut_and_lengthen, self._use_two, self._write_both, self._use_other_name]
            acts += [self._cut_elsewhere, self._set_times, self._open_held]
            if self.makes_holes:
                acts += [self._unpack, self._make_hole] * 3
        act = self.random.choice(acts)
        self.say(number, self.kernels.index(kernel), act.__name__, name)
        self.mtimes.pop(name, None)
        await act(kernel, name)
        by_both = (self._write_both, self._use_other_name, self._cut_elsewhere, self._open_held)
        return None if act in by_both else kernel

    def _some(self, size: int) -> bytes:
        self._version += 1
        line = b"%06d|" % self._version
        return (line * (size // len(line) + 1))[:size]

    async def _write(self, kernel: ModelKernel, file: OpenFile, offset: int, data: bytes) -> None:
        step = self.random.choice(PIECES)
        self.say("writes", offset, len(data), bytes(data[:7]), "direct" if file.is_direct else "")
        for at in range(0, len(data), step):
            await kernel.write(file, offset + at, data[at : at + step])

    def _perhaps_direct(self) -> int:
        return os.O_DIRECT if self.random.random() < DIRECT_SHARE else 0

    async def _write_anew(self, kernel: ModelKernel, name: bytes) -> None:
        content = self._some(self.random.choice(SIZES))
        mode = self.random.choice([os.O_WRONLY, os.O_RDWR]) | self._perhaps_direct()
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
        file = await kernel.open(name, os.O_RDWR | self._perhaps_direct())
        content = bytearray(self.contents[name] or b"")
        for _ in range(self.random.randrange(1, 4)):
            await self._write_part(kernel, file, content)
            if self.random.random() < 0.5:
                await self._check_open(kernel, file, name, bytes(content))
        await self._end(kernel, name, bytes(content), file)

    async def _write_part(self, kernel: ModelKernel, file: OpenFile, content: bytearray) -> None:
        offset = self.random.randrange(len(content) + 5000)
        data = self._some(self.random.choice(SIZES[1:-2]))
        await self._write(kernel, file, offset, data)
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data

    async def _use_two(self, kernel: ModelKernel, name: bytes) -> None:
        """Two descriptors of one mount: each sees what goes through the other,
        and may be closed first.
        """
        files = [await kernel.open(name, os.O_RDWR | self._perhaps_direct()) for _ in range(2)]
        content = bytearray(self.contents[name] or b"")
        for _ in range(self.random.randrange(1, 4)):
            self.random.shuffle(files)
            await self._write_part(kernel, files[0], content)
            await self._check_open(kernel, files[1], name, bytes(content))
            if self.random.random() < 0.3:
                await kernel.fsync(files[1])
        first, last = files
        await kernel.close(first)
        if self.random.random() < 0.5:
            await self._write_part(kernel, last, content)
        await self._end(kernel, name, bytes(content), last)

    async def _write_both(self, kernel: ModelKernel, name: bytes) -> None:
        """Both mounts write at once, each in its own part of the file;
        both parts are there when both have closed it.
        """
        content = bytearray(self.contents[name] or b"")
        middle = self.random.randrange(len(content) + 5000)

        async def write(one: ModelKernel, offset: int, data: bytes) -> None:
            file = await one.open(name, os.O_WRONLY | self._perhaps_direct())
            await self._write(one, file, offset, data)
            if self.random.random() < 0.3:
                await one.fsync(file)
            await one.close(file)

        other = self.random.choice(self.kernels)
        parts = [
            (kernel, 0, self._some(self.random.randrange(middle + 1))),
            (other, middle, self._some(self.random.choice(SIZES[1:-2]))),
        ]
        async with trio.open_nursery() as nursery:
            for one, offset, data in parts:
                nursery.start_soon(write, one, offset, data)
                content.extend(bytes(max(0, offset - len(content))))
                content[offset : offset + len(data)] = data
        self.contents[name] = bytes(content)

    async def _use_other_name(self, kernel: ModelKernel, name: bytes) -> None:
        """Give a file another name, and use both; one of them goes, from either mount."""
        other, content = b"%s.link" % name, self.contents[name] or b""
        await kernel.link(name, other)
        self.contents[other] = content
        await self.check(-1, kernel, other)
        if self.random.random() < 0.5:
            one = self.random.choice(self.kernels)
            self.mtimes.pop(other, None)
            await self._write_parts(one, other)
            self.contents[name] = self.contents[other]
            # The mount that wrote may have listed the name before another one gave it to this file:
            # it may say so for a second.  That which has just made the further name by it may not.
            await self.check(-1, one if one is kernel else None, name)
        last = self.random.choice(self.kernels)
        if self.random.random() < 0.5:
            await last.unlink(other)
        else:
            await last.unlink(name)
            await last.rename(other, name)
        del self.contents[other]
        self.mtimes.pop(other, None)

    async def _open_held(self, kernel: ModelKernel, name: bytes) -> None:
        """What is held leads to the file without a look-up: also after one of a call that failed
        it is as the last one left it who closed it.
        """
        held, other = await kernel.hold(name), self.random.choice(self.kernels)
        await kernel.fail_to_open(held)
        await self._write_parts(other, name)
        file = await kernel.open_held(held)
        await self._check_open(kernel, file, name, self.contents[name] or b"")
        await kernel.close(file)
        kernel.let_go(held)

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
        if self.random.random() < 0.5:
            kernel.read_ahead(file, 0, len(before))
        self.lengthened.add(name)
        await kernel.truncate(file.node, file, size)
        await self._end(kernel, name, content, file)

    async def _cut_and_lengthen(self, kernel: ModelKernel, name: bytes) -> None:
        """What is cut off is gone for good, however the file grows again,
        and whatever of it is being read.
        """
        content = bytearray(self.contents[name] or b"")
        size = self.random.randrange(len(content) + 1)
        file = await kernel.open(name, os.O_RDWR)
        if self.random.random() < 0.5 and content:
            await kernel.read(file, 0, 4096)
            kernel.read_ahead(file, size, len(content) - size + 1)
        await kernel.truncate(file.node, file, size)
        end = size + self.random.choice(SIZES)
        del content[size:]
        if self.random.random() < 0.5:
            self.lengthened.add(name)
            await kernel.truncate(file.node, file, end)
        else:
            await self._write(kernel, file, end, b"last")
            content.extend(bytes(end - size) + b"last")
        content.extend(bytes(max(0, end - len(content))))
        await self._check_open(kernel, file, name, bytes(content))
        await self._end(kernel, name, bytes(content), file)

    async def _cut_elsewhere(self, kernel: ModelKernel, name: bytes) -> None:
        """One mount has a file open while the other one cuts it;
        what it writes after that stays, whether it looked meanwhile or not.
        """
        content = bytearray(self.contents[name] or b"")
        file = await kernel.open(name, os.O_RDWR | self._perhaps_direct())
        if self.random.random() < 0.5:
            await self._write_part(kernel, file, content)
            await kernel.fsync(file)
        other, size = self.random.choice(self.kernels), self.random.choice(SIZES[:-2])
        if self.random.random() < 0.5:
            self.say("is cut to", size, "by mount", self.kernels.index(other))
            await other.truncate_path(name, size)
        else:
            self.say("is emptied by mount", self.kernels.index(other))
            await other.close(await other.open(name, os.O_WRONLY | os.O_TRUNC))
            size = 0
        content = bytearray(bytes(content[:size]).ljust(size, b"\0"))
        if self.random.random() < 0.5:
            await kernel.fstat(file)
        await self._write_part(kernel, file, content)
        if self.random.random() < 0.5:
            await trio.sleep(self.random.choice([0.0, 0.1, 1.5]))
            await kernel.stat(name)
        if self.random.random() < 0.3:
            await kernel.fsync(file)
        await kernel.close(file)
        self.contents[name] = bytes(content)

    async def _unpack(self, kernel: ModelKernel, name: bytes) -> None:
        """As programs do that unpack with holes: in the end the file is cut where it ends,
        so that what another mount has added behind that is gone.
        """
        is_new = self.random.random() < 0.6
        file = await kernel.open(name, os.O_RDWR | (os.O_CREAT | os.O_TRUNC if is_new else 0))
        content = bytearray() if is_new else bytearray(self.contents[name] or b"")
        if self.random.random() < 0.3:
            await self._write_part(kernel, file, content)
        for _ in range(self.random.randrange(1, 3)):
            hole = bytes(self.random.choice([0, 0, 50, 600]))
            data = self._some(self.random.choice(SIZES[1:4]))
            await self._write(kernel, file, len(content) + len(hole), data)
            content.extend(hole + data)
        if self.random.random() < 0.1:
            await kernel.fsync(file)
        if self.random.random() < 0.5:
            other = self.random.choice(self.kernels)
            added = await other.open(name, os.O_WRONLY)
            self.say("mount", self.kernels.index(other), "adds")
            await self._write(other, added, len(content) + self.random.choice(SIZES), b"added")
            await other.close(added)
        self.say("is cut where it ends", len(content))
        self.lengthened.add(name)
        await kernel.truncate(file.node, file, len(content))
        if self.random.random() < 0.3:
            await self._write_part(kernel, file, content)
        if self.random.random() < 0.5:
            await self._check_open(kernel, file, name, bytes(content))
        await self._end(kernel, name, bytes(content), file)

    async def _make_hole(self, kernel: ModelKernel, name: bytes) -> None:
        """Somewhere, or as who copies holes: the last one is made twice,
        by the length and by fallocate.
        """
        file = await kernel.open(name, os.O_RDWR)
        content = bytearray(self.contents[name] or b"")
        if self.random.random() < 0.5:
            await self._write_part(kernel, file, content)
        offset = len(content)
        if self.random.random() < 0.5:
            content.extend(bytes(self.random.choice(SIZES[1:-2])))
            self.lengthened.add(name)
            await kernel.truncate(file.node, file, len(content))
            count = len(content) - offset
        else:
            offset = self.random.randrange(offset + 1)
            count = self.random.randrange(1, len(content) - offset + 5000)
        self.say("hole", offset, count, "of", len(content))
        await kernel.make_hole(file, offset, count)
        content[offset : offset + count] = bytes(min(count, len(content) - offset))
        if self.random.random() < 0.5:
            await self._check_open(kernel, file, name, bytes(content))
        await self._end(kernel, name, bytes(content), file)

    async def _set_times(self, kernel: ModelKernel, name: bytes) -> None:
        """Set times while something is not reported yet, or everything is,
        and perhaps on the other mount after that.
        """
        content = bytearray(self.contents[name] or b"")
        file = await kernel.open(name, os.O_RDWR)
        await self._write_part(kernel, file, content)
        if self.random.random() < 0.3:
            await kernel.fsync(file)
        for one in (kernel, self.random.choice(self.kernels) if self._clocks_agree else kernel):
            self._version += 1
            self.mtimes[name] = self._version * 1_000_000_007
            await one.utimes(name, self.mtimes[name])
            if self.random.random() < 0.5:
                break
            # Not at once: wall clocks that differ by less than a
            # microsecond do not tell then either.
            await trio.sleep(self.random.choice([0.001, 0.1, 0.3]))
        await kernel.close(file)
        self.contents[name] = bytes(content)

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
                await self.check(-1, kernel, name)
        await kernel.close(file)
        self.say("closed", name, len(content))
        self.contents[name] = content
        self.closed.add(name)

    async def check(self, number: int, writer: ModelKernel | None, name: bytes) -> None:
        """See what whoever looks now must see."""
        content = self.contents[name]
        for _ in range(self.random.randrange(1, 4)):
            kernel = self.random.choice([writer or self.kernels[0], *self.kernels])
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
            file = await kernel.open(name, os.O_RDONLY | self._perhaps_direct())
            if not file.is_direct and self.random.random() < MAP_SHARE:
                await self._check_map(kernel, file, name, content)
            else:
                await self._check_mtime(kernel, file, name)
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

    async def _check_mtime(self, kernel: ModelKernel, file: OpenFile, name: bytes) -> None:
        """Whoever opens a file sees when it was changed last, on either mount."""
        if self.random.random() < 0.5:
            found = await kernel.mtime_of(file)
            known = self.mtimes.setdefault(name, found)
            assert found == known, f"{name!r}: fstat says changed at {found}, not {known}"

    async def _check_map(
        self, kernel: ModelKernel, file: OpenFile, name: bytes, content: bytes
    ) -> None:
        """Map a file for as long as its attributes say it is, and look at some pages of it, or all;
        it may be closed before.
        """
        size, is_closed = await kernel.fstat(file), self.random.random() < 0.5
        assert size == len(content), f"{name!r}: fstat says {size}, not {len(content)}"
        kernel.map(file)
        if is_closed:
            await kernel.close(file)
        offsets = [*range(0, size, 4096)]
        if self.random.random() < 0.5:
            offsets = self.random.sample(offsets, min(len(offsets), 5))
        for offset in offsets:
            found = (await kernel.look_at_map(file, offset))[: size - offset]
            there = content[offset : offset + 4096]
            assert found == there, f"{name!r} mapped at {offset}: {difference(found, there)}"
        self.checked_count += 1
        kernel.unmap(file)
        if not is_closed:
            await kernel.close(file)

    # ---- those who do not ------------------------------------------------------------------------

    async def disturb(self, kernel: ModelKernel, only: Act | None = None) -> None:
        """Do what anybody may do at any time, or one thing, for as long as the others work."""
        while True:
            await trio.sleep(self.random.random() ** 2 * 0.2)
            name = self.random.choice(self.names)
            act = self.random.choice([self._stat, self._look, self._look, self._list, self._forget])
            try:
                await (only or act)(kernel, name)
            except OSError as error:
                if error.errno not in GONE and not self.may_fail:
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


def count_look_ups(programs: Programs, mounts: list[Vfs]) -> None:
    """Note how many look-ups mounts have answered by themselves: of absent names,
    and of what they were told ahead; and how many opens they have done with the look-up.
    """
    programs.opened_ahead_count = sum(vfs._core.opened_ahead_count for vfs in mounts)
    programs.absent_count = sum(vfs._core.leased.hit_count for vfs in mounts)
    programs.ahead_count = sum(vfs.namespace.ahead.hit_count for vfs in mounts)


def difference(found: bytes, content: bytes) -> str:
    """Say where two contents differ."""
    if len(found) != len(content):
        return f"{len(found)} bytes, not {len(content)}"
    first = next(i for i, (a, b) in enumerate(zip(found, content, strict=True)) if a != b)
    return (
        f"from {first} of {len(content)} on {bytes(found[first : first + 16])!r}, not "
        f"{content[first : first + 16]!r}"
    )
