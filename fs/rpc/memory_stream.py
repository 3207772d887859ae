"""One end of a stream of the simulated network:
bytes under way, and what its owner and the network do with them.

When something arrives, is lost or given up, and which ways are blocked, the network says (`Ways`;
`transport_memory.py` is one).

Invariants:
    - Bytes of one direction arrive in order, and the end of the stream behind them.
    - An end is open, closed by its owner, or broken; a broken one gives out nothing more.

Concurrency: trio; each end has one reader and one writer at a time.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import trio

from ..runtime.ports import Buffer, OnBytes
from .simulated_memory import SimulatedMemory

WINDOW_BYTES: Final = 1024 * 1024
"""Bytes sent and not yet received before a sender must wait."""


class Alarm:
    """Wakes one task at a time that may be moved while it waits, or at once."""

    def __init__(self) -> None:
        self._scope: trio.CancelScope | None = None
        self._lot = trio.lowlevel.ParkingLot()

    async def wait(self, until_s: float) -> None:
        """Wait until trio's clock shows `until_s` or the alarm rings; it may return early."""
        with trio.CancelScope(deadline=until_s) as self._scope:
            await self._lot.park()
        self._scope = None

    def move(self, until_s: float) -> None:
        """Let who waits wait until `until_s` instead."""
        if self._scope is not None:
            self._scope.deadline = until_s

    def ring(self) -> None:
        """Wake who waits."""
        self._lot.unpark_all()


class Ways(Protocol):
    """What a stream asks of the network that it is part of; ends are named by their endpoints."""

    silence_s_max: float
    """How long a way may be blocked before the streams over it break."""
    make_alarm: Callable[[], Alarm]
    """What a stream waits with."""
    memory: SimulatedMemory | None
    """What its processes lend each other; None: nothing."""

    def arrival_s(self) -> float:
        """When something sent now arrives."""
        ...

    def blocked_since_s(self, one: str, two: str) -> float | None:
        """When the way between two endpoints was first blocked; None while it is free."""
        ...

    def gives_up(self, owner: str, peer: str) -> bool:
        """Draw whether a stream is given up now by its sender."""
        ...

    def late_s(self) -> float:
        """Draw how late what was sent over a stream that is given up arrives."""
        ...

    def forget(self, stream: "MemoryStream") -> None:
        """Drop a stream that is closed or broken."""
        ...


