"""Space set aside while a disk fills up, and given up when nothing else is left.

The metadata store needs room to record even a removal, and to open at all; one refused write ends
its use.  Updates stop long before the disk is full (fs/chunkengine/space.py), but others may fill
it too.  So a disk that is nearly full keeps a spare file.  It is given up, whole, when a removal
finds less than it needs, and before a full disk is opened; it comes back when there is room again.

Concurrency: thread-safe, as the data files are; setting the spare file aside twice is harmless.
"""

import logging
from typing import Final

from ..schema.status import FsError
from .ports import DataFiles

_log = logging.getLogger(__name__)

NEARLY_FULL_FACTOR: Final = 128
"""The file is made when less than this many times its size is free:
nobody fills so much between two flushes.
"""

CAPACITY_SHARE: Final = 8
"""It takes at most one in so many bytes of the disk.

Opening takes some 9 MiB for a new log and up to 8 MiB for merging the old
one; removals live on the rest.
"""


def spare_size(create_free_bytes_min: int, capacity_bytes: int) -> int:
    """Return how large the file is, in bytes."""
    return min(create_free_bytes_min, capacity_bytes // CAPACITY_SHARE)


def should_set_aside(size: int, held: int, free: int, kept: int) -> bool:
    """Return whether it is time to make the file;
    `kept` stays free beside it, where updates stop.
    """
    return held < size and kept + size <= free < NEARLY_FULL_FACTOR * size


def make_room(files: DataFiles) -> None:
    """Before the metadata store is opened: give the file up if the disk is full but for it."""
    held = files.spare_bytes()
    if held and files.free_bytes() < held:
        files.set_spare(0)
        _log.warning("the disk is full: %d spare bytes are given up to open it", held)


class Spare:
    """The spare file of one disk."""

    def __init__(self, files: DataFiles, create_free_bytes_min: int) -> None:
        self._files = files
        self._kept = create_free_bytes_min
        self._size = spare_size(create_free_bytes_min, files.capacity_bytes())
        self._held = files.spare_bytes()

    def give_up(self) -> bool:
        """Make its space available; False if there is none."""
        held = self._held
        if not held:
            return False
        try:
            self._held = self._files.set_spare(0)
        except FsError as error:
            _log.warning("the spare space cannot be given up: %s", error)
            return False
        _log.warning("the disk is full: %d spare bytes are given up for removals", held)
        return True

    def set_aside(self) -> None:
        """Make the file if it is time to; that it cannot be made is no failure."""
        if not should_set_aside(self._size, self._held, self._files.free_bytes(), self._kept):
            return
        try:
            self._held = self._files.set_spare(self._size)
        except FsError as error:
            _log.warning("no space could be set aside: %s", error)
