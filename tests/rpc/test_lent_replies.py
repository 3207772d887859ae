"""Lent replies: what is read where its server has it, what is sent all the same,
and what either side that lies can do.
"""

import mmap
import os
import random
from types import SimpleNamespace

import pytest
import trio

from fs.kernels.lent import read_lent
from fs.rpc import lent_replies
from fs.rpc.api import Lending, Reply
from fs.rpc.connection import Connection
from fs.rpc.frame import FLAG_BORROWS, FrameLimits
from fs.rpc.lending import STEP_BYTES
from fs.rpc.lent_replies import LentTotals, ReplyBorrower, ReplyLender
from fs.rpc.peer_memory import UnixPeerMemory
from fs.rpc.simulated_memory import SimulatedMemory
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.plain_memory import PlainMemory
from fs.runtime.tracing import Tracer
from fs.schema.config import RpcSection
from fs.schema.proto import core_pb2 as core
from fs.schema.proto import storage_pb2
from fs.schema.proto.rpc_pb2 import HelloPb
from fs.schema.status import FsError, Status

from .lent_reads import (
    ECHO,
    KIB,
    READ,
    SIZE,
    WRITE,
    AtOnce,
    Waiting,
    all_returned,
    content,
    read,
    request_for,
    until,
)
from .raw import NONCE, protect


async def test_a_large_reply_is_read_where_it_lies(unix, process, storage):
    async with process(unix, services=[([READ], storage)]) as p:
        total = 0
        for first, lengths in enumerate(
            ((SIZE,), (256 * KIB,), (SIZE, 5, 100 * KIB), (2 * STEP_BYTES + 7, STEP_BYTES), (SIZE,))
        ):
            await read(p, *lengths, first=first)
            total += sum(lengths)
            assert p.server.lent_replies.lent_bytes == total
        received = await p.channel.call(READ, request_for(SIZE), may_be_lent=True)
        assert received.payload == content(SIZE, 1)
        assert p.server.lent_replies.lent_bytes == total + SIZE
        await all_returned(p, storage)


async def test_the_next_request_takes_along_what_was_read(unix, process, storage):
    async with process(unix, services=[([READ], storage)]) as p:
        await read(p, SIZE)
        assert p.server.lent_replies.held_bytes == SIZE
        for _ in range(20):
            await read(p, SIZE)
            assert p.server.lent_replies.held_bytes == SIZE, "what came before is back"
        assert storage.pool.used_bytes == 512 * KIB
        await p.channel.call(ECHO, core.EchoReq(data=b"x"))
        assert p.server.lent_replies.held_bytes == storage.pool.used_bytes == 0


async def test_many_at_once(unix, process, storage):
    async with process(unix, services=[([READ], storage)]) as p:
        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(lambda n=number: read(p, SIZE + n, n + 1, first=n))
        assert p.server.lent_replies.lent_bytes >= 20 * SIZE
        await all_returned(p, storage)


