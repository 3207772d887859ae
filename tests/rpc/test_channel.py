"""Calls over every kind of network: results, payloads, deadlines, cancellation, breaks."""

import errno
import gc
import random
import weakref
from dataclasses import replace

import pytest
import trio

from fs.rpc.api import ConnectionRefused, Identity, Reply
from fs.rpc.channel import open_channels
from fs.rpc.frame import HELLO_VERSION, VERSION_MAX, Kind, encode_header
from fs.rpc.handshake import encode_hello
from fs.runtime.simulated import simulated_runtime
from fs.schema import services
from fs.schema.config import RpcSection
from fs.schema.proto import core_pb2 as core
from fs.schema.status import FsError, Status

ECHO = services.CORE_ECHO


async def eventually(condition):
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - the condition is somebody else's
            await trio.sleep(0.01)


async def test_a_call_returns_its_reply(net, process):
    async with process(net) as p:
        received = await p.channel.call(ECHO, core.EchoReq(data=b"hello"))
        assert received.message.data == b"hello"
        assert received.payload_bytes == 0
        info = (await p.channel.call(services.CORE_GET_INFO, core.GetInfoReq())).message
        assert (info.node_id, info.incarnation, info.cluster_id) == (
            7,
            "incarnation-7",
            "test-cluster",
        )
        assert p.channel.peer.node_id == 7


