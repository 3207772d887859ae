"""Small reads of the kernel that arrive together are asked of storage together.

Most of what a small read costs does not depend on how many there are: a task that waits, a plan, a request to a storage
node and its reply.  The loop takes in what the kernel has ready anyway; the reads among it share all that, and the busier
the mount is, the more there are.  One that is alone waits for nobody.

Invariants:
    - Every read is answered once: with its bytes, its own error, or EINTR when it is given up.
    - A read waits for those of others for ALONE_AFTER_S at the most, and never fails because of them: if they are not done
      together by then, or one of them failed, each is done again by itself.
    - No more than REQUEST_COUNT_MAX other requests are taken in while reads wait to be sent.

Does not: keep what was read, or look at offsets; readahead is the vfs's.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from ....schema.status import FsError
from ...api import FileRead
from .device import Request

ALONE_AFTER_S: Final = 0.5
REQUEST_COUNT_MAX: Final = 32
FIRST_READ_COUNT: Final = 8
"""So many are asked of storage at once when it has no others to do: it and this side then work at the same time, instead of in turn."""


class BegunRead:
    """A READ whose bytes have to come from storage."""

    __slots__ = ("began_s", "io", "request", "scope")

    def __init__(self, request: Request, io: FileRead, began_s: float) -> None:
        self.request = request
        self.io = io
        self.began_s = began_s
        self.scope = trio.CancelScope()
        """Cancelled when the read is given up; entered only when it is done by itself."""


async def read_all(
    reads: Sequence[BegunRead],
    read_together: Callable[[Sequence[FileRead]], Awaitable[None]],
    read_alone: Callable[[BegunRead], Awaitable[None]],
    reply: Callable[[BegunRead], None],
) -> None:
    """Do reads together, and what does not succeed so by itself.

    Args:
        reads: more than one.
        read_together: fills all buffers, or raises FsError.
        read_alone: does and answers one read from the start; raises nothing.
        reply: answers one read with what its buffer holds, or that it was given up.
    """
    is_done = False
    with trio.move_on_after(ALONE_AFTER_S):
        try:
            await read_together([read.io for read in reads])
            is_done = True
        except FsError:
            pass  # whose error it is, shows when each is done by itself
    if is_done:
        for read in reads:
            reply(read)
        return
    async with trio.open_nursery() as nursery:
        for read in reads:
            nursery.start_soon(read_alone, read)
