"""The simulated network: streams in memory, with delays and faults drawn from one seed.

Each simulated process has its own `endpoint(name)`, which is its `Network`; addresses are
`mem:NAME`. Faults are set on the `MemoryNetwork` between endpoints, so what happens to one
process is decided outside of it.

It behaves as a kernel's TCP does, seen from the programs:
    - Bytes of one direction arrive in order, each piece after a random delay; a piece that is lost
      (`loss`) arrives after the pauses of its retransmissions, and so does what was sent behind it.
    - Each stream may be held up alone (`clog`), so that what was sent later
      over another one overtakes it.
    - A sender may give a stream up while what it sent is still under way (`replay`,
      `abandon`): the bytes arrive, late, and a repeat over a new stream meets them.  The
      receiver learns of the end after them.
    - A stream may be half open (`half_open`): one end is gone, the other learns it when it sends.
    - While the way between two endpoints is blocked nothing arrives; it arrives when the way is
      free again, unless it was blocked for longer than `silence_s_max`: then both ends break.
    - Both directions need the way back for acknowledgements, so a one-way block breaks streams too.
    - A killed endpoint's listeners refuse at once and its streams break at the other end; an
      endpoint that was switched off refuses nothing and says nothing.

Concurrency: trio; deterministic under `MockClock` with a seeded scheduler.
"""

import contextvars
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from ..runtime.ports import Stream, StreamHandler
from ..schema.status import FsError, Status
from .api import ConnectionRefused
from .memory_stream import Alarm, MemoryStream
from .simulated_memory import SimulatedMemory

CONNECT_TIMEOUT_S: Final = 10.0

RETRANSMIT_S: Final = 0.2
"""Pause before a lost piece is sent again; doubles with each loss of it."""

RETRANSMIT_COUNT_MAX: Final = 5
LATE_S: Final = (0.0, 0.01, 0.2, 2.0)
"""How late the bytes of a stream that was given up arrive."""


@dataclass(frozen=True, slots=True)
class DelayRange:
    """How long a piece of bytes travels: uniform between the two."""

    min_s: float = 0.0001
    max_s: float = 0.001


@dataclass(slots=True)
class _Listener:
    owner: str
    handler: StreamHandler
    nursery: trio.Nursery
    context: contextvars.Context
    """Of the listening process: its tasks are not the connecting one's."""


