"""Files of the process at the other end of a Unix socket, read from the disk right into our memory,
past the page cache.

For ranges of lent replies that the disk has yet to read (lent_ranges.py): in memory of their
server they would only be copied.

Invariants:
    - A disk has what readers want one after the other, whichever processes lend, and is never
      without work while one of them waits (`new_line`, fs/kernels/direct_twin.py): who is next
      needs no interpreter for that, which the event loop may have.
    - Descriptors are copied by pidfd_getfd(2), as for what is cached, and closed when the read has
      ended: as long as a disk hangs they are open.
    - Nothing returns while the kernel may still write into the buffers (fs/kernels/direct_twin.py).

What this does not do: it gives nothing up, and does not look whether what it has read was still
lent. Concurrency: thread-safe; waits for the disk.
"""

import errno
import fcntl
import os
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any, Final

from ..kernels.direct import new_line, read_places
from ..kernels.direct_twin import Place
from ..kernels.lent import RANGE
from ..kernels.lent_twin import copied
from ..runtime.ports import Buffer

LINE_BYTES: Final = 6 << 20
"""At one disk at the same time: what keeps it at work;
with more, who is in front has his bytes later.
"""


def read_past_cache(pid: int, ranges: Buffer, buffers: Sequence[memoryview]) -> None:
    """Fill buffers with ranges of files that a process has open for direct reads (O_DIRECT);
    they may hold anything if this raises.

    Raises:
        OSError: as `fs.kernels.lent_twin.read_files`; EINVAL also: a descriptor that reads through
            the page cache; EIO: it does not come whole.
        ValueError: ranges of other sizes than the buffers.
    """
    rest = deque(buffers)
    with ExitStack() as opened:
        pidfd = os.pidfd_open(pid)
        opened.callback(os.close, pidfd)
        fds: dict[int, int] = {}
        by_device: dict[int, list[Place]] = {}
        for number, offset, length in RANGE.iter_unpack(ranges):
            if number not in fds:
                fds[number] = copied(pidfd, number, opened)
                if not fcntl.fcntl(fds[number], fcntl.F_GETFL) & os.O_DIRECT:
                    raise OSError(errno.EINVAL, "not for direct reads")
            places = by_device.setdefault(os.fstat(fds[number]).st_dev, [])
            places += _places(fds[number], offset, length, rest)
        if any(rest):
            raise ValueError("ranges shorter than the buffers")
        for device, places in by_device.items():
            if not read_places(places, _line_of(device)):
                raise OSError(errno.EIO, "not all of it came from the disk")


def _places(fd: int, offset: int, length: int, rest: deque[memoryview]) -> list[Place]:
    """Return where a range goes: to the first of the buffers that are left,
    which are taken away.
    """
    found: list[Place] = []
    while length:
        if not rest:
            raise ValueError("ranges longer than the buffers")
        buffer = rest.popleft()
        part = buffer[:length]
        if len(part) < len(buffer):
            rest.appendleft(buffer[len(part) :])
        found.append((fd, offset, part))
        offset += len(part)
        length -= len(part)
    return found


@cache
def _line_of(device: int) -> Any:
    """Return the line of a disk of this machine, for all of this process."""
    del device
    return new_line(LINE_BYTES)
