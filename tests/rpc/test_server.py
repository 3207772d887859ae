"""A server among peers that send garbage, stop in the middle, or ask for what is not there."""

import random

import pytest
import trio

from fs.rpc import replies
from fs.rpc.api import Identity, Reply
from fs.rpc.frame import (
    HEADER_BYTES,
    HELLO_VERSION,
    FrameLimits,
    Kind,
    decode_error,
    decode_header,
    encode_header,
)
from fs.rpc.framed_stream import HELD_S_MAX, FramedStream
from fs.rpc.handshake import encode_hello
from fs.rpc.memory_stream import MemoryStream
from fs.rpc.replies import REFUSALS_UNSENT_MAX
from fs.rpc.server import STUCK_S, Server, methods_of, snake_name
from fs.rpc.server_connection import BUFFER_WAIT_S_MAX
from fs.rpc.server_parts import POOL_BYTES_MAX
from fs.rpc.serving import Binding
from fs.schema import services
from fs.schema.config import RpcSection
from fs.schema.proto import core_pb2 as core
from fs.schema.status import FsError, Status

ME = Identity("test-cluster", client_id="raw")
LIMITS = FrameLimits(1 << 30, 1 << 40)


@pytest.fixture(autouse=True)
def brief_goodbyes(monkeypatch):
    """Who hears a goodbye here waits for the end of the stream,
    and so for all the time that the server waits for him.
    """
    monkeypatch.setattr(replies, "LINGER_S_MAX", 0.01)


async def exactly(stream, count):
    data = memoryview(bytearray(count))
    done = 0
    while done < count:
        got = await stream.receive_into(data[done:])
        if not got:
            return None
        done += got
    return bytes(data)


async def frame(stream):
    """Receive one frame; None at the end of the stream."""
    data = await exactly(stream, HEADER_BYTES)
    if data is None:
        return None
    header = decode_header(data, LIMITS, data[4])
    return header, await exactly(stream, header.message_bytes)


async def greeted(p):
    stream = await p.connect()
    await stream.send_all(encode_hello(ME))
    header, _ = await frame(stream)
    assert header.kind == Kind.HELLO
    return stream


def echo_frame(request_id=1, data=b"x", **fields):
    message = core.EchoReq(data=data).SerializeToString()
    values = {
        "service": services.CORE_ECHO.service_number,
        "method": services.CORE_ECHO.number,
        "message_bytes": len(message),
    }
    return encode_header(Kind.REQUEST, request_id, **{**values, **fields}) + message


async def last_word(stream):
    """Return the status of the goodbye with which the server closed the stream."""
    with trio.fail_after(60):
        header, detail = await frame(stream)
        assert header.kind == Kind.GOODBYE
        assert await frame(stream) is None
    return decode_error(header.status, detail).status


async def still_serves(p):
    assert (await p.channel.call(services.CORE_ECHO, core.EchoReq(data=b"a"))).message.data == b"a"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nAccept: text/html, ab\r\n", Status.RPC_BAD_FRAME),
        (bytes(48), Status.RPC_BAD_FRAME),
        (encode_header(Kind.REQUEST, 1, version=HELLO_VERSION), Status.RPC_BAD_FRAME),
        (encode_header(Kind.HELLO, 0, version=9), Status.RPC_BAD_VERSION),
        (
            encode_header(Kind.HELLO, 0, message_bytes=1 << 31, version=HELLO_VERSION),
            Status.RPC_TOO_LARGE,
        ),
        (b"".join(encode_hello(ME, version_min=8, version_max=9)), Status.RPC_BAD_VERSION),
        (b"".join(encode_hello(Identity("other"))), Status.RPC_WRONG_CLUSTER),
    ],
)
async def test_no_handshake_no_service(net, process, words, status):
    async with process(net) as p:
        stream = await p.connect()
        await stream.send_all([words])
        assert await last_word(stream) is status
        await still_serves(p)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (b"\x00" * 48, Status.RPC_BAD_FRAME),
        (echo_frame(message_bytes=1 << 30), Status.RPC_TOO_LARGE),
        (echo_frame(payload_bytes=1 << 40), Status.RPC_TOO_LARGE),
        (encode_header(Kind.REPLY, 1), Status.RPC_BAD_FRAME),
        (encode_header(Kind.HELLO, 1), Status.RPC_BAD_FRAME),
    ],
)
async def test_what_cannot_be_trusted_ends_its_connection(net, process, words, status):
    async with process(net) as p:
        stream = await greeted(p)
        await stream.send_all([words])
        assert await last_word(stream) is status
        await still_serves(p)


