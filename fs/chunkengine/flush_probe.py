"""Whether a disk flushes quickly enough to open its metadata store beside others that serve.

rocksdict opens a store with Python's interpreter lock in its hand and waits for about ten flushes
meanwhile: for so long no other disk of the process serves, nor does it renew its lease.  Decision:
specs/decisions/0114-who-waits-with-whom.md.
"""

import os
import time
from pathlib import Path
from typing import Final

from ..schema.status import FsError, Status
from .meta_rocksdb import probe_file

FLUSH_S_MAX: Final = 0.2
"""Ten of them are less than half of the lease."""

FLUSH_COUNT: Final = 3


def wait_for_answer(directory: Path) -> None:
    """Return when a disk has taken a byte, or says what is wrong,
    which is for its opening to report; blocks, with no lock in its hand.

    A disk that hangs is found out here, by whoever looks after this call; its opening would hold
    the interpreter lock meanwhile, so that nobody could say a word.
    """
    _slowest_flush_s(directory, 1)


def require_quick_flushes(directory: Path) -> None:
    """Return if a disk is as quick as it has to be,
    or what is wrong with it is for its opening to say; blocks, with no lock in its hand.

    Raises:
        FsError: BUSY: it is too slow just now, which says nothing against it.
    """
    if _slowest_flush_s(directory, FLUSH_COUNT) > FLUSH_S_MAX:
        raise FsError(
            Status.BUSY,
            f"{directory}: a flush takes more than {FLUSH_S_MAX} s just now, and opening "
            "the disk would hold up the others; a start of the process does not ask",
        )


def _slowest_flush_s(directory: Path, count: int) -> float:
    """Return what the slowest of so many flushes takes, or the first that is too slow.

    Of a disk that refuses one it is what those before took, and 0 where the file system
    makes no file without a name.
    """
    slowest_s = 0.0
    try:
        descriptor = probe_file(directory)
    except FsError:  # its opening meets it, too, and says what it means
        return slowest_s
    if descriptor < 0:
        return slowest_s
    try:
        for number in range(count):
            began_s = time.monotonic()
            os.pwrite(descriptor, b"\0", number)
            os.fdatasync(descriptor)  # until then the page cache alone has it
            slowest_s = max(slowest_s, time.monotonic() - began_s)
            if slowest_s > FLUSH_S_MAX:
                break
    except OSError:  # as above
        return slowest_s
    finally:
        os.close(descriptor)
    return slowest_s
