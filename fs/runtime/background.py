"""Background tasks that live as long as a block, without changing what the block raises.

A plain nursery wraps every error of its block into an exception group, which would leak into each
caller's `except FsError`.  `open_background` raises the block's own error as it is.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_background() -> AsyncIterator[trio.Nursery]:
    """Yield a nursery whose tasks are cancelled when the block is left.

    An error of the block is raised unwrapped once the tasks have ended; an error of a task cancels
    the block and is raised in a group, as by a nursery.
    """
    error: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except Exception as caught:  # noqa: BLE001 - raised again below, not wrapped in a group
            error = caught
        finally:
            nursery.cancel_scope.cancel()
    if error is not None:
        raise error
