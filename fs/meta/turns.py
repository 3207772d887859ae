"""Turns of operations that queue for the same file:
the first one is let try before anybody who does not queue.

Concurrency: one event loop.  Only who has the turn calls `begin_try` and `end_try`, and nobody
waits for a turn while he has another one.
"""

import trio


class Turns:
    """Whose turn it is to go on with each file that some operations queue for."""

    def __init__(self) -> None:
        self._locks: dict[int, trio.Lock] = {}
        self._tried: dict[int, trio.Event] = {}
        """Set once who has the turn has tried after the truncation he waits for."""

    async def take(self, inode_id: int) -> None:
        """Wait for the turn, those before us first."""
        lock = self._locks.setdefault(inode_id, trio.Lock())
        try:
            await lock.acquire()
        except trio.Cancelled:
            if self._locks.get(inode_id) is lock and not lock.locked():  # it was made for us
                del self._locks[inode_id]
            raise

    def begin_try(self, inode_id: int) -> None:
        """Have others let us try first, from the end of the truncation that is under way."""
        self._tried[inode_id] = trio.Event()

    def end_try(self, inode_id: int) -> None:
        """Let others go on; also when there was no try."""
        tried = self._tried.pop(inode_id, None)
        if tried is not None:
            tried.set()

    async def let_try(self, inode_id: int) -> None:
        """Wait for the try of who has the turn, if there is any."""
        tried = self._tried.get(inode_id)
        if tried is not None:
            await tried.wait()

    def give(self, inode_id: int) -> None:
        """Give the turn to the next one."""
        self.end_try(inode_id)
        lock = self._locks[inode_id]
        lock.release()
        if not lock.locked():  # nobody waits
            del self._locks[inode_id]


class Turn:
    """The turn that one operation has, of one file at a time, or none."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._inode_id: int | None = None

    async def take(self, inode_id: int) -> bool:
        """Wait for the turn; return False if it is ours already."""
        is_new = self._inode_id != inode_id
        if is_new:
            self.end()
            await self._turns.take(inode_id)
            self._inode_id = inode_id
        self._turns.begin_try(inode_id)
        return is_new

    def end_try(self) -> None:
        """Let others go on: we have tried."""
        if self._inode_id is not None:
            self._turns.end_try(self._inode_id)

    def end(self) -> None:
        """Let the next one have the turn."""
        if self._inode_id is not None:
            self._turns.give(self._inode_id)
            self._inode_id = None
