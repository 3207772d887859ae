"""What clients do through a vfs, as a mount would without its kernel:
close-to-open on files of all, and files that are removed while open.

Registers: whole small files that are written between open and close, and read after an open; their
histories are linearizable, since a close ends only when what was written is there for all who open
later.  Look-ups and opens for reading are often begun, and some of these given up; so are every
second close, and creations.  A file that one task opens while another one of the same mount removes
it stays readable for as long as it is open.
"""

import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import trio
from msgspec import structs

from fs.client.native import EmberFs
from fs.client.vfs import chunk_sizes
from fs.client.vfs.creating import Opened
from fs.client.vfs.handles import TakesTaskError
from fs.client.vfs.ports import Caller
from fs.client.vfs.vfs import Vfs
from fs.rpc.api import UnderWay
from fs.runtime.ports import Runtime
from fs.schema.config import ClientSection
from fs.schema.ids import ROOT_INODE_ID, InodeId
from fs.schema.inode import Inode
from fs.schema.proto import meta_pb2
from fs.schema.status import FsError, Status

from .linearizable import FOREVER, Op
from .names import BEGUN_SHARE, content_of, value_of

PATHS: Final = ("/mount-0", "/mount-1")
"""Registers."""
WORKERS_PER_MOUNT: Final = 2
PAUSE: Final = 2.0
OPEN_S_MAX: Final = 6.0
"""How long a removed file is kept open; longer
than garbage collection leaves what nobody has open.
"""
COLLECTED_S_MIN: Final = 1.5
"""A removal that took so long may have been told of when garbage collection, whose delay is 2 s,
had begun: nothing keeps the file then.
"""
SILENT_S_MIN: Final = 50.0
"""A mount that was stopped for so long may have lost its sessions, and what they kept,
by its own clock or that of others.
"""
LARGE_CHUNK_BYTES: Final = 4 << 20
LARGE_REPEATS: Final = 2900
"""Of a content, so that it goes a little beyond one such chunk."""
SCATTERED_BYTES: Final = 30_000
SCATTERED_COUNT_MAX: Final = 30
"""Of writes between an open and a close."""
OWN: Final = Caller(0, 0)
SETTINGS: Final[dict[str, list[Any]]] = {
    "retry_pause_s": [0.001, 0.2],
    "call_timeout_s": [2.0, 10.0],
    "batch_count_max": [1, 16, 1024],
    "batch_bytes_max": [1 << 16, 1 << 23],
    "requests_per_node_max": [1, 2, 32],
    "write_buffer_bytes": [1 << 12, 1 << 20],
    "dirty_bytes_max": [1 << 20, 1 << 28],
    "write_back_interval_s": [0.2, 5.0],
    "readahead_bytes_max": [0, 1 << 20],
    "readahead_total_bytes_max": [0, 1 << 22],
    "verify_reads": [False, True],
}
"""What a running mount takes over."""
SETTINGS_PAUSE_S: Final = 4.0
GIVEN_UP: Final = FsError(Status.RPC_TIMEOUT, "given up")


@dataclass
class MountHistory:
    """What all mounts together did to registers, and saw."""

    ops: dict[str, list[Op]] = field(default_factory=lambda: {path: [] for path in PATHS})
    value_next: int = 0
    kept_count: int = 0
    """Removed files that were read."""
    begun_count: int = 0
    scattered_count: int = 0
    """Files that were written here and there, and read."""
    large_count: int = 0
    """Files in large chunks that were written and read."""
    cut_count: int = 0
    """Losses of all power."""
    are_clocks_apart: bool = False
    """The wall clock of a service that collects what was removed has been stepped:
    it may take a removal of just now for an old one.
    """
    replaced_count: int = 0
    """Files that were read after they had been emptied, written and synced."""


