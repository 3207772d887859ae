"""The batch interface: many reads or writes of files in one call,
right into and out of the caller's memory.

Purpose: one interface for everything that moves many pieces at once (data loaders, checkpoints,
KV caches), with several ways below it: the mount daemon's rings in shared memory, a client inside
the process, plain system calls.

Invariants every implementation keeps:
    - A call returns when all its transfers have ended; until then the
      caller leaves their buffers alone.
    - A transfer that failed does not keep the others from being done; the first
      failure is raised at the end.
    - A client made before a fork opens itself anew in the child at its first use there.
    - Calls come from any number of threads.

What this module does not do: anything but refuse what none of them takes; it declares.
"""

import errno
import operator
import os
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, Literal, NamedTuple, Protocol, Self, SupportsIndex, get_args

OpenMode = Literal["r", "r+", "w", "x"]
"""Read; read and write; write a new or emptied file; write a file that must not exist."""

OFFSET_MAX: Final = 2**63 - 1
"""What system calls take."""


def need_mode(mode: str) -> None:
    """Raise ValueError for a mode that is no `OpenMode`."""
    modes = get_args(OpenMode)
    if mode not in modes:
        raise ValueError(f"mode {mode!r} is none of {', '.join(modes)}")


def need_size(size: SupportsIndex) -> None:
    """Raise for so many bytes of memory: TypeError: no integer; ValueError: none;
    OSError: ENOMEM: more than any machine has.
    """
    if whole_number(size, "bytes of memory") < 1:
        raise ValueError(f"{size} bytes of memory")
    if operator.index(size) > sys.maxsize:
        raise OSError(errno.ENOMEM, f"{size} bytes of memory are not to be had")


def need_offset(path: str, offset: SupportsIndex) -> None:
    """Raise for a place that no file has: TypeError: no integer;
    ValueError: before the beginning, or beyond `OFFSET_MAX`.
    """
    if not 0 <= whole_number(offset, f"as an offset of {path!r}") <= OFFSET_MAX:
        raise ValueError(f"offset {offset} of {path!r}")


def whole_number(number: SupportsIndex, what: str) -> int:
    """Return a number; raises TypeError, which says what it was given for: it is no integer."""
    try:
        return operator.index(number)
    except TypeError:
        kind = type(number).__name__
        raise TypeError(f"{number!r} {what} is {kind}, not an integer: int(...) or //") from None


def need_view(path: str, buffer: object) -> None:
    """Raise TypeError for a buffer that is no memoryview, as `bytes` and `bytearray` are not."""
    if not isinstance(buffer, memoryview):
        kind = type(buffer).__name__
        # A tensor is no buffer, but shares its memory with an array, which is one.
        makes = (
            "memoryview(...numpy()).cast('B')" if hasattr(buffer, "numpy") else "memoryview(...)"
        )
        raise TypeError(f"a buffer for {path!r} is {kind}, not a memoryview: {makes} makes one")


def need_bytes(path: str, view: memoryview) -> None:
    """Raise ValueError for a view of anything but bytes that lie one after the other,
    and say what helps.
    """
    if view.itemsize == 1 and view.ndim == 1 and view.contiguous:
        return
    if not view.c_contiguous:
        what = "has gaps, or its bytes in another order: copy it into one that has not"
    elif view.ndim == 1:
        what = f"has items of {view.itemsize} bytes: view.cast('B') shows them as bytes"
    else:
        what = f"has {view.ndim} dimensions: view.cast('B') shows it as bytes"
    raise ValueError(f"a buffer for {path!r} {what}")


def as_bytes(view: memoryview) -> memoryview:
    """Return a view that `need_bytes` lets through as one of unsigned bytes."""
    return view if view.format == "B" else view.cast("B")


def listed(transfers: "Iterable[Transfer]") -> "Sequence[Transfer]":
    """Return transfers as what can be gone through again; a generator is empty then."""
    return transfers if isinstance(transfers, list | tuple) else list(transfers)


def no_transfer(given: object) -> TypeError:
    """Return the error of what is given in place of a transfer."""
    kind = type(given).__name__
    return TypeError(
        f"{kind} in place of a Transfer: calls take a list of Transfer(file, offset, buffer)"
    )


def transfer_error(number: int, path: str) -> OSError:
    """Return the error of a transfer that ended with this errno."""
    if number == errno.EBADF:
        what = "the file was not opened for this, or was closed meanwhile"
        return OSError(number, what, path)
    return OSError(number, os.strerror(number), path)


class BatchFile(Protocol):
    """An open file; closed by `close`, with its client, or at the end of a `with` block."""

    @property
    def path(self) -> str:
        """As it was opened; named in errors."""
        ...

    def length(self) -> int:
        """Return the bytes in the file now."""
        ...

    def fsync(self) -> None:
        """Return when all bytes written through this file would survive a power loss."""
        ...

    def close(self) -> None:
        """Make what was written durable and visible to others; twice is harmless.

        Raises:
            OSError: a write could not be completed (ENOSPC, EDQUOT, EIO); ENOTCONN: the mount has
                gone, and with it perhaps what was written.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Iov(Protocol):
    """Memory that transfers reach without a copy.

    Freed by `close`, at the end of a `with` block, or when nothing refers to it or its views.
    """

    @property
    def view(self) -> memoryview:
        """The whole of it: writable, contiguous bytes;
        numpy.frombuffer and torch.frombuffer take slices of it.
        """
        ...

    def close(self) -> None:
        """Give the memory back.

        Raises:
            BufferError: views of it are still in use.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *details: object) -> None: ...


class Transfer(NamedTuple):
    """One read or write: `len(buffer)` bytes at `offset` of a file.

    `buffer` is a contiguous view of bytes, writable for reads.  Slices of an `Iov` of the same
    client are moved without a copy; other memory works too, with one.
    """

    file: BatchFile
    offset: int
    buffer: memoryview


class BatchClient(Protocol):
    """Opens files, hands out memory, moves batches."""

    def open(self, path: str | os.PathLike[str], mode: OpenMode = "r") -> BatchFile:
        """Open a file.

        Raises:
            OSError: as `open` of the standard library, with errno and path.
            ValueError: a mode that does not exist.
        """
        ...

    def allocate(self, size: int) -> Iov:
        """Return `size` (>= 1) zeroed bytes.

        Raises:
            OSError: ENOMEM.
        """
        ...

    def read(self, transfers: Iterable[Transfer]) -> list[int]:
        """Fill the buffers; return for each how many bytes were read:
        fewer than asked for only at the end of the file.

        Raises:
            OSError: the first failure by position, with errno and the file's path;
                all others have been done.
            TypeError, ValueError: no transfer, a file of another client, a buffer or an offset that
                cannot be; nothing was done.
        """
        ...

    def write(self, transfers: Iterable[Transfer]) -> None:
        """Write the buffers; durable after `BatchFile.fsync` or `close`.

        Overlapping writes of one call: any order.

        Raises:
            OSError: as `read`.
        """
        ...

    def close(self) -> None:
        """Close its files and give everything back; twice is harmless."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
