"""Frames over one stream: their order when some are queued."""

import trio

from fs.rpc.frame import FrameLimits
from fs.rpc.frame_sender import AT_ONCE_BYTES_MAX, POST_CALL_COUNT_MIN
from fs.rpc.framed_stream import FramedStream


class Slow:
    """A stream that takes what it is given when the test lets it."""

    def __init__(self):
        self.taken = []
        self.may_take = trio.Event()

    async def send_some(self, buffers):
        await self.may_take.wait()
        self.taken += map(bytes, buffers)
        return sum(map(len, buffers))


async def test_what_is_sent_behind_overtakes_nothing_that_is_queued():
    """A cancel that comes before its request would leave the request running."""
    stream = Slow()
    async with trio.open_nursery() as nursery:
        framed = FramedStream(stream, FrameLimits(1 << 20, 0), nursery.start_soon)
        assert framed.send_at_once([b"a"], call_count=POST_CALL_COUNT_MIN)
        await trio.testing.wait_all_tasks_blocked()
        assert framed.send_at_once([b"request"], call_count=POST_CALL_COUNT_MIN)
        nursery.start_soon(framed.send_behind, b"cancel")
        await trio.testing.wait_all_tasks_blocked()
        stream.may_take.set()
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(framed.send_behind, b"late")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert b"".join(stream.taken) == b"arequestcancellate"


class Narrow:
    """A stream that takes so many bytes at a time; none while it is full."""

    def __init__(self, room):
        self.room = room
        self.taken = bytearray()
        self.has_room = trio.Event()

    def send_now(self, buffers):
        sent = b"".join(buffers)[: self.room]
        self.taken += sent
        return len(sent)

    async def send_some(self, buffers):
        await self.has_room.wait()
        self.taken += b"".join(buffers)
        return sum(map(len, buffers))

    async def send_all(self, buffers):
        rest = b"".join(buffers)
        while rest:
            rest = rest[await self.send_some([rest]) :]


async def test_a_frame_of_a_small_file_goes_out_without_waiting():
    stream = Narrow(1 << 20)
    async with trio.open_nursery() as nursery:
        framed = FramedStream(stream, FrameLimits(1 << 20, 1 << 20), nursery.start_soon)
        frame = [b"head", bytes(64 << 10)]
        assert framed.send_at_once(frame, call_count=POST_CALL_COUNT_MIN)
        assert stream.taken == b"".join(frame)
        assert not framed.send_at_once([bytes(AT_ONCE_BYTES_MAX + 1)], call_count=1)


async def test_what_is_left_of_a_large_frame_is_a_copy_and_comes_before_the_next():
    stream = Narrow(1000)
    payload = bytearray(b"x" * (64 << 10))
    async with trio.open_nursery() as nursery:
        framed = FramedStream(stream, FrameLimits(1 << 20, 1 << 20), nursery.start_soon)
        assert framed.send_at_once([b"head", payload], call_count=1)
        payload[:] = b"y" * len(payload)  # it belongs to the caller again
        assert not framed.send_at_once([b"next"], call_count=1)
        nursery.start_soon(framed.send, [b"next"])
        await trio.testing.wait_all_tasks_blocked()
        stream.has_room.set()
    assert stream.taken == b"head" + b"x" * (64 << 10) + b"next"


async def test_a_large_frame_waits_where_there_is_no_room():
    framed = FramedStream(Narrow(0), FrameLimits(1 << 20, 1 << 20), lambda *_: None)
    assert not framed.send_at_once([bytes(64 << 10)], call_count=1)


class Trickle(Narrow):
    """A stream whose peer reads a byte whenever the test lets it."""

    async def send_some(self, buffers):
        await self.has_room.wait()
        self.has_room = trio.Event()
        return self.send_now(buffers)


async def test_what_is_left_of_a_frame_moves_on_while_its_peer_reads_slowly():
    """A connection whose frame does not move is ended: this one is not stuck."""
    stream = Trickle(1)
    async with trio.open_nursery() as nursery:
        framed = FramedStream(stream, FrameLimits(1 << 20, 1 << 20), nursery.start_soon)
        assert framed.send_at_once([b"abcd"], call_count=1)
        for left in (2, 1, 0):
            await trio.testing.wait_all_tasks_blocked()
            before = framed.progress
            assert framed.is_inside_frame
            stream.has_room.set()
            await trio.testing.wait_all_tasks_blocked()
            assert framed.progress > before, left
    assert stream.taken == b"abcd"
    assert not framed.is_inside_frame
