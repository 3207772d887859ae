"""Lent replies: what a caller that does as it likes is told, and that it harms nobody."""

import errno
import os
from types import SimpleNamespace

import pytest
import trio

from fs.kernels.lent import PIECE, read_lent
from fs.rpc.buffer_pool import BufferPool
from fs.rpc.frame import FLAG_BORROWS, FLAG_LENT, Kind
from fs.rpc.lent_replies import ID
from fs.schema.proto import storage_pb2
from fs.schema.status import Status

from .lent_reads import KIB, READ, SIZE, WRITE, AtOnce, all_returned, content, request_for, until
from .raw import NONCE, Raw


class Caller(Raw):
    """Reads, and returns what it was lent."""

    async def ask(self, number, size=SIZE, flags=FLAG_BORROWS):
        method = {"service": READ.service_number, "method": READ.number}
        message = request_for(size, first=number).SerializeToString()
        await self.say(Kind.REQUEST, message, number, flags=flags, **method)

    async def give_back(self, *numbers):
        await self.say(Kind.RETURN, b"".join(map(ID.pack, numbers)))


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
        return Caller(await p.connect())

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
    """A node that is short of buffers waits with each request;
    what lies behind them it has not seen.
    """

    class Writes(AtOnce):
        async def write(self, _call, _request):
            return storage_pb2.UpdateRsp()

    storage = Writes()
    async with process(unix, services=[([READ, WRITE], storage)]) as p:
        caller = Caller(await p.connect())
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
