"""Memory that programs written for 3FS register by a link in `3fs-virt/iovs`:
`UUID[.bBLOCK_SIZE]` -> `/dev/shm/NAME`.

The daemon opens the segment while the link is being made, so that the program may unlink the
segment at once.  Programs of the same user get it by its UUID (`batchio`).  From there on it is
like all memory that a program brings.

Invariants:
    - A link is there for the user alone who has made it; another one may make one of the same name.
    - A segment is a regular file of memory in /dev/shm itself that belongs to that
      user.  It is never mapped here.
    - A registration ends with its link, or with the process that has made it, however that ends.

Not here: rings, which are registered at the daemon's socket
(`specs/decisions/0185-tree-of-3fs.md`).
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import trio

from ...schema.ids import InodeId
from ...schema.lacks import is_lack
from ...schema.status import FsError, Status
from .shared import Shared

ALL_USERS_FACTOR: Final = 4
"""All users together may have as many times `client.hf3fs_segments_max`."""

_PLACE: Final = b"/dev/shm/"
_HEX: Final = rb"[0-9a-f]"
_NAME: Final = re.compile(
    rb"(%b{32}|%b{8}-%b{4}-%b{4}-%b{4}-%b{12})((?:\.[a-z]+[0-9]*)*)" % ((_HEX,) * 6)
)
_BLOCK: Final = re.compile(rb"\.b([1-9][0-9]{0,9})")
_BLOCK_BYTES_MAX: Final = 2**32 - 1


class Named(NamedTuple):
    """What the name of a link says."""

    id: UUID
    block_size: int
    """No transfer may cross a multiple of it; 0: any may."""


class Opened(NamedTuple):
    """A segment, and the process that registers it."""

    fd: int
    size: int
    pid: int
    process_fd: int


@dataclass(slots=True)
class Segment:
    """One that is registered."""

    inode_id: InodeId
    id: UUID
    block_size: int
    target: bytes
    fd: int
    size: int
    pid: int


@dataclass(slots=True)
class _Process:
    names: set[tuple[int, bytes]] = field(default_factory=set)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


def parse_name(name: bytes) -> Named:
    """Return what a name in `iovs` says.

    Raises:
        FsError: NOT_SUPPORTED: it is that of a ring; INVALID_ARGUMENT: of nothing at all.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise FsError(Status.INVALID_ARGUMENT, f"{name!r}: not UUID[.bBLOCK_SIZE]")
    number, rest = UUID(found[1].decode()), found[2]
    if not rest:
        return Named(number, 0)
    block = _BLOCK.fullmatch(rest)
    if block is None:
        what = f"{name!r}: rings are registered at the socket of the mount, not here"
        raise FsError(Status.NOT_SUPPORTED, what)
    if int(block[1]) > _BLOCK_BYTES_MAX:
        raise FsError(Status.INVALID_ARGUMENT, f"{name!r}: blocks of 4 GiB or more")
    return Named(number, int(block[1]))


def segment_path(target: bytes) -> bytes:
    """Return the file that a link leads to; raises FsError(INVALID_ARGUMENT):
    it is not right in /dev/shm.
    """
    name = target.removeprefix(_PLACE)
    if name == target or not name or b"/" in name or name in (b".", b".."):
        raise FsError(Status.INVALID_ARGUMENT, f"{target!r} is not right in {_PLACE.decode()}")
    return target


def _checked_size(fd: int, path: bytes, uid: int, bytes_max: int) -> int:
    """Return the length of an open segment of a user."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise FsError(Status.INVALID_ARGUMENT, f"{path!r} is no regular file")
    if found.st_uid != uid:
        raise FsError(Status.ACCESS_DENIED, f"{path!r} belongs to user {found.st_uid}")
    if not 0 < found.st_size <= bytes_max:
        raise FsError(Status.INVALID_ARGUMENT, f"{path!r} has {found.st_size} bytes")
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise FsError(Status.INVALID_ARGUMENT, f"{path!r} is not in memory") from error
    return found.st_size


def _open_segment(path: bytes, uid: int, bytes_max: int) -> tuple[int, int]:
    """Return descriptor and length of a user's segment; may block."""
    # Not before it is known to be a file: opening others may do something.
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise FsError(Status.INVALID_ARGUMENT, f"{path!r} is no regular file")
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return fd, _checked_size(fd, path, uid, bytes_max)
    except BaseException:
        os.close(fd)
        raise


def _process_of(thread_id: int) -> int:
    """Return the id of a thread's process; raises OSError."""
    status = Path(f"/proc/{thread_id}/status").read_text(encoding="ascii", errors="replace")
    found = re.search(r"^Tgid:\s*(\d+)$", status, re.MULTILINE)
    if found is None:
        raise ProcessLookupError(errno.ESRCH, "it says nothing of its process")
    return int(found[1])


