"""Traces between processes: what a frame carries, to whom,
and what those pay that are not traced.
"""

import cProfile
import logging
import pstats
import random

import pytest
import trio

from fs.rpc import handshake
from fs.runtime import tracing
from fs.runtime.tracing import SpanKind, Tracer
from fs.schema import services
from fs.schema.proto import core_pb2 as core
from fs.schema.status import FsError, Status

ECHO = services.CORE_ECHO


class Clock:
    def wall_ns(self):
        return 1


def tracer(seed):
    ended = []
    return Tracer(Clock(), random.Random(seed), sink=ended.append), ended


class Relay:
    """A Core whose Echo calls itself once more through another channel, waits, and may refuse."""

    def __init__(self):
        self.seen = []
        self.next = None

    async def echo(self, _call, request):
        span = tracing.current()
        self.seen.append(span and span.trace_id)
        await trio.lowlevel.checkpoint()
        if request.data == b"relay":
            await self.next.call(ECHO, core.EchoReq(data=b"end"))
        if request.data == b"refuse":
            raise FsError(Status.NOT_FOUND, "as asked")
        return core.EchoRsp(data=request.data)


def serve(p, relay):
    p.server._bindings.clear()
    p.server.add_service([ECHO], relay)
    relay.next = p.channels.get(p.address, node_id=7)


async def test_a_request_takes_its_trace_along_and_others_have_none(net, process):
    here, called = tracer(1)
    there, served = tracer(2)
    relay = Relay()
    async with process(net, tracer=there) as p:
        serve(p, relay)
        await p.channel.call(ECHO, core.EchoReq(data=b"before"))
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(p.channel.call, ECHO, core.EchoReq(data=b"beside"))
            with here.root("operation") as root:
                await p.channel.call(ECHO, core.EchoReq(data=b"relay"))
        await p.channel.call(ECHO, core.EchoReq(data=b"after"))
    assert tracing.live.count == 0
    assert relay.seen.count(root.trace_id) == relay.seen.count(None) - 5 == 2
    assert [span.name for span in called] == ["Core.Echo", "operation"]
    first = called[0]
    assert (first.kind, first.parent_id) == (SpanKind.CLIENT, root.span_id)
    # The process that relays begins both of its spans, and that of its
    # call, by the tracer that joined.
    end, call, outer = served
    assert [span.kind for span in served] == [SpanKind.SERVER, SpanKind.CLIENT, SpanKind.SERVER]
    assert outer.parent_id == first.span_id
    assert call.parent_id == outer.span_id
    assert end.parent_id == call.span_id
    assert {span.trace_id for span in (*called, *served)} == {root.trace_id}
    assert outer.attributes["peer"] == "client-1"


async def test_a_refusal_is_seen_on_both_sides(net, process, caplog):
    caplog.set_level(logging.INFO, logger="fs.rpc.server_connection")
    here, called = tracer(1)
    there, served = tracer(2)
    async with process(net, tracer=there) as p:
        serve(p, Relay())
        with here.root("operation"), pytest.raises(FsError):
            await p.channel.call(ECHO, core.EchoReq(data=b"refuse"))
        await p.channel.call(ECHO, core.EchoReq(data=b"x"))
    (line,) = [r.getMessage() for r in caplog.records if "Core.Echo" in r.getMessage()]
    assert line.startswith("Core.Echo 1 from ") and "NOT_FOUND" in line
    assert [span.error.split(":")[0] for span in served] == ["NOT_FOUND"]
    assert [span.error.split(":")[0] for span in called] == ["NOT_FOUND", ""]


async def test_who_keeps_no_traces_serves_traced_requests(net, process):
    here, _ = tracer(1)
    relay = Relay()
    async with process(net) as p:
        serve(p, relay)
        with here.root("operation"):
            reply = await p.channel.call(ECHO, core.EchoReq(data=b"x"), payload=[b"12", b"3"])
    assert reply.message.data == b"x" and relay.seen == [None]


async def test_a_peer_of_an_older_version_is_sent_none(net, process, monkeypatch):
    """It negotiates, answers with its own version's frames, and would take a flag for garbage."""
    here, called = tracer(1)
    there, served = tracer(2)
    spoken = handshake.encode_hello

    def encode_old(*arguments, **options):
        return spoken(*arguments, **options, version_max=1)

    monkeypatch.setattr("fs.rpc.welcome.encode_hello", encode_old)
    monkeypatch.setattr("fs.rpc.welcome.negotiate", lambda _: 1)
    async with process(net, tracer=there) as p:
        with here.root("operation"):
            for _ in range(3):
                reply = await p.channel.call(ECHO, core.EchoReq(data=b"x"))
        assert p.channel._connection._framed.version == 1
    assert reply.message.data == b"x" and not served and len(called) == 4


async def test_who_is_not_traced_pays_no_call(net, process):
    """The functions of the module that are called for one request, counted."""
    there, _ = tracer(2)
    async with process(net, tracer=there) as p:
        await p.channel.call(ECHO, core.EchoReq(data=b"x"))
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(10):
            await p.channel.call(ECHO, core.EchoReq(data=b"x"))
        profile.disable()
    called = pstats.Stats(profile).stats
    assert any(name == "_encode_request" for _, _, name in called)
    assert not [name for file, _, name in called if file == tracing.__file__]