class MemoryEndpoint:
    """One simulated process's view of the network; see `fs.runtime.ports.Network`."""

    def __init__(self, network: "MemoryNetwork", name: str) -> None:
        self.name = name
        self._network = network

    async def connect(self, address: str, *, may_be_old: bool = False) -> Stream:
        """Connect to a listener of any endpoint; there is no name service.

        Raises:
            FsError: RPC_CONNECT_FAILED when the way is blocked for too long;
                `ConnectionRefused` when nobody listens.
        """
        del may_be_old
        return await self._network.connect(self.name, address)

    async def serve(
        self,
        address: str,
        handler: StreamHandler,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen and run `handler` for each connection until cancelled.

        Raises:
            FsError: START_FAILED when another endpoint or task listens there.
        """
        await self._network.serve(self.name, address, handler, task_status)


class MemoryNetwork:
    """All endpoints, the ways between them and their faults."""

    def __init__(
        self,
        seed: int = 0,
        *,
        delay: DelayRange = DelayRange(),
        silence_s_max: float = 10.0,
        make_alarm: Callable[[], Alarm] = Alarm,
    ) -> None:
        """Make a network without listeners.

        Args:
            seed: of the delays.
            delay: of each piece of bytes; may be replaced at any time.
            silence_s_max: how long a way may be blocked before the streams over it break.
            make_alarm: what streams wait with; a simulation has a cheaper one.
        """
        self.make_alarm = make_alarm
        self.delay = delay
        self.silence_s_max = silence_s_max
        self.loss = 0.0
        """Probability that a piece of bytes is lost on its way, each time it is sent."""
        self.replay = 0.0
        """Probability that a sender gives a stream up just after it has sent a piece over it."""
        self.may_give_up: Callable[[str, str], bool] = lambda _owner, _peer: True
        """Which streams (sender, receiver) `replay` concerns."""
        self.memory: SimulatedMemory | None = None
        """What processes lend each other; None: they do not,
        as if each had a machine of its own.
        """
        self._random = random.Random(seed)  # noqa: S311 - reproducible on purpose
        self._listeners: dict[str, _Listener] = {}
        self._owners: dict[str, str] = {}  # also of listeners that are gone
        self._streams: dict[MemoryStream, None] = {}  # ordered, so that runs repeat
        self._blocked: dict[tuple[str, str], float] = {}
        self._off: dict[str, float] = {}
        self._freed = trio.lowlevel.ParkingLot()

    def endpoint(self, name: str) -> MemoryEndpoint:
        """Return the view of the process `name`; asking again gives an equal one."""
        return MemoryEndpoint(self, name)

    # ---- faults --------------------------------------------------------------------------------

    def block(self, source: str, target: str) -> None:
        """Let nothing from `source` arrive at `target`; the other way stays as it is."""
        self._blocked.setdefault((source, target), trio.current_time())
        self._wake_between(source, target)

    def unblock(self, source: str, target: str) -> None:
        """Undo `block`."""
        if self._blocked.pop((source, target), None) is not None:
            self._freed.unpark_all()
            self._wake_between(source, target)

    def partition(self, *sides: Sequence[str]) -> None:
        """Block both ways between every two endpoints on different sides."""
        for index, side in enumerate(sides):
            for other in sides[index + 1 :]:
                for one in side:
                    for two in other:
                        self.block(one, two)
                        self.block(two, one)

    def heal(self) -> None:
        """Unblock every way; switched-off endpoints stay off."""
        for source, target in list(self._blocked):
            self.unblock(source, target)

    def reset(self, one: str, two: str) -> None:
        """Break every stream between two endpoints, at both ends, at once."""
        for stream in [s for s in self._streams if {s.owner, s.peer} == {one, two}]:
            stream.break_now()

    def half_open(self, one: str, two: str) -> None:
        """Break the ends that `one` has of its streams to `two`;
        the other ends hear nothing of it.
        """
        for stream in [s for s in self._streams if (s.owner, s.peer) == (one, two)]:
            stream.break_now()

    def streams(self, one: str = "", two: str = "") -> list[MemoryStream]:
        """Return the ends that `one` (default: anybody) has of streams to `two`, oldest first."""
        return [
            s for s in self._streams if (not one or s.owner == one) and (not two or s.peer == two)
        ]

    def kill(self, name: str) -> None:
        """Do what the kernel does when a process dies: close its listeners, break its streams."""
        self._close_listeners(name)
        for stream in [s for s in self._streams if name in (s.owner, s.peer)]:
            stream.break_now()

    def switch_off(self, name: str) -> None:
        """Let the whole machine fall silent: nothing in, nothing out, nothing refused.

        Its own ends break; the other ends stay half open until `silence_s_max` has passed.
        """
        self._off.setdefault(name, trio.current_time())
        self._close_listeners(name)
        for stream in [s for s in self._streams if s.owner == name]:
            stream.break_now()
        self._wake_all()

    def switch_on(self, name: str) -> None:
        """Bring a machine back: what is left of its old streams breaks."""
        self._off.pop(name, None)
        for stream in [s for s in self._streams if s.peer == name]:
            stream.break_now()
        self._wake_all()

    # ---- what endpoints and streams need ---------------------------------------------------------

    def blocked_since_s(self, one: str, two: str) -> float | None:
        """When the way between two endpoints was first blocked; None while it is free."""
        if not self._blocked and not self._off:
            return None
        found = [
            since_s
            for since_s in (
                self._blocked.get((one, two)),
                self._blocked.get((two, one)),
                self._off.get(one),
                self._off.get(two),
            )
            if since_s is not None
        ]
        return min(found) if found else None

    def arrival_s(self) -> float:
        """When something sent now arrives."""
        at_s = trio.current_time() + self._random.uniform(self.delay.min_s, self.delay.max_s)
        if self.loss:
            count = 0
            while count < RETRANSMIT_COUNT_MAX and self._random.random() < self.loss:
                at_s += RETRANSMIT_S * 2**count
                count += 1
        return at_s

    def gives_up(self, owner: str, peer: str) -> bool:
        """Draw whether a stream is given up now by its sender."""
        return (
            self.replay > 0
            and self._random.random() < self.replay
            and self.may_give_up(owner, peer)
        )

    def late_s(self) -> float:
        """Draw how late what was sent over a stream that is given up arrives."""
        return self._random.choice(LATE_S)

    def forget(self, stream: MemoryStream) -> None:
        """Drop a stream that is closed or broken."""
        self._streams.pop(stream, None)

    async def connect(self, name: str, address: str) -> Stream:
        """Connect for the endpoint `name`."""
        await trio.sleep_until(self.arrival_s())
        with trio.move_on_after(CONNECT_TIMEOUT_S):
            while True:
                listener = self._listeners.get(address)
                owner = self._owners.get(address, "")
                if self.blocked_since_s(name, owner) is None:
                    break
                await self._freed.park()
            if listener is None:
                raise ConnectionRefused(f"{address}: connection refused: nobody listens")
            return self._join(name, address, listener)
        raise FsError(Status.RPC_CONNECT_FAILED, f"{address}: no answer in time")

    async def serve(
        self, name: str, address: str, handler: StreamHandler, task_status: trio.TaskStatus[str]
    ) -> None:
        """Listen for the endpoint `name`."""
        await trio.lowlevel.checkpoint()
        if address in self._listeners:
            raise FsError(Status.START_FAILED, f"cannot listen at {address}: address in use")
        async with trio.open_nursery() as nursery:
            listener = _Listener(name, handler, nursery, contextvars.copy_context())
            self._listeners[address] = listener
            self._owners[address] = name
            try:
                task_status.started(address)
                await trio.sleep_forever()
            finally:
                if self._listeners.get(address) is listener:
                    del self._listeners[address]

    def _join(self, name: str, address: str, listener: _Listener) -> MemoryStream:
        near = MemoryStream(self, name, listener.owner, address)
        far = MemoryStream(self, listener.owner, name, f"mem:{name}")
        near.other, far.other = far, near
        self._streams[near] = self._streams[far] = None
        listener.context.run(listener.nursery.start_soon, _handle, listener.handler, far)
        return near

    def _close_listeners(self, name: str) -> None:
        for address in [a for a, entry in self._listeners.items() if entry.owner == name]:
            del self._listeners[address]

    def _wake_between(self, one: str, two: str) -> None:
        ends = (one, two), (two, one)
        for stream in self._streams:
            if (stream.owner, stream.peer) in ends:
                stream.wake()

    def _wake_all(self) -> None:
        self._freed.unpark_all()
        for stream in self._streams:
            stream.wake()


async def _handle(handler: StreamHandler, stream: MemoryStream) -> None:
    try:
        await handler(stream)
    finally:
        await stream.aclose()
