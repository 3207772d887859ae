"""Frames over one stream: their order when some are queued."""

import trio

from fs.rpc.frame import FrameLimits
from fs.rpc.framed_stream import POST_CALL_COUNT_MIN, FramedStream


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
