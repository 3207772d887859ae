"""The process edge: how errors leave EmberFS.

Standard library and schema only, so that it loads quickly.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ...schema.status import FsError, Status


def first_error(error: BaseException) -> BaseException:
    """Return the first leaf of an exception group, or the error itself;
    an interruption is why the others failed.
    """
    if isinstance(error, BaseExceptionGroup):
        error = error.subgroup(KeyboardInterrupt) or error
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raise operating errors and interruptions of the block without the groups that nurseries make
    of them; a bug as it is.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        leaf = first_error(group)
        if isinstance(leaf, FsError | OSError | KeyboardInterrupt):
            raise leaf from group
        raise


def error_line(error: FsError | OSError) -> str:
    """Return an operating error for people, with the trace that an operator finds in the logs,
    if there is one.
    """
    if isinstance(error, OSError):
        return f"{error.filename or 'error'}: {error.strerror or error}"
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{error}{notes}"


@contextmanager
def named(path: str, *, is_inside: bool = False) -> Iterator[None]:
    """Say of an error which of the paths that were given it is about.

    Args:
        path: as it was given.
        is_inside: it is one within the file system, whatever this machine has by it.
    """
    try:
        yield
    except FsError as error:
        if path in error.detail:
            raise
        detail = f"{path}: {error.detail}"
        if error.status is Status.NOT_FOUND:
            detail = path
            # On a mount it would have been found; on none it is looked for in the file system.
            if os.path.lexists(path):
                detail += (
                    ": this is no path of this machine, it begins at the root of the file system"
                    if is_inside
                    else ": what this machine has by this path is on no mount of EmberFS"
                )
        told = FsError(error.status, detail)
        for note in getattr(error, "__notes__", ()):  # the trace
            told.add_note(note)
        raise told from error


def check_interpreter() -> None:
    """Refuse to run without assertions: they are part of the design.

    Raises:
        FsError: BAD_CONFIG.
    """
    if sys.flags.optimize:
        raise FsError(
            Status.BAD_CONFIG, "run Python without -O and PYTHONOPTIMIZE: assertions count"
        )


def make_streams_usable() -> None:
    """Let no output fail for how the process was started.

    A standard stream that was closed leads to /dev/null: else what is opened next would get its
    number, and be written into. A name that the terminal's character set lacks is shown with
    escapes; under UTF-8 it leaves byte for byte as it is.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(
                sys, name, io.TextIOWrapper(os.fdopen(os.open(os.devnull, os.O_RDWR), f"{mode}b"))
            )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            is_utf_8 = stream.encoding.lower().replace("-", "") == "utf8"
            stream.reconfigure(errors="surrogateescape" if is_utf_8 else "backslashreplace")