@pytest.mark.parametrize("size", [1, 100, 16_383, 70_000, 3_000_000])
async def test_payloads_travel_both_ways(net, process, size):
    data = random.Random(size).randbytes(size)
    parts = [data[: size // 3], memoryview(data)[size // 3 :]]
    async with process(net) as p:
        received = await p.channel.call(ECHO, core.EchoReq(data=b"x"), payload=parts)
        assert received.payload_bytes == size
        assert bytes(received.payload) == data
        target = bytearray(size + 20)
        view = memoryview(target)

        def into(message, payload_bytes):
            assert (message.payload_bytes, payload_bytes) == (size, size)
            return [view[10 : 10 + size // 2], view[10 + size // 2 : 10 + size]]

        received = await p.channel.call(ECHO, core.EchoReq(), payload=parts, into=into)
        assert received.payload_bytes == size
        assert target == bytes(10) + data + bytes(10)
        assert p.server.pool.used_bytes == 0


async def test_many_calls_at_once_do_not_mix(net, process):
    async with process(net) as p:

        async def call(number):
            size = number * 977 % 40_000
            data = bytes([number % 256]) * size
            received = await p.channel.call(
                ECHO, core.EchoReq(data=str(number).encode()), payload=[data] if size else []
            )
            assert received.message.data == str(number).encode()
            assert bytes(received.payload) == data

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(call, number)
        assert p.server.connection_count == 1


class Core:
    """A service that does what its test says."""

    def __init__(self):
        self.started = trio.Event()
        self.go_on = trio.Event()
        self.ended = []

    async def echo(self, call, request):
        self.started.set()
        try:
            if request.data == b"wait":
                await self.go_on.wait()
            if request.data == b"error":
                raise FsError(Status.NOT_EMPTY, "directory 17 holds 3 entries")
            if request.data == b"bug":
                assert request.data == b"no bug", "broken invariant"
            if request.data == b"lack":
                raise MemoryError
            if request.data == b"lacks":
                none = OSError(errno.EMFILE, "Too many open files")
                raise ExceptionGroup("", [none, FsError(Status.NO_SPACE, "target 5")])
            if request.data == b"group":
                async with trio.open_nursery():
                    raise FsError(Status.NO_SPACE, "target 5")
            if request.data == b"peer":
                return core.EchoRsp(data=f"{call.peer.client_id} {call.deadline_s}".encode())
            return Reply(
                core.EchoRsp(data=request.data),
                [bytes(request.reply_payload_bytes)] if request.reply_payload_bytes else (),
                lambda: self.ended.append("released"),
            )
        except trio.Cancelled:
            self.ended.append("cancelled")
            raise

    async def get_info(self, _call, _request):
        return core.GetInfoRsp()


@pytest.fixture
def core_service(monkeypatch):
    service = Core()
    monkeypatch.setattr("fs.rpc.core_service.CoreService.echo", service.echo)
    return service


@pytest.mark.usefixtures("core_service")
async def test_errors_cross_with_status_and_detail(net, process):
    async with process(net) as p:
        with pytest.raises(FsError) as caught:
            await p.channel.call(ECHO, core.EchoReq(data=b"error"))
        assert caught.value.status is Status.NOT_EMPTY
        assert caught.value.detail == "directory 17 holds 3 entries"
        with pytest.raises(FsError) as caught:
            await p.channel.call(ECHO, core.EchoReq(data=b"group"))
        assert caught.value.status is Status.NO_SPACE


async def test_a_bug_is_reported_and_the_server_lives(net, process, core_service):
    bugs = []
    async with process(net, on_bug=lambda where, error: bugs.append((where, error))) as p:
        with pytest.raises(FsError) as caught:
            await p.channel.call(ECHO, core.EchoReq(data=b"bug"))
        assert caught.value.status is Status.INTERNAL_ERROR
        assert "Core.Echo" in bugs[0][0]
        assert isinstance(bugs[0][1], AssertionError)
        assert (await p.channel.call(ECHO, core.EchoReq(data=b"ok"))).message.data == b"ok"
        assert core_service.ended == ["released"]


async def test_a_method_that_got_no_memory_is_to_be_asked_again(net, process, core_service):
    bugs = []
    async with process(net, on_bug=lambda where, error: bugs.append((where, error))) as p:
        for data in (b"lack", b"lacks"):
            with pytest.raises(FsError) as caught:
                await p.channel.call(ECHO, core.EchoReq(data=data))
            assert caught.value.status is Status.OUT_OF_RESOURCES
        assert (await p.channel.call(ECHO, core.EchoReq(data=b"ok"))).message.data == b"ok"
        assert core_service.ended == ["released"]
    assert not bugs


async def test_the_deadline_reaches_the_method(net, process, core_service):
    async with process(net) as p:
        await p.channel.call(ECHO, core.EchoReq(data=b"ok"))  # connects, however long that takes
        core_service.ended.clear()
        begin = trio.current_time()
        with pytest.raises(FsError) as caught:
            await p.channel.call(ECHO, core.EchoReq(data=b"wait"), timeout_s=0.1)
        assert caught.value.status is Status.RPC_TIMEOUT
        assert 0.09 < trio.current_time() - begin < 60
        await eventually(lambda: core_service.ended == ["cancelled"])
        reply = await p.channel.call(ECHO, core.EchoReq(data=b"peer"), timeout_s=50)
        client, deadline = reply.message.data.decode().split()
        assert client == "client-1"
        assert 40 < float(deadline) - trio.current_time() <= 50


@pytest.mark.slow
@pytest.mark.usefixtures("core_service")
async def test_each_call_ends_at_its_own_time_limit(net, process):
    async with process(net) as p:
        await p.channel.call(ECHO, core.EchoReq(data=b"ok"))
        ended = []

        async def wait(limit_s):
            with pytest.raises(FsError) as caught:
                await p.channel.call(ECHO, core.EchoReq(data=b"wait"), timeout_s=limit_s)
            ended.append((limit_s, caught.value.status))

        async with trio.open_nursery() as nursery:
            for limit_s in (3.0, 0.2, 1.5):
                nursery.start_soon(wait, limit_s)
                await trio.testing.wait_all_tasks_blocked()
        assert ended == [(s, Status.RPC_TIMEOUT) for s in (0.2, 1.5, 3.0)]
        assert p.channel._connection.in_flight_count == 0


async def test_a_call_that_is_given_up_ends_with_the_reason(net, process, core_service):
    under_way, ended = set(), []

    async def call(channel, **options):
        with pytest.raises(FsError) as caught:
            await channel.call(ECHO, core.EchoReq(data=b"wait"), under_way=under_way, **options)
        ended.append(caught.value.detail)

    async with process(net) as p, trio.open_nursery() as nursery:
        nursery.start_soon(call, p.channel)  # not connected yet
        while not under_way:
            await trio.lowlevel.checkpoint()
        (connecting,) = under_way
        connecting.fail(FsError(Status.RPC_CONNECTION_LOST, "one"))
        await eventually(lambda: ended == ["one"])
        nursery.start_soon(call, p.channel)
        await core_service.started.wait()
        await eventually(lambda: bool(under_way))
        (waiting,) = under_way
        waiting.fail(FsError(Status.RPC_CONNECTION_LOST, "two"))
        waiting.fail(FsError(Status.RPC_CONNECTION_LOST, "three"))
        await eventually(lambda: ended == ["one", "two"])
        assert not under_way
        await eventually(lambda: "cancelled" in core_service.ended)
        assert (await p.channel.call(ECHO, core.EchoReq(data=b"ok"))).message.data == b"ok"


async def test_a_cancelled_call_cancels_the_method_and_the_channel_lives(
    net, process, core_service
):
    async with process(net) as p:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: p.channel.call(ECHO, core.EchoReq(data=b"wait"), timeout_s=60)
            )
            await core_service.started.wait()
            nursery.cancel_scope.cancel()
        await eventually(lambda: core_service.ended == ["cancelled"])
        assert (await p.channel.call(ECHO, core.EchoReq(data=b"ok"))).message.data == b"ok"
        assert p.server.connection_count == 1


@pytest.mark.slow
@pytest.mark.parametrize("found", [99_999, None])
async def test_a_payload_that_has_no_place_fails_its_call_alone(net, process, found):
    """Whoever receives asks where it goes, but what is wrong with the answer is the caller's."""

    def into(_message, _payload_bytes):
        if found is None:
            raise FsError(Status.RPC_BAD_FRAME, "not what was asked for")
        return [memoryview(bytearray(found))]

    async with process(net) as p:
        with pytest.raises((AssertionError, FsError)):
            await p.channel.call(ECHO, core.EchoReq(), payload=[bytes(100_000)], into=into)
        reply = await p.channel.call(ECHO, core.EchoReq(data=b"next"), payload=[b"abc"])
        assert (reply.message.data, bytes(reply.payload)) == (b"next", b"abc")


async def test_a_connection_that_ends_within_a_payload_fails_the_call(net, process):
    async with process(net) as p:
        target = bytearray(100_000)

        def into(_message, _payload_bytes):
            p.channel._connection._framed.stream.receive_now = broken
            return [memoryview(target)]

        def broken(_buffers):
            raise trio.BrokenResourceError("reset")

        with pytest.raises(FsError, match="RPC_CONNECTION_LOST"), trio.fail_after(60):
            await p.channel.call(ECHO, core.EchoReq(), payload=[bytes(100_000)], into=into)


async def test_nobody_keeps_the_buffers_of_a_call_that_has_ended(net, process):
    """Without the garbage collector, which comes late:
    large buffers go to the next call at once.
    """

    class Target(bytearray):
        pass

    async def read(count):
        target = Target(count)
        await p.channel.call(
            ECHO, core.EchoReq(), payload=[bytes(count)], into=lambda _m, _n: [memoryview(target)]
        )
        return weakref.ref(target)

    async with process(net) as p:
        gc.disable()
        try:
            left = [await read(count) for count in (100, 10_000, 3_000_000)]
        finally:
            gc.enable()
        assert [one() for one in left] == [None] * 3


@pytest.mark.thorough
async def test_cancelled_in_the_middle_of_a_payload_the_buffers_rest(net, process):
    """Whatever moment a call is cancelled at, its buffers are left alone
    and later calls are whole.
    """
    size = 2_000_000
    rng = random.Random(3)
    async with process(net) as p:
        await p.channel.call(ECHO, core.EchoReq(data=b"warm"))
        cut = 0
        for _ in range(60):
            target = bytearray(size)
            with trio.move_on_after(rng.uniform(0.0, 0.004)) as scope:
                await p.channel.call(
                    ECHO,
                    core.EchoReq(),
                    payload=[b"\xbb" * size],
                    into=lambda _m, _n, target=target: [memoryview(target)],
                )
            cut += scope.cancelled_caught
            found = bytes(target)
            target[:] = b"\xee" * size
            reply = await p.channel.call(ECHO, core.EchoReq(data=b"next"), payload=[b"abc"])
            assert (reply.message.data, bytes(reply.payload)) == (b"next", b"abc")
            assert target == b"\xee" * size
            assert found.rstrip(b"\0") == b"\xbb" * len(found.rstrip(b"\0"))
        assert cut > 0
        assert p.server.connection_count == 1


async def test_when_the_server_goes_calls_fail_and_the_next_ones_connect_again(
    net, process, core_service
):
    caller = Identity("test-cluster", client_id="c")
    runtime = simulated_runtime(net.b, 2)
    outcome = []
    async with (
        open_channels(runtime, caller, RpcSection()) as channels,
        trio.open_nursery() as nursery,
    ):

        async def call(channel):
            with pytest.raises(FsError) as caught:
                await channel.call(ECHO, core.EchoReq(data=b"wait"))
            outcome.append(caught.value.status)

        async with process(net) as p:
            channel = channels.get(p.address)
            nursery.start_soon(call, channel)
            await core_service.started.wait()
            p.nursery.cancel_scope.cancel()
        await eventually(lambda: bool(outcome))
        assert outcome == [Status.RPC_CONNECTION_LOST]
        with pytest.raises(ConnectionRefused):
            await channel.call(ECHO, core.EchoReq())
        net.address = lambda: p.address
        async with process(net):
            assert (await channel.call(ECHO, core.EchoReq(data=b"a"))).message.data == b"a"


async def test_handshake_refusals(net, process):
    async with process(net, caller=Identity("other-cluster")) as p:
        with pytest.raises(FsError, match=r"test-cluster.*other-cluster") as caught:
            await p.channel.call(ECHO, core.EchoReq())
        assert caught.value.status is Status.RPC_WRONG_CLUSTER
    async with process(net, node_id=8) as p:
        with pytest.raises(FsError, match="expected node 8, found node 7") as caught:
            await p.channel.call(ECHO, core.EchoReq())
        assert caught.value.status is Status.RPC_WRONG_NODE


@pytest.mark.parametrize("kind", [Kind.REPLY, Kind.REQUEST, Kind.CANCEL])
async def test_a_listener_that_says_something_else_than_hello_is_left(net, process, kind):
    async def answer(stream):
        await stream.receive_into(memoryview(bytearray(4096)))
        message = encode_hello(Identity("test-cluster", 7))[1]
        await stream.send_all(
            [encode_header(kind, 0, message_bytes=len(message), version=HELLO_VERSION), message]
        )
        await stream.receive_into(memoryview(bytearray(1)))

    async with process(net) as p, trio.open_nursery() as nursery:
        address = await nursery.start(net.a.serve, net.address(), answer)
        with pytest.raises(FsError) as caught:
            await p.channels.get(address).call(ECHO, core.EchoReq())
        assert caught.value.status is Status.RPC_BAD_FRAME
        nursery.cancel_scope.cancel()


async def test_what_an_older_listener_would_misunderstand_is_not_asked(net, process):
    """It is told at once, and in words; calls that it understands go on."""
    newer = replace(ECHO, version_min=VERSION_MAX + 1)
    async with process(net) as p:
        with pytest.raises(FsError, match="upgrade it before its callers") as caught:
            await p.channel.call(newer, core.EchoReq(data=b"a"))
        assert caught.value.status is Status.RPC_BAD_VERSION
        assert f"have {VERSION_MAX} in common" in caught.value.detail
        assert (await p.channel.call(ECHO, core.EchoReq(data=b"a"))).message.data == b"a"


async def test_a_retired_connection_closes_after_its_last_call(net, process, core_service):
    async with process(net) as p:
        await p.channel.call(ECHO, core.EchoReq(data=b"ok"))
        p.channel._connection.retire()
        await eventually(lambda: p.server.connection_count == 0)
        await p.channel.call(ECHO, core.EchoReq(data=b"ok"))
        async with trio.open_nursery() as nursery:
            used = p.channel._connection
            nursery.start_soon(p.channel.call, ECHO, core.EchoReq(data=b"wait"))
            await eventually(lambda: used.in_flight_count == 1)
            used.retire()
            await p.channel.call(ECHO, core.EchoReq(data=b"ok"))
            assert p.server.connection_count == 2
            core_service.go_on.set()
        await eventually(lambda: p.server.connection_count == 1)


async def test_limits_are_kept_on_both_sides(net, process, core_service):
    small = RpcSection(
        message_bytes_max=65536, payload_bytes_max=1 << 20, inflight_per_connection_max=2
    )
    async with process(net, limits=small) as p:
        with pytest.raises(FsError) as caught:
            await p.channel.call(ECHO, core.EchoReq(data=b"ok", reply_payload_bytes=2 << 20))
        assert caught.value.status is Status.RPC_TOO_LARGE
        whole = await p.channel.call(ECHO, core.EchoReq(data=b"ok", reply_payload_bytes=1 << 20))
        assert whole.payload_bytes == 1 << 20
        with pytest.raises(FsError) as caught:
            await p.channel.call(ECHO, core.EchoReq(data=bytes(100_000)))
        assert caught.value.status in (Status.RPC_CONNECTION_LOST, Status.RPC_TOO_LARGE)
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(p.channel.call, ECHO, core.EchoReq(data=b"wait"))
            await core_service.started.wait()
            # What comes later on the same connection is judged after both.
            await eventually(lambda: p.channel._connection.in_flight_count == 2)
            with pytest.raises(FsError) as caught:
                await p.channel.call(ECHO, core.EchoReq(data=b"ok"))
            assert caught.value.status is Status.RPC_OVERLOADED
            core_service.go_on.set()
        await p.channel.call(ECHO, core.EchoReq(data=b"ok"))
    tiny = RpcSection(message_bytes_max=65536)
    async with (
        process(net) as p,
        open_channels(simulated_runtime(net.b, 1), Identity("test-cluster"), tiny) as channels,
    ):
        with pytest.raises(FsError) as caught:
            await channels.get(p.address).call(ECHO, core.EchoReq(data=bytes(70_000)))
        assert caught.value.status is Status.RPC_TOO_LARGE
        await channels.get(p.address).call(ECHO, core.EchoReq(data=b"ok"))


async def test_an_error_in_the_block_leaves_open_channels_unwrapped(net):
    with pytest.raises(FsError) as caught:
        async with open_channels(simulated_runtime(net.b, 1), Identity("c"), RpcSection()):
            raise FsError(Status.BUSY, "x")
    assert caught.value.status is Status.BUSY


async def test_an_attempt_to_connect_that_has_no_task_is_nobody_elses(net, process, monkeypatch):
    """All later calls waited for it."""
    async with process(net) as p:

        def start_soon(*_):
            raise MemoryError("injected")

        with monkeypatch.context() as patch:
            patch.setattr(p.channels, "start_soon", start_soon)
            with pytest.raises(MemoryError):
                await p.channel.call(ECHO, core.EchoReq(data=b"x"))
        with trio.fail_after(30):
            reply = await p.channel.call(ECHO, core.EchoReq(data=b"x"))
        assert reply.message.data == b"x"


async def test_a_lack_while_connecting_is_that_of_its_calls(net, process, monkeypatch):
    """It ended the process: the task that connects is nobody's."""
    async with process(net) as p:

        async def connect(_address):
            raise OSError(errno.ENOMEM, "injected")

        with monkeypatch.context() as patch:
            patch.setattr(net.b, "connect", connect)
            with pytest.raises(FsError) as caught:
                await p.channel.call(ECHO, core.EchoReq(data=b"x"))
        assert caught.value.status is Status.OUT_OF_RESOURCES
        reply = await p.channel.call(ECHO, core.EchoReq(data=b"x"))
        assert reply.message.data == b"x"
