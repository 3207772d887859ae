"""Small files that are there whole or not at all, also after a power loss.

Not for data: that goes through the engines.  Concurrency: none; one writer per file.
"""

import os
from pathlib import Path


def write_durable(path: Path, content: str | bytes) -> None:
    """Replace a file as a whole, text as UTF-8; its content and its name are durable afterwards.

    Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.new")
    with open(temporary, "wb", opener=_open_no_link) as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def _open_no_link(path: str, flags: int) -> int:
    """Open a file, but not where a link of that name leads, which anybody may have put there who
    can write in its directory.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable.  Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