async def test_refused_requests_leave_the_connection_in_step(net, process):
    async with process(net) as p:
        stream = await greeted(p)
        refused = [
            (echo_frame(1, method=999), Status.RPC_UNKNOWN_METHOD),
            (echo_frame(2, service=999, payload_bytes=100_000), Status.RPC_UNKNOWN_METHOD),
            (
                encode_header(Kind.REQUEST, 3, service=1, method=1, message_bytes=3) + b"\xff" * 3,
                Status.RPC_BAD_REQUEST,
            ),
            (echo_frame(4, method=2, payload_bytes=10), Status.RPC_BAD_REQUEST),
        ]
        for words, status in refused:
            size = decode_header(words[:HEADER_BYTES], LIMITS).payload_bytes
            await stream.send_all([words, bytes(size)])
            header, detail = await frame(stream)
            assert header.kind == Kind.REPLY
            assert decode_error(header.status, detail).status is status
        await stream.send_all([encode_header(Kind.CANCEL, 77), echo_frame(5)])
        header, message = await frame(stream)
        assert (header.request_id, header.status) == (5, 0)
        assert core.EchoRsp.FromString(message).data == b"x"


async def test_requests_arrive_in_any_pieces(net, process):
    async with process(net) as p:
        stream = await p.connect()
        words = b"".join(
            [*encode_hello(ME), echo_frame(1, payload_bytes=5), b"12345", echo_frame(2)]
        )
        for index in range(len(words)):
            await stream.send_all([words[index : index + 1]])
        header, _ = await frame(stream)
        assert header.kind == Kind.HELLO
        replies = {}
        for _ in range(2):
            header, message = await frame(stream)
            payload = await exactly(stream, header.payload_bytes)
            replies[header.request_id] = (core.EchoRsp.FromString(message).data, payload)
        assert replies == {1: (b"x", b"12345"), 2: (b"x", b"")}


async def test_peers_that_stop_anywhere_leave_nothing_behind(net, process):
    words = b"".join([*encode_hello(ME), echo_frame(1, payload_bytes=5000), bytes(5000)])
    rng = random.Random(5)
    async with process(net) as p:
        for cut in [0, 1, 47, 48, 49, *(rng.randrange(len(words)) for _ in range(30))]:
            stream = await p.connect()
            await stream.send_all([words[:cut]])
            await stream.aclose()
        await still_serves(p)
        with trio.fail_after(60):
            while p.server.connection_count > 1:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert p.server.pool.used_bytes == 0


async def test_random_bytes_never_end_the_server(net, process):
    rng = random.Random(9)
    async with process(net) as p:
        for _ in range(60):
            stream = await greeted(p)
            words = bytearray(echo_frame(1, payload_bytes=20) + bytes(20) + echo_frame(2))
            for _ in range(rng.randrange(1, 8)):
                words[rng.randrange(len(words))] = rng.randrange(256)
            await stream.send_all([words])
            await stream.aclose()
        await still_serves(p)


async def test_only_who_was_accepted_is_missed(net, process):
    async with process(net) as p:
        gone = []
        p.server.on_disconnect = gone.append
        for words in (b"", b"".join(encode_hello(Identity("other-cluster")))):
            stream = await p.connect()
            await stream.send_all([words])
            await stream.aclose()
        stream = await greeted(p)
        await stream.aclose()
        with trio.fail_after(60):
            while p.server.connection_count or not gone:  # noqa: ASYNC110 - the condition is somebody else's
                await trio.sleep(0.01)
        assert gone == [ME]


async def test_too_many_connections_are_told_so(net, process):
    async with process(net, limits=RpcSection(connection_count_max=2)) as p:
        streams = [await greeted(p) for _ in range(2)]
        third = await p.connect()
        assert await last_word(third) is Status.RPC_OVERLOADED
        for stream in streams:
            await stream.aclose()


async def test_a_silent_peer_is_dropped_after_the_handshake_time(net, process):
    async with process(net, limits=RpcSection(handshake_timeout_s=0.05)) as p:
        stream = await p.connect()
        assert await last_word(stream) is Status.RPC_TIMEOUT


@pytest.mark.parametrize("net", ["memory"], indirect=True)
async def test_a_peer_that_stops_inside_a_frame_is_given_up(net, process, autojump_clock):  # noqa: ARG001
    async with process(net) as p:
        sends, idle = await greeted(p), await greeted(p)
        await sends.send_all([echo_frame(1, payload_bytes=100_000), bytes(1000)])
        await trio.sleep(1)
        assert p.server.pool.used_bytes > 0
        await trio.sleep(3 * STUCK_S)
        assert await frame(sends) is None
        await idle.send_all([echo_frame()])
        header, _ = await frame(idle)
        assert header.kind == Kind.REPLY
        reads = await greeted(p)
        for number in range(1, 200):
            with trio.move_on_after(0.1) as scope:
                await reads.send_all([echo_frame(number, bytes(64 * 1024))])
            if scope.cancelled_caught:
                break
        assert p.server.connection_count == 2
        await trio.sleep(3 * STUCK_S)
        assert p.server.connection_count == 1
        assert p.server.pool.used_bytes == 0
        await still_serves(p)


