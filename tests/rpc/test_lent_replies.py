"""Lent replies: what is read where its server has it, what is sent all the same, and what either side that lies can do."""

import ctypes
import errno
import mmap
import os
import random
from types import SimpleNamespace

import pytest
import trio
from xxhash import xxh3_64_intdigest

from fs.kernels.lent import PIECE, PIECE_COUNT_MAX, pieces_of, read_lent
from fs.rpc import lent_replies
from fs.rpc.api import Identity, Lending, Reply
from fs.rpc.buffer_pool import BufferPool
from fs.rpc.channel import open_channels
from fs.rpc.connection import Connection
from fs.rpc.frame import FLAG_BORROWS, FLAG_LENT, FrameLimits, Kind, decode_error, encode_header
from fs.rpc.handshake import encode_hello
from fs.rpc.lending import STEP_BYTES
from fs.rpc.lent_replies import ID, RETURN_S, LentTotals, ReplyBorrower, ReplyLender
from fs.rpc.peer_memory import UnixPeerMemory
from fs.rpc.simulated_memory import SimulatedMemory
from fs.rpc.transport import SocketNetwork
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.plain_memory import PlainMemory
from fs.runtime.simulated import simulated_runtime
from fs.runtime.tracing import Tracer
from fs.schema import services
from fs.schema.config import RpcSection
from fs.schema.proto import core_pb2 as core
from fs.schema.proto import storage_pb2
from fs.schema.proto.rpc_pb2 import HelloPb
from fs.schema.status import FsError, Status

READ, ECHO = services.STORAGE_BATCH_READ, services.CORE_ECHO
WRITE = services.STORAGE_WRITE
KIB = 1024
SIZE = 300 * KIB
ME = Identity("test-cluster", client_id="raw")
NONCE = bytes(range(16))


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


def content(length, seed):
    return noise(length, seed)


class Storage:
    """Answers reads as storage processes do, out of a pool of buffers; the chunk says what there is to read."""

    def __init__(self):
        self.pool = BufferPool(64 << 20)
        self.wait = None
        self.make = None

    def reply(self, request):
        size = sum(request.lengths)
        lease = self.pool.acquire_now(size)
        parts = [
            content(length, seed)
            for length, seed in zip(request.lengths, request.chunk_indexes, strict=True)
        ]
        lease.view[:] = b"".join(parts)
        payload = [lease.view] if self.make is None else self.make(lease.view)
        message = storage_pb2.BatchReadRsp(
            lengths=request.lengths, checksums=map(xxh3_64_intdigest, parts)
        )
        return Reply(message, payload, lambda: self.pool.release(lease))


class Waiting(Storage):
    async def batch_read(self, _call, request):
        if self.wait is not None:
            await self.wait.wait()
        await trio.lowlevel.checkpoint()
        return self.reply(request)


class AtOnce(Storage):
    def batch_read(self, _call, request):
        return self.reply(request)


@pytest.fixture(params=[Waiting, AtOnce])
def storage(request):
    return request.param()


@pytest.fixture
def unix(tmp_path):
    """A network as `net` has it, of Unix sockets."""
    network = SocketNetwork()
    return SimpleNamespace(a=network, b=network, address=lambda: f"unix:{tmp_path}/s")


def request_for(*lengths, first=1):
    return storage_pb2.BatchReadReq(
        lengths=lengths, chunk_indexes=range(first, first + len(lengths))
    )


async def read(p, *lengths, first=1, may_be_lent=True, into=None):
    """Return what was read, once its checksums have been compared."""
    views = [memoryview(bytearray(length)) for length in lengths] if into is None else into
    received = await p.channel.call(
        READ,
        request_for(*lengths, first=first),
        into=lambda _reply, _size: views,
        may_be_lent=may_be_lent,
    )
    assert received.payload_bytes == sum(lengths)
    assert list(received.message.checksums) == list(map(xxh3_64_intdigest, views))
    assert [bytes(v) for v in views] == [content(n, first + i) for i, n in enumerate(lengths)]


