"""Lent replies: what a server that lies can do to who calls it."""

import pytest
import trio
from xxhash import xxh3_64_intdigest

from fs.kernels.lent import PIECE_COUNT_MAX
from fs.rpc.api import Identity
from fs.rpc.channel import open_channels
from fs.rpc.frame import FLAG_BORROWS, FLAG_LENT, Kind, encode_header
from fs.rpc.handshake import encode_hello
from fs.rpc.lent_replies import ID
from fs.rpc.transport import SocketNetwork
from fs.runtime.simulated import simulated_runtime
from fs.schema.config import RpcSection
from fs.schema.proto import storage_pb2
from fs.schema.proto.rpc_pb2 import HelloPb
from fs.schema.status import FsError, Status

from .lent_reads import READ, SIZE, noise, request_for, until
from .raw import Raw, place_of, prefix_of


def answer(number, pieces, size, message=b"", status=0):
    body = pieces + message
    head = encode_header(
        Kind.REPLY, number, flags=FLAG_LENT, status=status,
        message_bytes=len(body), payload_bytes=size,
    )  # fmt: skip
    return head + body


@pytest.fixture
def liar(tmp_path):
    """Return `liar(talk, call)`: run a server that does as `talk(raw, hello)` says,
    and `call(channel)`.
    """

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


async def welcomed(server, hello, *, is_true=True, lends_ranges=False, lends_direct=False):
    """Answer a hello; return what has to be kept for as long as something is lent."""
    nonce = bytearray(hello.reply_nonce) if is_true else bytearray(16)
    await server.stream.send_all(
        encode_hello(
            Identity("test-cluster", 7),
            reply_place=place_of(nonce),
            lends_ranges=lends_ranges,
            lends_direct=lends_direct,
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
