"""System calls of programs on one mount, as fs/fuse of Linux 6 does them with what it keeps
of it (`page_cache`).
"""

import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, Final, NamedTuple

import trio

from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.protocol import Opcode, OpenFlag, SetattrField
from fs.client.fuse.direct.server import Server
from fs.client.fuse.system_calls import OTHERWISE

from .page_cache import (
    PAGE_BYTES,
    REQUEST_PAGES_MAX,
    ROOT,
    Caches,
    Node,
    OpenFile,
    Page,
    S,
    attributes_in,
)

LISTING_BYTES: Final = 4096
"""Of one READDIRPLUS."""
DIRECT_BYTES: Final = (16 * 1024, 64 * 1024, 1 << 20)
"""Of one request of O_DIRECT, at most: the kernel takes as many pages as it gets hold of."""
_STALE_TRIES: Final = 2
_FIRST_OPENER: Final = 1000
"""Threads in open(2) have numbers from here on."""
_FIRST_HOLDER: Final = 1_000_000
"""Those that hold files, too."""
_HOLE_KEEPS_SIZE: Final = 3
"""FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE."""


class Held(NamedTuple):
    """A file that a thread has opened with O_PATH."""

    node: Node
    name: bytes
    thread_id: int


class ModelKernel(Caches):
    """One mount as programs see it; its methods are their system calls and raise OSError."""

    def __init__(self, *args: Any) -> None:
        """See Caches."""
        super().__init__(*args)
        self._calls: dict[int, bool] = {}
        """By thread that is in open(2), whether it does nothing but open for reading."""
        self._holders = count(_FIRST_HOLDER)
        self.open_files: dict[OpenFile, None] = {}
        """What is to be closed."""

    # ---- system calls: names ---------------------------------------------------------------------

    async def stat(self, name: bytes) -> int:
        """Return the size of a file."""
        node = await self._look_up(name)
        node.open_count += 1
        try:
            return (await self._update_attributes(node))[0]
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            again = await self._look_up(name, must_ask=True)
            return (await self._update_attributes(again))[0]
        finally:
            node.open_count -= 1

    async def rename(self, old: bytes, new: bytes) -> None:
        """rename(2)."""
        await self._look_up(old)
        with suppress(FileNotFoundError):
            await self._look_up(new)
        body = p.RENAME2_IN.pack(ROOT, 0, 0) + old + b"\0" + new + b"\0"
        async with self._directory_lock:
            await self._ask(Opcode.RENAME2, ROOT, body)
            self._moved(old, new)

    def _moved(self, old: bytes, new: bytes) -> None:
        moved = self._names.pop((ROOT, old), None)
        self._forget_name(new)
        if moved is not None:
            self._names[ROOT, new] = moved

    async def _by_name(
        self, name: bytes, act: Callable[[Node], Awaitable[None]], *, may_be_by_file: bool = True
    ) -> None:
        """Do something to what a name leads to; looked up again if that turns out
        to be out of date.

        Where it is open here, and might be meant by a descriptor for all that a mount is told,
        nothing tells it that the name was listed a moment ago and leads elsewhere by now (decision
        0124): so programs look first.
        """
        for tries_left in reversed(range(_STALE_TRIES)):
            listed = self.nodes.get(self._names.get((ROOT, name), (0, 0.0))[0])
            is_open = may_be_by_file and listed is not None and listed.open_count > 0
            node = await self._look_up(name, must_ask=is_open or not tries_left)
            node.open_count += 1
            try:
                return await act(node)
            except OSError as error:
                if error.errno != errno.ESTALE or not tries_left:
                    raise
            finally:
                node.open_count -= 1
        return None

    async def link(self, old: bytes, new: bytes) -> None:
        """link(2)."""

        async def act(node: Node) -> None:
            async with self._directory_lock:
                body = p.LINK_IN.pack(node.node_id) + new + b"\0"
                reply = await self._ask(Opcode.LINK, ROOT, body)
                await self._take_entry(reply, 0, self._version, (ROOT, new))
            self._changed(node)
            node.is_invalid = True

        await self._by_name(old, act)

    async def unlink(self, name: bytes) -> None:
        """unlink(2)."""
        await self._look_up(name)
        async with self._directory_lock:
            await self._ask(Opcode.UNLINK, ROOT, name + b"\0")
            self._forget_name(name)

    def _forget_name(self, name: bytes) -> None:
        node_id, _ = self._names.pop((ROOT, name), (0, 0.0))
        if (node := self.nodes.get(node_id)) is not None:
            self._changed(node)
            node.is_invalid = True

    async def listing(self, pause: Callable[[], float]) -> None:
        """List the directory with attributes, some entries at a time,
        with pauses of the program.
        """
        reply = await self._ask(Opcode.OPENDIR, ROOT, p.OPEN_IN.pack(0, 0))
        handle_id, cookie = p.OPEN_OUT.unpack_from(reply)[0], 0
        while True:
            async with self._directory_lock:
                next_cookie = await self._list_some(handle_id, cookie)
            if next_cookie == cookie:
                break
            cookie = next_cookie
            await trio.sleep(pause())
        await self._ask(Opcode.RELEASEDIR, ROOT, p.RELEASE_IN.pack(handle_id, 0, 0, 0))

    async def _list_some(self, handle_id: int, cookie: int) -> int:
        """Take in what one READDIRPLUS tells; return where the next one begins."""
        version, start = self._version, 0
        body = p.READ_IN.pack(handle_id, cookie, LISTING_BYTES, 0, 0, 0, 0)
        reply = await self._ask(Opcode.READDIRPLUS, ROOT, body)
        while start < len(reply):
            head = start + p.ENTRY_OUT.size + p.ATTR.size
            _, cookie, length, _ = p.DIRENT.unpack_from(reply, head)
            name = reply[head + p.DIRENT.size : head + p.DIRENT.size + length]
            if p.ENTRY_OUT.unpack_from(reply, start)[0]:
                await self._take_entry(reply, start, version, (ROOT, name))
            start = head + p.DIRENT.size + p.padded(length)
        return cookie

    async def sync_names(self) -> None:
        """fsync(2) of the directory."""
        reply = await self._ask(Opcode.OPENDIR, ROOT, p.OPEN_IN.pack(0, 0))
        handle_id = p.OPEN_OUT.unpack_from(reply)[0]
        await self._ask(Opcode.FSYNCDIR, ROOT, p.FSYNC_IN.pack(handle_id, 0, 0))
        await self._ask(Opcode.RELEASEDIR, ROOT, p.RELEASE_IN.pack(handle_id, 0, 0, 0))

    # ---- system calls: open files ----------------------------------------------------------------

    async def open(self, name: bytes, flags: int) -> OpenFile:
        """open(2); O_CREAT is done as the kernel does it that looks up first."""
        with self._in_call(flags) as thread_id:
            file = await self._opened(name, flags, thread_id)
        file.name = name
        self.open_files[file] = None
        return file

    @contextmanager
    def _in_call(self, flags: int, thread_id: int = 0) -> Iterator[int]:
        """Have a thread be in open(2) meanwhile; 0: the first one that is in no call."""
        if not thread_id:
            thread_id = next(number for number in count(_FIRST_OPENER) if number not in self._calls)
        self._calls[thread_id] = not flags & OTHERWISE
        try:
            yield thread_id
        finally:
            del self._calls[thread_id]

    async def hold(self, name: bytes) -> Held:
        """open(2) with O_PATH, by a thread that does nothing else; `let_go` ends it."""
        node = await self._look_up(name, must_ask=True)
        node.open_count += 1
        return Held(node, name, next(self._holders))

    def let_go(self, held: Held) -> None:
        """close(2) of what was opened with O_PATH."""
        held.node.open_count -= 1

    async def fail_to_open(self, held: Held) -> None:
        """open(2) of a path in which its name is followed by more: it is looked up, no more."""
        with self._in_call(os.O_RDONLY, held.thread_id):
            await self._look_up(held.name, must_ask=True, thread_id=held.thread_id)

    async def open_held(self, held: Held) -> OpenFile:
        """open(2) of the descriptor in /proc: without a look-up."""
        with self._in_call(os.O_RDONLY, held.thread_id):
            held.node.open_count += 1
            file = await self._open(held.node, os.O_RDONLY, held.thread_id)
        file.name = held.name
        self.open_files[file] = None
        return file

    def is_opening(self, thread_id: int) -> bool:
        """See SystemCalls."""
        return self._calls.get(thread_id, False)

    async def _opened(self, name: bytes, flags: int, thread_id: int) -> OpenFile:
        for tries_left in reversed(range(_STALE_TRIES)):
            try:
                node = await self._look_up(name, must_ask=not tries_left, thread_id=thread_id)
            except FileNotFoundError:
                if not flags & os.O_CREAT:
                    raise
                try:
                    return await self._create(name, flags)
                except FileExistsError:
                    continue
            node.open_count += 1
            try:
                return await self._open(node, flags & ~os.O_CREAT, thread_id)
            except OSError as error:
                node.open_count -= 1
                if error.errno != errno.ESTALE or not tries_left:
                    raise
        raise OSError(errno.ESTALE, "opened in vain")

    async def _open(self, node: Node, flags: int, thread_id: int) -> OpenFile:
        reply = await self._ask(Opcode.OPEN, node.node_id, p.OPEN_IN.pack(flags, 0), thread_id)
        handle_id, told, _ = p.OPEN_OUT.unpack_from(reply)
        file = OpenFile(node, handle_id, flags, bool(told & OpenFlag.DIRECT_IO))
        if flags & os.O_TRUNC:
            self._changed(node)
            node.size, node.is_invalid = 0, True
            await self._cut_pages(node, 0)
        elif not told & OpenFlag.KEEP_CACHE:
            await self._drop_pages(node)
        return file

    async def _create(self, name: bytes, flags: int) -> OpenFile:
        body = p.CREATE_IN.pack(flags, 0o100644, 0, 0) + name + b"\0"
        async with self._directory_lock:
            reply = await self._ask(Opcode.CREATE, ROOT, body)
            node = await self._take_entry(reply, 0, self._version, (ROOT, name))
            node.open_count += 1
        handle_id, told, _ = p.OPEN_OUT.unpack_from(reply, p.ENTRY_OUT.size + p.ATTR.size)
        file = OpenFile(node, handle_id, flags, bool(told & OpenFlag.DIRECT_IO))
        if flags & os.O_TRUNC:
            await self._cut_pages(node, 0)
        elif not told & OpenFlag.KEEP_CACHE:
            await self._drop_pages(node)
        return file

    async def close(self, file: OpenFile) -> None:
        """close(2): waits for FLUSH, not for RELEASE."""
        del self.open_files[file]
        try:
            body = p.FLUSH_IN.pack(file.handle_id, 0, 0, 0)
            await self._ask(Opcode.FLUSH, file.node.node_id, body)
        finally:
            self._nursery.start_soon(self._release, file)

    async def _release(self, file: OpenFile) -> None:
        await self._pause()
        self._end_use(file)

    async def fsync(self, file: OpenFile) -> None:
        """fsync(2)."""
        await self._ask(Opcode.FSYNC, file.node.node_id, p.FSYNC_IN.pack(file.handle_id, 0, 0))

    async def fstat(self, file: OpenFile) -> int:
        """Return the size."""
        return (await self._update_attributes(file.node))[0]

    async def mtime_of(self, file: OpenFile) -> int:
        """fstat(2), too: return the time of modification, in ns."""
        return (await self._update_attributes(file.node))[1]

    async def truncate(self, node: Node, file: OpenFile | None, size: int) -> None:
        """ftruncate(2), or truncate(2) without a file."""
        async with node.lock:
            node.is_size_unstable = True
            try:
                valid = SetattrField.SIZE | (SetattrField.FH if file else 0)
                handle_id = file.handle_id if file else 0
                body = p.SETATTR_IN.pack(valid, 0, handle_id, size, *([0] * 12))
                await self._set_attributes(node, body)
            finally:
                node.is_size_unstable = False

    async def make_hole(self, file: OpenFile, offset: int, count: int) -> None:
        """fallocate(2) with FALLOC_FL_PUNCH_HOLE: pages are emptied once the reply is there."""
        node, end = file.node, offset + count
        async with node.lock:
            body = p.FALLOCATE_IN.pack(file.handle_id, offset, count, _HOLE_KEEPS_SIZE, 0)
            await self._ask(Opcode.FALLOCATE, node.node_id, body)
            await self._empty_pages(node, offset, end)
            node.is_invalid = True

    async def _set_attributes(self, node: Node, body: bytes) -> None:
        reply = await self._ask(Opcode.SETATTR, node.node_id, body)
        valid_s, valid_ns, _ = p.ATTR_OUT.unpack_from(reply)
        told, before = attributes_in(reply, p.ATTR_OUT.size), node.size
        self._changed(node)
        node.is_invalid = False
        node.valid_until_s = trio.current_time() + valid_s + valid_ns / S
        node.size, node.mtime_ns, _ = told
        if before != told.size:
            await self._cut_pages(node, told.size)
            await self._drop_pages(node)

    async def utimes(self, name: bytes, mtime_ns: int) -> None:
        """utimensat(2), of the time of modification."""
        at_s, at_ns = divmod(mtime_ns, S)
        times = [0, 0, at_s, 0, 0, at_ns, 0, 0, 0, 0, 0, 0]  # from atime on; see SETATTR_IN
        body = p.SETATTR_IN.pack(SetattrField.MTIME, 0, 0, 0, *times)

        async def act(node: Node) -> None:
            async with node.lock:
                await self._set_attributes(node, body)

        await self._by_name(name, act)

    async def truncate_path(self, name: bytes, size: int) -> None:
        """truncate(2)."""
        await self._by_name(
            name, lambda node: self.truncate(node, None, size), may_be_by_file=False
        )

    # ---- system calls: bytes ---------------------------------------------------------------------

    async def read(self, file: OpenFile, offset: int, count: int) -> bytes:
        """pread(2)."""
        if file.is_direct:
            return await self._read_direct(file, offset, count)
        node, found = file.node, bytearray()
        await self._update_attributes(node)
        while len(found) < count and offset + len(found) < node.size:
            at = offset + len(found)
            index, start = divmod(at, PAGE_BYTES)
            page = node.pages.get(index)
            if page is None:
                self._read_pages(file, index, self._random.choice([1, 4, 32, 128]))
                continue
            if page.is_locked:
                await page.wait_unlocked()
                continue
            if not page.is_uptodate:
                await self._read_one(file, index, page)
                continue
            if self._random.random() < 0.02:
                await self._pause()  # between finding the page and copying from it
            part = page.data[start : min(PAGE_BYTES, start + count - len(found))]
            found += part[: max(0, node.size - at)]
            if self._random.random() < 0.05:
                self._read_pages(file, index + 8, 32)
        return bytes(found)

    async def _read_direct(self, file: OpenFile, offset: int, count: int) -> bytes:
        found, step = bytearray(), self._random.choice(DIRECT_BYTES)
        while len(found) < count:
            asked = min(step, count - len(found))
            body = p.READ_IN.pack(file.handle_id, offset + len(found), asked, 0, 0, 0, 0)
            part = await self._ask(Opcode.READ, file.node.node_id, body)
            found += part
            if len(part) < asked:
                break
        return bytes(found)

    def read_ahead(self, file: OpenFile, offset: int, count: int) -> None:
        """posix_fadvise(2) with WILLNEED: nobody waits for the READ."""
        if not file.is_direct:
            self._read_pages(file, offset // PAGE_BYTES, -(-count // PAGE_BYTES))

    def map(self, file: OpenFile) -> None:
        """mmap(2), for reading; what is mapped outlives its close."""
        file.use_count += 1
        file.node.open_count += 1

    def unmap(self, file: OpenFile) -> None:
        """munmap(2)."""
        file.node.open_count -= 1
        self._end_use(file)

    async def look_at_map(self, file: OpenFile, offset: int) -> bytes:
        """Return what a program finds from `offset` to the end of that page;
        raises OSError(EFAULT) where it would get SIGBUS.
        """
        node, (index, start) = file.node, divmod(offset, PAGE_BYTES)
        while True:
            if index * PAGE_BYTES >= node.size:
                raise OSError(errno.EFAULT, f"SIGBUS at {offset} of {node.size}")
            page = node.pages.get(index)
            if page is None:
                self._read_pages(file, index, self._random.choice([1, 16, 256]))
            elif page.is_locked:
                await page.wait_unlocked()
            elif not page.is_uptodate:
                await self._read_one(file, index, page)
            else:
                await self._pause()
                return bytes(page.data[start:])

    async def _read_one(self, file: OpenFile, index: int, page: Page) -> None:
        """Fill a page that is there and not up to date."""
        node = file.node
        page.lock()
        try:
            version = self._version
            body = p.READ_IN.pack(file.handle_id, index * PAGE_BYTES, PAGE_BYTES, 0, 0, 0, 0)
            reply = await self._ask(Opcode.READ, node.node_id, body)
            self._note_short(file, index * PAGE_BYTES + len(reply), PAGE_BYTES, reply, version)
            page.data[:] = reply.ljust(PAGE_BYTES, b"\0")
            page.is_uptodate = True
        finally:
            page.unlock()

    async def write(self, file: OpenFile, offset: int, data: bytes) -> None:
        """pwrite(2), all of it; of a file opened with O_APPEND, at the end."""
        node = file.node
        async with node.lock:
            if file.is_direct:
                await self._write_direct(file, offset, data)
                return
            node.is_size_unstable = offset + len(data) > node.size
            done = 0
            try:
                while done < len(data):
                    done += await self._write_pages(file, offset + done, data[done:])
            finally:
                self._note_written(node, offset + done if done else 0)
                node.is_size_unstable = False

    def _note_written(self, node: Node, end: int) -> None:
        self._changed(node)
        node.size = max(node.size, end)
        node.is_invalid = True

    async def _write_pages(self, file: OpenFile, offset: int, data: bytes) -> int:
        """Fill pages and send them as one WRITE, up to the first that is not whole or up to date;
        return the count.
        """
        node, count, filled = file.node, 0, list[Page]()
        locked: Page | None = None
        while count < len(data) and len(filled) < REQUEST_PAGES_MAX and locked is None:
            index, start = divmod(offset + count, PAGE_BYTES)
            page = node.pages.get(index)
            if page is None:
                page = node.pages[index] = Page()
            if page.is_locked:
                await page.wait_unlocked()
                continue
            part = data[count : count + PAGE_BYTES - start]
            page.data[start : start + len(part)] = part
            count += len(part)
            filled.append(page)
            if len(part) == PAGE_BYTES:
                page.is_uptodate = True
            elif not page.is_uptodate:
                page.lock()
                locked = page
        try:
            await self._send_write(file, offset, data[:count])
        except OSError:
            for page in filled:
                page.is_uptodate = False
            raise
        finally:
            if locked is not None:
                locked.unlock()
        return count

    async def _send_write(self, file: OpenFile, offset: int, data: bytes) -> None:
        head = p.WRITE_IN.pack(file.handle_id, offset, len(data), 0, 0, file.flags, 0)
        reply = await self._ask(Opcode.WRITE, file.node.node_id, head + data)
        assert p.WRITE_OUT.unpack(reply)[0] == len(data), "a short write"

    async def _write_direct(self, file: OpenFile, offset: int, data: bytes) -> None:
        node = file.node
        if file.flags & os.O_APPEND:
            offset = node.size
        first, end = offset // PAGE_BYTES, -(-(offset + len(data)) // PAGE_BYTES)
        await self._drop_pages(node, first, end)
        step = self._random.choice(DIRECT_BYTES)
        for at in range(0, len(data), step):
            await self._send_write(file, offset + at, data[at : at + step])
        self._note_written(node, offset + len(data))


class _Calls:
    """Of one kernel; see SystemCalls."""

    def __init__(self, kernel: ModelKernel) -> None:
        self.is_opening = kernel.is_opening

    def close(self) -> None:
        """Nothing is kept."""


def have_opens_ahead(server: Server, kernel: ModelKernel) -> None:
    """Have every open for reading done with its look-up, where that can be."""
    ahead = server._operations.opens_ahead
    ahead.calls, ahead.weight_expected = _Calls(kernel), 0
