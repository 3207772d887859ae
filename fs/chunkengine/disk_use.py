"""What an engine says of its disk's space, and of what a step of compaction has given back to it.

No I/O here.
"""

from dataclasses import dataclass

from ..schema.ids import ChunkId, TargetId


@dataclass(frozen=True, slots=True)
class SpaceInfo:
    """Space of the disk below the engine, in bytes."""

    capacity_bytes: int
    free_bytes: int
    """What new chunks may still take: free space of the disk plus free blocks of existing files."""
    allocated_bytes: int
    """Of data files on disk."""
    used_bytes: int
    """Blocks in use."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one step of compaction did."""

    moved_count: int
    moved_bytes: int
    """Of chunk content."""
    freed_bytes: int
    """Claimed space of data files before, less after; other work may add to it or take from it."""
    skipped_count: int
    """Chunks left where they are: being updated, damaged, or no room for them."""
    damaged: tuple[tuple[TargetId, ChunkId], ...]
    """Chunks whose copy turned out to be bad."""
    is_finished: bool
    """Nothing is left that could be moved now; space has been returned."""
