"""What a file of the load must hold: bytes that name their file, block and version,
and a model of which may be read.  Pure.

A file is whole blocks of BLOCK_BYTES.  The content of a block is a function of (seed, file,
block, version), so any block that is read says which write it came from; version 0 is a block
never written and reads as zeros.

Invariants:
    - While no error was reported, a block holds exactly its last write.
    - After an error it may hold the last synced version or any later one; once read,
      what was seen is what it holds.
    - No version older than the last synced one is ever right: that is a lost synced write.
"""

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

BLOCK_BYTES: Final = 4096


@lru_cache(maxsize=4096)
def block_bytes(seed: int, file_id: int, index: int, version: int) -> bytes:
    """Return the content of one block."""
    if version == 0:
        return bytes(BLOCK_BYTES)
    name = f"{seed} {file_id} {index} {version} ".encode()
    return (name + hashlib.shake_128(name).digest(BLOCK_BYTES))[:BLOCK_BYTES]


def run_bytes(seed: int, file_id: int, first: int, versions: list[int]) -> bytes:
    """Return the content of neighbouring blocks."""
    return b"".join(block_bytes(seed, file_id, first + i, v) for i, v in enumerate(versions))


@dataclass(slots=True)
class Cell:
    """One block: what it may hold."""

    versions: list[int] = field(default_factory=lambda: [0])
    """The last synced version and all written since, in order."""
    is_sure: bool = True
    """It holds the last of them; else any of them."""

    @property
    def allowed(self) -> list[int]:
        """The versions that a read may return."""
        return self.versions[-1:] if self.is_sure else self.versions


@dataclass(slots=True)
class FileModel:
    """One file of the load."""

    seed: int
    file_id: int
    cells: list[Cell] = field(default_factory=list)
    synced_count: int = 0
    """Blocks that the file had at its last sync."""
    next_version: int = 1

    def write(self, first: int, count: int) -> bytes:
        """Plan a write of `count` blocks, extending the file; return its bytes.

        Call `failed` if it fails.
        """
        while len(self.cells) < first + count:
            self.cells.append(Cell())
        version = self.next_version
        self.next_version += 1
        for cell in self.cells[first : first + count]:
            cell.versions.append(version)
            cell.is_sure = True
        return run_bytes(self.seed, self.file_id, first, [version] * count)

    def synced(self) -> None:
        """Note that a sync of the whole file succeeded."""
        for cell in self.cells:
            if cell.is_sure:
                cell.versions = cell.versions[-1:]
        self.synced_count = len(self.cells)

    def failed(self) -> None:
        """Note that some write since the last sync was reported lost."""
        for cell in self.cells:
            cell.is_sure = cell.is_sure and len(cell.versions) == 1

    def check(self, first: int, data: bytes) -> str | None:
        """Compare what was read from block `first` on;
        return what is wrong, None when all is right.
        """
        for i in range(-(-len(data) // BLOCK_BYTES)):
            found = data[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES]
            problem = self._check_block(first + i, found)
            if problem:
                return f"file {self.file_id} block {first + i}: {problem}"
        return None

    def _check_block(self, index: int, found: bytes) -> str | None:
        if index >= len(self.cells):
            return "beyond the end"
        cell = self.cells[index]
        for version in reversed(cell.allowed):
            if block_bytes(self.seed, self.file_id, index, version)[: len(found)] == found:
                if not cell.is_sure:
                    cell.versions, cell.is_sure = [version], True
                return None
        return self._describe(index, found)

    def _describe(self, index: int, found: bytes) -> str:
        """Say what wrong content is: an older version, another block, or garbage."""
        cell = self.cells[index]
        wanted = f"expected version {' or '.join(map(str, cell.allowed))}"
        for version in range(self.next_version):
            if block_bytes(self.seed, self.file_id, index, version)[: len(found)] == found:
                if version in cell.versions:
                    return f"lost write: version {version}, {wanted}"
                return f"lost synced write: version {version}, {wanted}"
        return f"wrong bytes {found[:48]!r}, {wanted}"

    def check_length(self, length: int) -> str | None:
        """Judge the length of the file in bytes."""
        longest = len(self.cells) * BLOCK_BYTES
        is_sure = all(cell.is_sure for cell in self.cells)
        least = longest if is_sure else self.synced_count * BLOCK_BYTES
        if least <= length <= longest:
            return None
        what = "lost synced write" if length < self.synced_count * BLOCK_BYTES else "lost write"
        return f"file {self.file_id}: {what}: length {length}, expected {least} to {longest}"
