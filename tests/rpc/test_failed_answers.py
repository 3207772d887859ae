"""Answers that cannot be made or sent for an error of ours:
told to their callers, or the end of one connection, never of the process.
"""

import pytest
import trio

from fs.rpc.answers_at_once import SMALL_REPLY_BYTES_MAX
from fs.rpc.api import LATER, Reply
from fs.rpc.observer import RpcObserver
from fs.schema import services
from fs.schema.proto import core_pb2 as core
from fs.schema.status import FsError, Status
from tests.examples import first_quick

ECHO = services.CORE_ECHO
WAYS = ["at once", "awaited", "later", "awaited later", "begun", "begun later", "quick"]
ERRORS = {
    Status.OUT_OF_RESOURCES: MemoryError("injected"),
    Status.INTERNAL_ERROR: AssertionError("injected"),
}


class Core:
    """Answers in the way that it is told."""

    def __init__(self):
        self.way = "at once"
        self.reply_bytes = 0
        self.held = 0

    def reply(self, data):
        self.held += 1
        payload = [bytes(self.reply_bytes)] if self.reply_bytes else ()
        return Reply(core.EchoRsp(data=data), payload, self._release)

    def _release(self):
        self.held -= 1

    async def rest(self, data):
        await trio.sleep(0.001)
        return self.reply(data)

    def echo(self, _call, request):
        return self.rest(request.data) if self.way == "awaited" else self.reply(request.data)

    def packed_echo(self, call, message):
        data = core.EchoReq.FromString(message).data
        if "later" not in self.way or call.answer is None:
            return None
        result = self.rest(data) if self.way == "awaited later" else self.reply(data)
        trio.lowlevel.current_trio_token().run_sync_soon(call.answer, result)
        return LATER

    def quick_echo(self, message):
        data = core.EchoReq.FromString(message).data
        found = core.EchoRsp(data=data).SerializeToString(), bytes(self.reply_bytes)
        return found if self.way == "quick" else None

    def begin_echo(self, _call, message, answer):
        reply = core.EchoRsp(data=core.EchoReq.FromString(message).data).SerializeToString()
        if self.way == "begun later":
            trio.lowlevel.current_trio_token().run_sync_soon(answer, reply)
        else:
            answer(reply)
        return True


@pytest.fixture
def service(monkeypatch):
    found = Core()
    name = "fs.rpc.core_service.CoreService"
    monkeypatch.setattr(f"{name}.echo", found.echo)
    for form in ("packed", "quick", "begin"):
        function = getattr(found, f"{form}_echo")
        monkeypatch.setattr(f"{name}.{form}_echo", lambda _, *a, f=function: f(*a), raising=False)
    return found


async def asked(p, service, data=b"x"):
    """Return what a call ends with."""
    payload = [b"some bytes"] if service.way.startswith("begun") else ()
    try:
        with trio.fail_after(60):
            received = await p.channel.call(ECHO, core.EchoReq(data=data), payload=payload)
    except FsError as error:
        return error.status
    return received.message.data


def break_sending(p, errors):
    """Have the server's next attempts to send end with these errors, before anything is sent."""
    (connection,) = p.server._connections
    framed = connection._framed

    def failing(real):
        def send(*args, **kwargs):
            if errors:
                raise errors.pop(0)
            return real(*args, **kwargs)

        return send

    for name in ("send_at_once", "send_first", "send"):
        setattr(framed, name, failing(getattr(framed, name)))


def cut_sending(p):
    """Have the server's stream take a part of the next frame, and no task be there for the rest."""
    (connection,) = p.server._connections
    framed = connection._framed
    stream, real_spawn = framed.stream, connection._nursery.start_soon
    real_send, cuts = stream.send_now, [1]

    def send_now(buffers):
        if not cuts:
            return real_send(buffers)
        cuts.clear()
        return real_send([bytes(buffers[0])[:5]])

    def spawn(function, *args):
        if not cuts:
            raise MemoryError("injected")
        real_spawn(function, *args)

    stream.send_now = send_now
    framed._spawn = connection._at_once._spawn = connection._begun._spawn = spawn


async def until(condition):
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - of what happens there is no event
            await trio.sleep(0.001)


def is_clean(p, service, observer):
    return not (service.held or p.server.pool.used_bytes or observer.served(ECHO).in_flight)


@pytest.mark.parametrize("status", ERRORS)
@pytest.mark.parametrize("way", WAYS)
async def test_what_cannot_be_sent_is_answered_with_a_status(net, process, service, way, status):
    bugs, observer = [], RpcObserver()
    on_bug = lambda where, error: bugs.append((where, error))  # noqa: E731 - as long as it is needed
    async with process(net, on_bug=on_bug, observer=observer) as p:
        service.way = way
        assert await asked(p, service) == b"x"
        connections = list(p.server._connections)
        for service.reply_bytes in (0, SMALL_REPLY_BYTES_MAX + 1):
            break_sending(p, [ERRORS[status]])
            # of a quick reply the method itself makes another one
            assert await asked(p, service) == (b"x" if way == "quick" else status)
            assert await asked(p, service, b"next") == b"next"
        assert list(p.server._connections) == connections
        await until(lambda: is_clean(p, service, observer))
    assert len(bugs) == (2 if status is Status.INTERNAL_ERROR and way != "quick" else 0)


@pytest.mark.parametrize("way", WAYS[:-1])
async def test_where_no_status_can_be_sent_either_the_connection_ends(net, process, service, way):
    observer = RpcObserver()
    async with process(net, observer=observer) as p:
        service.way = way
        assert await asked(p, service) == b"x"
        break_sending(p, [MemoryError("injected") for _ in range(3)])
        assert await asked(p, service) == Status.RPC_CONNECTION_LOST
        assert await asked(p, service, b"next") == b"next"
        await until(lambda: is_clean(p, service, observer))


@pytest.mark.parametrize("reply_bytes", first_quick([SMALL_REPLY_BYTES_MAX + 1, 0]))
@pytest.mark.parametrize("way", WAYS)
async def test_within_a_frame_the_connection_ends_and_nothing_is_sent_behind(
    net, process, service, way, reply_bytes
):
    observer = RpcObserver()
    async with process(net, observer=observer) as p:
        service.way = way
        assert await asked(p, service) == b"x"
        service.reply_bytes = reply_bytes
        cut_sending(p)
        assert await asked(p, service) == Status.RPC_CONNECTION_LOST
        assert await asked(p, service, b"next") == b"next"
        await until(lambda: is_clean(p, service, observer))


async def test_an_error_between_two_requests_ends_one_connection(net, process, service):
    """As where there is no memory for the message of the next one."""
    async with process(net) as p:
        assert await asked(p, service) == b"x"
        (connection,) = p.server._connections

        def take_whole():
            raise MemoryError("injected")

        connection._framed.take_whole = take_whole
        assert await asked(p, service) == Status.RPC_CONNECTION_LOST
        assert await asked(p, service) == b"x"
