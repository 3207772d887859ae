"""Iovecs and iorings as programs written for 3FS know them, over EmberFS's rings:
what `hf3fs_fuse.io` and `hf3fs_py_usrbio` offer by 3FS's names.

    shm = SharedMemory(size=..., create=True)
    iov, ring = make_iovec(shm, mount), make_ioring(mount, 128)
    register_fd(fd)
    done = ring.prepare(iov[0:4096], True, fd, 0).submit().wait(min_results=1)

What differs from 3FS: a segment of `SharedMemory` can be cut shorter by anybody, so the mount
daemon copies its bytes once, where memory of `emberfs.ring` is reached without a copy.
`numa` is accepted and not acted upon.

Rings are not thread safe; registering is.  After a fork the child has a ring of its own, on
which nothing is under way.  So it is when the mount daemon has ended one (a crash, an
unmount): `submit` or `wait` says so once (ENOTCONN), and the next `prepare` makes another, if
the mount is served then.  Memory is good again by itself; files that were open stay lost,
register those that are opened afterwards.
"""

import ctypes
import errno
import fcntl
import functools
import multiprocessing.shared_memory  # noqa: F401 - programs that import this module use that name, and do not import it
import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol, Self
from uuid import UUID

from .batch import Transfer
from .ior import Result
from .iov import SharedIov
from .mount_points import get_mount_point
from .protocol import ENTRY_COUNT_MAX, EntryFlag, Op, Priority, ring_bytes
from .ring import RingClient
from .ring_file import RingFile

_FALLOC_PUNCH_HOLE: Final = 0x03
"""KEEP_SIZE and PUNCH_HOLE of fallocate(2)."""


class IorPriority:
    """Of a ring."""

    HIGH = -1
    NORMAL = 0
    LOW = 1


class Segment(Protocol):
    """What is looked at of a `SharedMemory`."""

    @property
    def name(self) -> str:
        """Of the file in /dev/shm."""

    @property
    def buf(self) -> Any:
        """Its bytes."""


