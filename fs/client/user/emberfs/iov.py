"""Memory that a program has together with the mount daemon (see specs/batch.md):
one piece, and all that a client has.

Memory stays readable as long as it is referred to, also when its daemon has gone; it is registered
with the next one at its first use there.
"""

import errno
import mmap
import os
from contextlib import suppress
from typing import Final

from .batch import need_size
from .closing import Memory, in_use, shown
from .daemon import Daemon
from .memory import Region, Regions
from .protocol import TICKET, Call

HUGE_BYTES: Final = 2 << 20
"""A huge page; what is smaller stays in small ones."""


class SharedIov(Memory):
    """See `Iov`."""

    def __init__(self, owner: "Iovs", mapping: mmap.mmap, region: Region) -> None:
        self.daemon = owner.daemon
        self._owner = owner
        self._region = region
        self._mapping: mmap.mmap | None = mapping
        self._view = memoryview(mapping)

    @property
    def view(self) -> memoryview:
        """See `Iov`."""
        return self._view

    @property
    def block_size(self) -> int:
        """No transfer may cross a multiple of it; 0: any may."""
        return self._region.block_size

    @property
    def id(self) -> int:
        """At the daemon.

        Raises:
            OSError: EBADF: it is closed, or its client is.
        """
        if self._mapping is None:
            raise OSError(errno.EBADF, "this memory is closed", self.daemon.mount_path)
        return self._owner.region_id(self._region)

    def __repr__(self) -> str:
        return shown(self, f"of {self._region.size} bytes", is_closed=self._mapping is None)

    def close(self) -> None:
        """See `Iov`."""
        if self._mapping is None:
            return
        self._view.release()
        self._region.is_closing = True
        try:
            self._mapping.close()
        except BufferError:
            self._region.is_closing = False
            self._view = memoryview(self._mapping)
            raise in_use(self._region.size) from None
        self._mapping = None
        self._owner.drop_ended()


class Iovs:
    """All that one client has."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.regions = Regions()
        """Guarded by the daemon's lock, as `Regions` says."""

    def find(self, buffer: memoryview) -> tuple[Region, int] | None:
        """Return the region that a buffer lies in, and where in it; None: in none."""
        with self.daemon.lock:
            return self.regions.find(buffer)

    def region_id(self, region: Region) -> int:
        """Return the number of a region at the daemon, registered where it is not."""
        if region.id:
            return region.id
        with self.daemon.lock:
            if not region.id:
                region.id = self._register(region.fd, region.size, region.block_size)
            return region.id

    def _register(self, fd: int, size: int, block_size: int) -> int:
        answer = self.daemon.ask(
            lambda connection: connection.call(
                Call.SHARE_MEMORY, first=size, second=block_size, fd=fd
            )
        )
        return answer.id

    def allocate(self, size: int, *, block_size: int = 0) -> SharedIov:
        """See `RingClient.allocate`."""
        self.drop_ended()
        need_size(size)
        answer = self.daemon.ask(
            lambda connection: connection.call(Call.NEW_MEMORY, first=size, second=block_size)
        )
        return self._iov(answer.fds[0], size, block_size, answer.id, is_new=True)

    def share(self, fd: int, size: int, *, block_size: int = 0) -> SharedIov:
        """See `RingClient.share`."""
        self.drop_ended()
        try:
            kept = os.dup(fd)  # first: the daemon is not to have what this process has no room for
        except OSError as error:
            what = f"descriptor {fd} cannot be kept: {error.strerror}"
            raise OSError(error.errno, what, self.daemon.mount_path) from error
        try:
            region_id = self._register(kept, size, block_size)
        except BaseException:
            os.close(kept)
            raise
        return self._iov(kept, size, block_size, region_id)

    def segment(self, number: bytes) -> SharedIov:
        """See `RingClient.segment`."""
        first, second = TICKET.unpack(number)
        answer = self.daemon.ask(
            lambda connection: connection.call(Call.FIND_SEGMENT, first=first, second=second)
        )
        (fd,) = answer.fds
        try:
            return self.share(fd, answer.number, block_size=answer.id)
        finally:
            os.close(fd)

    def _iov(
        self, fd: int, size: int, block_size: int, region_id: int, *, is_new: bool = False
    ) -> SharedIov:
        """Map memory that is registered; `fd` is taken over."""
        try:
            mapping = mmap.mmap(fd, size)
            # Who touches a page first decides of which kind it is.
            if is_new and size >= HUGE_BYTES:
                with suppress(OSError):  # a kernel without huge pages
                    mapping.madvise(mmap.MADV_HUGEPAGE)
        except BaseException:
            os.close(fd)
            self.daemon.connection().call(Call.DROP_MEMORY, region_id)
            raise
        region = Region(mapping, fd, block_size)
        region.id = region_id
        with self.daemon.lock:
            self.regions.add(mapping, region)
        return SharedIov(self, mapping, region)

    def drop_ended(self) -> None:
        """Tell the daemon of memory that nobody uses any more."""
        with self.daemon.lock:
            ended = self.regions.take_ended()
        for region in ended:
            connection = self.daemon.present
            if region.id and connection is not None:
                connection.call(Call.DROP_MEMORY, region.id)
