"""Replies that lend ranges of files: what is read there, what is asked for again,
and what either side that lies can do.
"""

import os
from contextlib import suppress
from types import SimpleNamespace

import pytest
import trio
from xxhash import xxh3_64_intdigest

from fs.kernels.lent import RANGE
from fs.rpc import lent_replies
from fs.rpc.api import FileRange, Lending, Reply
from fs.rpc.frame import (
    FLAG_BORROWS,
    FLAG_LENT,
    FLAG_RANGES,
    FrameLimits,
    Kind,
    decode_header,
    encode_header,
)
from fs.rpc.lending import STEP_BYTES
from fs.rpc.lent_ranges import RANGE_COUNT_MAX, steps_of
from fs.rpc.lent_replies import ID, LentTotals, ReplyBorrower, ReplyLender
from fs.rpc.peer_memory import UnixPeerMemory
from fs.rpc.simulated_memory import SimulatedMemory
from fs.schema import services
from fs.schema.config import RpcSection
from fs.schema.proto import storage_pb2
from fs.schema.proto.rpc_pb2 import HelloPb
from fs.schema.status import FsError, Status

from .lent_reads import noise, until
from .raw import NONCE, Raw
from .test_lent_replies_servers import liar, welcomed  # noqa: F401 - a fixture

READ = services.STORAGE_BATCH_READ
KIB = 1024
SIZE = 300 * KIB
BOTH = FLAG_BORROWS | FLAG_RANGES


class Storage:
    """Lends ranges of two files, or what the test says, wherever that may be;
    else it sends the bytes.
    """

    def __init__(self, folder):
        self.data = [noise(9 << 20, 1), noise(2 << 20, 2)]
        self.files = []
        for number, data in enumerate(self.data):
            path = folder / f"file{number}"
            path.write_bytes(data)
            self.files.append(os.open(path, os.O_RDONLY))
        self.make = None
        self.lent = 0
        self.refused = 0

    def close(self):
        for fd in self.files:
            os.close(fd)

    def content(self, lengths):
        return b"".join(
            self.data[n % 2][n * KIB : n * KIB + length] for n, length in enumerate(lengths)
        )

    def batch_read(self, call, request):
        lengths = list(request.lengths)
        ranges = [FileRange(self.files[n % 2], n * KIB, length) for n, length in enumerate(lengths)]
        if self.make is not None:
            ranges = self.make(ranges)
        content = self.content(lengths)
        message = storage_pb2.BatchReadRsp(lengths=lengths, checksums=[xxh3_64_intdigest(content)])
        takes = call.takes_ranges
        if takes is None or not takes(sum(lengths), len(ranges), message.ByteSize()):
            self.refused += 1
            return Reply(message, [content])
        self.lent += 1
        return Reply(message, (), self.give_back, ranges)

    def give_back(self):
        self.lent -= 1


@pytest.fixture
def storage(disk_path):
    made = Storage(disk_path)
    yield made
    made.close()


def request_for(*lengths):
    return storage_pb2.BatchReadReq(lengths=lengths)


async def ask(p, *lengths, may_be_lent=Lending.RANGES, views=None):
    """Return what has come, all of it."""
    views = [memoryview(bytearray(sum(lengths)))] if views is None else views
    received = await p.channel.call(
        READ, request_for(*lengths), into=lambda _reply, _size: views, may_be_lent=may_be_lent
    )
    assert received.payload_bytes == sum(lengths)
    return b"".join(views)


def descriptor_count():
    return len(os.listdir("/proc/self/fd"))


async def all_returned(p, storage):
    await until(lambda: not p.server.lent_replies.held_bytes and not storage.lent)


async def test_what_lies_in_files_is_read_there(unix, process, storage):
    async with process(unix, services=[([READ], storage)]) as p:
        total = 0
        await ask(p, 5)
        before, refused = descriptor_count(), storage.refused
        for lengths, cuts in (
            ((SIZE,), (SIZE,)),
            ((SIZE, 5, 70 * KIB), (7, 0, SIZE, 70 * KIB - 2)),
            ((2 * STEP_BYTES + 7, 1 << 20), (1, 2 * STEP_BYTES, (1 << 20) + 6)),
        ):
            views = [memoryview(bytearray(cut)) for cut in cuts]
            assert await ask(p, *lengths, views=views) == storage.content(lengths)
            total += sum(lengths)
            totals = p.server.lent_replies
            assert (totals.range_bytes, totals.lent_bytes) == (total, total)
        received = await p.channel.call(READ, request_for(SIZE), may_be_lent=Lending.RANGES)
        assert received.payload == storage.content([SIZE])
        assert storage.lent == 1, "until it is returned"
        await all_returned(p, storage)
        assert storage.refused == refused and descriptor_count() == before


