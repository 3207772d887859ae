"""Row H3: what one mount has closed or synced, another sees when it opens the file.

    python -m tests.real.visibility [--count N] [--seed S] [--unfinished]

A trial: on one of two mounts of a cluster of its own a file is written anew, overwritten in
part, appended to, cut or lengthened, and then closed, or synced by fsync or fdatasync and left
open; on the other mount it is opened and read whole: content and length must be those of a
model of plain bytes.  A few files, written from both sides in turn, so that each mount has old
pages, lengths and names of them.

--unfinished is the negative control: nothing is closed or synced, so the reader must often see
something else.  Exit code 1 if a trial fails.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.real.conftest import Cluster

FILE_COUNT = 12
LENGTH_MAX = 1_500_000
"""More than a chunk; most files are much shorter."""

ENDINGS = ["close", "close", "fsync", "fdatasync"]


def some_length(source: random.Random) -> int:
    return int(LENGTH_MAX ** source.random())


def put(content: bytes, offset: int, data: bytes) -> bytes:
    """Return content with data written at an offset; a gap is zeros."""
    padded = content.ljust(offset, b"\0")
    return padded[:offset] + data + padded[offset + len(data) :]


@dataclass
class Trials:
    """A place on two mounts, and what its files should hold."""

    mounts: tuple[Path, Path]
    source: random.Random
    ends: bool = True
    contents: dict[str, bytes] = field(default_factory=dict)
    left_open: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def run(self, count: int) -> None:
        try:
            for number in range(count):
                self.trial(number)
        finally:
            self.close_all()

    def trial(self, number: int) -> None:
        name = f"file-{self.source.randrange(FILE_COUNT)}"
        writer, reader = self.source.sample(self.mounts, 2)
        what = self.change(writer / name, name)
        found = self.read(reader / name)
        if found != self.contents[name]:
            expected = self.contents[name]
            self.failures.append(
                f"trial {number}: {what}: {len(found)} bytes instead of {len(expected)}, the "
                "first that"
                f" differs is at {first_difference(found, expected)}"
            )
            if self.ends:
                raise AssertionError(self.failures[-1])
        while len(self.left_open) > FILE_COUNT:
            os.close(self.left_open.pop(0))

    def change(self, path: Path, name: str) -> str:
        """Change a file and end that; return what was done."""
        kind = self.source.choice(["whole", "part", "part", "append", "cut", "lengthen"])
        before = self.contents.get(name, b"")
        data = self.source.randbytes(some_length(self.source))
        flags = {"whole": os.O_TRUNC, "append": os.O_APPEND}.get(kind, 0)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
        if kind == "whole":
            after = data
            write(fd, data, None)
        elif kind == "append":
            after = before + data[:1000]
            write(fd, data[:1000], None)
        elif kind == "part":
            offset = self.source.randint(0, len(before))
            after = put(before, offset, data)
            write(fd, data, offset)
        else:
            length = self.source.randint(0, len(before)) + (1000 if kind == "lengthen" else 0)
            after = before[:length].ljust(length, b"\0")
            os.ftruncate(fd, length)
        self.contents[name] = after[:LENGTH_MAX]
        if len(after) > LENGTH_MAX:
            os.ftruncate(fd, LENGTH_MAX)
        return f"{kind} of {path}, {self.end(fd)}"

    def end(self, fd: int) -> str:
        ending = self.source.choice(ENDINGS) if self.ends else "left"
        if ending == "close":
            os.close(fd)
            return ending
        if ending != "left":
            getattr(os, ending)(fd)
        self.left_open.append(fd)
        return ending

    def read(self, path: Path) -> bytes:
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return b"(no file)"
        try:
            with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
                found = file.readall()
            # Without an end, the report of a length may come between the two.
            size = os.fstat(fd).st_size
            assert size == len(found) or not self.ends, (path, size, len(found))
            return found
        finally:
            os.close(fd)

    def close_all(self) -> None:
        while self.left_open:
            os.close(self.left_open.pop())


def write(fd: int, data: bytes, offset: int | None) -> None:
    """Write all of it; None: where the file stands."""
    while data:
        count = os.write(fd, data) if offset is None else os.pwrite(fd, data, offset)
        data = data[count:]
        offset = None if offset is None else offset + count


def first_difference(one: bytes, other: bytes) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.real.visibility", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unfinished", action="store_true", help="close and sync nothing")
    given = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="ember-visibility-"))
    cluster = Cluster(base / "data", base / "one")
    other = base / "two"
    for mount in (cluster.mount, other):
        mount.mkdir()
    began_s = time.monotonic()
    try:
        cluster.up()
        cluster.ember("mount", other, "--dir", cluster.directory)
        trials = Trials(
            (cluster.mount, other), random.Random(given.seed), ends=not given.unfinished
        )
        try:
            trials.run(given.count)
        except AssertionError as error:
            print(error)
        print(
            f"{given.count} trials, {len(trials.failures)} failed, "
            f"{time.monotonic() - began_s:.0f} s"
        )
    finally:
        cluster.tried("umount", other)
        cluster.wipe()
        shutil.rmtree(base, ignore_errors=True)
    return int(bool(trials.failures))


if __name__ == "__main__":
    sys.exit(main())
