"""Serving methods that are plain functions:
what they end at once is answered at once, all else as ever.
"""

import pytest
import trio

from fs.rpc.answers_at_once import SMALL_REPLY_BYTES_MAX
from fs.rpc.api import LATER, Identity, Reply
from fs.rpc.frame import Kind, encode_header
from fs.rpc.handshake import encode_hello
from fs.rpc.observer import RpcObserver
from fs.runtime.until_wait import in_task
from fs.schema import services
from fs.schema.proto import core_pb2 as core
from fs.schema.status import FsError, Status

ECHO = services.CORE_ECHO


class Core:
    """Echoes, at once or later, as its caller wishes."""

    def __init__(self):
        self.go_on = trio.Event()
        self.released = 0

    def echo(self, _call, request):
        if request.data == b"wait":
            return self._later(request)
        if request.data == b"error":
            raise FsError(Status.NOT_EMPTY, "directory 17 holds 3 entries")
        if request.data == b"lack":
            raise MemoryError
        assert request.data != b"bug", "broken invariant"
        return self._reply(request)

    async def _later(self, request):
        await self.go_on.wait()
        return self._reply(request)

    def _reply(self, request):
        payload = [bytes(request.reply_payload_bytes)] if request.reply_payload_bytes else ()
        return Reply(core.EchoRsp(data=request.data), payload, self._release)

    def _release(self):
        self.released += 1


@pytest.fixture
def plain(monkeypatch):
    service = Core()
    monkeypatch.setattr("fs.rpc.core_service.CoreService.echo", service.echo)
    return service


@pytest.mark.parametrize("payload_bytes", [0, 10, SMALL_REPLY_BYTES_MAX, SMALL_REPLY_BYTES_MAX + 1])
async def test_replies_come_whole_and_are_released(net, process, plain, payload_bytes):
    async with process(net) as p:
        for _ in range(3):
            request = core.EchoReq(data=b"x", reply_payload_bytes=payload_bytes)
            received = await p.channel.call(ECHO, request)
            assert received.message.data == b"x"
            assert bytes(received.payload) == bytes(payload_bytes)
    assert plain.released == 3


async def test_errors_and_bugs_are_answered(net, process, plain):
    bugs = []
    async with process(net, on_bug=lambda where, error: bugs.append((where, error))) as p:
        for data, status in (
            (b"error", Status.NOT_EMPTY),
            (b"lack", Status.OUT_OF_RESOURCES),
            (b"bug", Status.INTERNAL_ERROR),
        ):
            with pytest.raises(FsError) as caught:
                await p.channel.call(ECHO, core.EchoReq(data=data))
            assert caught.value.status is status
        assert len(bugs) == 1
        assert (await p.channel.call(ECHO, core.EchoReq(data=b"ok"))).message.data == b"ok"
    assert plain.released == 1


async def test_who_waits_does_not_hold_up_others(net, process, plain):
    async with process(net) as p, trio.open_nursery() as nursery:
        found = []

        async def ask():
            found.append(await p.channel.call(ECHO, core.EchoReq(data=b"wait")))

        nursery.start_soon(ask)
        assert (await p.channel.call(ECHO, core.EchoReq(data=b"ok"))).message.data == b"ok"
        assert not found
        plain.go_on.set()
    assert found[0].message.data == b"wait"
    assert plain.released == 2


class Quick(Core):
    """Echoes by a quick form what it does not say `slow` of."""

    def __init__(self):
        super().__init__()
        self.slow = []

    def quick_echo(self, message):
        request = core.EchoReq.FromString(message)
        if request.data in (b"slow", b"refused"):
            return None
        if request.data == b"blocks":
            raise BlockingIOError
        assert request.data != b"bug", "broken invariant"
        payload = b"p" * request.reply_payload_bytes
        return core.EchoRsp(data=b"quick " + request.data).SerializeToString(), payload

    def echo(self, call, request):
        self.slow.append((request.data, call.would_block))
        return self._reply(request)


