"""Large reads: of replies that were lent every byte is matched, in a thread,
and what does not match is asked for once again.
"""

import random
import threading
from functools import partial
from types import SimpleNamespace

import pytest
import trio
from xxhash import xxh3_64_intdigest

from fs.client.asked_reads import (
    APART_BYTES_MIN,
    APART_PIECE_BYTES_MIN,
    ask,
    finish,
    is_apart,
)
from fs.kernels.writes import block_checksums
from fs.rpc.api import Lending, ReadApart, Received
from fs.runtime.real import ThreadRunBlocking
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import FsError, Status

BLOCK = 4096
LENGTHS = [3 * BLOCK, 5, BLOCK + 1]
CONTENT = [random.Random(n).randbytes(length) for n, length in enumerate(LENGTHS)]


class Node:
    """Answers once as the test says, and then as one that has read the bytes itself;
    what is lent is read as `ReadApart` says.
    """

    def __init__(self, first, *, spoil_memory=None):
        self.first = first
        self.spoil_memory = spoil_memory
        self.asked = []
        self.threads = []

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
        else:
            reply.checksums.extend(map(xxh3_64_intdigest, content))
            if self.spoil_memory is not None:
                self.spoil_memory(reply, content)
        views = into(reply, sum(LENGTHS))
        if isinstance(views, ReadApart):
            await views.have_read(partial(self.read, views, content))
        else:
            self.read(views, content)
        return Received(reply, sum(LENGTHS))

    def read(self, views, content):
        self.threads.append(threading.get_ident())
        for view, data in zip(views, content, strict=True):
            view[:] = data


@pytest.fixture(params=[False, True], ids=["here", "apart"])
def asked(request):
    """Return what asks once, and returns how often, and whether all was verified then:
    in this task, or in threads.
    """
    run_blocking = ThreadRunBlocking(2) if request.param else None

    async def ask_once(first, lending=Lending.RANGES, spoil_memory=None):
        node = Node(first, spoil_memory=spoil_memory)
        views = [memoryview(bytearray(length)) for length in LENGTHS]
        options = {"buffers_of": lambda: views, "run_blocking": run_blocking}
        reply = await ask(node, 3, b"request", lambda *_: views, lending=lending, **options)
        is_here = run_blocking is None or lending is Lending.NOT
        assert all((one == threading.get_ident()) == is_here for one in node.threads)
        if reply is not None:
            pieces = [
                SimpleNamespace(name=f"piece{n}", target_id=1, buffer=view)
                for n, view in enumerate(views)
            ]
            failures = finish(pieces, reply)
            if spoil_memory is not None:
                return node.asked, failures
            assert not failures
        assert [bytes(view) for view in views] == CONTENT
        return node.asked, reply is None

    ask_once.is_apart = request.param
    return ask_once


async def test_what_matches_is_asked_for_once(asked):
    assert await asked(lambda *_: None) == ([Lending.RANGES], True)


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
async def test_what_does_not_match_or_is_not_lent_any_more_is_read_by_the_node_itself(asked, first):
    assert await asked(first) == ([Lending.RANGES, Lending.MEMORY], asked.is_apart)


def _spoil_checksum(position):
    def spoil(reply, _content):
        reply.checksums[position] ^= 1

    return spoil


@pytest.mark.parametrize("lending", [Lending.NOT, Lending.MEMORY])
@pytest.mark.parametrize("position", range(3))
async def test_memory_that_does_not_match_is_found_out(asked, lending, position):
    _, failures = await asked(lambda *_: None, lending, _spoil_checksum(position))
    ((piece, error),) = failures
    assert (piece.name, error.status) == (f"piece{position}", Status.CHECKSUM_MISMATCH)


async def test_other_errors_are_the_callers(asked):
    with pytest.raises(FsError, match="IO_ERROR"):
        await asked(_fail(Status.IO_ERROR))


@pytest.mark.parametrize("lending", [Lending.NOT, Lending.MEMORY])
async def test_checksums_that_nobody_would_compare_are_refused(asked, lending):
    with pytest.raises(FsError, match="RPC_BAD_FRAME"):
        await asked(None, lending)
    is_lent = lending is not Lending.NOT
    assert await asked(lambda *_: None, lending) == ([lending], asked.is_apart and is_lent)


async def test_who_is_cancelled_waits_for_the_thread_that_has_its_buffers():
    may_end, has_begun, ended = threading.Event(), trio.Event(), []
    token = trio.lowlevel.current_trio_token()

    class Slow(Node):
        def read(self, views, content):
            token.run_sync_soon(has_begun.set)
            assert may_end.wait(20)
            super().read(views, content)
            ended.append(True)

    views = [memoryview(bytearray(length)) for length in LENGTHS]

    async def give_up():
        await has_begun.wait()
        scope.cancel()
        await trio.sleep(0.05)
        assert not ended
        may_end.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_up)
        with trio.CancelScope() as scope:
            node = Slow(lambda *_: None)
            options = {"buffers_of": lambda: views, "run_blocking": ThreadRunBlocking(1)}
            await ask(node, 3, b"request", lambda *_: views, lending=Lending.RANGES, **options)
        assert ended, "the buffers are nobody else's any more"


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
async def test_where_no_thread_is_to_be_had_the_task_reads_itself(monkeypatch, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr("fs.runtime.real._thread.start_new_thread", refuse)
    node, views = Node(lambda *_: None), [memoryview(bytearray(length)) for length in LENGTHS]
    options = {"buffers_of": lambda: views, "run_blocking": ThreadRunBlocking(1)}
    assert (
        await ask(node, 3, b"request", lambda *_: views, lending=Lending.RANGES, **options) is None
    )
    assert [bytes(view) for view in views] == CONTENT
    assert node.threads == [threading.get_ident()]


def test_small_reads_and_those_in_small_pieces_take_no_thread():
    assert is_apart(APART_BYTES_MIN, 1)
    assert not is_apart(APART_BYTES_MIN - 1, 1)
    count = 2 * APART_BYTES_MIN // APART_PIECE_BYTES_MIN
    assert is_apart(2 * APART_BYTES_MIN, count)
    assert not is_apart(2 * APART_BYTES_MIN, count + 1)