async def test_what_is_small_or_unchecked_or_of_files_is_sent(unix, process, storage, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content(SIZE, 1))
    async with process(unix, services=[([READ], storage)]) as p:
        await read(p, 256 * KIB - 1)
        await read(p, SIZE, may_be_lent=False)
        with path.open("rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ))
        storage.make = lambda _view: [mapped]
        await read(p, SIZE)
        storage.make = lambda view: [view[at : at + KIB] for at in range(0, SIZE, KIB)]
        await read(p, SIZE)
        assert p.server.lent_replies.lent_bytes == 0
        storage.make = lambda view: [view[: 100 * KIB], view[100 * KIB :]]
        await read(p, SIZE)
        assert p.server.lent_replies.lent_bytes == SIZE


@pytest.mark.parametrize("side", ["limits", "caller_limits"])
async def test_a_setting_switches_it_off(unix, process, storage, side):
    off = {side: RpcSection(lend_bytes_min=0)}
    async with process(unix, services=[([READ], storage)], **off) as p:
        await read(p, SIZE)
        assert p.server.lent_replies.lent_bytes == 0 and storage.pool.used_bytes == 0


async def test_whatever_the_network_the_bytes_arrive(net, process, storage):
    async with process(net, services=[([READ], storage)]) as p:
        await read(p, SIZE)
        assert p.server.lent_replies.lent_bytes == (SIZE if net.kind == "unix" else 0)
        await all_returned(p, storage)


@pytest.mark.parametrize("name", ["HELD_BYTES_MAX", "ALL_HELD_BYTES_MAX"])
async def test_what_would_be_too_much_is_sent(unix, process, storage, name, monkeypatch):
    monkeypatch.setattr(lent_replies, name, 2 * SIZE)
    monkeypatch.setattr(lent_replies, "RETURN_S", 3600.0)
    monkeypatch.setattr(ReplyBorrower, "send_along", _sent_alone)
    monkeypatch.setattr(Connection, "_owe", lambda self, n: self._borrower.owed.append(n))
    async with process(unix, services=[([READ], storage)]) as p:
        for _ in range(3):
            await read(p, SIZE)
        assert p.server.lent_replies.lent_bytes == p.server.lent_replies.held_bytes == 2 * SIZE
        connection = p.channel._connection
        connection._borrower.return_owed(connection._framed)
        await all_returned(p, storage)
        await read(p, SIZE)
        assert p.server.lent_replies.lent_bytes == 3 * SIZE


def _sent_alone(_self, framed, frame, call_count):
    return framed.send_at_once(frame, call_count=call_count)


async def test_a_traced_request_borrows_as_well(unix, process, storage):
    class Clock:
        def wall_ns(self):
            return 1

    served = []
    here, there = (Tracer(Clock(), random.Random(n), sink=served.append) for n in range(2))
    async with process(unix, tracer=there, services=[([READ], storage)]) as p:
        with here.root("operation"):
            await read(p, SIZE)
        assert p.server.lent_replies.lent_bytes == SIZE
    assert "Storage.BatchRead" in {span.name for span in served}


async def test_what_nobody_waits_for_any_more_is_returned(unix, process):
    storage = Waiting()
    storage.wait = trio.Event()
    async with process(unix, services=[([READ], storage)]) as p:
        await p.channel.call(ECHO, core.EchoReq(data=b"x"))
        connection = p.channel._connection
        connection._send_cancel = _no_cancel  # it crosses the reply
        with trio.move_on_after(0.05):
            await read(p, SIZE)
        storage.wait.set()
        await until(lambda: p.server.lent_replies.lent_bytes)
        await all_returned(p, storage)


async def _no_cancel(_request_id):
    pass


async def test_who_fails_with_a_reply_returns_it_all_the_same(unix, process, storage):
    def into(_reply, _size):
        raise FsError(Status.RPC_BAD_FRAME, "not what was asked for")

    async with process(unix, services=[([READ], storage)]) as p:
        for _ in range(10):
            with pytest.raises(FsError):
                await p.channel.call(READ, request_for(SIZE), into=into, may_be_lent=True)
        assert p.server.lent_replies.lent_bytes == 10 * SIZE
        await all_returned(p, storage)
        await read(p, SIZE)


async def test_who_is_cancelled_while_it_reads_returns_it(unix, process, storage):
    async with process(unix, services=[([READ], storage)]) as p:
        with trio.CancelScope() as scope:

            def into(_reply, size):
                scope.cancel()
                return [memoryview(bytearray(size))]

            await p.channel.call(READ, request_for(3 * STEP_BYTES), into=into, may_be_lent=True)
        assert scope.cancelled_caught
        await all_returned(p, storage)
        await read(p, SIZE)


async def test_a_connection_that_takes_no_more_calls_waits_for_who_reads(unix, process, storage):
    async with process(unix, services=[([READ], storage)]) as p:
        await read(p, SIZE)
        connection = p.channel._connection
        total = [SIZE, 2 * STEP_BYTES, 2 * STEP_BYTES]

        def into(_reply, size):
            connection.retire()
            return [memoryview(bytearray(size))]

        for size in total[1:]:
            received = await p.channel.call(READ, request_for(size), into=into, may_be_lent=True)
            assert received.payload_bytes == size
        assert connection.is_closed
        assert p.server.lent_replies.lent_bytes == sum(total)
        await all_returned(p, storage)


async def test_after_a_payload_that_could_not_be_read_all_are_sent(unix, process, storage):
    size = 512 * KIB
    memory = memoryview(PlainMemory(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    memory[:] = content(size, 1)
    async with process(unix, services=[([READ], storage)]) as p:
        storage.make = lambda _view: [memory]
        await read(p, size)
        protect(memory, is_readable=False)
        try:
            with pytest.raises(FsError) as caught:
                await read(p, size)
        finally:
            protect(memory, is_readable=True)
        assert (caught.value.status, caught.value.definite) == (Status.RPC_NOT_LENT, True)
        await read(p, size)
        assert p.server.lent_replies.lent_bytes == 2 * size
        await all_returned(p, storage)


async def test_in_simulation_what_is_lent_stays_until_it_is_returned(
    process,
    storage,
    autojump_clock,  # noqa: ARG001
):
    """Calls are given up at every moment; whoever has a reply has the right bytes."""
    memory = MemoryNetwork(seed=1)
    memory.memory = SimulatedMemory(1)
    ends = memory.endpoint("a"), memory.endpoint("b")
    net = SimpleNamespace(a=ends[0], b=ends[1], address=lambda: "mem:a")
    done = 0
    async with process(net, services=[([READ], storage)]) as p:
        for number in range(60):
            with trio.move_on_after(0.0008 * (number % 12)):
                await read(p, SIZE, 40 * KIB, first=number)
                done += 1
        await all_returned(p, storage)
    assert done >= 20 and p.server.lent_replies.lent_bytes >= 20 * SIZE
    assert memory.memory.changed_count == 0


async def test_what_was_read_is_returned_where_others_always_wait_to_send(unix, process):
    """Requests of many small pieces are sent, and a busy node takes them one by one."""

    class Busy(AtOnce):
        def write(self, _call, _request):
            return storage_pb2.UpdateRsp()

    storage, written = Busy(), 0

    async def write(p):
        nonlocal written
        while True:
            pieces = [bytes(4 * KIB)] * 100
            await p.channel.call(WRITE, storage_pb2.UpdateReq(), payload=pieces)
            written += 1

    async with process(unix, services=[([READ, WRITE], storage)]) as p, trio.open_nursery() as all_:
        for _ in range(40):
            all_.start_soon(write, p)
        await until(lambda: written > 40)
        framed = p.channel._connection._framed
        await until(lambda: len(framed._senders) > 4)
        await read(p, SIZE)
        written = 0
        await until(lambda: not p.server.lent_replies.held_bytes or written > 1000)
        assert not p.server.lent_replies.held_bytes
        all_.cancel_scope.cancel()


# ---- the parts -----------------------------------------------------------------------------------


def lender(memory, totals):
    lends = ReplyLender(memory, 1, FrameLimits(1 << 20, 1 << 30), totals)
    place = lends.place_for(HelloPb(reply_nonce=NONCE), 2)
    return lends, place


def test_the_nonce_goes_before_what_was_lent_is_free():
    """So whoever still reads it then cannot take what comes there next for what was lent."""
    totals = LentTotals()
    lends, place = lender(UnixPeerMemory(os.getpid()), totals)
    seen = []

    def release():
        with pytest.raises(OSError, match="such process"):
            read_lent(os.getpid(), b"", 0, bytearray(), place, NONCE)
        seen.append(totals.held_bytes)

    read_lent(os.getpid(), b"", 0, bytearray(), place, NONCE)
    data = bytes(64 * KIB)
    for number in range(2):
        reply = Reply(b"message", [data], release)
        header = SimpleNamespace(flags=FLAG_BORROWS, request_id=number)
        assert lends.lend(header, reply) == len(data)
        assert reply.payload == () and reply.release is None and totals.held_bytes
    lends.end()
    assert seen == [len(data), 0] and totals == LentTotals(0, 2 * len(data))
    reply = Reply(b"message", [data], release)
    header = SimpleNamespace(flags=FLAG_BORROWS, request_id=3)
    assert lends.lend(header, reply) == 0 and reply.release is release


def test_a_message_with_no_room_for_pieces_is_not_lent():
    totals = LentTotals()
    lends = ReplyLender(SimulatedMemory(1), 1, FrameLimits(30, 1 << 30), totals)
    assert lends.place_for(HelloPb(reply_nonce=NONCE), 2)
    header = SimpleNamespace(flags=FLAG_BORROWS, request_id=1)
    reply = Reply(bytes(11), [bytes(64 * KIB)])
    assert lends.lend(header, reply) == 0 and reply.message == bytes(11)
    reply = Reply(bytes(10), [bytes(64 * KIB)])
    assert lends.lend(header, reply) == 64 * KIB and len(reply.message) == 30


def test_memory_of_others_is_not_asked_for():
    borrower = ReplyBorrower(None, 1)
    assert borrower.nonce() == b""
    borrower.hear(HelloPb(reply_place=5), "somebody")
    assert borrower.flags(Lending.RANGES) == 0
    assert ReplyBorrower(SimulatedMemory(1), 0).nonce() == b""