async def test_only_who_may_and_asks_reads_files(unix, process, storage):
    async with process(unix, services=[([READ], storage)]) as p:
        for lending in (Lending.NOT, Lending.MEMORY):
            assert await ask(p, SIZE, may_be_lent=lending) == storage.content([SIZE])
        assert await ask(p, 256 * KIB - 1) == storage.content([256 * KIB - 1])
        assert p.server.lent_replies.range_bytes == 0 and storage.refused == 3


@pytest.mark.parametrize("side", ["limits", "caller_limits"])
async def test_a_setting_switches_it_off(unix, process, storage, side):
    off = {side: RpcSection(lend_bytes_min=0)}
    async with process(unix, services=[([READ], storage)], **off) as p:
        assert await ask(p, SIZE) == storage.content([SIZE])
        assert storage.refused == 1


async def test_whatever_the_network_the_bytes_arrive(net, process, storage):
    async with process(net, services=[([READ], storage)]) as p:
        assert await ask(p, SIZE) == storage.content([SIZE])
        assert p.server.lent_replies.range_bytes == (SIZE if net.kind == "unix" else 0)


async def test_what_would_be_too_much_is_sent(unix, process, storage, monkeypatch):
    monkeypatch.setattr(lent_replies, "HELD_BYTES_MAX", SIZE)
    async with process(unix, services=[([READ], storage)]) as p:
        await ask(p, SIZE + 1)
        many = [SIZE] + [1] * RANGE_COUNT_MAX
        assert storage.refused == 1
        monkeypatch.undo()
        await ask(p, *many)
        assert storage.refused == 2 and p.server.lent_replies.range_bytes == 0


def past_the_end(ranges):
    return [one._replace(offset=9 << 20) for one in ranges]


async def test_what_would_have_to_be_waited_for_is_asked_for_again(unix, process, storage):
    async with process(unix, services=[([READ], storage)]) as p:
        storage.make = past_the_end
        with pytest.raises(FsError) as caught:
            await ask(p, SIZE)
        assert (caught.value.status, caught.value.definite) == (Status.RPC_NOT_LENT, True)
        storage.make = None
        assert await ask(p, SIZE) == storage.content([SIZE])
        assert p.server.lent_replies.range_bytes == 2 * SIZE, "others are lent on"
        await all_returned(p, storage)


@pytest.mark.parametrize("kind", ["pipe", "directory", "nothing", "device", "huge"])
async def test_after_what_is_no_file_of_theirs_no_more_is_read(unix, process, storage, kind):
    ends = os.pipe()
    others = [os.open("/", os.O_RDONLY), os.open("/dev/zero", os.O_RDONLY)]
    number = {
        "pipe": ends[0],
        "directory": others[0],
        "device": others[1],
        "nothing": 1 << 20,
        "huge": (1 << 64) - 1,
    }[kind]
    try:
        async with process(unix, services=[([READ], storage)]) as p:
            await ask(p, 5)
            before = descriptor_count()
            storage.make = lambda ranges: [one._replace(source=number) for one in ranges]
            with pytest.raises(FsError) as caught:
                await ask(p, SIZE)
            assert caught.value.status is Status.RPC_NOT_LENT
            storage.make = None
            assert await ask(p, SIZE) == storage.content([SIZE])
            assert p.server.lent_replies.range_bytes == SIZE
            assert p.server.lent_replies.lent_bytes == 2 * SIZE, "memory is lent all the same"
            await all_returned(p, storage)
            assert descriptor_count() == before
    finally:
        for fd in (*ends, *others):
            os.close(fd)


