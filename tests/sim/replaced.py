"""What a program does through a mount to files that it replaces again and again:
emptied by their open, written, synced, closed, read at once.

Each task has files of its own, so it knows what must be there once a sync has returned: that and
nothing else, whichever machines vanish, move their data elsewhere or take another place in their
chains meanwhile, and however long one of the steps was held up.
"""

import os
from typing import Final

import trio

from fs.client.vfs.creating import Opened
from fs.schema.ids import ROOT_INODE_ID, InodeId
from fs.schema.status import FsError, Status

from .mounts import OWN, Mount, MountWorker

FILE_COUNT: Final = 4
SIZES: Final = (10, 5000, 60_000, 65_536, 90_000, 300_000)
"""Of what is written, in chunks of 64 KiB: mostly shorter or longer than what was there."""
ASKED_BYTES: Final = (20_000, 131_072, 1 << 20)
"""Of one request of the kernel."""
OTHERS_SHARE: Final = 0.2
"""Of the other files are read then, too."""


class Replacer(MountWorker):
    """One such task."""

    async def run(self, mount: Mount, until_s: float) -> None:
        """Work until the virtual time `until_s`."""
        kept: dict[bytes, bytes] = {}
        while trio.current_time() < until_s:
            await trio.sleep(self.random.expovariate(1.0 / self.pause_s))
            cut_count = self.history.cut_count
            try:
                written = await self._replace(mount, kept)
                others = [name for name in kept if self.random.random() < OTHERS_SHARE]
                for name in [*written, *others]:
                    await self._check(mount, name, kept[name])
            except (FsError, ExceptionGroup, AssertionError):
                if cut_count == self.history.cut_count:  # else what was there may be gone
                    raise
            if cut_count != self.history.cut_count:
                kept.clear()

    async def _replace(self, mount: Mount, kept: dict[bytes, bytes]) -> list[bytes]:
        """Give a file another content; return its name if it certainly has it."""
        self._file_count += 1
        name = f"replaced-{self.name}-{self.random.randrange(FILE_COUNT)}".encode()
        line, size = b"%s %d|" % (name, self._file_count), self.random.choice(SIZES)
        content = (line * (size // len(line) + 1))[:size]
        asked = self.random.choice(ASKED_BYTES)
        kept.pop(name, None)
        try:
            inode_id, opened = await self._emptied(mount, name)
        except FsError as error:  # no room even for a removal: it may be empty now
            self._take_error(error)
            return []
        try:
            try:
                for offset in range(0, size, asked):
                    piece = content[offset : offset + asked]
                    count = await mount.files.write(opened.handle_id, offset, piece)
                    assert count == len(piece), f"{name!r}: {count} of {len(piece)} bytes"
                await mount.files.fsync(opened.handle_id, is_data_only=False)
            finally:
                await mount.close(opened.handle_id)
        except FsError as error:
            self._take_error(error)
            return []
        finally:
            mount.names.forget(inode_id, 1)
        kept[name] = content
        return [name]

    async def _emptied(self, mount: Mount, name: bytes) -> tuple[InodeId, Opened]:
        """Open a file for writing, made or emptied by that,
        as a kernel does that looks it up first.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            inode = await mount.names.lookup(ROOT_INODE_ID, name, OWN)
        except FsError as error:
            if error.status is not Status.NOT_FOUND:
                raise
            opened, inode = await mount.files.create(ROOT_INODE_ID, name, 0o644, flags, OWN)
            mount.names.give(inode, lookup_count=1)
            return inode.inode_id, opened
        return inode.inode_id, await mount.files.open(inode.inode_id, flags, OWN)

    async def _check(self, mount: Mount, name: bytes, content: bytes) -> None:
        """Read a file as a program does that has just opened it:
        attributes, then bytes up to the end.
        """
        inode_id = await self._found(mount, f"/{name.decode()}")
        opened = await self._open(mount, inode_id)
        shown = (await mount.names.getattr(inode_id, OWN)).length
        found, asked = b"", self.random.choice(ASKED_BYTES)
        while True:
            part = bytes(await mount.files.read(opened.handle_id, len(found), asked))
            found += part
            if len(part) < asked:
                break
        await mount.close(opened.handle_id)
        mount.names.forget(inode_id, 1)
        assert (shown, found) == (len(content), content), (
            f"{name!r} is not what was written: {shown} and {len(found)} bytes for {len(content)},"
            f" {found[:60]!r} for {content[:60]!r}, {found.count(0)} zeros"
        )
        self.history.replaced_count += 1