def open_segment(path: bytes, uid: int, bytes_max: int, thread_id: int) -> Opened:
    """Open a user's segment and the process of a thread of his; may block.

    Raises:
        FsError: INVALID_ARGUMENT, ACCESS_DENIED, NOT_FOUND: see the module head; NOT_SUPPORTED:
            the thread is out of sight.
    """
    try:
        pid = _process_of(thread_id)
        process_fd = os.pidfd_open(pid)
    except OSError as error:
        if is_lack(error):
            raise
        what = f"thread {thread_id}, which registers memory, is not to be seen: {error}"
        raise FsError(Status.NOT_SUPPORTED, what) from error
    try:
        fd, size = _open_segment(path, uid, bytes_max)
    except BaseException as error:
        os.close(process_fd)
        if isinstance(error, FileNotFoundError):
            raise FsError(Status.NOT_FOUND, f"{path!r} is not there") from error
        if isinstance(error, OSError) and not is_lack(error):
            raise FsError(Status.INVALID_ARGUMENT, f"{path!r}: {error.strerror}") from error
        raise
    return Opened(fd, size, pid, process_fd)


class Segments:
    """Those of one mount; see module head."""

    def __init__(
        self, core: Shared, open_segment: Callable[[bytes, int, int, int], Opened] = open_segment
    ) -> None:
        self._core = core
        self._open_segment = open_segment
        self._found: dict[int, dict[bytes, Segment]] = {}
        """By user and name."""
        self._names: dict[InodeId, tuple[int, bytes]] = {}
        self._processes: dict[int, _Process] = {}

    async def register(
        self, inode_id: InodeId, name: bytes, target: bytes, uid: int, thread_id: int
    ) -> None:
        """Register a segment for a user, as a thread of his asks,
        by a link that is to have an inode id.

        Raises:
            FsError: EXISTS: also its UUID, under another name; OUT_OF_RESOURCES: he has too many;
                as `parse_name`, `segment_path` and `open_segment`.
        """
        named, path = parse_name(name), segment_path(target)
        self._require_room(name, named.id, uid)
        opened = await trio.to_thread.run_sync(
            self._open_segment, path, uid, self._core.section.batch_memory_bytes_max, thread_id
        )
        try:
            self._require_room(name, named.id, uid)  # others may have come first
        except FsError:
            os.close(opened.process_fd)
            _close(opened.fd)
            raise
        process = self._processes.get(opened.pid)
        if process is not None:
            os.close(opened.process_fd)
        else:
            process = self._processes[opened.pid] = _Process()
            self._core.spawn(self._watch, opened.pid, process, opened.process_fd)
        process.names.add((uid, name))
        segment = Segment(inode_id, *named, target, opened.fd, opened.size, opened.pid)
        self._found.setdefault(uid, {})[name] = segment
        self._names[inode_id] = uid, name

    def _require_room(self, name: bytes, number: UUID, uid: int) -> None:
        own, count_max = self._found.get(uid, {}), self._core.section.hf3fs_segments_max
        if name in own or any(segment.id == number for segment in own.values()):
            raise FsError(Status.EXISTS, f"{name!r} is registered")
        count = sum(map(len, self._found.values()))
        if len(own) >= count_max or count >= ALL_USERS_FACTOR * count_max:
            what = f"user {uid} has {len(own)} segments registered, all have {count}"
            raise FsError(Status.OUT_OF_RESOURCES, f"{what} (client.hf3fs_segments_max)")

    async def _watch(self, pid: int, process: _Process, process_fd: int) -> None:
        """Wait for the end of a process, or of its last registration."""
        try:
            with process.scope:
                await trio.lowlevel.wait_readable(process_fd)
        finally:
            os.close(process_fd)
        if self._processes.get(pid) is process:
            for uid, name in list(process.names):
                self.drop(name, uid)

    def names(self, uid: int) -> list[bytes]:
        """Return the names of a user's links."""
        return sorted(self._found.get(uid, ()))

    def name_of(self, inode_id: InodeId, uid: int) -> bytes | None:
        """Return the name of a user's link by its inode; None: it is none of his, or has gone."""
        of_uid, name = self._names.get(inode_id, (uid, None))
        return name if of_uid == uid else None

    def find(self, name: bytes, uid: int) -> Segment:
        """Return what a user's link has registered; raises FsError(NOT_FOUND)."""
        found = self._found.get(uid, {}).get(name)
        if found is None:
            raise FsError(Status.NOT_FOUND, f"{name!r} of user {uid}")
        return found

    def find_by_id(self, number: bytes, uid: int) -> Segment:
        """Return what a user has registered by the 16 bytes of its UUID;
        raises FsError(NOT_FOUND).
        """
        for segment in self._found.get(uid, {}).values():
            if segment.id.bytes == number:
                return segment
        raise FsError(Status.NOT_FOUND, f"{UUID(bytes=number)} of user {uid}")

    def drop(self, name: bytes, uid: int) -> None:
        """End a registration; who has the segment already keeps it.  Raises FsError(NOT_FOUND)."""
        segment = self.find(name, uid)
        del self._found[uid][name], self._names[segment.inode_id]
        if not self._found[uid]:
            del self._found[uid]
        process = self._processes[segment.pid]
        process.names.discard((uid, name))
        if not process.names:
            del self._processes[segment.pid]
            process.scope.cancel()
        _close(segment.fd)


def _close(fd: int) -> None:
    """Close a segment: of one that is unlinked that may give back many pages, which takes its time;
    here, where no thread is to be had.
    """
    try:
        trio.lowlevel.start_thread_soon(partial(os.close, fd), methodcaller("unwrap"))
    except RuntimeError:
        os.close(fd)
