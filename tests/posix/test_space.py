"""What files take, as du(1) sees it, on a real mount: holes take nothing."""

import os
import time

import pytest

from .calls import LIBC

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(900)]

KEEP_SIZE, PUNCH_HOLE = 1, 2
MIB = 1 << 20


def settles(path, expected) -> None:
    """Wait until st_blocks says so: attributes may be a second old."""
    deadline_s = time.monotonic() + 60
    while (found := path.stat().st_blocks * 512) != expected:
        assert time.monotonic() < deadline_s, f"{found}, not {expected}"
        time.sleep(0.1)


def fallocate(path, mode, offset, length) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        assert LIBC.fallocate(fd, mode, offset, length) == 0
    finally:
        os.close(fd)


def test_du_is_right(posix_place):
    path = posix_place / "f"
    path.write_bytes(b"")
    settles(path, 0)
    os.truncate(path, 100 * MIB)
    settles(path, 0)
    chunk = path.stat().st_blksize
    with path.open("r+b") as f:
        f.seek(40 * MIB)
        f.write(b"x" * 5000)
        f.seek(8 * chunk)
        f.write(b"y" * 3 * chunk)
    settles(path, 3 * chunk + 5120)  # in whole blocks
    fallocate(path, 0, 0, 200 * MIB)
    assert path.stat().st_size == 200 * MIB
    settles(path, 3 * chunk + 5120)
    fallocate(path, KEEP_SIZE | PUNCH_HOLE, 9 * chunk, chunk)
    settles(path, 2 * chunk + 5120)
    os.truncate(path, 9 * chunk)
    settles(path, chunk)
    path.write_bytes(b"z" * 70_000)
    settles(path, -(-70_000 // 512) * 512)
