"""Replies that a method sends before it returns:
they come once, and what it does afterwards says nothing to its caller.
"""

import pytest
import trio
import trio.testing

from fs.schema import services
from fs.schema.proto import core_pb2 as core
from fs.schema.status import FsError, Status

ECHO = services.CORE_ECHO


class Core:
    """Tells what it was asked for, then does as its caller wishes."""

    def __init__(self):
        self.go_on = trio.Event()
        self.told = []
        self.ended = []

    async def echo(self, call, request):
        data = request.data
        if call.tell is not None:
            self.told.append(call.tell(core.EchoRsp(data=b"told " + data)))
            assert not call.tell(core.EchoRsp(data=b"told again")), "one reply to a request"
        try:
            if data == b"wait":
                await self.go_on.wait()
            if data == b"error":
                raise FsError(Status.IO_ERROR, "too late")
            return core.EchoRsp(data=b"returned")
        finally:
            self.ended.append(bytes(call.payload))


@pytest.fixture
def service(monkeypatch):
    found = Core()
    monkeypatch.setattr("fs.rpc.core_service.CoreService.echo", found.echo)
    return found


async def ask(p, data, payload=b"some bytes"):
    received = await p.channel.call(ECHO, core.EchoReq(data=data), payload=[payload])
    return received.message.data


@pytest.mark.parametrize("data", [b"plain", b"error"])
async def test_what_was_told_is_the_reply_whatever_comes_of_the_method(net, process, service, data):
    async with process(net) as p:
        for _ in range(3):
            assert await ask(p, data) == b"told " + data
    assert service.told == [True] * 3
    assert service.ended == [b"some bytes"] * 3


async def test_who_was_told_need_not_wait_for_the_end(net, process, service):
    async with process(net) as p:
        with trio.fail_after(10):
            assert await ask(p, b"wait", b"first") == b"told wait"
            assert await ask(p, b"plain", b"second") == b"told plain"
        assert service.ended == [b"second"], "the first one has its payload still"
        service.go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        assert service.ended == [b"second", b"first"]
        assert await ask(p, b"plain") == b"told plain"


async def test_without_a_payload_nothing_is_told(net, process, service):
    async with process(net) as p:
        received = await p.channel.call(ECHO, core.EchoReq(data=b"plain"))
        assert received.message.data == b"returned"
    assert service.told == []