class Mount:
    """The vfs of one client."""

    def __init__(self, fs: EmberFs, section: ClientSection) -> None:
        runtime: Runtime = fs._runtime
        self.vfs = Vfs(fs._meta, fs._chunks, runtime, section)
        self._fs, self._section = fs, section
        self.files, self.names = self.vfs.files, self.vfs.namespace
        self._close_count = 0

    async def change_settings(self, source: random.Random, until_s: float) -> None:
        """Take over other settings now and then, in the middle of everything;
        those of the beginning at the end.
        """
        fs: Any = self._fs
        while True:
            await trio.sleep(source.expovariate(1.0 / SETTINGS_PAUSE_S))
            is_over = trio.current_time() >= until_s
            names = [] if is_over else source.sample([*SETTINGS], k=3)
            changes = {name: source.choice(SETTINGS[name]) for name in names}
            section = structs.replace(self._section, **changes)
            for part in (fs._meta, fs._chunks, self.vfs):
                part.adopt(section)
            if is_over:
                return

    async def close(self, handle_id: int) -> None:
        """Do what close(2) does; raises FsError: an earlier write failed, or this close did."""
        try:
            self._close_count += 1
            if self._close_count % 2 or not await self._is_flushed(handle_id):
                await self.files.flush(handle_id)
        finally:
            await self.files.release(handle_id)

    async def _is_flushed(self, handle_id: int) -> bool:
        """Flush as a mount daemon does that can do so without a task;
        False: a task has to do it, or what is left.
        """
        ended, told = trio.Event(), list[Exception | None]()

        def end(error: Exception | None) -> None:
            told.append(error)
            ended.set()

        if not self.files.begin_flush(handle_id, end):
            return False
        await ended.wait()
        (error,) = told
        if error is not None and not isinstance(error, TakesTaskError):
            raise error
        return error is None

    async def create(self, name: bytes, flags: int) -> tuple[Opened, Inode]:
        """Create a file in the root directory, without a task where that is possible;
        raises FsError.
        """
        ended, told = trio.Event(), list[Any]()

        def end(made: object, error: Exception | None) -> None:
            told.append((made, error))
            ended.set()

        if not self.files.begin_create(ROOT_INODE_ID, name, 0o644, flags, OWN, 0, end):
            return await self.files.create(ROOT_INODE_ID, name, 0o644, flags, OWN)
        await ended.wait()
        ((made, error),) = told
        if error is not None:
            raise error
        return made  # type: ignore[no-any-return]