async def until(is_so):
    with trio.fail_after(10):
        while not is_so():  # noqa: ASYNC110 - nobody tells
            await trio.sleep(RETURN_S / 4)


async def all_returned(p, storage):
    await until(lambda: not p.server.lent_replies.held_bytes and not storage.pool.used_bytes)


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


def protect(memory, is_readable):
    """Take memory away from everybody who reads it, or give it back."""
    address, _ = PIECE.unpack(pieces_of([memory]))
    bits = mmap.PROT_READ | mmap.PROT_WRITE if is_readable else 0
    library = ctypes.CDLL(None, use_errno=True)
    assert not library.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(memory)), bits)


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


# ---- a caller by hand ------------------------------------------------------------------------------


class Raw:
    """One end of a connection that says what it likes."""

    def __init__(self, stream):
        self.stream = stream

    async def exactly(self, count):
        data = memoryview(bytearray(count))
        done = 0
        while done < count:
            got = await self.stream.receive_into(data[done:])
            if not got:
                raise EOFError
            done += got
        return bytes(data)

    async def frame(self):
        """Return kind, flags, status, message and payload size of the next frame."""
        head = await self.exactly(48)
        size = int.from_bytes(head[28:32], "little")
        return SimpleNamespace(
            kind=head[5], flags=head[6], status=int.from_bytes(head[20:22], "little"),
            id=int.from_bytes(head[8:16], "little"),
            payload_bytes=int.from_bytes(head[32:40], "little"), message=await self.exactly(size),
        )  # fmt: skip

    async def say(self, kind, message=b"", number=0, **fields):
        header = encode_header(kind, number, message_bytes=len(message), **fields)
        await self.stream.send_all([header, message])

    async def hello(self, **fields):
        await self.stream.send_all(encode_hello(ME, **fields))
        heard = await self.frame()
        assert heard.kind == Kind.HELLO
        return HelloPb.FromString(heard.message)

    async def ask(self, number, size=SIZE, flags=FLAG_BORROWS):
        method = {"service": READ.service_number, "method": READ.number}
        message = request_for(size, first=number).SerializeToString()
        await self.say(Kind.REQUEST, message, number, flags=flags, **method)

    async def give_back(self, *numbers):
        await self.say(Kind.RETURN, b"".join(map(ID.pack, numbers)))

    async def refusal(self):
        with trio.fail_after(30):
            heard = await self.frame()
        return heard.kind, decode_error(heard.status, heard.message).status


def pieces_in(message):
    count = int.from_bytes(message[:4], "little")
    return message[4 : 4 + count * PIECE.size]


def looked_up(pieces, size, place):
    found = bytearray(size)
    read_lent(os.getpid(), pieces, 0, found, place, NONCE)
    return bytes(found)


@pytest.fixture
def raw(unix, process, storage):
    async def connect(p):
        return Raw(await p.connect())

    return SimpleNamespace(process=lambda: process(unix, services=[([READ], storage)]), to=connect)


async def test_only_who_names_a_nonce_is_lent_to(raw):
    async with raw.process() as p:
        for nonce in (b"", NONCE[:15], NONCE + b"x"):
            caller = await raw.to(p)
            assert (await caller.hello(reply_nonce=nonce)).reply_place == 0
            await caller.ask(1)
            heard = await caller.frame()
            assert (heard.kind, heard.flags) == (Kind.REPLY, 0)
            assert await caller.exactly(SIZE) == content(SIZE, 1)
        caller = await raw.to(p)
        assert (await caller.hello(reply_nonce=NONCE)).reply_place
        await caller.ask(2, flags=0)
        assert (await caller.frame()).flags == 0
        assert await caller.exactly(SIZE) == content(SIZE, 2)
        assert p.server.lent_replies.lent_bytes == 0


async def test_an_older_release_is_lent_nothing(raw):
    async with raw.process() as p:
        caller = await raw.to(p)
        assert (await caller.hello(reply_nonce=NONCE, version_max=1)).reply_place == 0


