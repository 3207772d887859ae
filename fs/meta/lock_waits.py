"""Waiting for somebody else's lock to go, without asking all the time.

A wait ends when this service frees something on the file, and looks again every LOOK_INTERVAL_S
for what another service freed.  It promises nothing: whoever waited asks for the lock again,
and may find another one first.
"""

from collections.abc import Awaitable, Callable

import trio

from ..schema.proto.meta_pb2 import FindLockConflictReq, FindLockConflictRsp

LOOK_INTERVAL_S = 0.25
WAIT_S_MAX = 10.0


class LockWaits:
    """The waits of one service."""

    def __init__(self) -> None:
        self._freed: dict[int, trio.Event] = {}

    def wake(self, inode_id: int) -> None:
        """Some lock on the file was freed."""
        event = self._freed.pop(inode_id, None)
        if event is not None:
            event.set()

    async def wait(
        self, request: FindLockConflictReq, test: Callable[[], Awaitable[FindLockConflictRsp]]
    ) -> FindLockConflictRsp:
        """Repeat `test` until it finds no conflict, for as long as the request is ready to wait."""
        reply = await test()
        with trio.move_on_after(min(request.wait_ms / 1000, WAIT_S_MAX)):
            while reply.HasField("conflict"):
                await self._look_later(request.inode_id)
                reply = await test()
        return reply

    async def _look_later(self, inode_id: int) -> None:
        """Wait until something on the file was freed, or it is time to look;
        the last one who waits leaves nothing behind.
        """
        freed = self._freed.setdefault(inode_id, trio.Event())
        try:
            with trio.move_on_after(LOOK_INTERVAL_S):
                await freed.wait()
        finally:
            if self._freed.get(inode_id) is freed and not freed.statistics().tasks_waiting:
                del self._freed[inode_id]