class iovec:  # noqa: N801 - the name that programs know
    """Memory for transfers, or a slice of it; made by `make_iovec`.

    Its bytes are those of the array that it is mixed with.

    The daemon lets go of it when nothing refers to it or its slices any more.
    """

    _iov: SharedIov
    _start: int
    block_size: int
    result: int | None = None
    """Once it comes out of `wait`: bytes moved, or a negative errno."""
    userdata: Any = None

    @property
    def iov(self) -> memoryview:
        """Its bytes, for programs that fill them by this name."""
        return self._view()

    @property
    def base_off(self) -> int:
        """Where it begins in the segment that it is a slice of."""
        return self._start

    def __repr__(self) -> str:
        end = "" if self.result is None else f", result {self.result}"
        return f"<iovec of {len(self._view())} bytes at {self._start}{end}>"

    def close(self) -> None:
        """Do nothing: see the class."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _view(self) -> memoryview:
        return memoryview(self).cast("B")  # type: ignore[arg-type]  # the other base is an array

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, slice):
            return self._view()[key]
        length = len(self._view())
        start, stop, step = key.indices(length)
        if step != 1:
            raise ValueError("a slice of an iovec has no step")
        return _part(self._iov, self._start + start, max(0, stop - start), self.block_size)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._view()[key] = value


@functools.lru_cache(maxsize=4096)
def _iovec_type(length: int) -> Any:
    return type("iovec", (iovec, ctypes.c_ubyte * length), {})


def _part(iov: SharedIov, start: int, length: int, block_size: int) -> Any:
    part = _iovec_type(length).from_buffer(iov.view, start)
    part._iov, part._start, part.block_size = iov, start, block_size  # noqa: SLF001 - made here
    return part


class ioring:  # noqa: N801 - the name that programs know
    """A ring for reads, or for writes."""

    def __init__(
        self,
        client: RingClient,
        entries: int,
        *,
        for_read: bool,
        io_depth: int,
        priority: int | None,
        timeout: float | timedelta | None,
        flags: int,
    ) -> None:
        """See `make_ioring`."""
        order = priority or 0
        if isinstance(timeout, timedelta):
            timeout_s = timeout.total_seconds()
        else:
            timeout_s = (timeout or 0) / 1000
        self._make = functools.partial(
            client.ring,
            min(entries, ENTRY_COUNT_MAX),
            depth=io_depth,
            timeout_s=timeout_s,
            priority=Priority.HIGH if order < 0 else Priority.LOW if order else Priority.NORMAL,
        )
        self._begin()
        self._client = client
        self._op = Op.READ if for_read else Op.WRITE
        self._flags = EntryFlag(flags)

    def _begin(self) -> None:
        """Have a ring of this process, on which nothing is under way."""
        self._ring = self._make()
        self._pid = os.getpid()
        self._is_lost = False
        self._under_way: dict[int, Any] = {}
        self._number = 0

    def _begin_again_if_needed(self) -> None:
        """Have another ring in a child, and where the daemon ended this one:
        not before its loss was told, if anything was on it.
        """
        ring = self._ring
        if self._pid != os.getpid():
            self._begin()
        elif not ring.is_closed and (
            self._is_lost or (ring.connection.has_ended and ring.free_count == ring.entry_count)
        ):
            self._begin()
            ring.abandon()

    def _note_loss(self, error: OSError) -> None:
        """Keep in mind that it was told that the daemon has ended this ring."""
        if error.errno == errno.ENOTCONN:
            self._is_lost = True

    @staticmethod
    def size_for_entries(entries: int) -> int:
        """Return the bytes of a ring's memory."""
        return ring_bytes(entries)

    def __repr__(self) -> str:
        return f"<ioring for {'reads' if self._op is Op.READ else 'writes'} over {self._ring!r}>"

    @property
    def ior(self) -> Self:
        """Itself, as `iovec.iov`."""
        return self

    @property
    def entries(self) -> int:
        """How many transfers may be under way."""
        return self._ring.entry_count

    def prepare(self, iov: Any, read: bool, fd: int, off: int, userdata: Any = None) -> Self:
        """Add one transfer between an iovec, or a slice of one, and a registered descriptor.

        Raises:
            OSError: EINVAL: no iovec, across a block, the wrong kind of ring, or of another
                mount; EBADF: not registered; EACCES: opened for something else; EAGAIN: the
                ring is full; ENOTCONN: nobody serves the mount now, or the descriptor was
                open when its daemon went.
        """
        self._begin_again_if_needed()
        if not isinstance(iov, iovec) or off < 0 or read != (self._op is Op.READ):
            raise self._misfit(iov, read, off)
        length = len(iov._view())  # noqa: SLF001 - one module
        start, block_size = iov._start, iov.block_size  # noqa: SLF001
        if block_size and length and start % block_size + length > block_size:
            what = f"bytes {start} to {start + length} of the iovec cross a block of {block_size}"
            raise OSError(errno.EINVAL, what, self._ring.connection.path)
        file = _registered(fd)
        unwanted = os.O_WRONLY if read else os.O_RDONLY
        if fcntl.fcntl(file.fileno(), fcntl.F_GETFL) & os.O_ACCMODE == unwanted:
            what = f"descriptor {fd} was opened for {'writing' if read else 'reading'} alone"
            raise OSError(errno.EACCES, what, file.path)
        if not self._client.daemon is file.daemon is iov._iov.daemon:  # noqa: SLF001
            what = f"descriptor {fd}, iovec and ring are not of the same mount"
            raise OSError(errno.EINVAL, what, file.path)
        part = _part(iov._iov, start, length, block_size)  # noqa: SLF001
        part.userdata = userdata
        self._ring.prepare(
            self._op, file, off, iov._iov, start, length,  # noqa: SLF001
            user_data=self._number, flags=self._flags,
        )  # fmt: skip
        self._under_way[self._number] = part
        self._number += 1
        return self

    def _misfit(self, iov: Any, read: bool, off: int) -> OSError:
        """Return the error that says what of this does not fit the ring."""
        is_for_read = self._op is Op.READ
        if not isinstance(iov, iovec):
            what = f"{type(iov).__name__} in place of what make_iovec returns, or a slice of it"
        elif off < 0:
            what = f"offset {off}"
        else:
            what = f"read={read} on a ring that was made with for_read={is_for_read}"
        return OSError(errno.EINVAL, what, self._ring.connection.path)

    def submit(self) -> Self:
        """Hand in what was prepared; raises OSError: ENOTCONN:
        the daemon has gone, and what was prepared is dropped.
        """
        if self._pid == os.getpid():  # what was prepared before a fork is the parent's to hand in
            try:
                self._ring.submit()
            except OSError as error:
                self._note_loss(error)
                raise
        return self

    def wait(
        self, *, max_results: int = 0, min_results: int = 0, timeout: timedelta | None = None
    ) -> list[Any]:
        """Return iovecs that are done, with `result` and `userdata`.

        Args:
            max_results: return no more; less than `min_results`, as by default: no more
                than those, but one at least.
            min_results: wait for so many of those that are under way; 0: for none.
            timeout: then return what there is.

        Raises:
            OSError: ENOTCONN: the daemon has gone; what was under way may be
                done or not, and is forgotten.
        """
        if not isinstance(timeout, timedelta | None):
            raise TypeError(f"timeout={timeout!r} of wait is no datetime.timedelta")
        if self._pid != os.getpid():
            return []
        try:
            found: list[Result] = self._ring.wait(
                min(min_results, self._ring.outstanding),
                max_results=max(max_results, min_results, 1),
                timeout_s=timeout.total_seconds() if timeout is not None else None,
            )
        except OSError as error:
            self._note_loss(error)
            raise
        done = []
        for user_data, result in found:
            part = self._under_way.pop(user_data)
            part.result = result
            done.append(part)
        return done

    def close(self) -> None:
        """Give the ring up; twice is harmless."""
        self._ring.close()

    destroy = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        ring = getattr(self, "_ring", None)
        if ring is None:
            return
        if ring.outstanding:
            ring.close()
        else:
            ring.abandon()  # waits for nothing, wherever this runs; the daemon hears it


