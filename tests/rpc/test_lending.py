"""Lent payloads: what is read where its caller has it, what is sent all the same,
and what a caller that lies can do.
"""

import ctypes
import mmap
import os
import random
import socket
from types import SimpleNamespace

import pytest
import trio
from xxhash import xxh3_64_intdigest

from fs.kernels.lent import PIECE_COUNT_MAX
from fs.rpc.frame import FLAG_LENT, FLAG_TRACED, TRACE_BYTES, Kind, encode_header
from fs.rpc.lending import STEP_BYTES, Borrower
from fs.rpc.peer_memory import memory_behind
from fs.rpc.server_connection import BUFFER_WAIT_S_MAX
from fs.rpc.simulated_memory import SimulatedMemory
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.plain_memory import PlainMemory, is_plain
from fs.runtime.recycled import RecycledMemory
from fs.runtime.tracing import Tracer
from fs.schema import services
from fs.schema.config import RpcSection
from fs.schema.proto import core_pb2 as core
from fs.schema.proto import storage_pb2
from fs.schema.proto.rpc_pb2 import HelloPb, LendPb
from fs.schema.status import FsError, Status

from .raw import Raw, place_of, prefix_of, protect

WRITE, ECHO = services.STORAGE_WRITE, services.CORE_ECHO
KIB = 1024
SIZE = 300 * KIB


class Storage:
    """Takes writes as storage processes do: not before the payload matches its checksum."""

    def __init__(self):
        self.taken = []

    async def write(self, call, request):
        if xxh3_64_intdigest(call.payload) != request.payload_checksum:
            raise FsError(Status.CHECKSUM_MISMATCH, "payload changed on its way")
        self.taken.append(bytes(call.payload))
        return storage_pb2.UpdateRsp()

    async def write_anything(self, call, _request):
        self.taken.append(bytes(call.payload))
        return storage_pb2.UpdateRsp()


@pytest.fixture
def storage():
    return Storage()


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


def request_for(*payload):
    return storage_pb2.UpdateReq(payload_checksum=xxh3_64_intdigest(b"".join(payload)))


async def write(p, *payload):
    await p.channel.call(WRITE, request_for(*payload), payload=payload)


async def greeted(p):
    """Connect and wait until the server has said that it can read our memory, if it can."""
    for data in (b"hello", b"once more"):
        reply = await p.channel.call(ECHO, core.EchoReq(data=data))
        assert reply.message.data == data


async def test_a_large_payload_is_read_where_it_lies(unix, process, storage):
    recycled = RecycledMemory(1 << 20).take(SIZE)
    recycled[:] = noise(SIZE, 2)
    memory = memoryview(PlainMemory(-1, 3 * STEP_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    memory[:] = noise(3 * STEP_BYTES, 3)
    payloads = [
        [noise(SIZE)],
        [recycled],
        [bytearray(noise(SIZE))],
        [memory[5 : 2 * STEP_BYTES + 7]],
        [memory[:STEP_BYTES], noise(SIZE), b"", recycled[7:], b"end"],
    ]
    async with process(unix, services=[([WRITE], storage)]) as p:
        await greeted(p)
        for payload in payloads:
            await write(p, *payload)
        assert storage.taken == [b"".join(payload) for payload in payloads]
        assert p.server.lent_bytes == sum(map(len, storage.taken))
        assert p.server.pool.used_bytes == 0


def mapped_file(path):
    path.write_bytes(bytes(SIZE))
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), SIZE))


async def test_what_is_small_or_unchecked_or_of_files_is_sent(unix, process, storage, tmp_path):
    mapped = mapped_file(tmp_path / "file")
    mapped[:] = noise(SIZE)
    async with process(unix, services=[([WRITE], storage)]) as p:
        await greeted(p)
        few = [noise(KIB, seed) for seed in range(300)]
        for payload in ([noise(256 * KIB - 1)], [mapped], few, [noise(SIZE), mapped]):
            await write(p, *payload)
            assert storage.taken[-1] == b"".join(payload)
        reply = await p.channel.call(ECHO, core.EchoReq(data=b"x"), payload=[noise(SIZE)])
        assert reply.message.data == b"x"
        assert p.server.lent_bytes == 0
        await write(p, noise(256 * KIB))
        assert p.server.lent_bytes == 256 * KIB
        many = [b"x"] * (PIECE_COUNT_MAX + 1)
        await write(p, *many, bytes(len(many) * 17 * KIB))
        assert p.server.lent_bytes == 256 * KIB, "more pieces than one call reads"