@pytest.mark.parametrize("when", ["at once", "served", "there", "being read"])
async def test_a_call_given_up_returns_what_was_lent(unix, process, storage, monkeypatch, when):
    async with process(unix, services=[([READ], storage)]) as p:
        await p.channel.call(READ, request_for(5))  # so that the connection is there
        lent_count, read = 0, UnixPeerMemory.read_ranges
        for _ in range(5):
            with trio.CancelScope() as scope:

                def give_up(stage, scope=scope):
                    if stage == when:
                        scope.cancel()

                def serve(ranges, give_up=give_up):
                    nonlocal lent_count
                    lent_count += 1
                    give_up("served")
                    return ranges

                def take(_reply, size, give_up=give_up):
                    give_up("there")
                    return [memoryview(bytearray(size))]

                def read_some(memory, *args, give_up=give_up):
                    give_up("being read")
                    with suppress(BlockingIOError):  # memory is short; nobody looks at what comes
                        read(memory, *args)

                monkeypatch.setattr(UnixPeerMemory, "read_ranges", read_some)
                storage.make = serve
                give_up("at once")
                # More than a step: who is cancelled notices between two.
                await p.channel.call(
                    READ, request_for(2 * STEP_BYTES), into=take, may_be_lent=Lending.RANGES
                )
            assert scope.cancelled_caught
        await all_returned(p, storage)
        assert p.server.lent_replies.range_bytes == lent_count * 2 * STEP_BYTES
        assert lent_count == 5 or when == "at once"


# ---- either side by hand -------------------------------------------------------------------------


async def test_what_a_connection_held_is_free_once_it_has_ended(unix, process, storage):
    async with process(unix, services=[([READ], storage)]) as p:
        caller = Raw(await p.connect())
        hello = await caller.hello(reply_nonce=NONCE)
        assert hello.lends_ranges and hello.reply_place
        method = {"service": READ.service_number, "method": READ.number}
        await caller.say(
            Kind.REQUEST, request_for(SIZE).SerializeToString(), 5, flags=BOTH, **method
        )
        assert (await caller.frame()).flags == FLAG_LENT | FLAG_RANGES
        assert storage.lent == 1
        await caller.stream.aclose()
        await all_returned(p, storage)


async def test_who_has_no_nonce_is_told_nothing_of_ranges(unix, process, storage):
    async with process(unix, services=[([READ], storage)]) as p:
        caller = Raw(await p.connect())
        assert not (await caller.hello()).lends_ranges
        method = {"service": READ.service_number, "method": READ.number}
        await caller.say(
            Kind.REQUEST, request_for(SIZE).SerializeToString(), 5, flags=BOTH, **method
        )
        assert (await caller.frame()).flags == 0 and storage.refused == 1


def ranges_of(*ranges, count=None):
    number = len(ranges) if count is None else count
    packed = b"".join(value.to_bytes(8, "little") for one in ranges for value in one)
    return number.to_bytes(4, "little") + packed


def answer(number, prefix, size=SIZE):
    body = prefix + storage_pb2.BatchReadRsp(lengths=[size]).SerializeToString()
    flags = FLAG_LENT | FLAG_RANGES
    sizes = {"message_bytes": len(body), "payload_bytes": size}
    return encode_header(Kind.REPLY, number, flags=flags, **sizes) + body


@pytest.mark.parametrize(
    "prefix",
    [
        b"",
        ranges_of((0, 0, SIZE), count=2),
        ranges_of((0, 0, SIZE), count=2**32 - 1),
        ranges_of((0, 0, SIZE - 1)),
        ranges_of((0, 2**63 - SIZE, SIZE)),
        ranges_of((0, 2**64 - 1, SIZE)),
        ranges_of(*[(0, 0, 0)] * RANGE_COUNT_MAX, (0, 0, SIZE)),
    ],
)
async def test_lies_about_ranges_fail_the_call(liar, prefix):  # noqa: F811
    async def talk(server, hello):
        kept = await welcomed(server, hello, lends_ranges=True)
        asked = await server.frame()
        assert asked.flags == BOTH
        await server.stream.send_all([answer(asked.id, prefix)])
        returned = await server.frame()
        assert (returned.kind, returned.message) == (Kind.RETURN, ID.pack(asked.id)) and kept

    async def call(channel):
        with pytest.raises(FsError) as caught:
            await channel.call(READ, request_for(SIZE), may_be_lent=Lending.RANGES)
        assert caught.value.status is Status.RPC_BAD_FRAME

    await liar(talk, call)