# ---- registering ---------------------------------------------------------------------------------

_lock = threading.Lock()
_clients: dict[str, RingClient] = {}
_files: dict[int, RingFile] = {}


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def client_of(mount_point: str | os.PathLike[str]) -> RingClient:
    """Return what all of this process share that use a mount; raises OSError as `RingClient`."""
    path = os.path.realpath(mount_point)
    with _lock:
        client = _clients.get(path)
        if client is None:
            client = _clients[path] = RingClient(path)
        return client


def _registered(fd: int) -> RingFile:
    file = _files.get(fd)
    if file is None:
        what = f"descriptor {fd} is not registered: register_fd({fd}) comes first"
        raise OSError(errno.EBADF, what, _path_of(fd))
    return file


def _path_of(fd: int) -> str | None:
    """Return what the kernel calls a descriptor's file; None: there is no such descriptor."""
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    except FileNotFoundError:
        return None


def extract_mount_point(path: str | os.PathLike[str]) -> str | None:
    """Return the mount point that a path is on; None where it is on no EmberFS mount."""
    try:
        return get_mount_point(path)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return None


def make_iovec(
    shm: Segment, hf3fs_mount_point: str | os.PathLike[str], block_size: int = 0, numa: int = -1
) -> Any:
    """Return a shared segment as an iovec; the segment may be unlinked then.

    Args:
        shm: a `multiprocessing.shared_memory.SharedMemory`.
        hf3fs_mount_point: of the files that it will be used for.
        block_size: no transfer may cross a multiple of it; 0: any may.
        numa: accepted, see module head.
    """
    del numa
    fd = os.open(f"/dev/shm/{shm.name.lstrip('/')}", os.O_RDWR | os.O_CLOEXEC)  # noqa: S108 - where segments are
    try:
        size = len(shm.buf)
        iov = client_of(hf3fs_mount_point).share(fd, size, block_size=block_size)
    finally:
        os.close(fd)
    return _part(iov, 0, size, block_size)


def find_iovec(number: str | UUID, hf3fs_mount_point: str | os.PathLike[str]) -> Any:
    """Return a segment as an iovec that a program of this user has registered by a link
    in `3fs-virt/iovs`; the segment may be unlinked by then.

    Args:
        number: the UUID that the link is called by.
        hf3fs_mount_point: of the files that it will be used for; it offers `3fs-virt`.

    Raises:
        OSError: ENOENT: none has, or the mount offers no such directory.
        ValueError: no UUID.
    """
    number = number if isinstance(number, UUID) else UUID(number)
    iov = client_of(hf3fs_mount_point).segment(number.bytes)
    return _part(iov, 0, len(iov.view), iov.block_size)