@pytest.fixture
def quick(monkeypatch):
    service = Quick()
    monkeypatch.setattr("fs.rpc.core_service.CoreService.echo", service.echo)
    name = "fs.rpc.core_service.CoreService.quick_echo"
    monkeypatch.setattr(name, service.quick_echo, raising=False)
    return service


@pytest.mark.parametrize("payload_bytes", [0, 10, 4096])
async def test_a_quick_form_answers_and_is_observed(net, process, quick, payload_bytes):
    observer = RpcObserver()
    async with process(net, observer=observer) as p:
        for _ in range(40):
            request = core.EchoReq(data=b"x", reply_payload_bytes=payload_bytes)
            received = await p.channel.call(ECHO, request)
            assert received.message.data == b"quick x"
            assert bytes(received.payload) == b"p" * payload_bytes
    assert not quick.slow
    observed = observer.served(ECHO)
    assert observed.duration.count == 40
    assert observed.in_flight == 0
    assert not observed.errors
    assert observed.sent_bytes == 40 * (len(received.message.SerializeToString()) + payload_bytes)


async def test_what_a_quick_form_leaves_is_done_by_the_method(net, process, quick):
    bugs = []
    async with process(net, on_bug=lambda where, error: bugs.append((where, error))) as p:
        for data in (b"slow", b"blocks", b"bug"):
            assert (await p.channel.call(ECHO, core.EchoReq(data=data))).message.data == data
    assert quick.slow == [(b"slow", False), (b"blocks", True), (b"bug", False)]
    assert [type(error) for _, error in bugs] == [AssertionError]


async def test_a_packed_form_is_called_in_place_of_the_method(net, process, quick, monkeypatch):
    """With what the quick form has found out, and in a task, too;
    what it leaves is done by the method, and its errors are answers.
    """
    seen = []

    async def later(data):
        await trio.sleep(0.01)
        return Reply(core.EchoRsp(data=data), [b"later"])

    def packed(_, call, message):
        request = core.EchoReq.FromString(message)
        seen.append((request.data, call.would_block))
        if request.data == b"refused":
            raise FsError(Status.NOT_SERVING, "so it says")
        if request.data == b"blocks":
            return later(b"it waits")
        if request.reply_payload_bytes:
            payload = b"p" * request.reply_payload_bytes
            return Reply(core.EchoRsp(data=b"packed").SerializeToString(), [payload])
        return None

    name = "fs.rpc.core_service.CoreService.packed_echo"
    monkeypatch.setattr(name, packed, raising=False)
    async with process(net) as p:
        received = await p.channel.call(ECHO, core.EchoReq(data=b"slow", reply_payload_bytes=9000))
        assert (received.message.data, bytes(received.payload)) == (b"packed", b"p" * 9000)
        received = await p.channel.call(ECHO, core.EchoReq(data=b"blocks"))
        assert (received.message.data, bytes(received.payload)) == (b"it waits", b"later")
        assert (await p.channel.call(ECHO, core.EchoReq(data=b"slow"))).message.data == b"slow"
        with pytest.raises(FsError, match="so it says"):
            await p.channel.call(ECHO, core.EchoReq(data=b"refused"))
    assert seen == [(b"slow", False), (b"blocks", True), (b"slow", False), (b"refused", False)]
    assert quick.slow == [(b"slow", False)]


async def until(condition):
    while not condition():  # noqa: ASYNC110 - of what happens there is no event
        await trio.sleep(0.01)


LARGE_BYTES = 12 << 20
"""More than a socket has room for."""


async def test_large_replies_are_begun_at_once_and_go_on_beside_others(net, process, plain):
    """The rest of what the socket has no room for is sent by a task;
    what comes behind it is not cut into it.
    """
    async with process(net) as p, trio.open_nursery() as nursery:

        async def ask(number):
            data = bytes((number,))
            size = LARGE_BYTES if number % 2 else 5
            request = core.EchoReq(data=data, reply_payload_bytes=size)
            received = await p.channel.call(ECHO, request)
            assert received.message.data == data
            assert bytes(received.payload) == bytes(size)

        for number in range(4):
            nursery.start_soon(ask, number)
    assert plain.released == 4