async def test_of_an_older_release_no_ranges_are_wanted_nor_taken(liar):  # noqa: F811
    async def talk(server, hello):
        kept = await welcomed(server, hello)
        asked = await server.frame()
        assert asked.flags == FLAG_BORROWS and kept
        await server.stream.send_all([answer(asked.id, ranges_of((0, 0, SIZE)))])
        await trio.sleep_forever()

    async def call(channel):
        with pytest.raises(FsError) as caught:
            await channel.call(READ, request_for(SIZE), may_be_lent=Lending.RANGES)
        assert caught.value.status is Status.RPC_CONNECTION_LOST

    await liar(talk, call)


@pytest.mark.parametrize(
    ("kind", "flags", "is_known"),
    [
        (Kind.REQUEST, FLAG_RANGES, False),
        (Kind.REQUEST, BOTH, True),
        (Kind.REPLY, FLAG_RANGES, False),
        (Kind.REPLY, FLAG_RANGES | FLAG_LENT, True),
        (Kind.RETURN, FLAG_RANGES, False),
    ],
)
def test_ranges_are_a_way_of_lending(kind, flags, is_known):
    header, limits = encode_header(kind, 1, flags=flags), FrameLimits(1, 1)
    if is_known:
        assert decode_header(header, limits).flags == flags
        return
    with pytest.raises(FsError, match="RPC_BAD_FRAME"):
        decode_header(header, limits)


# ---- the parts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_simulated", [False, True])
async def test_what_is_read_when_it_is_lent_no_more_does_not_count(storage, is_simulated):
    """The file may be another one by then: the nonce goes first."""
    memory = SimulatedMemory(1) if is_simulated else UnixPeerMemory(os.getpid())
    totals = LentTotals()
    lends = ReplyLender(memory, 1, FrameLimits(1 << 20, 1 << 30), totals)
    borrower = ReplyBorrower(memory, 1)
    place = lends.place_for(HelloPb(reply_nonce=borrower.nonce()), 2)
    borrower.hear(HelloPb(reply_place=place, lends_ranges=True), "server")
    assert borrower.flags(Lending.RANGES) == BOTH
    header = SimpleNamespace(flags=BOTH, request_id=1)
    ranges = [FileRange(storage.files[0], 0, SIZE)]
    reply = Reply(b"message", (), storage.give_back, ranges)
    storage.lent += 1
    assert lends.lend(header, reply) == SIZE and totals.range_bytes == SIZE
    number = int.from_bytes(reply.message[4:12], "little")
    view = memoryview(bytearray(SIZE))
    await borrower.read_ranges(RANGE.pack(number, 0, SIZE), [view])
    assert view == storage.data[0][:SIZE]
    lends.end()
    assert storage.lent == 0 and totals.held_bytes == 0
    with pytest.raises(FsError, match="RPC_NOT_LENT"):
        await borrower.read_ranges(RANGE.pack(number, 0, SIZE), [view])
    assert borrower.flags(Lending.RANGES) == FLAG_BORROWS
    again = Reply(b"message", (), storage.give_back, ranges)
    assert lends.lend(SimpleNamespace(flags=BOTH, request_id=2), again) == 0


def test_steps_are_all_of_it_in_order(monkeypatch):
    monkeypatch.setattr("fs.rpc.lent_ranges.STEP_BYTES", 10)
    rows = [(1, 5, 3), (2, 0, 0), (1, 8, 19), (3, 2, 8)]
    memory = memoryview(bytearray(range(30)))
    buffers = [memory[:1], memory[1:1], memory[1:25], memory[25:]]
    found, cut = [], []
    for packed, into in steps_of(b"".join(RANGE.pack(*row) for row in rows), buffers):
        sizes = [length for _, _, length in RANGE.iter_unpack(packed)]
        assert sum(sizes) == sum(map(len, into)) == 10
        for number, offset, length in RANGE.iter_unpack(packed):
            found += [(number, at) for at in range(offset, offset + length)]
        cut += into
    assert found == [
        (number, at) for number, offset, length in rows for at in range(offset, offset + length)
    ]
    assert b"".join(cut) == memory
    few = RANGE.pack(1, 0, 10), [memory[:10]]
    assert list(steps_of(*few)) == [few], "nothing is cut that need not be"
