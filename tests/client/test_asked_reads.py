"""Replies that were lent as ranges of files: believed if every block matches, else asked for once again."""

import random

import pytest

from fs.client.asked_reads import ask
from fs.kernels.writes import block_checksums
from fs.rpc.api import Lending, Received
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import FsError, Status

BLOCK = 4096
LENGTHS = [3 * BLOCK, 5, BLOCK + 1]
CONTENT = [random.Random(n).randbytes(length) for n, length in enumerate(LENGTHS)]


class Node:
    """Answers once as the test says, and then as one that has read the bytes itself."""

    def __init__(self, first):
        self.first = first
        self.asked = []

    async def call(self, node_id, _method, request, *, into, may_be_lent):
        assert (node_id, request) == (3, b"request")
        self.asked.append(may_be_lent)
        reply = pb.BatchReadRsp(lengths=LENGTHS, commit_vers=[1] * 3)
        content = list(CONTENT)
        if may_be_lent is Lending.RANGES or self.first is None:
            reply.block_bytes = BLOCK
            reply.block_checksums = b"".join(block_checksums(one, BLOCK) for one in content)
            if self.first is not None:
                self.first(reply, content)
        for view, data in zip(into(reply, sum(LENGTHS)), content, strict=True):
            view[:] = data
        return Received(reply, sum(LENGTHS))


async def asked(first, lending=Lending.RANGES):
    node, views = Node(first), [memoryview(bytearray(length)) for length in LENGTHS]
    received = await ask(
        node, 3, b"request", lambda *_: views, lending=lending, buffers_of=lambda: views
    )
    assert [bytes(view) for view in views] == CONTENT
    return node.asked, received.message.block_bytes


async def test_what_matches_is_asked_for_once():
    assert await asked(lambda *_: None) == ([Lending.RANGES], BLOCK)


def _spoil(position, at):
    def spoil(_reply, content):
        data = bytearray(content[position])
        data[at] ^= 1
        content[position] = bytes(data)

    return spoil


def _set(**fields):
    def spoil(reply, _content):
        for name, value in fields.items():
            reply.ClearField(name)
            if isinstance(value, list):
                getattr(reply, name).extend(value)
            else:
                setattr(reply, name, value)

    return spoil


def _fail(status):
    def spoil(*_):
        raise FsError(status, "no more")

    return spoil


def _add_failure(reply, _content):
    reply.failures.add(position=1, status=Status.IO_ERROR)


@pytest.mark.parametrize(
    "first",
    [
        _spoil(0, 0),
        _spoil(0, 3 * BLOCK - 1),
        _spoil(1, 4),
        _spoil(2, BLOCK),
        _set(block_checksums=b""),
        _set(block_checksums=bytes(48)),
        _set(block_bytes=BLOCK - 1),
        _set(block_bytes=2**32 - 1),
        _set(lengths=[3 * BLOCK, 5]),
        _set(lengths=[3 * BLOCK, 5, BLOCK]),
        _add_failure,
        _fail(Status.RPC_NOT_LENT),
    ],
)
async def test_what_does_not_match_or_is_not_lent_any_more_is_read_by_the_node_itself(first):
    assert await asked(first) == ([Lending.RANGES, Lending.MEMORY], 0)


async def test_other_errors_are_the_callers():
    with pytest.raises(FsError, match="IO_ERROR"):
        await asked(_fail(Status.IO_ERROR))


@pytest.mark.parametrize("lending", [Lending.NOT, Lending.MEMORY])
async def test_checksums_that_nobody_would_compare_are_refused(lending):
    with pytest.raises(FsError, match="RPC_BAD_FRAME"):
        await asked(None, lending)
    assert await asked(lambda *_: None, lending) == ([lending], 0)
