"""Lanes: rings that calls of a client take, and give back;
each with a stage for bytes that lie in no shared memory.

Invariants:
    - A lane is given back only when nothing is under way on it; after an exception it is given up,
      and only then does the call end, so that no read reaches a buffer later.
    - Of one client never more lanes are under way than its program may have rings; further calls
      wait for one.  Calls of threads and of coroutines wait apart: a thread that runs coroutines
      must not block for what they hold.
"""

from array import array
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, cast

from .ior import Rings
from .iov import Iovs, SharedIov
from .memory import Region, copy
from .plan import STAGED_BYTES_MAX, Plan
from .protocol import Op
from .ring_file import RingFile
from .waiting import Permits

ENTRY_COUNT: Final = 1024
STAGE_BYTES: Final = 16 << 20
STAGED_TOGETHER_BYTES: Final = 8 << 20
LANES_OF_THREADS: Final = 24
LANES_OF_COROUTINES: Final = 24
"""Both together leave some of a program's 64 rings for those that it makes itself."""


class Room:
    """Where the pieces on a stage lie: one behind the other, round and round,
    so that some are filled while others are moved.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken: deque[tuple[int, int]] = deque()
        """Start and end of each piece, the oldest first."""
        self._ended: set[int] = set()
        """Starts of those that are over, but lie behind one that is not."""

    @property
    def is_empty(self) -> bool:
        """Whether all that was taken has ended."""
        return not self._taken

    def take(self, count: int) -> int | None:
        """Return where so many bytes may lie, at least 1;
        None: nowhere before others have ended.
        """
        if not self._taken:
            start = 0 if count <= self._size else None
        else:
            oldest, following = self._taken[0][0], self._taken[-1][1]
            start = following
            if following > oldest and following + count > self._size:
                start, following = 0, 0
            if following <= oldest and following + count > oldest:
                start = None
        if start is not None:
            self._taken.append((start, start + count))
        return start

    def give_back(self, start: int) -> None:
        """End what `take` began."""
        self._ended.add(start)
        while self._taken and self._taken[0][0] in self._ended:
            self._ended.discard(self._taken.popleft()[0])


class Lane:
    """A ring with its stage, used by one call at a time."""

    def __init__(self, rings: Rings, iovs: Iovs) -> None:
        self.ring = rings.new(ENTRY_COUNT)
        self._iovs = iovs
        self._stage: SharedIov | None = None
        self._room = Room(STAGE_BYTES)
        self._staged: dict[int, tuple[int, memoryview]] = {}

    @property
    def is_free(self) -> bool:
        """Whether nothing is under way, nor left on the stage by a call that failed
        before it was handed in.
        """
        return self.ring.free_count == self.ring.entry_count and self._room.is_empty

    def region_id(self, region: Region) -> int:
        """Return the number of a region at the daemon."""
        return self._iovs.region_id(region)

    def close(self) -> None:
        """Give the ring up, and its stage."""
        self.ring.close()
        self._staged.clear()
        if self._stage is not None:
            self._stage.close()

    def start(self, plan: Plan) -> None:
        """Hand in as many of the waiting pieces as there is room for."""
        if len(plan.waiting) == 1 and self.ring.free_count and self._start_one(plan):
            return
        while self._start_some(plan):
            pass

    def _start_some(self, plan: Plan) -> bool:
        """Hand in some pieces at once; True: there may be room for more.

        Of the stage only a part at a time: what is handed in together ends together, and while one
        part is moved another is filled, or emptied.
        """
        waiting, room = plan.waiting, self.ring.free_count
        staged_bytes = 0
        columns = [array("Q") for _ in range(5)]
        add_index, add_offset, add_place, add_length, add_ids = [c.append for c in columns]
        file, region, file_id, region_id = None, None, 0, 0
        while waiting and room:
            index = waiting[0]
            at, start, length, of_piece, place = plan.pieces[index]
            transfer, moved = plan.transfers[at], plan.moved[index]
            if of_piece is None:
                staged = self._staged_at(index, plan)
                if staged is None:
                    break
                memory_id, place = staged
                staged_bytes += length - moved
            else:
                if of_piece is not region:  # mostly one memory, and one file, of many
                    region, region_id = of_piece, self._iovs.region_id(of_piece)
                memory_id, place = region_id, place + moved
            if transfer.file is not file:
                file = transfer.file
                file_id = cast(RingFile, file).id  # as was checked
            add_index(index)
            add_offset(transfer.offset + start + moved)
            add_place(place)
            add_length(length - moved)
            add_ids(file_id | memory_id << 32)
            waiting.popleft()
            room -= 1
            if staged_bytes > STAGED_TOGETHER_BYTES - STAGED_BYTES_MAX:
                break
        if not columns[0]:
            return False
        kind = array("Q", [int(plan.op) | int(plan.flags) << 32]) * len(columns[0])
        self.ring.put_columns([*columns, kind])
        self.ring.submit()
        return staged_bytes > STAGED_TOGETHER_BYTES - STAGED_BYTES_MAX

    def _start_one(self, plan: Plan) -> bool:
        """Hand in a single piece that lies in shared memory; columns do not pay for it."""
        index = plan.waiting[0]
        at, start, length, region, place = plan.pieces[index]
        if region is None:
            return False
        transfer, moved = plan.transfers[at], plan.moved[index]
        file_id, memory_id = cast(RingFile, transfer.file).id, self._iovs.region_id(region)
        offset, place, length = transfer.offset + start + moved, place + moved, length - moved
        self.ring.put(index, offset, place, length, file_id, memory_id, plan.op, plan.flags)
        plan.waiting.popleft()
        self.ring.submit()
        return True

    def _staged_at(self, index: int, plan: Plan) -> tuple[int, int] | None:
        """Return (memory id, offset) of room for a piece on the stage;
        None: there is none before others have ended.
        """
        buffer = plan.buffer_of(index)
        if self._stage is None:
            self._stage = self._iovs.allocate(STAGE_BYTES)
        start = self._room.take(buffer.nbytes)
        if start is None:
            return None
        window = self._stage.view[start : start + buffer.nbytes]
        if plan.op is Op.WRITE:
            window[:] = buffer
        self._staged[index] = start, window
        return self._stage.id, start

    def note(self, plan: Plan, results: Sequence[tuple[int, int]]) -> None:
        """Take in completions; of many on the stage some at a time,
        each with what takes their room handed in before the next.

        Parts that end together would be handed in together otherwise, and end together ever after:
        nothing would be moved while they are emptied.
        """
        if not self._staged:
            plan.note(results)
            return
        noted, emptied_bytes = 0, 0
        for count, (index, result) in enumerate(results, 1):
            start, window = self._staged.pop(index, (0, None))
            if window is None:
                continue
            if plan.op is Op.READ and result > 0:
                copy(window[:result], plan.buffer_of(index))
            self._room.give_back(start)
            emptied_bytes += len(window)
            if emptied_bytes > STAGED_TOGETHER_BYTES - STAGED_BYTES_MAX:
                plan.note(results[noted:count])
                self.start(plan)
                noted, emptied_bytes = count, 0
        plan.note(results[noted:])


class Lanes:
    """All lanes of a client."""

    def __init__(self, rings: Rings, iovs: Iovs) -> None:
        self._rings = rings
        self._iovs = iovs
        self._daemon = rings.daemon
        self._free: list[Lane] = []
        """Of no order; any thread adds and takes one in a single step."""
        self._for_threads = Permits(LANES_OF_THREADS)
        self._for_coroutines = Permits(LANES_OF_COROUTINES)

    def take(self) -> Lane:
        """Return a lane, until it is given back; raises OSError where there is none to be had."""
        self._for_threads.take()
        try:
            return self._next() or Lane(self._rings, self._iovs)
        except BaseException:
            self._for_threads.give_back()
            raise

    def give_back(self, lane: Lane) -> None:
        """End what `take` began: also where something is under way,
        which then reaches no buffer any more.
        """
        try:
            self._keep_or_close(lane)
        finally:
            self._for_threads.give_back()

    def keep(self, lane: Lane) -> None:
        """As `give_back`, of a lane whose only call has ended well:
        nothing can be under way, nor left on its stage.
        """
        if self._daemon.is_closed:
            self.give_back(lane)
            return
        self._free.append(lane)  # one step, so it needs no lock
        self._for_threads.give_back()

    @asynccontextmanager
    async def lane_async(self) -> AsyncIterator[Lane]:
        """Do what `lane` does in a coroutine of asyncio or trio."""
        await self._for_coroutines.take_async()
        try:
            lane = self._next() or Lane(self._rings, self._iovs)
            try:
                yield lane
            finally:
                self._keep_or_close(lane)
        finally:
            self._for_coroutines.give_back()

    def _keep_or_close(self, lane: Lane) -> None:
        if lane.is_free and not self._daemon.is_closed:
            self._free.append(lane)
        else:
            lane.close()

    def _next(self) -> Lane | None:
        """Return a free lane to the daemon that serves the mount now."""
        connection, free = self._daemon.connection(), self._free
        while free:
            try:
                lane = free.pop()  # one step, so it needs no lock
            except IndexError:  # another thread was quicker
                break
            if lane.ring.connection is connection:
                return lane
            lane.close()
        return None