async def test_a_large_reply_is_released_when_its_connection_ends_within_it(net, process, plain):
    message = core.EchoReq(data=b"x", reply_payload_bytes=LARGE_BYTES).SerializeToString()
    numbers = {"service": ECHO.service_number, "method": ECHO.number}
    request = encode_header(Kind.REQUEST, 1, message_bytes=len(message), **numbers)
    async with process(net) as p:
        stream = await p.connect()
        await stream.send_all(
            [*encode_hello(Identity("test-cluster", client_id="raw")), request, message]
        )
        with trio.fail_after(60):
            await until(lambda: p.server.connection_count)
            (connection,) = p.server._connections
            await until(lambda: connection._framed.is_inside_frame)  # its peer does not read on
            assert not plain.released
            await stream.aclose()
            await until(lambda: plain.released)
        assert plain.released == 1
        assert (await p.channel.call(ECHO, core.EchoReq(data=b"ok"))).message.data == b"ok"


@pytest.fixture
def later(monkeypatch):
    """Calls of which nothing is known yet but how to answer them."""
    calls = []

    def packed(_, call, message):
        if call.answer is None:
            return None
        calls.append((call, core.EchoReq.FromString(message).data))
        return LATER

    name = "fs.rpc.core_service.CoreService.packed_echo"
    monkeypatch.setattr(name, packed, raising=False)
    return calls


async def begin_later(p, nursery, later, **fields):
    """Ask; return how to answer, and what comes of it."""
    found = []

    async def ask():
        try:
            found.append(await p.channel.call(ECHO, core.EchoReq(**fields)))
        except FsError as error:
            found.append(error)

    nursery.start_soon(ask)
    count = len(later)
    await until(lambda: len(later) > count)
    return later[-1][0].answer, found


@pytest.mark.parametrize("payload_bytes", [0, 10, SMALL_REPLY_BYTES_MAX + 1, LARGE_BYTES])
async def test_a_method_may_answer_later_without_a_task(net, process, plain, later, payload_bytes):
    observer = RpcObserver()
    async with process(net, observer=observer) as p, trio.open_nursery() as nursery:
        for _ in range(2):
            answer, found = await begin_later(p, nursery, later, data=b"x")
            assert observer.served(ECHO).in_flight == 1
            payload = [b"p" * payload_bytes] if payload_bytes else ()
            answer(Reply(core.EchoRsp(data=b"later"), payload, plain._release))
            with trio.fail_after(60):
                await until(lambda found=found: found)
            assert found[0].message.data == b"later"
            assert bytes(found[0].payload) == b"p" * payload_bytes
    assert plain.released == 2
    observed = observer.served(ECHO)
    assert (observed.in_flight, observed.duration.count) == (0, 2)


async def test_what_is_answered_later_may_be_an_error_a_bug_or_what_takes_a_task(
    net, process, plain, later
):
    bugs = []

    async def rest(data):
        await trio.sleep(0.01)
        return Reply(core.EchoRsp(data=data), (), plain._release)

    on_bug = lambda where, error: bugs.append((where, error))  # noqa: E731 - as long as it is needed
    async with process(net, on_bug=on_bug) as p, trio.open_nursery() as nursery:
        for result in (
            FsError(Status.NOT_SERVING, "so it says"),
            AssertionError("broken invariant"),
            rest(b"rest"),
        ):
            answer, found = await begin_later(p, nursery, later, data=b"x")
            answer(result)
            with trio.fail_after(60):
                await until(lambda found=found: found)
            later.append(found[0])
        refused, failed, received = (one for one in later if not isinstance(one, tuple))
    assert (refused.status, failed.status) == (Status.NOT_SERVING, Status.INTERNAL_ERROR)
    assert received.message.data == b"rest"
    assert len(bugs) == 1
    assert plain.released == 1


