"""A load that makes many small files and keeps a list, outside of the mount,
of those that it has synced.

After the mount daemon was killed, each file on the list must be there and whole;
of the others nothing is said.
"""

import os
import time
from pathlib import Path
from typing import Final

from .content import run_bytes
from .survive import MountWatch

SYNCED_OF: Final = (2, 3)
"""Two of three files are synced and listed."""
BLOCKS_MAX: Final = 4
FILE_COUNT: Final = 2500
"""Of one load."""


def content(seed: int, number: int) -> bytes:
    """Return what file `number` holds."""
    return run_bytes(seed, number, 0, [1] * (1 + number % BLOCKS_MAX))


def listed(manifest: Path) -> list[int]:
    """Return the numbers of the files that were synced, in order."""
    return (
        [int(line) for line in manifest.read_text().split("\n")[:-1]] if manifest.exists() else []
    )


def missing(directory: Path, seed: int, numbers: list[int]) -> list[str]:
    """Return what is wrong with files that must be whole."""
    problems = []
    for number in numbers:
        try:
            found = (directory / f"{number:06d}").read_bytes()
        except FileNotFoundError:
            problems.append(f"file {number} is missing")
            continue
        if found != content(seed, number):
            problems.append(f"file {number}: {len(found)} bytes, not what was synced")
    return problems


class ManifestLoad:
    """See the module head."""

    def __init__(self, directory: Path, seed: int, manifest: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory, self._seed, self._manifest = directory, seed, manifest
        self._watch = MountWatch(directory)
        self._number = 0

    def step(self) -> None:
        """Make one file, until there are enough."""
        if self._number >= FILE_COUNT:
            time.sleep(0.1)
            return
        self._number += 1
        try:
            self._make(self._number)
        except OSError:
            self._watch.require_alive()
            raise

    def _make(self, number: int) -> None:
        is_synced = number % SYNCED_OF[1] < SYNCED_OF[0]
        descriptor = os.open(self._directory / f"{number:06d}", os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            data = content(self._seed, number)
            assert os.write(descriptor, data) == len(data), number
            if is_synced:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_synced:
            with self._manifest.open("a") as out:
                out.write(f"{number}\n")

    def survive(self) -> None:
        """Go on with the next mount."""
        self._watch.wait_next()

    def finish(self) -> dict[str, int]:
        """Nothing is left to be done: whoever reads the list checks the files."""
        return {"files": self._number}
