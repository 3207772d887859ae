"""Random reads, writes, truncations, extensions, reopens and syncs of one file,
each compared with a twin in memory.

The idea is that of Apple's and later xfstests' fsx; every step checks the
length, every read checks every byte.
"""

import contextlib
import os
import random

LENGTHS = (1, 7, 512, 4096, 65_537, 300_001)


class Fsx:
    """One file under exercise; the caller decides how many steps."""

    def __init__(self, path, generator: random.Random, length_max: int) -> None:
        self._path, self._generator, self._length_max = path, generator, length_max
        self._twin = bytearray()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.step_count = 0

    def step(self) -> str:
        """Do one thing; return its name.  Raises AssertionError for a wrong byte or length."""
        self.step_count += 1
        generator = self._generator
        action = generator.random()
        offset = generator.randrange(self._length_max)
        length = min(generator.choice(LENGTHS), self._length_max - offset)
        name = "fsx-stat"
        if action < 0.45:
            name = "fsx-write"
            self._write(generator.randbytes(length), offset)
        elif action < 0.85:
            name = "fsx-read"
            self._check(os.pread(self._fd, length, offset), offset, length)
        elif action < 0.92:
            name = "fsx-truncate"
            os.ftruncate(self._fd, offset)
            del self._twin[offset:]
            self._extend(offset)
        elif action < 0.95:
            name = "fsx-fsync"
            os.fsync(self._fd)
        elif action < 0.97:
            name = "fsx-reopen"
            os.close(self._fd)
            self._fd = os.open(self._path, os.O_RDWR)
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        found = os.fstat(self._fd).st_size
        assert found == len(self._twin), f"step {self.step_count}: {found} bytes, {len(self._twin)}"
        return name

    def _write(self, data: bytes, offset: int) -> None:
        written = os.pwrite(self._fd, data, offset)
        self._extend(offset + written)
        self._twin[offset : offset + written] = data[:written]
        assert written == len(data), f"step {self.step_count}: wrote {written} of {len(data)}"

    def _extend(self, length: int) -> None:
        self._twin.extend(bytes(max(0, length - len(self._twin))))

    def _check(self, found: bytes, offset: int, length: int) -> None:
        expected = self._twin[offset : offset + length]
        if found == expected:
            return
        at = next(
            (i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b),
            min(len(found), len(expected)),
        )
        raise AssertionError(
            f"{self._path} step {self.step_count}: byte {offset + at} differs:"
            f" {found[at : at + 16]!r} of {len(found)}, expected {bytes(expected[at : at + 16])!r}"
            f" of {len(expected)}"
        )

    def sync(self) -> None:
        """Make it durable; raises OSError if something written was lost."""
        os.fsync(self._fd)

    def abandon(self) -> None:
        """Close without checking, after a write that was reported lost."""
        with contextlib.suppress(OSError):  # the loss is reported once more, as it should be
            os.close(self._fd)

    def finish(self) -> None:
        """Make it durable, read it anew, compare the whole of it."""
        os.fsync(self._fd)
        os.close(self._fd)
        self._fd = os.open(self._path, os.O_RDONLY)
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self._check(os.pread(self._fd, self._length_max + 1, 0), 0, self._length_max + 1)
        os.close(self._fd)