async def test_an_answer_after_the_end_of_its_connection_is_dropped_and_released(
    net, process, plain, later
):
    async def rest():
        raise AssertionError("nobody is to run it")

    async with process(net) as p:
        async with trio.open_nursery() as nursery:
            answers = [(await begin_later(p, nursery, later, data=b"x"))[0] for _ in range(3)]
            await p.channel.aclose()
        await until(lambda: not p.server.connection_count)
        answers[0](Reply(core.EchoRsp(data=b"late"), (), plain._release))
        answers[1](FsError(Status.NOT_SERVING, "late"))
        answers[2](rest())
        assert plain.released == 1


class Tried:
    """Echoes by a coroutine that the server tries outside of any task first."""

    def __init__(self):
        self.steps = []

    async def echo(self, _call, request):
        self.steps.append("begun")
        if request.data == b"wait":
            await trio.sleep(0.001)
        elif request.data == b"task":
            trio.lowlevel.current_task()
            with trio.CancelScope():
                await trio.lowlevel.checkpoint_if_cancelled()
        elif request.data == b"word":
            await in_task()
            await trio.sleep(0.001)
        elif request.data == b"error":
            raise FsError(Status.NOT_EMPTY, "directory 17 holds 3 entries")
        assert request.data != b"bug", "broken invariant"
        # As of what has committed before it fails, and finds that done
        # already when it is called again.
        assert request.data != b"late bug" or len(self.steps) > 1, "broken invariant"
        if request.data == b"late RuntimeError" and len(self.steps) == 1:
            raise RuntimeError("broken invariant")
        self.steps.append("done")
        return core.EchoRsp(data=request.data)


@pytest.fixture
def tried(monkeypatch):
    service = Tried()
    echo = "fs.rpc.core_service.CoreService.echo"

    async def of_service(_self, call, request):
        return await service.echo(call, request)

    monkeypatch.setattr(echo, of_service)
    name = "fs.rpc.core_service.CoreService.tried_methods"
    monkeypatch.setattr(name, ("Echo",), raising=False)
    return service


@pytest.mark.parametrize("data", [b"at once", b"wait", b"task"])
async def test_a_method_that_is_tried_ends_once_whether_it_waits_or_not(net, process, tried, data):
    async with process(net) as p:
        for _ in range(3):
            assert (await p.channel.call(ECHO, core.EchoReq(data=data))).message.data == data
    assert tried.steps.count("done") == 3
    assert 3 <= tried.steps.count("begun") <= 6


async def test_a_method_that_says_that_it_is_about_to_wait_is_not_begun_anew(net, process, tried):
    async with process(net) as p:
        for _ in range(3):
            assert (await p.channel.call(ECHO, core.EchoReq(data=b"word"))).message.data == b"word"
    assert tried.steps == ["begun", "done"] * 3


async def test_errors_and_bugs_of_a_method_that_is_tried_are_answered(net, process, tried):
    bugs = []
    async with process(net, on_bug=lambda where, error: bugs.append((where, error))) as p:
        for data, status in ((b"error", Status.NOT_EMPTY), (b"bug", Status.INTERNAL_ERROR)):
            with pytest.raises(FsError) as caught:
                await p.channel.call(ECHO, core.EchoReq(data=data))
            assert caught.value.status is status
        assert (await p.channel.call(ECHO, core.EchoReq(data=b"ok"))).message.data == b"ok"
    assert len(bugs) == 1
    assert tried.steps.count("done") == 1


@pytest.mark.parametrize("data", [b"late bug", b"late RuntimeError"])
async def test_a_bug_that_a_second_call_would_hide_is_told(net, process, tried, data):
    bugs = []
    async with process(net, on_bug=lambda _where, error: bugs.append(error)) as p:
        with pytest.raises(FsError) as caught:
            await p.channel.call(ECHO, core.EchoReq(data=data))
        assert caught.value.status is Status.INTERNAL_ERROR
    (bug,) = bugs
    assert "broken invariant" in str(bug)
    assert tried.steps == ["begun"]
