"""Makes, rewrites, lengthens, renames and removes small files in a directory until it is told
to stop, and knows what they may hold.

    python -m tests.real.small_files DIRECTORY SEED STOP

Prints, as JSON, by name the MD5 sums of what may be there ("" for nothing).  Where
the mount has died under an operation it may have happened or not; what was closed
before that is as it was closed.
"""

import errno
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

LENGTHS = [1, 100, 4096, 8000, 30_000, 65_536, 65_537, 200_000]
NAME_COUNT = 25
MARK = ".there"
"""A file of every directory that somebody works in."""
LOST = {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENOENT}
"""What programs are told whose mount has died, and until it serves again."""
PAUSE_S = 0.01
"""Between two steps: at full speed four processes take most of the machine."""

Change = tuple[dict[str, bytes | None], Callable[[], object]]


class Files:
    """The files of one process; `allowed` is what each may hold."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.content: dict[str, bytes | None] = {}
        self.allowed: dict[str, set[bytes | None]] = {}
        self.count = self.lost_count = 0

    def step(self) -> None:
        """Do one thing, and look at another file."""
        name = self._any_name()
        self._settle(name)
        before = self.content[name]
        kinds = ["make", "replace"] + ["append", "patch", "cut", "move", "remove"] * (
            before is not None
        )
        prepare = getattr(self, f"_{self.random.choice(kinds)}")
        wanted, do = prepare(name, before or b"")
        for one, after in wanted.items():
            self.allowed[one] = {self.content[one], after}
        do()
        for one, after in wanted.items():
            self.content[one], self.allowed[one] = after, {after}
        self.count += 1

    def _any_name(self) -> str:
        return f"f{self.random.randrange(NAME_COUNT)}"

    def _data(self, length_max: int = LENGTHS[-1]) -> bytes:
        return self.random.randbytes(min(self.random.choice(LENGTHS), length_max))

    def _settle(self, name: str) -> None:
        """Find out what a file holds of which two things may be true."""
        allowed = self.allowed.get(name, {None})
        found = self._found(name)
        # What was cut short while it was written may be there in part, which a later
        # look only has to agree with.
        if len(allowed) == 1:
            assert found in allowed, f"{name}: {_told(found)}, not {[*map(_told, allowed)]}"
        self.content[name], self.allowed[name] = found, {found}

    def _found(self, name: str) -> bytes | None:
        try:
            return (self.directory / name).read_bytes()
        except FileNotFoundError:
            if not self._is_there():
                raise  # the whole directory is away
            return None

    def _is_there(self) -> bool:
        try:
            return (self.directory / MARK).exists()
        except OSError:
            return False

    # Each returns what the files hold afterwards, and what makes it so.

    def _make(self, name: str, _before: bytes) -> Change:
        data = self._data()
        return {name: data}, lambda: (self.directory / name).write_bytes(data)

    def _replace(self, name: str, _before: bytes) -> Change:
        data, path = self._data(), self.directory / name

        def do() -> None:
            new = path.with_suffix(".new")
            with new.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new.rename(path)

        return {name: data}, do

    def _append(self, name: str, before: bytes) -> Change:
        data = self._data(5000)

        def do() -> None:
            with (self.directory / name).open("ab") as file:
                file.write(data)

        return {name: before + data}, do

    def _patch(self, name: str, before: bytes) -> Change:
        offset, data = self.random.randrange(len(before) + 10), self._data(3000)
        after = bytearray(before.ljust(offset, b"\0"))
        after[offset : offset + len(data)] = data

        def do() -> None:
            with (self.directory / name).open("r+b") as file:
                file.seek(offset)
                file.write(data)

        return {name: bytes(after)}, do

    def _cut(self, name: str, before: bytes) -> Change:
        length = self.random.choice([0, 1, len(before) // 2, len(before) + 100])
        after = before[:length].ljust(length, b"\0")
        return {name: after}, lambda: os.truncate(self.directory / name, length)

    def _move(self, name: str, before: bytes) -> Change:
        target = self._any_name()
        self._settle(target)
        wanted = {target: before} if target == name else {name: None, target: before}
        return wanted, lambda: (self.directory / name).rename(self.directory / target)

    def _remove(self, name: str, _before: bytes) -> Change:
        return {name: None}, (self.directory / name).unlink

    def run(self, stop: Path) -> None:
        """Work until a file `stop` is there."""
        while not stop.exists():
            try:
                self.step()
            except OSError as error:
                if error.errno not in LOST:
                    raise
                self.lost_count += 1
                self._wait()
            time.sleep(PAUSE_S)

    def _wait(self) -> None:
        """Wait until the mount serves again; a directory that is bare for a moment is none."""
        deadline = time.monotonic() + 60
        while not self._is_there():
            assert time.monotonic() < deadline, "the mount does not come back"
            time.sleep(0.05)


def _told(content: bytes | None) -> str:
    return "" if content is None else f"{len(content)} {hashlib.md5(content).hexdigest()}"


def main() -> None:
    """See module head."""
    files = Files(Path(sys.argv[1]), int(sys.argv[2]))
    files.run(Path(sys.argv[3]))
    allowed = {name: [*map(_told, contents)] for name, contents in files.allowed.items()}
    print(json.dumps({"allowed": allowed, "steps": files.count, "lost": files.lost_count}))


if __name__ == "__main__":
    main()
