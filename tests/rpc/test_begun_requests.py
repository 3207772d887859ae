"""Methods that begin a request where it was received, and answer when they like:
each is answered once, all else is as ever.
"""

import pytest
import trio

from fs.rpc.api import Identity
from fs.rpc.frame_sender import POST_CALL_COUNT_MIN
from fs.rpc.framed_stream import RECEIVE_BUFFER_BYTES, SMALL_PAYLOAD_BYTES_MAX
from fs.rpc.observer import RpcObserver
from fs.schema import services
from fs.schema.proto import core_pb2 as core
from fs.schema.status import FsError, Status

ECHO = services.CORE_ECHO
SIZES = [1, SMALL_PAYLOAD_BYTES_MAX, SMALL_PAYLOAD_BYTES_MAX + 1, RECEIVE_BUFFER_BYTES, 300_000]


class Core:
    """Begins what its caller wishes, and answers at once or when it is told to."""

    def __init__(self):
        self.begun = []
        self.answers = []
        self.called = []

    def begin(self, call, message, answer):
        request = core.EchoReq.FromString(message)
        self.begun.append((request.data, bytes(call.payload)))
        if request.data == b"bug":
            raise AssertionError("broken invariant")
        if request.data == b"left":
            return False
        if request.data == b"error":
            answer(FsError(Status.NOT_EMPTY, "directory 17 holds 3 entries"))
        elif request.data == b"later":
            self.answers.append(answer)
        else:
            answer(core.EchoRsp(data=b"begun").SerializeToString())
            answer(core.EchoRsp(data=b"one reply to a request").SerializeToString())
        return True

    async def echo(self, call, request):
        self.called.append((request.data, bytes(call.payload)))
        return core.EchoRsp(data=b"called")


@pytest.fixture
def service(monkeypatch):
    found = Core()
    name = "fs.rpc.core_service.CoreService"
    monkeypatch.setattr(f"{name}.begin_echo", lambda _, *args: found.begin(*args), raising=False)
    monkeypatch.setattr(f"{name}.echo", found.echo)
    return found


async def ask(p, data, payload=b"some bytes"):
    received = await p.channel.call(ECHO, core.EchoReq(data=data), payload=[payload])
    return received.message.data


async def begun(service, count):
    """Return once so many answers are to be given later."""
    with trio.fail_after(60):
        while len(service.answers) < count:  # noqa: ASYNC110 - of what happens there is no event
            await trio.sleep(0.001)


async def give_up_begun(p, service):
    """Ask, and give up when the request has been begun."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, p, b"later", b"p" * 100_000)
        await begun(service, 1)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("size", SIZES)
async def test_a_request_is_begun_with_its_payload_or_left_to_the_method(
    net, process, service, size
):
    observer, payload = RpcObserver(), bytes(range(256)) * (size // 256) + b"p" * (size % 256)
    async with process(net, observer=observer) as p:
        for _ in range(3):
            assert await ask(p, b"now", payload) == b"begun"
            assert await ask(p, b"left", payload) == b"called"
            with pytest.raises(FsError, match="holds 3 entries"):
                await ask(p, b"error", payload)
        assert p.server.pool.used_bytes == 0
    assert service.called == [(b"left", payload)] * 3
    assert service.begun == [(b"now", payload), (b"left", payload), (b"error", payload)] * 3
    served = observer.served(ECHO)
    assert (served.in_flight, served.duration.count) == (0, 9)
    assert served.errors == {"NOT_EMPTY": 3}


async def test_without_a_payload_the_method_is_called(net, process, service):
    async with process(net) as p:
        received = await p.channel.call(ECHO, core.EchoReq(data=b"now"))
        assert received.message.data == b"called"
    assert not service.begun


@pytest.mark.parametrize("size", SIZES)
async def test_a_bug_is_told_and_the_method_called(net, process, service, size):
    bugs = []
    async with process(net, on_bug=lambda _where, error: bugs.append(error)) as p:
        assert await ask(p, b"bug", b"p" * size) == b"called"
    assert [type(error) for error in bugs] == [AssertionError]
    assert service.called == [(b"bug", b"p" * size)]


@pytest.mark.parametrize("size", [10, 100_000])
async def test_what_is_under_way_holds_up_nobody_and_is_answered_in_any_order(
    net, process, service, size
):
    async with process(net) as p, trio.open_nursery() as nursery:
        found = []

        async def ask_later(number):
            await ask(p, b"later", b"p" * size)
            found.append(number)

        for number in range(20):
            nursery.start_soon(ask_later, number)
            await begun(service, number + 1)
        assert await ask(p, b"now") == b"begun"
        assert not found
        for answer in reversed(service.answers):
            answer(core.EchoRsp().SerializeToString())
    assert sorted(found) == list(range(20))


async def test_who_gives_up_is_not_told_and_what_was_held_is_given_back(net, process, service):
    async with process(net) as p:
        await give_up_begun(p, service)
        with pytest.raises(FsError) as caught:
            await p.channel.call(ECHO, core.EchoReq(data=b"later"), payload=[b"x"], timeout_s=0.1)
        assert caught.value.status is Status.RPC_TIMEOUT
        await begun(service, 2)
        assert p.server.pool.used_bytes > 0, "its method may still read it"
        for answer in service.answers:
            answer(core.EchoRsp(data=b"too late").SerializeToString())
        assert p.server.pool.used_bytes == 0
        assert await ask(p, b"now") == b"begun"


async def test_an_answer_after_the_end_of_its_connection_is_dropped(net, process, service):
    async with process(net) as p:
        await give_up_begun(p, service)
        await p.channel.aclose()
        with trio.fail_after(20):
            while p.server.connection_count:  # noqa: ASYNC110 - of what happens there is no event
                await trio.sleep(0.01)
        (answer,) = service.answers
        answer(core.EchoRsp().SerializeToString())
        assert p.server.pool.used_bytes == 0
        assert await ask(p, b"now") == b"begun"


async def test_an_answer_while_its_connection_ends_is_dropped(net, process, service):
    """So many are under way that replies would be posted,
    and the connection takes no task for that any more.
    """
    async with process(net) as p, trio.open_nursery() as nursery:
        told = []

        def answer_all(peer):
            for answer in service.answers:
                answer(core.EchoRsp().SerializeToString())
            told.append(peer)

        p.server.on_disconnect = answer_all
        for _ in range(POST_CALL_COUNT_MIN + 1):
            nursery.start_soon(ask, p, b"later", b"p" * 100_000)
        await begun(service, POST_CALL_COUNT_MIN + 1)
        nursery.cancel_scope.cancel()
        await p.channel.aclose()
    assert len(told) == 1
    assert p.server.pool.used_bytes == 0


async def test_where_somebody_has_to_be_asked_the_method_is_called(net, process, service):
    """As for a user's client: whether it speaks in its own name is judged by the parsed request."""
    asked = []

    class Grant:
        user, is_over = "somebody", False

        def check(self, _method):
            return None

    async with process(net, caller=Identity("test-cluster", client_id="client-1")) as p:
        assert await ask(p, b"now") == b"begun"
        (connection,) = p.server._connections
        for key, binding in p.server._bindings.items():
            if binding.begin is not None:
                admit = lambda user, _peer, request: asked.append((user, request.data))  # noqa: E731
                object.__setattr__(p.server._bindings[key], "admit", admit)
        connection._runs.grant = Grant()
        connection._runs._server.observer = None
        assert await ask(p, b"now") == b"called"
        assert await ask(p, b"now", b"p" * 100_000) == b"called"
    assert len(service.begun) == 1
    assert asked == [("somebody", b"now")] * 2
