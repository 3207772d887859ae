"""Replies that lend ranges which the disk has yet to read:
who reads them, who must not, and what either side that lies can do.
"""

import os

import pytest
import trio

from fs.kernels.lent import RANGE
from fs.rpc import peer_files
from fs.rpc.api import FileRange, Lending, ReadApart, Reply
from fs.rpc.frame import (
    FLAG_BORROWS,
    FLAG_DIRECT,
    FLAG_LENT,
    FLAG_RANGES,
    FrameLimits,
    Kind,
    decode_header,
    encode_header,
)
from fs.runtime.real import ThreadRunBlocking
from fs.schema import services
from fs.schema.proto import storage_pb2
from fs.schema.status import FsError, Status
from tests.chunkengine.workload import in_pages

from .lent_reads import noise, until
from .raw import NONCE, Raw
from .test_lent_replies_servers import liar, welcomed  # noqa: F401 - a fixture

READ = services.STORAGE_BATCH_READ
SIZE = 1 << 20
PAGE = 4096
RANGES = FLAG_BORROWS | FLAG_RANGES
LENT = FLAG_LENT | FLAG_RANGES


class Storage:
    """Lends two halves of a file, the last one first,
    to be read past the page cache if its caller takes that; else it sends the bytes.
    """

    def __init__(self, folder):
        data = noise(SIZE)
        path = folder / "file"
        path.write_bytes(data)
        self.cached = os.open(path, os.O_RDONLY)
        os.fsync(self.cached)
        self.direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self.content = data[SIZE // 2 :] + data[: SIZE // 2]
        self.file = self.direct
        self.offset = 0
        self.asked = []
        self.lent = 0

    def close(self):
        os.close(self.cached)
        os.close(self.direct)

    def batch_read(self, call, _request):
        self.asked.append(call.takes_direct)
        message = storage_pb2.BatchReadRsp(lengths=[SIZE])
        if not call.takes_direct:
            return Reply(message, [self.content])
        assert call.takes_ranges(SIZE, 2, message.ByteSize())
        self.lent += 1
        half = SIZE // 2
        ranges = [FileRange(self.file, at + self.offset, half) for at in (half, 0)]
        return Reply(message, (), self.give_back, ranges, is_direct=True)

    def give_back(self):
        self.lent -= 1


@pytest.fixture
def storage(disk_path):
    made = Storage(disk_path)
    yield made
    made.close()


async def ask(p, lending=Lending.DIRECT, cuts=(3 * PAGE, SIZE // 2, SIZE)):
    """Return what has come, into buffers that end there."""
    memory, run = in_pages(bytes(SIZE)), ThreadRunBlocking(1)
    views = [memory[start:end] for start, end in zip((0, *cuts), cuts, strict=False)]
    into = lambda _reply, _size: ReadApart(views, run, run)  # noqa: E731 - as callers have it
    request = storage_pb2.BatchReadReq(lengths=[SIZE])
    await p.channel.call(READ, request, into=into, may_be_lent=lending)
    return bytes(memory)


async def connected(p):
    """Say hello first, so that the next reply may be lent."""
    await p.channel.call(services.CORE_ECHO, services.CORE_ECHO.request_type())


async def all_returned(p, storage):
    await until(lambda: not p.server.lent_replies.held_bytes and not storage.lent)


def descriptor_count():
    return len(os.listdir("/proc/self/fd"))


async def test_who_asks_has_the_disk_read_it(unix, process, storage):
    async with process(unix, services=[([READ], storage)]) as p:
        await connected(p)
        before = descriptor_count()
        assert await ask(p) == storage.content
        assert await ask(p, cuts=(SIZE,)) == storage.content
        assert await ask(p, cuts=(SIZE // 2 + PAGE, SIZE)) == storage.content
        assert storage.asked == [True] * 3
        assert p.server.lent_replies.range_bytes == 3 * SIZE
        await all_returned(p, storage)
        assert descriptor_count() == before


@pytest.mark.parametrize("lending", [Lending.NOT, Lending.MEMORY, Lending.RANGES])
async def test_only_who_says_that_he_waits_for_disks_is_lent_such(unix, process, storage, lending):
    async with process(unix, services=[([READ], storage)]) as p:
        await connected(p)
        assert await ask(p, lending) == storage.content
        assert storage.asked == [False]


async def test_who_has_no_threads_for_it_reads_nothing(unix, process, storage):
    async with process(unix, services=[([READ], storage)]) as p:
        await connected(p)
        for into in (lambda *_: [memoryview(bytearray(SIZE))], None):
            with pytest.raises(FsError, match="nobody here can wait") as caught:
                await p.channel.call(
                    READ, storage_pb2.BatchReadReq(), into=into, may_be_lent=Lending.DIRECT
                )
            assert caught.value.status is Status.RPC_NOT_LENT
        await all_returned(p, storage)


def _through_the_cache(storage):
    storage.file = storage.cached


def _beyond_the_end(storage):
    storage.offset = SIZE


def _askew(storage):
    storage.offset = 100


def _no_file(storage):
    storage.file = 1 << 20


@pytest.mark.parametrize("spoil", [_through_the_cache, _beyond_the_end, _askew, _no_file])
async def test_after_what_cannot_be_read_so_no_more_is(unix, process, storage, spoil):
    async with process(unix, services=[([READ], storage)]) as p:
        await connected(p)
        before = descriptor_count()
        spoil(storage)
        with pytest.raises(FsError) as caught:
            await ask(p)
        assert caught.value.status is Status.RPC_NOT_LENT
        assert await ask(p) == storage.content
        assert storage.asked == [True, False]
        await all_returned(p, storage)
        assert descriptor_count() == before


def test_ranges_and_buffers_of_other_sizes_are_refused(storage):
    for length, room in ((PAGE, 2 * PAGE), (2 * PAGE, PAGE)):
        packed, buffer = RANGE.pack(storage.direct, 0, length), in_pages(bytes(room))
        with pytest.raises(ValueError, match="than the buffers"):
            peer_files.read_past_cache(os.getpid(), packed, [buffer])


def test_those_who_read_from_one_disk_are_in_one_line(storage, monkeypatch):
    """Not those of one process of storage alone: a machine for trials has several on one disk."""
    lines = []

    def read_places(places, line):
        lines.append(line)
        return bool(places)

    monkeypatch.setattr(peer_files, "read_places", read_places)
    for fd in (storage.direct, os.dup(storage.direct)):
        packed = RANGE.pack(fd, 0, PAGE)
        peer_files.read_past_cache(os.getpid(), packed, [in_pages(bytes(PAGE))])
    os.close(fd)
    assert lines[0] is not None and lines[0] is lines[1]


# ---- either side by hand, also of another release ------------------------------------------------


@pytest.mark.parametrize("flags", [RANGES, RANGES | FLAG_DIRECT])
async def test_a_listener_offers_it_and_goes_by_each_request(unix, process, storage, flags):
    async with process(unix, services=[([READ], storage)]) as p:
        caller = Raw(await p.connect())
        assert (await caller.hello(reply_nonce=NONCE)).lends_direct
        method = {"service": READ.service_number, "method": READ.number}
        message = storage_pb2.BatchReadReq(lengths=[SIZE]).SerializeToString()
        await caller.say(Kind.REQUEST, message, 5, flags=flags, **method)
        is_direct = flags & FLAG_DIRECT != 0
        # what is not lent as ranges is so in memory
        assert (await caller.frame()).flags == (LENT | FLAG_DIRECT if is_direct else FLAG_LENT)
        assert storage.asked == [is_direct]
        await caller.stream.aclose()
        await all_returned(p, storage)


@pytest.mark.parametrize("is_new", [False, True])
async def test_of_an_older_release_it_is_neither_wanted_nor_taken(liar, storage, is_new):  # noqa: F811
    async def talk(server, hello):
        kept = await welcomed(server, hello, lends_ranges=True, lends_direct=is_new)
        asked = await server.frame()
        assert asked.flags == (RANGES | FLAG_DIRECT if is_new else RANGES) and kept
        packed = RANGE.pack(storage.direct, 0, SIZE)
        body = (1).to_bytes(4, "little") + packed + storage_pb2.BatchReadRsp().SerializeToString()
        sizes = {"message_bytes": len(body), "payload_bytes": SIZE}
        flags = LENT | FLAG_DIRECT
        await server.stream.send_all(
            [encode_header(Kind.REPLY, asked.id, flags=flags, **sizes) + body]
        )
        await trio.sleep_forever()

    async def call(channel):
        with pytest.raises(FsError) as caught:
            await channel.call(READ, storage_pb2.BatchReadReq(), may_be_lent=Lending.DIRECT)
        wanted = Status.RPC_NOT_LENT if is_new else Status.RPC_CONNECTION_LOST
        assert caught.value.status is wanted

    await liar(talk, call)


@pytest.mark.parametrize(
    ("kind", "flags", "is_known"),
    [
        (Kind.REQUEST, FLAG_DIRECT, False),
        (Kind.REQUEST, FLAG_DIRECT | FLAG_BORROWS, False),
        (Kind.REQUEST, FLAG_DIRECT | RANGES, True),
        (Kind.REPLY, FLAG_DIRECT | FLAG_LENT, False),
        (Kind.REPLY, FLAG_DIRECT | LENT, True),
        (Kind.RETURN, FLAG_DIRECT, False),
    ],
)
def test_they_are_ranges(kind, flags, is_known):
    header, limits = encode_header(kind, 1, flags=flags), FrameLimits(1, 1)
    if is_known:
        assert decode_header(header, limits).flags == flags
        return
    with pytest.raises(FsError, match="RPC_BAD_FRAME"):
        decode_header(header, limits)
