"""Reads as storage processes answer them, for tests of lent replies."""

import random
from functools import cache

import trio
from xxhash import xxh3_64_intdigest

from fs.rpc.api import Reply
from fs.rpc.buffer_pool import BufferPool
from fs.rpc.lent_replies import RETURN_S
from fs.schema import services
from fs.schema.proto import storage_pb2

READ, ECHO = services.STORAGE_BATCH_READ, services.CORE_ECHO
WRITE = services.STORAGE_WRITE
KIB = 1024
SIZE = 300 * KIB


@cache
def noise(size, seed=1):
    """Return bytes, made once for all tests: drawing them takes as long as some of those."""
    return random.Random(seed).randbytes(size)


def content(length, seed):
    return noise(length, seed)


class Storage:
    """Answers reads as storage processes do, out of a pool of buffers;
    the chunk says what there is to read.
    """

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