def test_every_method_must_be_there():
    with pytest.raises(AssertionError, match="GetInfo"):
        Server(ME, RpcSection()).add_service("Core", type("Half", (), {"echo": print})())
    with pytest.raises(AssertionError, match="no service Cores"):
        methods_of("Cores")
    assert snake_name("GetRoutingInfo") == "get_routing_info"
    assert snake_name("ListXattrs") == "list_xattrs"


async def test_requests_that_come_together_are_answered_together(net, process):
    """Replies to small requests wait for what is there already, and for nothing else."""
    async with process(net) as p:
        stream = await greeted(p)
        count = 200  # more than one receive buffer holds
        await stream.send_all([echo_frame(i, b"x" * 100) for i in range(1, count + 1)])
        with trio.fail_after(60):
            seen = [(await frame(stream))[0].request_id for _ in range(count)]
        assert sorted(seen) == list(range(1, count + 1))
        whole = echo_frame(1000)
        half = echo_frame(1001)
        await stream.send_all([whole, half[:20]])
        with trio.fail_after(60):
            assert (await frame(stream))[0].request_id == 1000, "not held up by half a request"
        await stream.send_all([half[20:]])
        with trio.fail_after(60):
            assert (await frame(stream))[0].request_id == 1001


@pytest.mark.parametrize("net", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("took_s", "order"),
    [
        ((0, 0, 0), "echo echo echo sent sent"),
        ((1, 1, 1), "echo sent echo sent echo sent"),
        ((0, 1, 0), "echo echo sent echo sent"),
    ],
)
async def test_a_reply_that_took_long_to_make_waits_for_no_other(  # noqa: PLR0917 - the table
    net, process, monkeypatch, autojump_clock, took_s, order
):
    """Its caller would be idle meanwhile, and this process then until he has asked again."""
    seen, left, send_now = [], list(took_s), MemoryStream.send_now

    def echo(_service, _call, request):
        seen.append("echo")
        autojump_clock.jump(HELD_S_MAX * 2 * left.pop(0))
        return Reply(core.EchoRsp(data=request.data))

    def noted_send(self, buffers):
        if self is not stream:
            seen.append("sent")
        return send_now(self, buffers)

    monkeypatch.setattr("fs.rpc.core_service.CoreService.echo", echo)
    async with process(net) as p:
        stream = await greeted(p)
        monkeypatch.setattr(MemoryStream, "send_now", noted_send)
        await stream.send_all([b"".join(map(echo_frame, (1, 2, 3)))])
        assert {(await frame(stream))[0].request_id for _ in range(3)} == {1, 2, 3}
    assert " ".join(seen) == order


@pytest.mark.parametrize("net", ["memory"], indirect=True)
async def test_a_held_reply_that_cannot_be_sent_at_once_is_sent_once(
    net, process, monkeypatch, autojump_clock
):
    """For want of memory: who has handed it over must not answer once more."""
    lacks, left, send_held = [], [0, 1, 0], FramedStream._send_held

    def echo(_service, _call, request):
        took_long = left.pop(0)
        autojump_clock.jump(HELD_S_MAX * 2 * took_long)
        lacks.extend([MemoryError("injected")] * took_long)
        return Reply(core.EchoRsp(data=request.data))

    def lacking_send(self):
        if lacks:
            raise lacks.pop()
        return send_held(self)

    monkeypatch.setattr("fs.rpc.core_service.CoreService.echo", echo)
    async with process(net) as p:
        stream = await greeted(p)
        monkeypatch.setattr(FramedStream, "_send_held", lacking_send)
        await stream.send_all([b"".join(map(echo_frame, (1, 2, 3)))])
        headers = [(await frame(stream))[0] for _ in range(3)]
        assert not lacks
        assert {h.request_id: h.status for h in headers} == {1: 0, 2: 0, 3: 0}
        await stream.send_all([echo_frame(4)])
        left.append(0)
        with trio.fail_after(60):
            assert (await frame(stream))[0].request_id == 4, "no second reply to one of those"