def make_ioring(  # noqa: PLR0917 - the signature that programs know
    hf3fs_mount_point: str | os.PathLike[str],
    entries: int,
    for_read: bool = True,
    io_depth: int = 0,
    priority: int | None = None,
    timeout: float | timedelta | None = None,
    numa: int = -1,
    *flags_last: int,
    flags: int = 0,
) -> ioring:
    """Return a ring.

    Args:
        hf3fs_mount_point: of the files that it will be used for.
        entries: transfers that may be under way; more than 65,536 are as many.
        for_read: it reads; otherwise it writes.
        io_depth: what is done at once; 0: whatever is there; n > 0: exactly n; -n: at most n.
        priority: see `IorPriority`.
        timeout: with a negative depth, how long fewer may wait for more; a number is milliseconds.
        numa: accepted, see module head.
        flags_last: the same as `flags`, without its name.
        flags: 1: reads may be ahead of some replicas; 2: holes are errors (ENODATA).
    """
    del numa
    (flags,) = flags_last or (flags,)
    return ioring(
        client_of(hf3fs_mount_point),
        entries,
        for_read=for_read,
        io_depth=io_depth,
        priority=priority,
        timeout=timeout,
        flags=flags,
    )


def register_fd(fd: int, flags: int = 0) -> None:
    """Let rings use an open descriptor (`flags` mean nothing);
    raises OSError: EINVAL: they may already, EBADF: it is on no EmberFS mount.
    """
    del flags
    path = _path_of(fd)
    if path is None:
        raise OSError(errno.EBADF, f"descriptor {fd} is not open")
    if fd in _files:
        raise OSError(errno.EINVAL, f"descriptor {fd} is registered already", path)
    try:
        client = client_of(get_mount_point(path))
        file = client.adopt(path, os.dup(fd))
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        raise OSError(errno.EBADF, error.strerror, path) from error
    with _lock:
        _files[fd] = file


def deregister_fd(fd: int) -> None:
    """Let rings use a descriptor no more; to be done before it is closed.

    Raises OSError for a write that failed.
    """
    with _lock:
        file = _files.pop(fd, None)
    if file is not None:
        file.close()


def force_fsync(fd: int) -> int:
    """Make what was written durable, and the length exact for everybody; return 0."""
    os.fsync(fd)
    return 0


def hardlink(target: str | os.PathLike[str], link_name: str | os.PathLike[str]) -> None:
    """Give a file a further name."""
    os.link(target, link_name)


def punch_hole(
    file: int | str | os.PathLike[str], start: Sequence[int], end: Sequence[int], flags: int = 0
) -> None:
    """Make the bytes of each [start, end) of a descriptor's file, or of one by path, read as zeros;
    whole chunks take no space.
    """
    del flags
    if not isinstance(file, int):
        fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        try:
            punch_hole(fd, start, end)
        finally:
            os.close(fd)
        return
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    for first, last in zip(start, end, strict=True):
        if fallocate(file, _FALLOC_PUNCH_HOLE, first, last - first):
            number = ctypes.get_errno()
            what = f"{os.strerror(number)}: a hole from {first} to {last}"
            raise OSError(number, what, _path_of(file))


def read_file(  # noqa: PLR0917 - the signature that programs know
    fn: str | os.PathLike[str],
    hf3fs_mount_point: str | os.PathLike[str] | None = None,
    block_size: int = 1 << 30,
    off: int = 0,
    priority: int | None = None,
    cb: Callable[[memoryview, int], Any] | None = None,
) -> bytes | None:
    """Read a file from `off` to its end, in blocks.

    Args:
        fn: path of the file.
        hf3fs_mount_point: where it is; default: found.
        block_size: read at once, at the most.
        off: where to begin.
        priority: accepted; the rings behind have the normal one.
        cb: called with each block, good until it returns, and its offset; then
            nothing is returned.  An integer that it returns is the offset to go on
            at, anything else that is true ends it.
    """
    del priority
    client = client_of(hf3fs_mount_point or get_mount_point(fn))
    parts: list[bytes] = []
    take = cb or (lambda block, _off: parts.append(bytes(block)))
    with client.open(os.fspath(fn)) as file:
        length = file.length()
        with client.allocate(max(1, min(block_size, length - off))) as iov:
            while off < length:
                with iov.view[: length - off] as block:
                    (count,) = client.read([Transfer(file, off, block)])
                    with block[:count] as done:
                        wish = take(done, off)
                if not count or (wish and type(wish) is not int):
                    break
                off = wish if type(wish) is int else off + count
    return None if cb is not None else b"".join(parts)
