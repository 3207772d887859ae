"""Calls that nobody waits for: their end is told once, whatever it is,
and nothing of them stays behind.
"""

from dataclasses import replace

import pytest
import trio

from fs.rpc.api import Reply
from fs.rpc.framed_stream import SMALL_PAYLOAD_BYTES_MAX
from fs.schema import services
from fs.schema.proto import core_pb2 as core
from fs.schema.status import FsError, Status

ECHO = services.CORE_ECHO


@pytest.fixture
def core_service(monkeypatch):
    class Core:
        async def echo(self, _call, request):
            if request.data == b"wait":
                await trio.sleep_forever()
            if request.data == b"error":
                raise FsError(Status.NOT_EMPTY, "directory 17 holds 3 entries")
            payload = [b"p" * request.reply_payload_bytes] if request.reply_payload_bytes else ()
            return Reply(core.EchoRsp(data=request.data), payload)

    monkeypatch.setattr("fs.rpc.core_service.CoreService.echo", Core().echo)


class Begun:
    """Calls of one channel, and what became of them."""

    def __init__(self, channel):
        self.channel = channel
        self.under_way = set()
        self.send, self.ends = trio.open_memory_channel(100)

    def begin(self, data=b"x", *, payload_bytes=0, timeout_s=60.0, is_packed=False, **options):
        request = core.EchoReq(data=data, reply_payload_bytes=payload_bytes)
        return self.channel.begin(
            ECHO,
            request,
            self._ended,
            timeout_s=timeout_s,
            under_way=self.under_way,
            is_packed=is_packed,
            **options,
        )

    def _ended(self, received, error):
        if received is not None:  # its payload is lent until this returns
            received = replace(received, payload=bytes(received.payload))
        self.send.send_nowait((received, error))

    async def end(self):
        with trio.fail_after(60):
            received, error = await self.ends.receive()
        assert (received is None) == (error is not None)
        assert not self.under_way
        return received, error


@pytest.fixture
async def connected(net, process, core_service):
    del core_service
    async with process(net) as p:
        begun = Begun(p.channel)
        assert begun.begin() is None  # not connected yet
        await p.channel.call(ECHO, core.EchoReq(data=b"connect"))
        begun.process = p
        yield begun


@pytest.mark.parametrize("payload_bytes", [0, 1, SMALL_PAYLOAD_BYTES_MAX])
async def test_the_reply_is_handed_over(connected, payload_bytes):
    for _ in range(3):
        call = connected.begin(b"hello", payload_bytes=payload_bytes)
        assert connected.under_way == {call}
        received, _ = await connected.end()
        assert received.message.data == b"hello"
        assert bytes(received.payload) == b"p" * payload_bytes == b"p" * received.payload_bytes
    reply = await connected.channel.call(ECHO, core.EchoReq(data=b"next"))
    assert reply.message.data == b"next"


async def test_the_message_is_handed_over_as_it_came_where_that_is_wanted(connected):
    assert connected.begin(b"hello", payload_bytes=3, is_packed=True)
    received, _ = await connected.end()
    assert type(received.message) is bytes
    assert core.EchoRsp.FromString(received.message).data == b"hello"
    assert (bytes(received.payload), received.payload_bytes) == (b"ppp", 3)


@pytest.mark.parametrize("is_packed", [False, True])
async def test_a_status_of_the_peer_is_handed_over(connected, is_packed):
    assert connected.begin(b"error", is_packed=is_packed)
    _, error = await connected.end()
    assert (error.status, error.detail) == (Status.NOT_EMPTY, "directory 17 holds 3 entries")


async def test_what_cannot_be_begun_for_an_error_is_withdrawn(connected, monkeypatch):
    connection = connected.channel._connection

    def send_along(*_):
        raise MemoryError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(connection._borrower, "send_along", send_along)
        with pytest.raises(MemoryError):
            connected.begin()
    assert (connected.under_way, connection._calls) == (set(), {})
    assert connected.begin(b"hello")
    received, _ = await connected.end()
    assert received.message.data == b"hello"


async def test_more_payload_than_is_small_is_refused(connected):
    assert connected.begin(payload_bytes=SMALL_PAYLOAD_BYTES_MAX + 1)
    _, error = await connected.end()
    assert error.status is Status.RPC_BAD_FRAME
    reply = await connected.channel.call(ECHO, core.EchoReq(data=b"next"))
    assert reply.message.data == b"next"


LARGE = 100_000