class MountWorker:
    """One task at a mount."""

    def __init__(
        self,
        name: str,
        history: MountHistory,
        *,
        seed: int,
        think_s: float,
        take_error: Callable[[FsError], None],
        note_synced: Callable[[str, float], None],
    ) -> None:
        """Do nothing yet.

        Args:
            name: of this task.
            history: of all.
            seed: of the run.
            think_s: mean pause of the client between two operations.
            take_error: judges an error that a close ended with; raises it
                unless something explains it.
            note_synced: is told of a close that ended well: which file, and when what it
                made durable had been written.
        """
        self.name = name
        self.history = history
        self.random = random.Random(f"{seed}/mount-{name}")
        self.pause_s = PAUSE * think_s
        self._take_error = take_error
        self._note_synced = note_synced
        self._file_count = 0

    async def run(self, mount: Mount, until_s: float) -> None:
        """Work until the virtual time `until_s`."""
        while trio.current_time() < until_s:
            await trio.sleep(self.random.expovariate(1.0 / self.pause_s))
            acts = [self._write, self._read, self._keep, self._use_large_chunks, self._scatter]
            (act,) = self.random.choices(acts, weights=[30, 50, 20, 2, 6])
            cut_count = self.history.cut_count
            try:
                await act(mount)
            except (FsError, ExceptionGroup):
                if cut_count == self.history.cut_count:  # else what it works on may be gone
                    raise

    # ---- registers -------------------------------------------------------------------------------

    async def _write(self, mount: Mount) -> None:
        path = self.random.choice(PATHS)
        self.history.value_next += 1
        value, begin_s, ops = self.history.value_next, trio.current_time(), self.history.ops[path]
        index = len(ops)
        ops.append(Op("write", value, begin_s, FOREVER, self.name))
        inode_id = await self._found(mount, path)
        opened = await mount.files.open(inode_id, os.O_RDWR, OWN)
        try:
            try:
                await mount.files.write(opened.handle_id, 0, content_of(value))
            finally:
                await mount.close(opened.handle_id)
        except FsError as error:  # it may have happened, now or later
            self._take_error(error)
            return
        finally:
            mount.names.forget(inode_id, 1)
        ops[index] = Op("write", value, begin_s, trio.current_time(), self.name)
        self._note_synced(path, begin_s)

    async def _read(self, mount: Mount) -> None:
        path, begin_s = self.random.choice(PATHS), trio.current_time()
        inode_id = await self._found(mount, path)
        opened = await self._open(mount, inode_id)
        content = await mount.files.read(opened.handle_id, 0, 1 << 16)
        value = value_of(bytes(content))
        await mount.close(opened.handle_id)
        mount.names.forget(inode_id, 1)
        self.history.ops[path].append(Op("read", value, begin_s, trio.current_time(), self.name))

    # ---- removed files ---------------------------------------------------------------------------

    async def _keep(self, mount: Mount) -> None:
        """Open a file while another task of the mount removes it, and read it some time later."""
        self._file_count += 1
        self.history.value_next += 1
        name, value = f"kept-{self.name}-{self._file_count}".encode(), self.history.value_next
        made, inode = await mount.create(name, os.O_RDWR | os.O_CREAT)
        mount.names.remember_dentry(ROOT_INODE_ID, name, inode.inode_id)
        mount.names.give(inode, lookup_count=1)
        try:
            try:
                await mount.files.write(made.handle_id, 0, content_of(value))
            finally:
                await mount.close(made.handle_id)
        except FsError as error:
            self._take_error(error)
            await mount.names.unlink(ROOT_INODE_ID, name, OWN)
            return
        await trio.sleep(self.random.choice([0.0, 1.0]))  # what kept it for its writer ends
        opened: list[Opened] = []

        async def open_it() -> None:
            await trio.sleep(self.random.choice([0.0, 0.002]))
            try:
                opened.append(await self._open(mount, inode.inode_id))
            except FsError as error:
                if error.status is not Status.STALE:  # it was removed before
                    raise

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_it)
            await trio.sleep(self.random.choice([0.0, 0.001, 0.01]))
            begin_s = trio.current_time()
            await mount.names.unlink(ROOT_INODE_ID, name, OWN)
            is_late = trio.current_time() - begin_s > COLLECTED_S_MIN
        if opened:
            await trio.sleep(self.random.uniform(0.0, OPEN_S_MAX))
            try:
                await self._read_kept(mount, opened[0].handle_id, value)
            except FsError as error:
                was_stopped = trio.current_time() - begin_s > SILENT_S_MIN
                is_known = is_late or was_stopped or self.history.are_clocks_apart
                if error.status is not Status.STALE or not is_known:
                    raise
        mount.names.forget(inode.inode_id, 1)

    async def _read_kept(self, mount: Mount, handle_id: int, value: int) -> None:
        content = bytes(await mount.files.read(handle_id, 0, 1 << 16))
        assert value_of(content) == value, f"{self.name}: a file that is open has {content[:32]!r}"
        self.history.kept_count += 1
        await mount.close(handle_id)

    # ---- large chunks ----------------------------------------------------------------------------

    async def _use_large_chunks(self, mount: Mount) -> None:
        """Write a file in chunks of 4 MiB, change a little of it,
        and read both times what must be there.
        """
        self._file_count += 1
        cut_count, expected = self.history.cut_count, bytearray(content_of(1) * LARGE_REPEATS)
        name = f"large-{self.name}-{self._file_count}".encode()
        folder = await mount.names.mkdir(ROOT_INODE_ID, name, 0o755, OWN)
        size = str(LARGE_CHUNK_BYTES).encode()
        await mount.names.setxattr(folder.inode_id, chunk_sizes.NAME, size, OWN)
        made, inode = await mount.files.create(
            folder.inode_id, b"f", 0o644, os.O_RDWR | os.O_CREAT, OWN
        )
        mount.names.give(inode, lookup_count=1)
        assert inode.file is not None and inode.file.layout.chunk_size_bytes == LARGE_CHUNK_BYTES
        handle_id, place, data = made.handle_id, 0, bytes(expected)
        for _ in range(2):
            try:
                try:
                    await mount.files.write(handle_id, place, data)
                finally:
                    await mount.close(handle_id)
            except FsError as error:
                self._take_error(error)
                break
            expected[place : place + len(data)] = data
            handle_id = (await mount.files.open(inode.inode_id, os.O_RDWR, OWN)).handle_id
            for offset in (0, place, LARGE_CHUNK_BYTES - 500, len(expected) - 700):
                found = bytes(await mount.files.read(handle_id, offset, 1000))
                is_same = found == expected[offset : offset + 1000]
                assert is_same or cut_count != self.history.cut_count, f"{name!r} at {offset}"
            place, data = self.random.randrange(len(expected) - 100), self.random.randbytes(100)
        else:
            await mount.close(handle_id)
            self.history.large_count += 1
        mount.names.forget(inode.inode_id, 1)
        await mount.names.unlink(folder.inode_id, b"f", OWN)
        await mount.names.rmdir(ROOT_INODE_ID, name, OWN)

    # ---- scattered writes ------------------------------------------------------------------------

    async def _scatter(self, mount: Mount) -> None:
        """Write here and there in a file while earlier such writes are under way,
        and read what must be there then.
        """
        self._file_count += 1
        cut_count, name = self.history.cut_count, f"scattered-{self.name}-{self._file_count}"
        flags, is_told = os.O_RDWR | os.O_CREAT, False
        made, inode = await mount.files.create(ROOT_INODE_ID, name.encode(), 0o644, flags, OWN)
        mount.names.give(inode, lookup_count=1)
        expected, handle_id = bytearray(self.random.randint(0, SCATTERED_BYTES)), made.handle_id
        data, offset = bytes(expected), 0
        for _ in range(2):
            try:
                try:
                    for _ in range(self.random.randint(1, SCATTERED_COUNT_MAX)):
                        await mount.files.write(handle_id, offset, data)
                        expected.extend(bytes(max(0, offset - len(expected))))
                        expected[offset : offset + len(data)] = data
                        data = self.random.randbytes(self.random.randint(1, 500))
                        offset = self.random.randrange(SCATTERED_BYTES)
                        if self.random.random() < 0.5:
                            await trio.sleep(self.random.choice([0.0, 0.0005]))
                finally:
                    await mount.close(handle_id)
            except FsError as error:
                self._take_error(error)
                is_told = True
                break
            handle_id = (await mount.files.open(inode.inode_id, os.O_RDWR, OWN)).handle_id
            found = bytes(await mount.files.read(handle_id, 0, 2 * SCATTERED_BYTES))
            assert found == expected or cut_count != self.history.cut_count, name
        if not is_told:
            await mount.close(handle_id)
            self.history.scattered_count += 1
        mount.names.forget(inode.inode_id, 1)
        await mount.names.unlink(ROOT_INODE_ID, name.encode(), OWN)

    # ---- what is begun ---------------------------------------------------------------------------

    async def _found(self, mount: Mount, path: str) -> InodeId:
        name = path.removeprefix("/").encode()
        if self.random.random() < BEGUN_SHARE:
            mark = mount.names.mark_now()
            reply = await self._begun(
                lambda end: mount.names.begin_lookup(ROOT_INODE_ID, name, OWN, end)
            )
            if isinstance(reply, meta_pb2.InodeRsp):
                with suppress(TakesTaskError):
                    inode = mount.names.looked_up(ROOT_INODE_ID, name, reply, mark)
                    mount.names.note_entry(ROOT_INODE_ID, name, inode, mark)
                    return inode.inode_id
        return (await mount.names.lookup(ROOT_INODE_ID, name, OWN)).inode_id

    async def _open(self, mount: Mount, inode_id: InodeId) -> Opened:
        """Open for reading; what was begun and cannot be done so is done by this task."""
        if self.random.random() < BEGUN_SHARE:
            reply = await self._begun(
                lambda end: mount.files.begin_open(inode_id, os.O_RDONLY, OWN, end)
            )
            if isinstance(reply, Opened):
                return reply
        return await mount.files.open(inode_id, os.O_RDONLY, OWN)

    async def _begun(self, begin: Callable[[Callable[..., None]], UnderWay | None]) -> Any:
        """Return what a begun request ended with; None where the usual way is to be taken."""
        ended, told = trio.Event(), list[Any]()

        def end(reply: object, error: Exception | None) -> None:
            told.append((reply, error))
            ended.set()

        call = begin(end)
        if call is None:
            return None
        self.history.begun_count += 1
        if self.random.random() < 0.1:
            await trio.sleep(self.random.uniform(0.0, 0.02))
            call.fail(GIVEN_UP)
        await ended.wait()
        ((reply, error),) = told
        if error is not None and not isinstance(error, FsError | TakesTaskError):
            raise error
        return reply
