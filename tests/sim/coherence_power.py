"""The programs of `coherence_programs` where everything loses its power at once,
but for their own machines: what has lasted must be there.

What a close or an fsync has made durable is there whole, for both mounts, and nothing older is put
over it later.  Of what was under way anything may be there, but both mounts must agree on what it
is, once those who were at it have closed what they had open.
"""

import os
from contextlib import suppress
from typing import Final

import trio

from .coherence_programs import Programs
from .kernel_calls import ModelKernel
from .page_cache import OpenFile

AT_REST_S: Final = 2.5
"""After that no name or attribute from before is used without asking."""


class LastingPrograms(Programs):
    """See module head; closes have to be durable."""

    cut_count = 0
    """Losses of all power."""
    learnt_count = 0
    """Files of which it had to be found out what was left of them."""
    _is_closed = False

    def note_cut(self) -> None:
        """Everything loses its power now."""
        self.cut_count += 1
        self.may_fail = True

    async def prepare(self) -> None:
        """Have the other files last."""
        await super().prepare()
        await self.kernels[0].sync_names()

    async def turn(self, number: int, kernel: ModelKernel, name: bytes) -> None:
        """Have a file changed and looked at by whoever has a turn."""
        cut_count, writer = self.cut_count, None
        self.closed.discard(name)
        try:
            writer = await self.change(number, kernel, name)
            if name not in self.closed:
                await kernel.sync_names()
        except (OSError, AssertionError, ExceptionGroup) as error:
            if cut_count == self.cut_count:
                raise
            self.say(number, "failed", repr(error))
            self.closed.discard(name)
        if name not in self.closed and cut_count != self.cut_count:
            await self._learn(number, name)
            writer = None
        await self.check(number, writer, name)

    async def _learn(self, number: int, name: bytes) -> None:
        """Find out what is left of a file, and have it last."""
        cut_count = -1
        while cut_count != self.cut_count:
            cut_count = self.cut_count
            self.say(number, "finds out what is left of", name)
            try:
                await self._tidy_up(name)
                found = [await self._content(kernel, name) for kernel in self.kernels]
                await self.kernels[0].sync_names()
            except OSError:
                if cut_count == self.cut_count:
                    raise
                continue
            assert found[0] == found[1] or cut_count != self.cut_count, (
                f"{name!r}: one mount finds {found[0]!r:.60}, the other one {found[1]!r:.60}"
            )
            self.contents[name] = found[0]
            self.learnt_count += 1
            self.say(number, "finds left of", name, None if found[0] is None else len(found[0]))

    async def _tidy_up(self, name: bytes) -> None:
        """Close what is open for writing, whatever becomes of it, and remove the other names."""
        for kernel in self.kernels:
            left = [f for f in kernel.open_files if f.name.startswith(name)]
            for file in [f for f in left if f.flags & os.O_ACCMODE != os.O_RDONLY]:
                with suppress(OSError):
                    await kernel.close(file)
            while kernel.write_count:  # noqa: ASYNC110 - of whom it does not know
                await trio.sleep(0.01)
        await trio.sleep(AT_REST_S)
        for other in (b"%s.part" % name, b"%s.link" % name):
            with suppress(FileNotFoundError):
                await self.kernels[0].unlink(other)
            self.contents.pop(other, None)
            self.mtimes.pop(other, None)
        self.mtimes.pop(name, None)

    async def _content(self, kernel: ModelKernel, name: bytes) -> bytes | None:
        try:
            file = await kernel.open(name, os.O_RDWR)
        except FileNotFoundError:
            return None
        found = bytearray()
        try:
            await self._synced(kernel, file)
            while part := await kernel.read(file, len(found), 1 << 20):
                found += part
        finally:
            await kernel.close(file)
        return bytes(found)

    async def _synced(self, kernel: ModelKernel, file: OpenFile) -> None:
        """What its mount has lost of a file it says once."""
        try:
            await kernel.fsync(file)
        except OSError as error:
            self.say("lost", error)
            await kernel.fsync(file)