@pytest.mark.parametrize("side", ["limits", "caller_limits"])
async def test_a_setting_switches_it_off(unix, process, storage, side):
    off = {side: RpcSection(lend_bytes_min=0)}
    async with process(unix, services=[([WRITE], storage)], **off) as p:
        await greeted(p)
        await write(p, noise(SIZE))
        assert storage.taken == [noise(SIZE)] and p.server.lent_bytes == 0


async def test_whatever_the_network_the_bytes_arrive(net, process, storage):
    async with process(net, services=[([WRITE], storage)]) as p:
        await greeted(p)
        await write(p, noise(SIZE))
        assert storage.taken == [noise(SIZE)]
        assert p.server.lent_bytes == (SIZE if net.kind == "unix" else 0)


async def test_a_traced_request_lends_as_well(unix, process, storage):
    class Clock:
        def wall_ns(self):
            return 1

    served = []
    here, there = (Tracer(Clock(), random.Random(n), sink=served.append) for n in range(2))
    async with process(unix, tracer=there, services=[([WRITE], storage)]) as p:
        await greeted(p)
        with here.root("operation") as root:
            await write(p, noise(SIZE))
        assert storage.taken == [noise(SIZE)] and p.server.lent_bytes == SIZE
    assert {span.trace_id for span in served} == {root.trace_id}
    assert "Storage.Write" in {span.name for span in served}


async def test_what_a_begun_call_takes_along_is_sent(unix, process, storage):
    """Its caller has its memory back as soon as it is begun."""
    lends = {side: RpcSection(lend_bytes_min=1) for side in ("limits", "caller_limits")}
    async with process(unix, services=[([WRITE], storage)], **lends) as p:
        await greeted(p)
        data, ended = bytearray(noise(KIB)), trio.Event()
        await write(p, noise(32 * KIB))
        assert p.server.lent_bytes == 32 * KIB
        begun = p.channel.begin(
            WRITE,
            request_for(data),
            lambda *_: ended.set(),
            timeout_s=60,
            under_way=set(),
            payload=[data],
        )
        assert begun is not None
        data[:] = bytes(KIB)
        await ended.wait()
        assert storage.taken[1:] == [noise(KIB)] and p.server.lent_bytes == 32 * KIB


