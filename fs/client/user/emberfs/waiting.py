"""Waiting for a descriptor in whatever event loop the caller runs: asyncio or trio.  Imports neither library of others."""

import asyncio
import sys


async def readable(fd: int) -> None:
    """Return when `fd` can be read; cancellable."""
    trio = sys.modules.get("trio")  # who runs in trio has imported it
    if trio is not None and trio.lowlevel.in_trio_run():
        await trio.lowlevel.wait_readable(fd)
        return
    loop = asyncio.get_running_loop()
    is_readable: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not is_readable.done():
            is_readable.set_result(None)

    loop.add_reader(fd, note)
    try:
        await is_readable
    finally:
        loop.remove_reader(fd)
