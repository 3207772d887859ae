"""The batch interface by plain system calls: any path of a mount, or of a local disk.

Purpose: programs run unchanged where there is no mount daemon to share memory
with, and tests need no cluster.

A batch is cut into pieces of at most `PIECE_BYTES`; transfers that touch each other in one
file become one vectored system call.  The calling thread and a few helpers take pieces
until none is left, so that a slow file system has several requests at a time, while a batch
of one piece costs one system call.

Invariants: those of `batch`.  Descriptors are positioned explicitly by every call, so a forked
child may use those that it inherited; only the helper threads are made anew there.

What this module does not do: share memory with another process,
buffer, read ahead (the kernel does).
"""

import errno
import mmap
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from .batch import (
    BatchFile,
    OpenMode,
    Transfer,
    listed,
    need_bytes,
    need_mode,
    need_offset,
    need_size,
    need_view,
    no_transfer,
    transfer_error,
)
from .closing import Closing, Memory, OfOneProcess, in_use, shown

HELPERS_DEFAULT = 7
PIECE_BYTES = 4 << 20
"""Large enough to hide the cost of a call,
small enough that one large transfer uses all threads.
"""

BUFFERS_PER_CALL = min(1024, os.sysconf("SC_IOV_MAX"))

_FLAGS = {
    "r": os.O_RDONLY,
    "r+": os.O_RDWR,
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}
NEW_FILE_MODE = 0o666
"""Less what the umask takes."""


def open_flags(mode: OpenMode) -> int:
    """Return the flags of open(2); raises ValueError: no such mode."""
    need_mode(mode)
    return _FLAGS[mode] | os.O_CLOEXEC


