"""Is a storage process that was paused, or cut off in one direction, fenced?

Asked where it hurts: at the process itself.

A writer keeps writing growing numbers into one chunk through the mount and notes what was
acknowledged.  Meanwhile reads go straight to the victim, over a connection from before the fault,
under the chain version from before and under the newest one.  Whatever it answers, now or after it
wakes up: a number below what had been acknowledged when the read was *sent* is a stale read.
"""

import os
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from fs.schema.status import FsError, Status

from .content import BLOCK_BYTES
from .direct import read, request_of
from .disk import StoredChunk, stored_chunks
from .fleet import Fleet

READ_INTERVAL_S = 0.5
READ_TIMEOUT_S = 120.0
NUMBER = struct.Struct("<Q")


class Writer:
    """Writes 1, 2, 3 ... into the first block of a file, each made durable, until closed."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.path = fleet.mount / name
        self.acknowledged = 0
        self.longest_s = 0.0
        self.error: OSError | None = None
        self._is_over = False
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        self._put(1)
        self.inode_id = os.fstat(self._fd).st_ino
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _put(self, number: int) -> None:
        os.pwrite(self._fd, NUMBER.pack(number) * (BLOCK_BYTES // NUMBER.size), 0)
        os.fsync(self._fd)
        self.acknowledged = number

    def _work(self) -> None:
        try:
            while not self._is_over:
                began = time.monotonic()
                self._put(self.acknowledged + 1)
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                time.sleep(0.02)
        except OSError as error:
            self.error = error

    def take_longest(self) -> float:
        """Return the longest write since the last call."""
        longest, self.longest_s = self.longest_s, 0.0
        return longest

    def close(self) -> None:
        self._is_over = True
        self._thread.join(60)
        os.close(self._fd)


@dataclass(slots=True)
class Answers:
    """What the victim said."""

    counts: Counter[str] = field(default_factory=Counter)
    stale: list[str] = field(default_factory=list)

    def take(self, status: Status, data: bytes, acknowledged: int, when: str) -> None:
        """Judge one answer to a read that was sent when `acknowledged` had been."""
        if status is not Status.OK:
            self.counts[status.name.lower()] += 1
            return
        self.counts["data"] += 1
        (number,) = NUMBER.unpack_from(data)
        if number < acknowledged:
            self.stale.append(f"{when}: {number} returned, {acknowledged} acknowledged before")


def chunk_of(fleet: Fleet, victim: str, inode_id: int) -> StoredChunk:
    """Return the file's first chunk as the victim holds it."""
    (found,) = [c for c in stored_chunks(fleet.disk(victim)) if c.inode_id == inode_id]
    return found


def ask_through(
    fleet: Fleet,
    victim: str,
    writer: Writer,
    duration_s: float,
    *,
    begin: Callable[[], None],
    end: Callable[[], None],
) -> Answers:
    """Make a fault for so long and read from the victim all the time,
    and a little before and after.
    """
    answers = Answers()
    chunk = chunk_of(fleet, victim, writer.inode_id)
    before = fleet.routing()

    async def use(_mgmtd, channels):
        node = before.node_of_target(chunk.target_id)
        channel = channels.get(node.address, node_id=node.node_id)
        old = request_of(before, [chunk], is_relaxed=False)
        current = [old]

        async def one(request, when: str) -> None:
            acknowledged = writer.acknowledged
            (answer,) = await read(channel, request, READ_TIMEOUT_S)
            answers.take(answer.status, answer.data, acknowledged, when)

        async def refresh() -> None:
            while True:
                info = await trio.to_thread.run_sync(newest, fleet)
                if info is not None:
                    current[0] = request_of(info, [chunk], is_relaxed=False)
                await trio.sleep(1)

        async def ask_for(seconds: float, when: str) -> None:
            with trio.move_on_after(seconds):
                while True:
                    nursery.start_soon(one, old, f"{when}, old version")
                    nursery.start_soon(one, current[0], f"{when}, new version")
                    await trio.sleep(READ_INTERVAL_S)

        async with trio.open_nursery() as background:
            background.start_soon(refresh)
            async with trio.open_nursery() as nursery:
                await ask_for(1.0, "before")
                begin()
                try:
                    await ask_for(duration_s, "during")
                finally:
                    end()
                await ask_for(3.0, "after")
            background.cancel_scope.cancel()

    fleet.ask(use, timeout_s=duration_s + 2 * READ_TIMEOUT_S)
    return answers


def newest(fleet: Fleet):
    """Return the newest routing info; None while no manager answers."""
    try:
        return fleet.routing(1.0)
    except FsError:  # the manager may be the victim
        return None
