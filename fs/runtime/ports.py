"""The doors to the outside world that simulation replaces: clock, network, blocking calls.

Every program of EmberFS gets one `Runtime` at start and hands it down; nothing below `app` reads a
clock, opens a socket, starts a thread or draws a random number in any other way.

Concurrency: trio.  In simulation `run_blocking` calls the function inline, so a blocking function
must not depend on running beside the event loop.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import trio

from ..kernels.reads_twin import ReadNow

T = TypeVar("T")

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes."""

FileSource = int | ReadNow
"""An open file: a descriptor, or what stands for it."""

OnBytes = Callable[[int], memoryview | None]
"""Told how many bytes have come; returns where the next ones go, or None:
who waits for them is to look at these.
"""


class Clock(Protocol):
    """Two clocks: wall time for records people see, monotonic time for every decision."""

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may jump either way."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back and go on while the machine sleeps,
        when trio's clock stands still.
        """
        ...


class PeerMemory(Protocol):
    """Memory of the process at the other end of a stream, as far as it lends it,
    and what that is told of ours.
    """

    def fresh_nonce(self) -> bytes:
        """Return NONCE_BYTES (fs/kernels/lent.py) that nobody can guess."""
        ...

    def pieces_of(self, buffers: Sequence[Buffer]) -> bytes:
        """Return where buffers of ours lie, for the other side's `read`; they stay ours."""
        ...

    def may_change(self, pieces: bytes) -> None:
        """Say that buffers of ours are lent no more:
        they may be used for something else, though the other side may read them yet.
        """
        ...

    def read(self, pieces: bytes, skip: int, into: memoryview, place: int, nonce: bytes) -> None:
        """Read what the other side lends; see `fs.kernels.lent_twin.read_lent`,
        also for what it raises.

        Any thread may.
        """
        ...

    def number_of(self, source: FileSource) -> int:
        """Return what the other side has to know a file of ours by that is lent to it;
        it stays open as long.
        """
        ...

    def sources_may_change(self, numbers: Sequence[int]) -> None:
        """Say that files of ours are lent no more, though the other side may read them yet."""
        ...

    def read_ranges(
        self, ranges: Buffer, buffers: Sequence[memoryview], place: int, nonce: bytes
    ) -> None:
        """Read ranges of the other side's files, with its numbers;
        see `fs.kernels.lent_twin.read_files`, also for what it raises.

        Any thread may.
        """
        ...

    def read_direct(
        self, ranges: Buffer, buffers: Sequence[memoryview], place: int, nonce: bytes
    ) -> None:
        """Do as `read_ranges`, waiting for the disk:
        the descriptors are such as read past the page cache.

        A thread may that can wait for ever; while it does, and the buffers are its
        own, nobody else is to use them.

        Raises:
            OSError: as `read_ranges`; EIO: not all of it is to be had so, whatever the reason.
        """
        ...


class Stream(Protocol):
    """One ordered, reliable byte stream between two processes.

    One task may send while another receives; two tasks may not do the same thing at once. Every
    method raises trio.BrokenResourceError or trio.ClosedResourceError when the stream is gone.
    """

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """Send the buffers one after the other, all of them, without joining them first."""
        ...

    async def send_some(self, buffers: Sequence[Buffer]) -> int:
        """Send at least one byte of the buffers, in order; return how many.

        Cancelled, it has sent nothing, so a caller always knows where a frame was cut.
        """
        ...

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        """As `send_some`, without waiting; 0 where that would have to wait,
        or lets others have their turn.
        """
        ...

    async def receive_into(self, buffer: memoryview, on_bytes: OnBytes | None = None) -> int:
        """Receive 1..len(buffer) bytes to the start of `buffer`;
        return how many, 0 at end of stream.

        With `on_bytes`: whatever comes is told to it first, maybe outside of any task, and this
        returns only when it returns None.  What it raises is raised here.  It is not called any
        more once this has returned, or was cancelled.
        """
        ...

    async def receive_scatter(self, buffers: Sequence[memoryview]) -> int:
        """As `receive_into`, filling several buffers in order;
        return the total, 0 at end of stream.

        Cancelled, it has received nothing and touches the buffers no more.
        """
        ...

    def receive_now(self, buffers: Sequence[memoryview]) -> int:
        """As `receive_scatter`, without waiting; 0 where that would have to wait,
        lets others have their turn, or is at the end.
        """
        ...

    @property
    def peer_memory(self) -> PeerMemory | None:
        """None: the other side's process, its user or its machine
        is another one's, or not known.
        """
        ...

    async def aclose(self) -> None:
        """Close at once; never raises for an already broken stream."""
        ...

    @property
    def peer_name(self) -> str:
        """The other side's address, for messages to people."""
        ...


StreamHandler = Callable[[Stream], Awaitable[None]]


class Network(Protocol):
    """Makes connections.  Addresses are `tcp:HOST:PORT`, `unix:/PATH` or `mem:NAME`."""

    async def connect(self, address: str, *, may_be_old: bool = False) -> Stream:
        """Connect; raises FsError(RPC_CONNECT_FAILED) when the host is silent or unknown.

        `may_be_old`: where the name of the host leads nowhere now, where it led the last time will
        do, for who only wants to know whether the way is free.

        Where the host itself answers that nobody listens, the error is a
        `fs.rpc.api.ConnectionRefused`: proof that no process serves there.
        """
        ...

    async def serve(
        self,
        address: str,
        handler: StreamHandler,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen and run `handler` for each connection until cancelled; never returns.

        Reports the bound address (with the real port for `tcp:HOST:0`) through `task_status`.
        The listening socket lives exactly as long as this call.
        """
        ...


class RunBlocking(Protocol):
    """Runs a blocking function without stopping the event loop."""

    async def __call__(self, function: Callable[..., T], /, *args: object) -> T:
        """Call `function(*args)` and return its result; the call itself cannot be cancelled."""
        ...


OnEnd = Callable[[BaseException | None], None]
"""Told what a blocking function raised, on the event loop, outside of any task."""


class BeginBlocking(Protocol):
    """Begins a blocking function that no task waits for:
    that saves the task, and turns of the event loop.
    """

    def __call__(self, function: Callable[[], object], on_end: OnEnd) -> None:
        """Have `function()` called, and then `on_end`; the event loop has to run until then."""
        ...


class OwnThreads(Protocol):
    """Makes threads beside those of `Runtime.run_blocking`."""

    def __call__(self, count_max: int = 0) -> tuple[RunBlocking, BeginBlocking]:
        """Return what runs functions in them: `count_max` at once, 0:
        as many as in those of the process.
        """
        ...


@dataclass(frozen=True, slots=True)
class Runtime:
    """Everything impure that a process may use."""

    clock: Clock
    network: Network
    run_blocking: RunBlocking
    random: random.Random
    boot_id: str = ""
    """Of this machine: stays the same for as long as its page cache does; empty: not known."""
    begin_blocking: BeginBlocking | None = None
    """None: a task has to call `run_blocking`."""
    own_threads: OwnThreads | None = None
    """For calls that may never return, and those that must not wait for such;
    None: there is no such thing.
    """
