"""What a process measures of its remote calls, on both sides."""

import logging
import math

import pytest
import trio

from fs.rpc.api import Reply
from fs.rpc.observer import SLOW_LINE_INTERVAL_S, MethodObserver, RpcObserver
from fs.runtime.figures import Figures
from fs.schema import metrics, services
from fs.schema.proto import core_pb2 as core
from fs.schema.status import FsError, Status

ECHO = "Core.Echo"


def said(observer):
    figures = Figures()
    observer.say(figures)
    return figures


class Faulty:
    """A Core whose Echo does what the data says."""

    async def echo(self, call, request):
        if request.data == b"refuse":
            raise FsError(Status.NOT_FOUND, "as asked")
        if request.data == b"wait":
            await trio.sleep_forever()
        return Reply(core.EchoRsp(data=request.data), [bytes(call.payload)])


async def test_both_sides_count_calls_bytes_and_errors(net, process):
    served, called = RpcObserver(), RpcObserver()
    async with process(net, observer=served) as p:
        p.server._bindings.clear()
        p.server.add_service([services.CORE_ECHO], Faulty())
        p.channels.observer = called
        channel, method = p.channel, services.CORE_ECHO
        for _ in range(3):
            await channel.call(method, core.EchoReq(data=b"x"), payload=[b"12345", b"678"])
        with pytest.raises(FsError, match="as asked"):
            await channel.call(method, core.EchoReq(data=b"refuse"))
        with trio.move_on_after(0.05):
            await channel.call(method, core.EchoReq(data=b"wait"))
        with trio.fail_after(30):
            while said(served).numbers[metrics.SERVER_IN_FLIGHT][ECHO,]:  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.01)
    here, there = said(called), said(served)
    assert here.histograms[metrics.CLIENT_DURATION][ECHO,].count == 5
    assert there.histograms[metrics.SERVER_DURATION][ECHO,].count == 5
    assert here.numbers[metrics.CLIENT_SENT][ECHO,] == 3 * 8
    assert here.numbers[metrics.CLIENT_RECEIVED][ECHO,] == 3 * 8
    assert here.numbers[metrics.CLIENT_IN_FLIGHT][ECHO,] == 0
    assert there.numbers[metrics.SERVER_RECEIVED][ECHO,] > 3 * 8
    assert there.numbers[metrics.SERVER_SENT][ECHO,] == 3 * (8 + core.EchoRsp(data=b"x").ByteSize())
    expected = {(ECHO, "NOT_FOUND"): 1, (ECHO, "CANCELLED"): 1}
    assert here.numbers[metrics.CLIENT_ERRORS] == expected
    assert there.numbers[metrics.SERVER_ERRORS] == expected


async def test_a_slow_request_is_one_line_of_the_log(net, process, caplog):
    observer = RpcObserver(slow_request_s=1e-9)
    async with process(net, observer=observer) as p:
        with caplog.at_level(logging.WARNING, logger="fs.rpc.observer"):
            for _ in range(2):
                await p.channel.call(services.CORE_ECHO, core.EchoReq(data=b"x"))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) >= 1
    assert lines[0].startswith("slow request: Core.Echo 1 from ")
    assert lines[0].endswith(" s: OK")
    assert said(observer).numbers[metrics.SERVER_SLOW][ECHO,] == 2


async def test_many_slow_requests_are_one_line_that_counts_them(caplog, autojump_clock):  # noqa: ARG001
    observed = MethodObserver("Storage.Write", slow_s=1.0)
    await trio.sleep(2 * SLOW_LINE_INTERVAL_S)
    error = FsError(Status.NO_SPACE, "disk 0")
    with caplog.at_level(logging.WARNING, logger="fs.rpc.observer"):
        for number in range(5):
            observed.note_slow(1.5, number, "somebody", error)
        await trio.sleep(SLOW_LINE_INTERVAL_S)
        observed.note_slow(2.5, 9, "somebody", None)
    first, second = [record.getMessage() for record in caplog.records]
    assert first == f"slow request: Storage.Write 0 from somebody took 1.500 s: {error}"
    assert second.endswith("took 2.500 s: OK (4 more of this method since the last such line)")


def test_who_waits_on_purpose_is_never_slow():
    observer = RpcObserver(slow_request_s=1.0)
    assert observer.served(services.MGMTD_GET_ROUTING_INFO).slow_s == math.inf
    assert observer.served(services.MGMTD_HEARTBEAT).slow_s == 1.0