async def test_what_a_connection_held_is_free_once_it_has_ended_and_reads_as_nothing(raw, storage):
    async with raw.process() as p:
        caller = await raw.to(p)
        place = (await caller.hello(reply_nonce=NONCE)).reply_place
        replies = []
        for number in (5, 6):
            await caller.ask(number)
            replies.append(await caller.frame())
            assert (replies[-1].kind, replies[-1].flags) == (Kind.REPLY, FLAG_LENT)
            assert replies[-1].payload_bytes == SIZE
        for number, reply in zip((5, 6), replies, strict=True):
            assert looked_up(pieces_in(reply.message), SIZE, place) == content(SIZE, number)
        assert p.server.lent_replies.held_bytes == 2 * SIZE
        await caller.give_back(5)
        await until(lambda: p.server.lent_replies.held_bytes == SIZE)
        await caller.stream.aclose()
        await all_returned(p, storage)
        with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is looked at
            looked_up(pieces_in(replies[1].message), SIZE, place)
        assert caught.value.errno in {errno.ESRCH, errno.EFAULT}


@pytest.mark.parametrize("numbers", [(7,), (5, 5), (5, 6, 7), (2**64 - 1,)])
async def test_returning_what_is_not_lent_ends_the_connection(raw, storage, numbers):
    async with raw.process() as p:
        caller = await raw.to(p)
        await caller.hello(reply_nonce=NONCE)
        for number in (5, 6):
            await caller.ask(number)
            assert (await caller.frame()).flags == FLAG_LENT
        await caller.give_back(*numbers)
        assert await caller.refusal() == (Kind.GOODBYE, Status.RPC_BAD_FRAME)
        await all_returned(p, storage)


async def test_returning_twice_ends_the_connection(raw, storage):
    async with raw.process() as p:
        caller = await raw.to(p)
        await caller.hello(reply_nonce=NONCE)
        await caller.ask(5)
        assert (await caller.frame()).flags == FLAG_LENT
        await caller.give_back(5)
        await caller.give_back(5)
        assert await caller.refusal() == (Kind.GOODBYE, Status.RPC_BAD_FRAME)
        await all_returned(p, storage)


@pytest.mark.parametrize("message", [b"", b"1234567", bytes(9), bytes(20 * KIB)])
async def test_a_return_frame_that_says_nothing_ends_the_connection(raw, message):
    async with raw.process() as p:
        caller = await raw.to(p)
        await caller.hello(reply_nonce=NONCE)
        await caller.say(Kind.RETURN, message)
        assert await caller.refusal() == (Kind.GOODBYE, Status.RPC_BAD_FRAME)


async def test_the_number_of_a_reply_that_is_lent_may_come_again(raw, storage):
    """Then it is sent: by its number nobody could say which of two comes back."""
    async with raw.process() as p:
        caller = await raw.to(p)
        await caller.hello(reply_nonce=NONCE)
        await caller.ask(5)
        assert (await caller.frame()).flags == FLAG_LENT
        await caller.ask(5)
        assert (await caller.frame()).flags == 0
        assert await caller.exactly(SIZE) == content(SIZE, 5)
        await caller.give_back(5)
        await all_returned(p, storage)


async def test_who_keeps_a_reply_loses_the_connection(raw, storage):
    async with raw.process() as p:
        keeper, other = await raw.to(p), await raw.to(p)
        for caller in (keeper, other):
            await caller.hello(reply_nonce=NONCE)
        for turn in range(3):
            await other.ask(turn)
            assert (await other.frame()).flags == FLAG_LENT
            if not turn:
                await keeper.ask(9)
                assert (await keeper.frame()).flags == FLAG_LENT
            held = p.server.lent_replies.held_bytes
            for connection in list(p.server._connections):
                await connection.end_if_stuck()
            await other.give_back(turn)
            await until(lambda least=held: p.server.lent_replies.held_bytes < least)
        await all_returned(p, storage)
        await other.ask(3)
        assert (await other.frame()).flags == FLAG_LENT
        with pytest.raises((EOFError, trio.BrokenResourceError)):
            await keeper.frame()