@pytest.mark.parametrize("size", [SMALL_PAYLOAD_BYTES_MAX + 1, 33_000, LARGE - 1, LARGE])
async def test_as_much_payload_as_is_wanted_is_handed_over(connected, size):
    for number in range(4):  # the first one finds a small receive buffer
        small = connected.begin(b"small")
        large = connected.begin(b"%d" % number, payload_bytes=size, reply_bytes_max=LARGE)
        assert connected.under_way == {small, large}
        with trio.fail_after(60):
            found = [(await connected.ends.receive())[0] for _ in range(2)]
        by_data = {one.message.data: one.payload for one in found}
        assert by_data == {b"small": b"", b"%d" % number: b"p" * size}
    reply = await connected.channel.call(ECHO, core.EchoReq(data=b"next", reply_payload_bytes=size))
    assert reply.message.data == b"next"
    assert bytes(reply.payload) == b"p" * size


async def test_more_than_is_wanted_is_refused_and_what_comes_next_is_not(connected):
    assert connected.begin(payload_bytes=LARGE + 1, reply_bytes_max=LARGE)
    _, error = await connected.end()
    assert error.status is Status.RPC_BAD_FRAME
    assert connected.begin(b"next", payload_bytes=LARGE, reply_bytes_max=LARGE)
    assert (await connected.end())[0].payload == b"p" * LARGE


async def test_its_time_is_limited(connected):
    assert connected.begin(b"wait", timeout_s=0.1)
    _, error = await connected.end()
    assert error.status is Status.RPC_TIMEOUT


async def test_it_can_be_given_up_once(connected):
    call = connected.begin(b"wait")
    for detail in ("one", "two"):
        call.fail(FsError(Status.RPC_CONNECTION_LOST, detail))
    _, error = await connected.end()
    assert error.detail == "one"
    assert connected.channel._connection.in_flight_count == 0
    assert connected.begin(b"again")
    assert (await connected.end())[0].message.data == b"again"
    assert connected.ends.statistics().current_buffer_used == 0


async def test_it_ends_with_its_connection(connected):
    for _ in range(2):
        assert connected.begin(b"wait")
    await connected.channel.aclose()
    for _ in range(2):
        with trio.fail_after(60):
            _, error = await connected.ends.receive()
        assert error.status is Status.RPC_CONNECTION_LOST
    assert not connected.under_way
    assert connected.begin() is None


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("error", [MemoryError("injected"), AssertionError("injected")], ids=repr)
async def test_what_the_end_of_one_call_raises_hurts_no_other(connected, error, is_late, caplog):
    """It is told by the task that receives for all, or by the one that looks after time limits."""

    def end(_received, _failure):
        raise error

    request = core.EchoReq(data=b"wait" if is_late else b"x")
    timeout_s = 0.05 if is_late else 60.0
    begun = connected.channel.begin(
        ECHO, request, end, timeout_s=timeout_s, under_way=connected.under_way
    )
    assert begun is not None
    connection = connected.channel._connection
    with trio.fail_after(60):
        while connected.under_way:  # noqa: ASYNC110 - of what happens there is no event
            await trio.sleep(0.001)
    assert sum("injected" in one.getMessage() + str(one.exc_info) for one in caplog.records) == 1
    if not is_late:  # else the peer was silent, and another connection is taken
        assert connected.channel._connection is connection and connection.is_usable
        assert connected.begin(b"hello")
        received, _ = await connected.end()
        assert received.message.data == b"hello"
    reply = await connected.channel.call(ECHO, core.EchoReq(data=b"next"))
    assert reply.message.data == b"next"


async def test_a_reply_that_cannot_be_taken_in_is_told_as_a_lack(connected, monkeypatch):
    def reply_to(*_):
        raise MemoryError("injected")

    with monkeypatch.context() as patch:
        patch.setattr("fs.rpc.channel.reply_to", reply_to)
        assert connected.begin(b"hello")
        _, error = await connected.end()
    assert error.status is Status.OUT_OF_RESOURCES


async def test_an_error_of_whoever_receives_ends_one_connection(connected):
    connection = connected.channel._connection

    def take_whole():
        raise MemoryError("injected")

    connection._framed.take_whole = take_whole
    assert connected.begin(b"hello")
    _, error = await connected.end()
    assert error.status is Status.RPC_CONNECTION_LOST
    reply = await connected.channel.call(ECHO, core.EchoReq(data=b"next"))
    assert reply.message.data == b"next"