def close_descriptor(descriptor: int, path: str) -> None:
    """Close a descriptor; a network file system may say only now
    that it could not write (ENOSPC, EDQUOT, EIO).
    """
    try:
        os.close(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def loses_nothing(error: OSError, *, can_write: bool) -> bool:
    """Tell whether a failed close means nothing: the mount has gone,
    and by this file nothing could have been written.
    """
    return error.errno == errno.ENOTCONN and not can_write


class PosixFile(OfOneProcess):
    """An open descriptor; see `batch.BatchFile`."""

    def __init__(self, path: str, mode: OpenMode, forget: Callable[["PosixFile"], None]) -> None:
        self.path = path
        self._forget = forget
        self._descriptor = -1
        self._descriptor = os.open(path, open_flags(mode), NEW_FILE_MODE)
        if mode == "r" and stat.S_ISDIR(os.fstat(self._descriptor).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._can_write = mode != "r"
        self._is_unsynced = mode in {"w", "x"}

    def __del__(self) -> None:
        if self._descriptor >= 0:  # nobody has closed it, nor its client
            with suppress(OSError):  # nobody is there to be told
                os.close(self._descriptor)

    def __repr__(self) -> str:
        return shown(self, repr(self.path), is_closed=self._descriptor < 0)

    def descriptor(self) -> int:
        """Return the descriptor.

        Raises:
            OSError: EBADF, the file is closed.
        """
        if self._descriptor < 0:
            raise OSError(errno.EBADF, "the file is closed", self.path)
        return self._descriptor

    def note_write(self) -> None:
        """Remember that `close` has something to make durable."""
        self._is_unsynced = True

    def length(self) -> int:
        """Return the bytes in the file now."""
        return os.fstat(self.descriptor()).st_size

    def fsync(self) -> None:
        """Return when all bytes written through this file would survive a power loss."""
        self._is_unsynced = False
        try:
            os.fsync(self.descriptor())
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None

    def close(self) -> None:
        """Sync what was written and close the descriptor, which is closed even if that fails."""
        if self._descriptor < 0:
            return
        self._forget(self)
        try:
            if self._is_unsynced:
                self.fsync()
        finally:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                close_descriptor(descriptor, self.path)
            except OSError as error:
                if not loses_nothing(error, can_write=self._can_write):
                    raise


class PosixIov(Memory):
    """Memory of this process alone: a forked child has a copy of its own."""

    def __init__(self, size: int) -> None:
        need_size(size)
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self._map)

    def __repr__(self) -> str:
        is_closed = self._map.closed
        size = "" if is_closed else f"of {len(self.view)} bytes"
        return shown(self, size, is_closed=is_closed)

    def close(self) -> None:
        """Give the memory back; twice is harmless.

        Raises:
            BufferError: views of it are still in use.
        """
        if self._map.closed:
            return
        self.view.release()
        try:
            self._map.close()
        except BufferError:
            self.view = memoryview(self._map)
            raise in_use(len(self._map)) from None


@dataclass(slots=True)
class Piece:
    """Neighbouring bytes of one file: one system call, more only if the kernel stops half way.

    `parts` are (index of the transfer, its bytes), in the order of the file.
    """

    file: PosixFile
    offset: int
    parts: list[tuple[int, memoryview]]


def cut(transfers: Sequence[Transfer]) -> list[Piece]:
    """Return the pieces of a batch by file and offset;
    every byte of every transfer is in exactly one.
    """
    order = sorted(
        range(len(transfers)), key=lambda i: (id(transfers[i].file), transfers[i].offset)
    )
    pieces: list[Piece] = []
    end, room = -1, 0
    for index in order:
        transfer = transfers[index]
        file, buffer, begin = _own(transfer.file), _bytes_of(transfer), transfer.offset
        while buffer:
            piece = pieces[-1] if pieces else None
            if (
                piece is None
                or piece.file is not file
                or begin != end
                or room == 0
                or len(piece.parts) == BUFFERS_PER_CALL
            ):
                piece, room = Piece(file, begin, []), PIECE_BYTES
                pieces.append(piece)
            part, buffer = buffer[:room], buffer[room:]
            piece.parts.append((index, part))
            begin = end = begin + len(part)
            room -= len(part)
    return pieces


def _own(file: BatchFile) -> PosixFile:
    if not isinstance(file, PosixFile):
        raise TypeError(f"{file!r} was not opened by a PosixClient")
    return file


def _checked(transfer: Transfer) -> Transfer:
    if not isinstance(transfer, Transfer):
        raise no_transfer(transfer)
    return transfer


def _bytes_of(transfer: Transfer) -> memoryview:
    buffer = _checked(transfer).buffer
    path = _own(transfer.file).path
    need_view(path, buffer)
    need_offset(path, transfer.offset)  # preadv and pwritev take -1 for where the descriptor stands
    need_bytes(path, buffer)
    return buffer


def _single_parts(piece: Piece) -> list[Piece]:
    pieces, begin = [], piece.offset
    for index, part in piece.parts:
        pieces.append(Piece(piece.file, begin, [(index, part)]))
        begin += len(part)
    return pieces


def _advance(buffers: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left of the buffers after `count` bytes."""
    for number, buffer in enumerate(buffers):
        if count < len(buffer):
            return [buffer[count:], *buffers[number + 1 :]]
        count -= len(buffer)
    return []


def _read_piece(piece: Piece) -> int:
    """Fill the piece's buffers; return how many bytes there were."""
    done, buffers = 0, [part for _, part in piece.parts]
    while buffers:
        count = os.preadv(piece.file.descriptor(), buffers, piece.offset + done)
        if count == 0:
            break
        done += count
        buffers = _advance(buffers, count)
    return done


def _write_piece(piece: Piece) -> int:
    done, buffers = 0, [part for _, part in piece.parts]
    while buffers:
        count = os.pwritev(piece.file.descriptor(), buffers, piece.offset + done)
        if count == 0:
            raise OSError(errno.EIO, "the file system writes nothing and reports no error")
        done += count
        buffers = _advance(buffers, count)
    return done


class _Run:
    """One batch on its way: pieces waiting, pieces done, failures by transfer.

    Any number of threads work on it.
    """

    def __init__(self, act: Callable[[Piece], int], pieces: list[Piece]) -> None:
        self._act = act
        self._waiting = deque(pieces)
        self.done: list[tuple[Piece, int]] = []
        self.failures: dict[int, OSError] = {}

    def work(self) -> None:
        """Take pieces until none is left."""
        while True:
            try:
                piece = self._waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                self.done.append((piece, self._act(piece)))
            except OSError as error:
                if len(piece.parts) > 1:  # one of them failed: the others are to be done
                    self._waiting.extend(_single_parts(piece))
                else:
                    ((index, _),) = piece.parts
                    number = error.errno or errno.EIO
                    is_ours = error.filename is not None  # such as of a file that was closed
                    said = error if is_ours else transfer_error(number, piece.file.path)
                    self.failures[index] = said

    def waiting(self) -> int:
        """Return how many pieces no thread has taken."""
        return len(self._waiting)

    def stop(self) -> None:
        """Let no thread begin another piece."""
        self._waiting.clear()


class PosixClient(Closing):
    """See `batch.BatchClient`.

    Args:
        helpers: threads besides the calling one that work on a batch; 0: none.
    """

    def __init__(self, helpers: int = HELPERS_DEFAULT) -> None:
        self._helpers = helpers
        self._files: set[PosixFile] = set()
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        return shown(self, f"with {self._helpers} helpers", is_closed=self._is_closed)

    def __reduce__(self) -> tuple[type["PosixClient"], tuple[int]]:
        return PosixClient, (self._helpers,)  # files and threads are of this process

    def open(self, path: str | os.PathLike[str], mode: OpenMode = "r") -> PosixFile:
        """Open a file.

        Raises:
            OSError: as `open` of the standard library, with errno and path.
            ValueError: a mode that does not exist.
        """
        path = os.fspath(path)
        if self._is_closed:
            raise OSError(errno.EBADF, "this client is closed", path)
        file = PosixFile(path, mode, self._files.discard)
        self._files.add(file)
        return file

    def allocate(self, size: int) -> PosixIov:
        """Return `size` (>= 1) zeroed bytes; raises OSError."""
        if self._is_closed:
            raise OSError(errno.EBADF, "this client is closed")
        return PosixIov(size)

    def read(self, transfers: Iterable[Transfer]) -> list[int]:
        """Fill the buffers; return for each how many bytes were read:
        fewer than asked for only at the end of the file.

        Raises:
            OSError: the first failure by position, with errno and the file's path.
        """
        transfers = listed(transfers)
        for transfer in transfers:
            if _bytes_of(transfer).readonly:
                raise TypeError(f"a buffer for {transfer.file.path!r} is read-only")
        counts = [0] * len(transfers)
        ended = [False] * len(transfers)
        for piece, done in self._run(_read_piece, transfers):
            left = done
            for index, part in piece.parts:
                count = min(left, len(part))
                left -= count
                if not ended[index]:
                    counts[index] += count
                    ended[index] = count < len(part)
        return counts

    def write(self, transfers: Iterable[Transfer]) -> None:
        """Write the buffers; durable after `BatchFile.fsync` or `close`.

        Overlapping writes of one call: any order.

        Raises:
            OSError: as `read`.
        """
        transfers = listed(transfers)
        files = {_own(_checked(transfer).file) for transfer in transfers}
        try:
            self._run(_write_piece, transfers)
        finally:
            # Not before: what another thread syncs meanwhile need not be all of it.
            for file in files:
                file.note_write()

    def close(self) -> None:
        """Close its files and end its threads; twice is harmless.

        Raises:
            OSError: the first failure to make a file durable; all are closed all the same.
        """
        self._is_closed = True
        pool = self._pools.pop(os.getpid(), None)
        if pool:
            pool.shutdown()
        failed: OSError | None = None
        for file in list(self._files):
            try:
                file.close()
            except OSError as error:
                failed = failed or error
        if failed:
            raise failed

    def _run(
        self, act: Callable[[Piece], int], transfers: Sequence[Transfer]
    ) -> list[tuple[Piece, int]]:
        """Do every piece; return them, in the order of the files, with the bytes done."""
        run = _Run(act, cut(transfers))
        helpers: list[Future[None]] = []
        try:
            with suppress(RuntimeError):
                # The interpreter ends: no thread can be had, and this one does all.
                for _ in range(min(self._helpers, run.waiting() - 1)):
                    helpers.append(self._pool().submit(run.work))  # noqa: PERF401 - those begun are awaited
            run.work()
        finally:
            run.stop()
            for helper in helpers:
                if not helper.cancel():
                    helper.result()
        if run.failures:
            raise run.failures[min(run.failures)]
        return sorted(run.done, key=lambda done: done[0].offset)

    def _pool(self) -> ThreadPoolExecutor:
        """Return this process's helpers: a forked child has none of its parent's threads."""
        found = self._pools.get(os.getpid())
        if found is None:
            # An executor has no thread before its first task: one too many costs nothing.
            made = ThreadPoolExecutor(self._helpers, "emberfs-posix")
            found = self._pools.setdefault(os.getpid(), made)
        return found
