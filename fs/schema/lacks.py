"""Which errors say that a process has no memory, thread or descriptor to be had now:
a lack, which passes, and no bug.  Pure.

Invariant: what is taken for a lack was raised by whoever was refused something, and by nothing that
is wrong with a request, with stored bytes or with a disk.  A lack in the middle of an operation
leaves its outcome unknown (OUT_OF_RESOURCES).

What this module does not do: end lacks, or say that one has no effect.
"""

import errno
from collections.abc import Iterator
from typing import Final

from google.protobuf.message import Error as MessageError

from .status import FsError, Status

LACKING: Final = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOBUFS})
"""What the kernel says."""

_WORDS: Final = (
    "can't start new thread",  # of _thread
    "Arena alloc failed",  # of protobuf, which calls it a message that does not decode
    "Failed to serialize proto",  # the same; no message of ours has required fields, or is deep
)
"""Of errors that have no kind of their own."""


def is_lack(error: BaseException) -> bool:
    """Return whether an error, or a group, is about nothing
    but what this process could not have.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_lack, error.exceptions))
    if isinstance(error, OSError):
        return error.errno in LACKING
    if isinstance(error, RuntimeError | MessageError):
        text = str(error)
        return any(words in text for words in _WORDS)
    return isinstance(error, MemoryError)


def lack_among(error: BaseException) -> BaseException | None:
    """Return a lack out of an error that is one, or a group of lacks and operating errors;
    None: there is none, or a bug besides.
    """
    single = list(_single(error))
    lacks = [one for one in single if is_lack(one)]
    is_all = all(isinstance(one, FsError) or is_lack(one) for one in single)
    return lacks[0] if lacks and is_all else None


def require_passing(error: Exception) -> None:
    """Raise an error again that is neither an operating error nor, alone or with such,
    a lack: it is a bug.
    """
    if not isinstance(error, FsError) and lack_among(error) is None:
        raise error


def _single(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _single(inner)
    else:
        yield error


def lacking(what: str, error: BaseException) -> FsError:
    """Return what an operation ends with that met a lack."""
    return FsError(Status.OUT_OF_RESOURCES, f"{what}: {type(error).__name__}: {error}")