async def test_a_reply_whose_return_waits_behind_requests_for_room_is_not_kept(unix, process):
    """A node that is short of buffers waits with each request; what lies behind them it has not seen."""

    class Writes(AtOnce):
        async def write(self, _call, _request):
            return storage_pb2.UpdateRsp()

    storage = Writes()
    async with process(unix, services=[([READ, WRITE], storage)]) as p:
        caller = Raw(await p.connect())
        await caller.hello(reply_nonce=NONCE)
        await caller.ask(9)
        assert (await caller.frame()).flags == FLAG_LENT
        p.server.pool = BufferPool(SIZE)
        lease = p.server.pool.acquire_now(SIZE)
        asked = {"service": WRITE.service_number, "method": WRITE.number}
        await caller.say(Kind.REQUEST, b"", 10, payload_bytes=KIB, **asked)
        await caller.stream.send_all([bytes(KIB)])
        await caller.give_back(9)
        (connection,) = p.server._connections
        await until(lambda: connection._is_short)
        for _ in range(3):
            await connection.end_if_stuck()
        assert p.server.lent_replies.held_bytes == SIZE
        p.server.pool.release(lease)
        assert (await caller.frame()).id == 10
        await all_returned(p, storage)


# ---- a server by hand ------------------------------------------------------------------------------


def answer(number, pieces, size, message=b"", status=0):
    body = pieces + message
    head = encode_header(
        Kind.REPLY, number, flags=FLAG_LENT, status=status,
        message_bytes=len(body), payload_bytes=size,
    )  # fmt: skip
    return head + body


def prefix_of(*pieces, count=None):
    packed = b"".join(PIECE.pack(*piece) for piece in pieces)
    return (len(pieces) if count is None else count).to_bytes(4, "little") + packed


def place_of(buffer):
    return PIECE.unpack(pieces_of([buffer]))[0]


@pytest.fixture
def liar(tmp_path):
    """Return `liar(talk, call)`: run a server that does as `talk(raw, hello)` says, and `call(channel)`."""

    async def run(talk, call):
        network, address = SocketNetwork(), f"unix:{tmp_path}/liar"

        async def serve(stream):
            server = Raw(stream)
            try:
                hello = HelloPb.FromString((await server.frame()).message)
                await talk(server, hello)
            except (trio.BrokenResourceError, EOFError):  # who called has gone
                pass
            finally:
                await stream.aclose()

        async with trio.open_nursery() as nursery:
            await nursery.start(network.serve, address, serve)
            runtime = simulated_runtime(network, 1)
            caller = Identity("test-cluster", client_id="c")
            async with open_channels(runtime, caller, RpcSection()) as channels:
                with trio.fail_after(30):
                    await call(channels.get(address))
            nursery.cancel_scope.cancel()

    return run


async def welcomed(server, hello, *, is_true=True, lends_ranges=False):
    """Answer a hello; return what has to be kept for as long as something is lent."""
    nonce = bytearray(hello.reply_nonce) if is_true else bytearray(16)
    await server.stream.send_all(
        encode_hello(
            Identity("test-cluster", 7), reply_place=place_of(nonce), lends_ranges=lends_ranges
        )
    )
    return nonce


READ_RSP = storage_pb2.BatchReadRsp(
    lengths=[SIZE], checksums=[xxh3_64_intdigest(noise(SIZE))]
).SerializeToString()


