"""Sending frames over one stream, uncut: at once, in turn, or posted to be sent with others.

Invariants:
    - A frame is sent whole or not begun.  A sender cancelled in the middle leaves a private copy of
      the rest to a task of the connection and returns at once; its buffers are read no more.
    - Where the rest of a frame cannot be sent for an error of ours, say no memory for a copy
      of it, nothing is sent any more and the connection is told to end (`on_cut`): what came
      next would be read as that rest.

Small frames of a busy connection are posted: copied to a queue that one task sends in one system
call, after every task that is ready now has had its turn.  Waking the other process costs more
than all the rest of a small call.

Concurrency: many tasks may send, in the order they came.  Does not receive, nor look into frames.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import trio

from ..runtime.ports import Buffer, Stream
from .buffers import skip_bytes

log = logging.getLogger(__name__)

POST_BYTES_MAX: Final = 8 * 1024
"""Larger frames are sent from where they are."""

AT_ONCE_BYTES_MAX: Final = 128 * 1024
"""Of a frame that is sent without a task that may wait for room:
so much of it is copied at most if only a part goes out.
"""

POST_CALL_COUNT_MIN: Final = 16
"""With fewer calls under way, waiting for other frames costs more time than it saves work: with 4
of them posting made a call half as slow again; with 32 it saved a third of the processor time.
"""

QUEUE_BYTES_MAX: Final = 1024 * 1024
"""With more than this queued, senders wait: the peer does not read."""

Spawn = Callable[..., Any]
"""`nursery.start_soon` of the connection."""

_BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


def _nothing() -> None:
    """Nobody is to be told: whoever sends hears of it by what is raised."""


class FrameSender:
    """The sending side of one connection's stream."""

    def __init__(self, stream: Stream, spawn: Spawn) -> None:
        """Wrap `stream`; `spawn` starts tasks that live as long as the connection."""
        self.stream = stream
        self.progress = 0
        """Grows whenever bytes of a frame have been sent;
        who receives counts those behind a header, too.
        """
        self._spawn = spawn
        self._is_sending = False
        self._senders = trio.lowlevel.ParkingLot()
        self._is_closed = False
        self.on_cut: Callable[[], None] = _nothing
        """Ends the connection, outside of any task, too:
        a part of a frame was sent, and nobody has the rest.
        """
        self._queue: list[bytes] = []
        self._queue_bytes = 0
        self._queue_filled: trio.lowlevel.ParkingLot | None = None

    async def aclose(self) -> None:
        """Close the stream; whoever waits to send fails."""
        self._is_closed = True
        self._senders.unpark_all()
        await self.stream.aclose()

    def send_at_once(self, buffers: Sequence[Buffer], *, call_count: int) -> bool:
        """Send one frame of up to AT_ONCE_BYTES_MAX if nothing has to be waited for;
        return False with nothing done otherwise.

        Args:
            buffers: belong to the caller again when this returns or raises.
            call_count: calls under way: of many, others are likely to send in this moment too,
                and small frames go together.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: the stream is gone.
        """
        size = sum(map(len, buffers))
        if size > AT_ONCE_BYTES_MAX or self._is_closed:
            return False
        may_post = size <= POST_BYTES_MAX and self._queue_bytes < QUEUE_BYTES_MAX
        if may_post and call_count >= POST_CALL_COUNT_MIN:
            self._post(buffers, size)
            return True
        if self._is_sending:
            return False
        count = self.stream.send_now(buffers)
        if not count:
            return False
        self.progress += 1
        if count < size:
            self._finish_later(buffers, count)
        return True

    def send_first(self, buffers: Sequence[Buffer]) -> Sequence[Buffer] | None:
        """Send as much of one frame as nothing has to be waited for;
        None: that is nothing, and nothing is done.

        Returns:
            What is left.  If there is something, nobody else can send before `send_rest` has
            ended, which the caller sees to.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: the stream is gone.
        """
        if self._is_sending or self._is_closed:
            return None
        count = self.stream.send_now(buffers)
        if not count:
            return None
        self.progress += 1
        try:
            rest = () if count == sum(map(len, buffers)) else skip_bytes(buffers, count)
        except Exception as error:
            raise self.cut(error) from error
        self._is_sending = bool(rest)
        return rest

    async def send_rest(self, rest: Sequence[Buffer]) -> None:
        """Send what `send_first` has left; as `send`."""
        await self._send(rest, is_begun=True)

    def _finish_later(self, buffers: Sequence[Buffer], sent_bytes: int) -> None:
        """Leave the rest of a frame to a task; raises trio.BrokenResourceError if
        that cannot be, after the end.
        """
        self._is_sending = True
        try:
            self._spawn(self._finish, b"".join(skip_bytes(buffers, sent_bytes)))
        except Exception as error:
            raise self.cut(error) from error

    def cut(self, error: BaseException) -> trio.BrokenResourceError:
        """Let nobody send any more, since a frame has only begun, and end the connection;
        return what its sender is to raise.
        """
        self._is_closed = True
        self._senders.unpark_all()
        name = self.stream.peer_name
        log.warning("connection with %s ends within a frame of ours: %r", name, error)
        self.on_cut()
        return trio.BrokenResourceError(f"{name}: the rest of a frame is lost: {error!r}")

    def _post(self, buffers: Sequence[Buffer], size: int) -> None:
        frame = b"".join(buffers)
        if self._queue_filled is None:
            self._spawn(self._send_queue, filled := trio.lowlevel.ParkingLot())
            self._queue_filled = filled
        else:
            self._queue_filled.unpark()
        self._queue.append(frame)
        self._queue_bytes += size

    async def send_behind(self, frame: bytes) -> None:
        """Send one small frame that must not overtake a posted one, as a cancel its request."""
        if self._queue and not self._is_closed:
            self._queue.append(frame)
            self._queue_bytes += len(frame)
        else:
            await self.send([frame])

    async def _send_queue(self, filled: trio.lowlevel.ParkingLot) -> None:
        """Send what is posted, for as long as the connection lives."""
        try:
            while True:
                while self._queue:
                    frames = b"".join(self._queue)
                    self._queue.clear()
                    self._queue_bytes = 0
                    await self.send([frames])
                await filled.park()
        except _BROKEN:
            return  # the receiving side sees the broken stream too and ends the connection

    async def send(self, buffers: Sequence[Buffer]) -> None:
        """Send one frame, whole, after those that came before.

        The buffers belong to the caller again when this returns or raises.
        """
        if self._is_sending and not self._is_closed:
            await self._senders.park()  # whoever finishes hands its turn to us
        if self._is_closed:
            raise trio.ClosedResourceError("the connection was closed")
        self._is_sending = True
        await self._send(buffers, is_begun=False)

    async def _send(self, rest: Sequence[Buffer], *, is_begun: bool) -> None:
        left = sum(map(len, rest))
        try:
            while True:
                count = await self.stream.send_some(rest)
                self.progress += 1
                is_begun = True
                left -= count
                if not left:
                    break
                rest = skip_bytes(rest, count)
        except trio.Cancelled:
            if is_begun:
                self._finish_later(rest, 0)
            else:
                self._pass_turn()
            raise
        except _BROKEN:
            self._pass_turn()
            raise
        except Exception as error:
            if is_begun:
                raise self.cut(error) from error
            self._pass_turn()
            raise
        except BaseException:
            self._pass_turn()
            raise
        self._pass_turn()

    async def _finish(self, rest: bytes) -> None:
        """Send the rest of a frame whose sender was cancelled, or did not wait."""
        try:
            left = memoryview(rest)
            while left:
                left = left[await self.stream.send_some([left]) :]
                self.progress += 1
        except _BROKEN:
            pass  # the receiving side sees the broken stream too and ends the connection
        except Exception as error:  # noqa: BLE001 - told there, and nobody waits for this task
            self.cut(error)
            return
        except BaseException:  # the connection ends
            self._pass_turn()
            raise
        self._pass_turn()

    def _pass_turn(self) -> None:
        if self._senders:
            self._senders.unpark()
        else:
            self._is_sending = False
