"""How processes end: waiting for it, and what people are told of it."""

import logging
import os
import signal
from pathlib import Path
from typing import Final

import trio

from ..machine.process_id import ProcessId, open_pidfd
from ..mounts.stuck_daemon import look_after

log = logging.getLogger(__name__)

AGAIN_S: Final = 0.5
"""Between two tries to get a descriptor."""
ENDED: Final = "ended"
"""Of a process that an earlier supervisor had started nobody knows more."""
LEFT_BEHIND: Final = "not ended: a thread of it waits for a disk that does not answer"
"""Of a mount daemon that serves nothing any more."""


async def pidfd_of(identity: ProcessId) -> int | None:
    """Return what `open_pidfd` does, as soon as there is a descriptor to be had:
    who is not seen has not ended.
    """
    while True:
        try:
            return open_pidfd(identity)
        except OSError as error:
            log.warning("process %d cannot be looked at: %s", identity.pid, error.strerror)
        await trio.sleep(AGAIN_S)


async def wait_end(identity: ProcessId) -> None:
    """Wait until that very process has ended."""
    pidfd = await pidfd_of(identity)
    if pidfd is None:
        return
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


async def wait_daemon_end(identity: ProcessId, mount_point: Path) -> bool:
    """Wait for the end of a mount daemon; one that is killed may need help with that.

    Returns:
        False: it has not ended, and what is left of it, which serves nothing, is not waited for.
    """
    has_ended = False
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            nonlocal has_ended
            await wait_end(identity)
            has_ended = True
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait)
        await look_after(identity.pid, mount_point)
        nursery.cancel_scope.cancel()
    return has_ended


def describe_exit(code: int) -> str:
    """Say how a process ended, by what `subprocess` calls its return code."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