@pytest.mark.parametrize("net", ["memory"], indirect=True)
async def test_refusals_do_not_pile_up_for_a_peer_that_does_not_read(net, process, autojump_clock):  # noqa: ARG001
    async with process(net) as p:
        stream = await greeted(p)
        (connection,) = p.server._connections
        # More answers than fit on the way.
        big = [echo_frame(i, b"x" * 100_000) for i in range(1, 15)]
        await stream.send_all(big)
        count = 10 * REFUSALS_UNSENT_MAX
        await stream.send_all([echo_frame(i, method=99) for i in range(100, 100 + count)])
        await trio.sleep(STUCK_S / 2)
        assert len(connection._nursery.child_tasks) < 2 * REFUSALS_UNSENT_MAX
        with trio.fail_after(60):
            seen = [(await frame(stream))[0] for _ in range(len(big) + count)]
        refused = [h.request_id for h in seen if h.status == Status.RPC_UNKNOWN_METHOD]
        assert sorted(refused) == list(range(100, 100 + count))
        await still_serves(p)


class Paged:
    """Waits when asked to."""

    def __init__(self):
        self.go_on = trio.Event()

    async def echo(self, _call, request):
        if request.data == b"wait":
            await self.go_on.wait()
        return core.EchoRsp(data=request.data)


@pytest.mark.parametrize("net", ["memory"], indirect=True)
async def test_a_reply_does_not_wait_for_the_buffer_of_another_request(
    net,
    process,
    autojump_clock,  # noqa: ARG001
    monkeypatch,
):
    """The second request's payload lies in the receive buffer
    when the first one's reply is ready.
    """
    monkeypatch.setattr("fs.rpc.server_connection.BUFFER_WAIT_S_MAX", 1e6)
    async with process(net) as p:
        lease = await p.server.pool.acquire(POOL_BYTES_MAX)
        first, second = echo_frame(1, b"wait"), echo_frame(2, payload_bytes=1000)
        paged = Paged()
        key = (services.CORE_ECHO.service_number, services.CORE_ECHO.number)
        p.server._bindings[key] = Binding(services.CORE_ECHO, paged.echo)
        stream = await greeted(p)
        await stream.send_all([first + second + bytes(1000)])
        while not p.server.pool._line:  # noqa: ASYNC110 - the condition is somebody else's
            await trio.sleep(0.01)
        paged.go_on.set()
        with trio.fail_after(60):
            assert (await frame(stream))[0].request_id == 1
        p.server.pool.release(lease)
        assert (await frame(stream))[0].request_id == 2


@pytest.mark.parametrize("net", ["memory"], indirect=True)
async def test_replies_are_not_lost_while_buffers_are_short(net, process, autojump_clock):  # noqa: ARG001
    """Nor when the peer does not read for longer than a request waits for a buffer."""
    async with process(net) as p:
        lease = await p.server.pool.acquire(POOL_BYTES_MAX)
        paged = Paged()
        key = (services.CORE_ECHO.service_number, services.CORE_ECHO.number)
        p.server._bindings[key] = Binding(services.CORE_ECHO, paged.echo)
        stream = await greeted(p)
        # Replies that fill the window, one of them held, and then a request that needs a buffer.
        big = [echo_frame(i, b"x" * 100_000) for i in range(1, 15)]
        await stream.send_all(big)
        await trio.testing.wait_all_tasks_blocked()
        await stream.send_all([echo_frame(100), echo_frame(101, payload_bytes=10), bytes(10)])
        await trio.sleep(2 * BUFFER_WAIT_S_MAX)
        p.server.pool.release(lease)
        with trio.fail_after(60):
            seen = [(await frame(stream))[0].request_id for _ in range(16)]
        assert sorted(seen) == [*range(1, 15), 100, 101]


class Late:
    """Ends in different ways when its time is up."""

    async def echo(self, _call, request):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                if request.data == b"refuses":
                    raise FsError(Status.BUSY, "on the way out")


@pytest.mark.parametrize("net", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("data", "status"), [(b"refuses", Status.BUSY), (b"ends", Status.RPC_TIMEOUT)]
)
async def test_what_is_left_of_a_request_whose_time_is_up(
    net, process, data, status, autojump_clock
):
    del autojump_clock
    async with process(net) as p:
        key = (services.CORE_ECHO.service_number, services.CORE_ECHO.number)
        p.server._bindings[key] = Binding(services.CORE_ECHO, Late().echo)
        stream = await greeted(p)
        lent = p.server.pool.used_bytes
        await stream.send_all([echo_frame(1, data, timeout_ms=100, payload_bytes=10), bytes(10)])
        with trio.fail_after(60):
            assert (await frame(stream))[0].status == status
            (connection,) = p.server._connections
            assert (connection._scopes, p.server.pool.used_bytes) == ({}, lent)
            # The one that receives now has a time limit of its own, of nobody else.
            p.server._bindings[key] = Binding(services.CORE_ECHO, Paged().echo)
            await trio.sleep(1)
            await stream.send_all([echo_frame(2)])
            assert (await frame(stream))[0].request_id == 2
