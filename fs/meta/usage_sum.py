"""The three numbers that usage consists of.  Pure."""

from typing import Final

from ..schema.values import value


@value(frozen=True, slots=True)
class Usage:
    """Bytes, files and directories; a difference may be negative."""

    byte_count: int = 0
    file_count: int = 0
    """All that is no directory."""
    directory_count: int = 0

    @property
    def inode_count(self) -> int:
        """Files and directories."""
        return self.file_count + self.directory_count

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum of both."""
        return Usage(
            self.byte_count + other.byte_count,
            self.file_count + other.file_count,
            self.directory_count + other.directory_count,
        )

    def __neg__(self) -> "Usage":
        """Return what takes this away."""
        return Usage(-self.byte_count, -self.file_count, -self.directory_count)

    def __sub__(self, other: "Usage") -> "Usage":
        """Return what must be added to `other` to get this."""
        return self + -other


NOTHING: Final = Usage()
ONE_DIRECTORY: Final = Usage(0, 0, 1)
ONE_EMPTY: Final = Usage(0, 1, 0)
"""A file without bytes, or whatever else is no directory."""