async def test_after_a_payload_that_could_not_be_read_all_are_sent(unix, process, storage):
    size = 512 * KIB
    memory = memoryview(PlainMemory(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    memory[:] = noise(size)
    request = request_for(memory)
    async with process(unix, services=[([WRITE], storage)]) as p:
        await greeted(p)
        protect(memory, is_readable=False)
        try:
            with pytest.raises(FsError) as caught:
                await p.channel.call(WRITE, request, payload=[memory])
        finally:
            protect(memory, is_readable=True)
        assert (caught.value.status, caught.value.definite) == (Status.RPC_NOT_LENT, True)
        assert storage.taken == [] and p.server.pool.used_bytes == 0
        await p.channel.call(WRITE, request, payload=[memory])
        assert storage.taken == [memory] and p.server.lent_bytes == 0


async def test_who_gives_up_may_use_its_memory_at_once(unix, process, storage):
    """The server reads it when it has room, finds something else, and refuses it;
    nothing else is hurt.
    """
    bugs = []
    async with process(
        unix, services=[([WRITE], storage)], on_bug=lambda *bug: bugs.append(bug)
    ) as p:
        await greeted(p)
        pool = p.server.pool
        hold = pool.acquire_now(pool._bytes_max)
        data = bytearray(noise(SIZE))
        request = request_for(data)
        with trio.move_on_after(BUFFER_WAIT_S_MAX / 10) as scope:
            await p.channel.call(WRITE, request, payload=[data])
        assert scope.cancelled_caught
        data[100:200] = bytes(100)
        pool.release(hold)
        await greeted(p)
        assert storage.taken == [] and not bugs
        assert p.server.lent_bytes == SIZE, "it has been read"
        assert p.server.pool.used_bytes == 0
        await write(p, data)
        assert storage.taken == [data] and p.server.lent_bytes == 2 * SIZE


@pytest.mark.parametrize("is_compared", [True, False])
async def test_in_simulation_memory_changes_once_it_is_lent_no_more(
    process, storage, is_compared, autojump_clock  # noqa: ARG001
):  # fmt: skip
    """What was given up is read all the same, and then holds whatever it does:
    that is never taken, but where nobody compares it.
    """
    memory = MemoryNetwork(seed=1)
    memory.memory = SimulatedMemory(1)
    ends = memory.endpoint("a"), memory.endpoint("b")
    net = SimpleNamespace(a=ends[0], b=ends[1], address=lambda: "mem:a")
    sent = [noise(SIZE, seed) for seed in range(20)]
    async with process(net, services=[([WRITE], storage)]) as p:
        await greeted(p)
        pool = p.server.pool
        for data in sent:
            request = request_for(data)
            if not is_compared:
                storage.write = storage.write_anything
                p.server._bindings.clear()
                p.server.add_service([WRITE], storage)
            hold = pool.acquire_now(pool._bytes_max)
            with trio.move_on_after(0.01):
                await p.channel.call(WRITE, request, payload=[data])
            pool.release(hold)
            await trio.sleep(0.02)
    assert p.server.lent_bytes >= 5 * SIZE and memory.memory.changed_count >= 15
    assert all(data in sent for data in storage.taken) is is_compared


# ---- who speaks by hand --------------------------------------------------------------------------


class Caller(Raw):
    """Lends, and asks with what it has lent."""

    async def lend(self, place):
        message = LendPb(place=place).SerializeToString()
        await self.stream.send_all(
            [encode_header(Kind.LEND, 0, message_bytes=len(message)), message]
        )

    async def ask(self, payload_bytes, prefix, *, flags=FLAG_LENT, method=WRITE, request=b""):
        message = prefix + request
        header = encode_header(
            Kind.REQUEST, 5, service=method.service_number, method=method.number,
            flags=flags, message_bytes=len(message), payload_bytes=payload_bytes,
        )  # fmt: skip
        await self.stream.send_all([header, message])

    async def echo(self):
        request = core.EchoReq(data=b"x").SerializeToString()
        await self.ask(0, b"", flags=0, method=ECHO, request=request)
        heard = await self.frame()
        assert (heard.kind, heard.status) == (Kind.REPLY, 0)
        assert core.EchoRsp.FromString(heard.message).data == b"x"


@pytest.fixture
def raw(unix, process, storage):
    """Return `raw(p)`: a caller by hand, and the process it calls."""

    async def connect(p):
        return Caller(await p.connect())

    return SimpleNamespace(process=lambda: process(unix, services=[([WRITE], storage)]), to=connect)


async def test_only_who_lends_is_given_a_nonce(raw):
    async with raw.process() as p:
        old, new, other = [await raw.to(p) for _ in range(3)]
        assert not (await old.hello()).lend_nonce
        nonces = {
            (await new.hello(lends=True)).lend_nonce,
            (await other.hello(lends=True)).lend_nonce,
        }
        assert {len(nonce) for nonce in nonces} == {16} and len(nonces) == 2
        for caller in (old, new, other):
            await caller.echo()


async def test_a_nonce_that_is_not_found_leaves_the_socket(raw, storage):
    async with raw.process() as p:
        for wrong in (0, 2**64 - 1, place_of(bytes(16))):
            caller = await raw.to(p)
            await caller.hello(lends=True)
            await caller.lend(wrong)
            await caller.echo()  # nothing comes before it
            await caller.ask(SIZE, prefix_of((place_of(noise(SIZE)), SIZE)))
            assert await caller.refusal() == (Kind.GOODBYE, Status.RPC_BAD_FRAME)
        assert storage.taken == [] and p.server.lent_bytes == 0


async def test_lies_about_pieces_end_the_connection(raw, storage):
    data = noise(SIZE)
    place = place_of(data)
    async with raw.process() as p:
        for prefix in (
            b"",
            b"\1\0\0",
            prefix_of((place, SIZE), count=2),
            prefix_of((place, SIZE), count=2**32 - 1),
            prefix_of(),
            prefix_of((place, SIZE - 1)),
            prefix_of((place, SIZE + 1)),
            prefix_of((place, SIZE), (place, 2**64 - SIZE)),
            prefix_of(*[(place, 0)] * PIECE_COUNT_MAX, (place, SIZE)),
        ):
            caller = await raw.to(p)
            nonce = (await caller.hello(lends=True)).lend_nonce
            await caller.lend(place_of(nonce))
            assert (await caller.frame()).kind == Kind.LEND
            await caller.ask(SIZE, prefix)
            assert await caller.refusal() == (Kind.GOODBYE, Status.RPC_BAD_FRAME), prefix
        assert storage.taken == [] and p.server.pool.used_bytes == 0


async def test_memory_that_is_not_the_callers_is_refused_and_nothing_else(raw, storage):
    data = noise(SIZE)
    request = request_for(data).SerializeToString()
    async with raw.process() as p:
        caller = await raw.to(p)
        nonce = (await caller.hello(lends=True)).lend_nonce
        await caller.lend(place_of(nonce))
        assert (await caller.frame()).kind == Kind.LEND
        for piece in ((0, SIZE), (2**64 - SIZE, SIZE), (2**64 - 1, SIZE), (2**47, SIZE)):
            await caller.ask(SIZE, prefix_of(piece), request=request)
            assert await caller.refusal() == (Kind.REPLY, Status.RPC_NOT_LENT), piece
        await caller.ask(SIZE, prefix_of((place_of(noise(SIZE, 2)), SIZE)), request=request)
        assert await caller.refusal() == (Kind.REPLY, Status.CHECKSUM_MISMATCH)
        unchecked = core.EchoReq(data=b"x").SerializeToString()
        await caller.ask(SIZE, prefix_of((place_of(data), SIZE)), method=ECHO, request=unchecked)
        assert await caller.refusal() == (Kind.REPLY, Status.RPC_BAD_REQUEST)
        await caller.echo()
        assert storage.taken == [] and p.server.pool.used_bytes == 0
        await caller.ask(SIZE, prefix_of((place_of(data), SIZE)), request=request)
        heard = await caller.frame()
        assert (heard.kind, heard.status) == (Kind.REPLY, 0) and storage.taken == [data]


async def test_a_nonce_that_goes_takes_the_memory_along(raw, storage):
    data = noise(SIZE)
    async with raw.process() as p:
        caller = await raw.to(p)
        nonce = bytearray((await caller.hello(lends=True)).lend_nonce)
        await caller.lend(place_of(nonce))
        assert (await caller.frame()).kind == Kind.LEND
        nonce[3] ^= 1  # as another process's memory, which has come by the number of this one
        await caller.ask(SIZE, prefix_of((place_of(data), SIZE)))
        assert await caller.refusal() == (Kind.REPLY, Status.RPC_NOT_LENT)
        assert storage.taken == []


@pytest.mark.parametrize("is_second", [True, False])
async def test_a_lend_frame_comes_once_and_to_who_asked(raw, is_second):
    async with raw.process() as p:
        caller = await raw.to(p)
        nonce = (await caller.hello(lends=is_second)).lend_nonce
        if is_second:
            await caller.lend(place_of(nonce))
            assert (await caller.frame()).kind == Kind.LEND
        await caller.lend(place_of(bytearray(16)))
        assert await caller.refusal() == (Kind.GOODBYE, Status.RPC_BAD_FRAME)


@pytest.mark.parametrize("message", [b"\xff" * 9, bytes(100), b"\x0a\x01"])
async def test_a_lend_frame_that_says_nothing_ends_the_connection(raw, message):
    async with raw.process() as p:
        caller = await raw.to(p)
        await caller.hello(lends=True)
        await caller.stream.send_all(
            [encode_header(Kind.LEND, 0, message_bytes=len(message)), message]
        )
        assert await caller.refusal() == (Kind.GOODBYE, Status.RPC_BAD_FRAME)


async def test_a_trace_that_was_cut_off_is_no_message(raw):
    data = noise(SIZE)
    prefix = prefix_of((place_of(data), SIZE))
    async with raw.process() as p:
        caller = await raw.to(p)
        nonce = (await caller.hello(lends=True)).lend_nonce
        await caller.lend(place_of(nonce))
        assert (await caller.frame()).kind == Kind.LEND
        await caller.ask(SIZE, prefix + bytes(TRACE_BYTES - 1), flags=FLAG_LENT | FLAG_TRACED)
        assert (await caller.refusal())[1] is Status.RPC_BAD_FRAME


def test_only_memory_of_the_same_user_and_machine():
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert memory_behind(ours) is not None
        if os.geteuid() == 0:
            os.seteuid(65534)
            try:
                assert memory_behind(ours) is None
            finally:
                os.seteuid(0)
    with socket.socket(socket.AF_INET) as tcp:
        assert memory_behind(tcp) is None
    assert Borrower(None, 1).nonce_for(HelloPb(lends=True)) == b""


def test_plain_memory_is_what_no_file_stands_behind():
    recycled = RecycledMemory(1 << 20)
    for buffer in (
        b"",
        bytearray(3),
        memoryview(b"abc")[1:],
        recycled.take(SIZE)[5:],
        recycled.take(5),
    ):
        assert is_plain(buffer)
    assert is_plain(memoryview(PlainMemory(-1, 4096))[1:9])
    assert not is_plain(memoryview(mmap.mmap(-1, 4096)))
    assert not is_plain(memoryview((ctypes.c_char * 9)()))