class MemoryStream:
    """One end of a connection; see `fs.runtime.ports.Stream`."""

    def __init__(self, network: Ways, owner: str, peer: str, peer_name: str) -> None:
        self.owner = owner
        self.peer = peer
        self.other: MemoryStream
        self.is_broken = False
        self._network = network
        self._peer_name = peer_name
        self._pieces: deque[tuple[float, memoryview]] = deque()
        self._piece_bytes = 0
        self._last_arrival_s = 0.0
        self._is_closed = False
        self._is_abandoned = False
        self._arrival = network.make_alarm()
        self._room = network.make_alarm()

    @property
    def peer_name(self) -> str:
        """The other side's address."""
        return self._peer_name

    @property
    def peer_memory(self) -> SimulatedMemory | None:
        """None: the network lends nothing."""
        return self._network.memory

    # ---- as its owner sees it ------------------------------------------------------------------

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """Send all of the buffers."""
        for buffer in buffers:
            view = memoryview(buffer)
            while len(view) > 0:
                view = view[await self.send_some([view]) :]

    async def send_some(self, buffers: Sequence[Buffer]) -> int:
        """Send at least one byte."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not (count := self.send_now(buffers)):
            await self._room.wait(_or_never(self._silence_end_s()))
        return count

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        """As `send_some`, without waiting."""
        other = self.other
        self._check()
        is_closed = other._is_closed and not other.is_broken  # noqa: SLF001 - the other end
        if is_closed and self._silence_end_s() is None:
            self.break_now()  # the answer is a reset
            raise trio.BrokenResourceError(f"{self._peer_name}: broken pipe")
        room = WINDOW_BYTES - other._piece_bytes  # noqa: SLF001 - the other end of one thing
        if room <= 0:
            return 0
        data = b"".join(buffers)[:room]
        if other.is_broken and self._silence_end_s() is None:  # half open: the answer is a reset
            self.break_now()
            return len(data)
        other._put(data, self._network.arrival_s())  # noqa: SLF001 - the other end of one thing
        if self._network.gives_up(self.owner, self.peer):
            self.abandon(self._network.late_s())
        return len(data)

    async def receive_into(self, buffer: memoryview, on_bytes: OnBytes | None = None) -> int:
        """Receive at least one byte; 0 at end of stream."""
        while True:
            await self._wait_arrival()
            count = self._take(buffer)
            rest = on_bytes(count) if on_bytes is not None and count else None
            if rest is None:
                return count
            buffer = rest

    async def receive_scatter(self, buffers: Sequence[memoryview]) -> int:
        """Receive at least one byte into several buffers; 0 at end of stream."""
        await self._wait_arrival()
        return self._take_scatter(buffers)

    def receive_now(self, buffers: Sequence[memoryview]) -> int:
        """As `receive_scatter`, without waiting."""
        self._check()
        return self._take_scatter(buffers) if self._silence_end_s() is None else 0

    async def aclose(self) -> None:
        """Close this end; the other end reads what was sent, then the end of the stream."""
        if self._is_closed:
            return
        self._is_closed = True
        self._network.forget(self)
        if not self.is_broken:
            self.other._put(b"", self._network.arrival_s())  # noqa: SLF001 - the other end
        self.wake()

    # ---- as the network sees it ----------------------------------------------------------------

    def break_now(self) -> None:
        """Break this end: its operations fail from now on, what has not been received is lost."""
        self.is_broken = True
        self._pieces.clear()
        self._piece_bytes = 0
        self._network.forget(self)
        self.wake()

    def abandon(self, late_s: float) -> None:
        """Break this end; what was sent arrives at the other one `late_s` late,
        and later still it breaks, too.
        """
        self.break_now()
        other = self.other
        other.clog(trio.current_time() + late_s)
        other._is_abandoned = True  # noqa: SLF001 - the other end of one thing
        end_s = self._network.arrival_s() + self._network.late_s()
        other._put(b"", end_s)  # noqa: SLF001

    def clog(self, until_s: float) -> None:
        """Let nothing arrive at this end before `until_s`; order stays."""
        self._last_arrival_s = max(self._last_arrival_s, until_s)
        self._pieces = deque((max(at_s, until_s), data) for at_s, data in self._pieces)

    def wake(self) -> None:
        """Let waiting operations look again."""
        self._arrival.ring()
        self._room.ring()

    def _put(self, data: bytes, arrival_s: float) -> None:
        """Take bytes under way; no bytes mean the end of the stream."""
        if self._is_closed or self.is_broken:
            return
        self._last_arrival_s = max(self._last_arrival_s, arrival_s)
        self._pieces.append((self._last_arrival_s, memoryview(data)))
        self._piece_bytes += len(data)
        if len(self._pieces) == 1 and self._silence_end_s() is None:
            self._arrival.move(self._last_arrival_s)  # the receiver sleeps until it is there

    async def _wait_arrival(self) -> None:
        """Wait until the first piece, or the end of the stream, has arrived."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            self._check()
            until_s = self._silence_end_s()
            if self._pieces and until_s is None:
                until_s, data = self._pieces[0]
                if until_s <= trio.current_time():
                    if self._is_abandoned and not data:
                        self.break_now()
                        continue
                    return
            await self._arrival.wait(_or_never(until_s))

    def _take(self, buffer: memoryview) -> int:
        """Move what has arrived into `buffer`, as far as it fits; return how much."""
        done, now_s = 0, trio.current_time()
        while done < len(buffer) and self._pieces:
            arrival_s, data = self._pieces[0]
            count = min(len(data), len(buffer) - done)
            if arrival_s > now_s or not count:
                break  # not here yet, or the end, which stays in the queue
            buffer[done : done + count] = data[:count]
            done += count
            if count < len(data):
                self._pieces[0] = (arrival_s, data[count:])
            else:
                self._pieces.popleft()
        was_full = self._piece_bytes >= WINDOW_BYTES
        self._piece_bytes -= done
        if was_full:
            self.other.wake()
        return done

    def _take_scatter(self, buffers: Sequence[memoryview]) -> int:
        total = 0
        for buffer in buffers:
            count = self._take(buffer)
            total += count
            if count < len(buffer):
                break
        return total

    def _check(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this side closed the connection")
        if not self.is_broken:
            since_s = self._network.blocked_since_s(self.owner, self.peer)
            if since_s is not None and trio.current_time() >= since_s + self._network.silence_s_max:
                self.break_now()
                self.other.break_now()
        if self.is_broken:
            raise trio.BrokenResourceError(f"{self._peer_name}: connection reset")

    def _silence_end_s(self) -> float | None:
        """When the silence will break this stream; None while the way is free."""
        since_s = self._network.blocked_since_s(self.owner, self.peer)
        return None if since_s is None else since_s + self._network.silence_s_max


def _or_never(until_s: float | None) -> float:
    return math.inf if until_s is None else until_s
