"""fallocate(2): outcomes, lengths, which times move, and who loses set-id bits."""

import ctypes
import os
import time

from .calls import LIBC, USER, Probe, check

KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
LENGTH = 8192
MODES = (
    0,
    KEEP_SIZE,
    KEEP_SIZE | PUNCH_HOLE,
    ZERO_RANGE,
    ZERO_RANGE | KEEP_SIZE,
    PUNCH_HOLE,
    64,
)
RANGES = ((0, 100), (0, LENGTH), (100, 2 * LENGTH), (2 * LENGTH, 10), (0, 0), (-1, 5), (5, -1))
_TICK_S = 0.011
"""A local file system's clock does not tell times apart that are closer."""


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """fallocate(2), which Python offers in one mode only."""
    where = ctypes.c_long(offset), ctypes.c_long(length)
    if LIBC.fallocate(fd, mode, *where):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _moved(p: Probe, label: str, mode: int, offset: int, length: int) -> None:
    fd = os.open("f", os.O_RDWR)
    before = os.fstat(fd)
    time.sleep(_TICK_S)
    p.t(label, fallocate, fd, mode, offset, length)
    after = os.fstat(fd)
    os.close(fd)
    is_moved = after.st_mtime_ns != before.st_mtime_ns, after.st_ctime_ns != before.st_ctime_ns
    p.note(f"{label}: after it", (after.st_size, oct(after.st_mode), is_moved))


def _every_mode(p: Probe) -> None:
    for mode in MODES:
        for offset, length in RANGES:
            p.touch("f", 0o6777, b"x" * LENGTH)
            _moved(p, f"{mode} {offset}+{length}", mode, offset, length)


@check
def allocating_as_root(p: Probe) -> None:
    """Also where nothing has to be done, times move."""
    _every_mode(p)
    os.mkfifo("pipe")
    for name in ("f", "pipe", "."):
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
        p.t(f"for reading {name}", fallocate, fd, 0, 0, 10)
        os.close(fd)


@check
def allocating_as_somebody(p: Probe) -> None:
    """Takes set-id bits, as writing does."""
    os.chmod(".", 0o777)
    p.as_user(_every_mode, USER)
