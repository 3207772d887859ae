"""A disk of our own below a storage process (a file system on a loop device),
and damage to the chunks on any disk.
"""

import fcntl
import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import rocksdict

from fs.chunkengine.format import (
    CHUNK_PREFIX,
    ChunkKey,
    ChunkRecord,
    chunk_id_of_key,
    file_name,
    place_of,
    target_of_key,
)

from .network import run

MIB: Final = 1 << 20
SHUTDOWN_IOCTL: Final = 0x8004587D
"""Of ext4 and xfs: from now on every call on the file system fails with EIO,
until it is mounted anew.
"""
SHUTDOWN_NO_LOG_FLUSH: Final = (2).to_bytes(4, "little")
SLOW_FILL_BYTES: Final = 128 * MIB
FILL_STEPS_MAX: Final = 200
FILL_PAUSE_S: Final = 0.02
"""Between two steps of 4 MiB: 200 MiB/s."""
BLKIO: Final = Path("/sys/fs/cgroup/blkio")


class LoopDisk:
    """An ext4 file system in a file."""

    def __init__(self, image: Path, mount_point: Path, mib: int) -> None:
        self.image = image
        self.path = mount_point
        self._group: Path | None = None
        with image.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, mib * MIB)
        self.device = run("losetup", "--find", "--show", image).strip()
        try:
            run("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
            mount_point.mkdir(parents=True, exist_ok=True)
            self.mount()
        except BaseException:
            run("losetup", "--detach", self.device)
            raise

    def mount(self) -> None:
        run("mount", self.device, self.path)

    @property
    def ballast(self) -> Path:
        return self.path / "lost+found" / "ballast"

    def fill(self) -> None:
        """Take all space that is left, the last of it at the pace of a disk
        that is being written.
        """
        with self.ballast.open("wb") as file:
            for _ in range(FILL_STEPS_MAX):
                room = os.statvfs(self.path)
                left = room.f_bavail * room.f_frsize
                step = left - SLOW_FILL_BYTES if left > SLOW_FILL_BYTES else min(left, 4 * MIB)
                if step < 4096:
                    return
                if step <= 4 * MIB:
                    time.sleep(FILL_PAUSE_S)
                with suppress(OSError):  # somebody else was quicker: ask again
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, step)

    def empty(self) -> None:
        self.ballast.unlink(missing_ok=True)

    def shut_down(self) -> None:
        """Make every later call fail with EIO, as of a disk that has died."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN_IOCTL, SHUTDOWN_NO_LOG_FLUSH)
        finally:
            os.close(descriptor)

    def mount_again(self) -> None:
        """Bring it back after `shut_down`; nobody may have a file open."""
        run("umount", self.path)
        self.mount()

    def throttle(self, pid: int, bytes_per_s: int) -> None:
        """Slow the disk down for one process."""
        self._group = BLKIO / f"ember-torture-{os.getpid()}"
        self._group.mkdir(exist_ok=True)
        number = os.stat(self.device).st_rdev
        limit = f"{os.major(number)}:{os.minor(number)} {bytes_per_s}"
        for name in ("read_bps_device", "write_bps_device"):
            (self._group / f"blkio.throttle.{name}").write_text(limit)
        (self._group / "cgroup.procs").write_text(str(pid))

    def release(self) -> None:
        """End the throttle."""
        if self._group is not None:
            for pid in (self._group / "cgroup.procs").read_text().split():
                (BLKIO / "cgroup.procs").write_text(pid)
            self._group.rmdir()
            self._group = None

    def close(self) -> None:
        """Unmount and remove it."""
        self.release()
        subprocess.run(["umount", self.path], check=False, capture_output=True)
        subprocess.run(["losetup", "--detach", self.device], check=False, capture_output=True)
        self.image.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A committed version on a disk, as its records say."""

    target_id: int
    inode_id: int
    index: int
    record: ChunkRecord


def stored_chunks(disk: Path) -> list[StoredChunk]:
    """Read the records of a disk, also while a process uses it."""
    options = rocksdict.Options(raw_mode=True)
    access = rocksdict.AccessType.read_only()
    store = rocksdict.Rdict(str(disk / "meta"), options, access_type=access)
    found = []
    try:
        cursor = store.iter()
        cursor.seek(CHUNK_PREFIX)
        while cursor.valid() and cursor.key()[:1] == CHUNK_PREFIX:
            key = ChunkKey(cursor.key()[1:])
            chunk_id = chunk_id_of_key(key)
            record = ChunkRecord.unpack(cursor.value())
            found.append(StoredChunk(target_of_key(key), chunk_id.inode_id, chunk_id.index, record))
            cursor.next()
        del cursor
    finally:
        store.close()
    return found


def flip(disk: Path, chunk: StoredChunk, generator: random.Random) -> None:
    """Turn one bit of the stored bytes of a chunk over, below everybody's back."""
    file_id, start = place_of(chunk.record.position)
    at = start + generator.randrange(chunk.record.length)
    with open_stored(disk / file_name(file_id)) as descriptor:
        (byte,) = os.pread(descriptor, 1, at)
        os.pwrite(descriptor, bytes([byte ^ 1 << generator.randrange(8)]), at)


def ruin(disk: Path, chunk: StoredChunk) -> None:
    """Turn the first bit of each page of a chunk over: no block of it is left whole."""
    file_id, start = place_of(chunk.record.position)
    with open_stored(disk / file_name(file_id)) as descriptor:
        for at in range(start, start + chunk.record.length, 4096):
            (byte,) = os.pread(descriptor, 1, at)
            os.pwrite(descriptor, bytes([byte ^ 1]), at)


@contextmanager
def open_stored(path: Path) -> Iterator[int]:
    """Open a data file behind its owner's back."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