@pytest.mark.parametrize(
    "pieces",
    [
        lambda _place: b"",
        lambda place: prefix_of((place, SIZE), count=2),
        lambda place: prefix_of((place, SIZE), count=2**32 - 1),
        lambda place: prefix_of((place, SIZE - 1)),
        lambda place: prefix_of(*[(place, 0)] * PIECE_COUNT_MAX, (place, SIZE)),
        lambda place: prefix_of((place, SIZE)) + b"\xff\xff",
    ],
)
async def test_lies_about_pieces_fail_the_call(liar, pieces):
    data = noise(SIZE)

    async def talk(server, hello):
        kept = await welcomed(server, hello)
        asked = await server.frame()
        await server.stream.send_all([answer(asked.id, pieces(place_of(data)), SIZE)])
        returned = await server.frame()
        assert (returned.kind, returned.message) == (Kind.RETURN, ID.pack(asked.id)) and kept

    async def call(channel):
        with pytest.raises(FsError) as caught:
            await channel.call(READ, request_for(SIZE), may_be_lent=True)
        assert caught.value.status is Status.RPC_BAD_FRAME

    await liar(talk, call)


@pytest.mark.parametrize("place", [0, 2**47, 2**64 - SIZE, 2**64 - 1])
async def test_memory_that_is_not_there_is_not_read_and_nothing_is_borrowed_any_more(liar, place):
    data = noise(SIZE)

    async def talk(server, hello):
        kept = await welcomed(server, hello)
        asked = await server.frame()
        assert asked.flags == FLAG_BORROWS
        pieces = prefix_of((place, SIZE))
        await server.stream.send_all([answer(asked.id, pieces, SIZE, READ_RSP)])
        asked = await server.frame()
        assert asked.kind == Kind.RETURN
        asked = await server.frame()
        assert asked.flags == 0 and kept
        head = encode_header(
            Kind.REPLY, asked.id, message_bytes=len(READ_RSP), payload_bytes=len(data)
        )
        await server.stream.send_all([head, READ_RSP, data])
        await trio.sleep_forever()

    async def call(channel):
        with pytest.raises(FsError) as caught:
            await channel.call(READ, request_for(SIZE), may_be_lent=True)
        assert caught.value.status is Status.RPC_NOT_LENT
        received = await channel.call(READ, request_for(SIZE), may_be_lent=True)
        assert received.payload == data

    await liar(talk, call)


@pytest.mark.parametrize("case", ["no place", "a false place", "not asked", "an error"])
async def test_what_nobody_can_have_asked_for_ends_the_connection(liar, case):
    data = noise(SIZE)

    async def talk(server, hello):
        if case == "no place":
            await server.stream.send_all(encode_hello(Identity("test-cluster", 7)))
        else:
            kept = await welcomed(server, hello, is_true=case != "a false place")
            assert kept
        asked = await server.frame()
        assert asked.flags == (FLAG_BORROWS if case == "an error" else 0)
        status = Status.IO_ERROR if case == "an error" else 0
        await server.stream.send_all(
            [answer(asked.id, prefix_of((place_of(data), SIZE)), SIZE, READ_RSP, status)]
        )
        await trio.sleep_forever()

    async def call(channel):
        if case == "not asked":  # gives nothing away: it is as any other
            received = await channel.call(READ, request_for(SIZE))
            assert received.payload == data
            return
        with pytest.raises(FsError) as caught:
            await channel.call(READ, request_for(SIZE), may_be_lent=True)
        assert caught.value.status is Status.RPC_CONNECTION_LOST

    await liar(talk, call)


async def test_a_call_that_nobody_waits_for_takes_no_lent_reply(liar):
    data = noise(SIZE)
    ended = []

    async def talk(server, hello):
        kept = await welcomed(server, hello)
        while True:
            if (asked := await server.frame()).kind != Kind.REQUEST:
                continue
            pieces = prefix_of((place_of(data), SIZE))
            await server.stream.send_all([answer(asked.id, pieces, SIZE, READ_RSP)])
            assert kept

    async def call(channel):
        await channel.call(READ, request_for(SIZE), may_be_lent=True)
        begun = channel.begin(
            READ, request_for(1), lambda *end: ended.append(end), timeout_s=60, under_way=set()
        )
        assert begun is not None
        await until(lambda: ended)
        assert ended[0][0] is None and ended[0][1].status is Status.RPC_BAD_FRAME

    await liar(talk, call)


# ---- the parts ------------------------------------------------------------------------------------


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
