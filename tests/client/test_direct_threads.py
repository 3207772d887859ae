"""Threads that wait for a disk for those who ask:
who waits for too long leaves them behind, with the memory that they have.
"""

import _thread
import gc
import random
import threading
import weakref
from contextlib import suppress
from functools import partial

import pytest
import trio

from fs.client import asked_reads, direct_threads
from fs.client.asked_reads import APART_BYTES_MIN, ask
from fs.client.direct_threads import DIRECT_COUNT_MAX, DirectThreads, LeftBehindError
from fs.client.file_read import FileRead, ReadAhead
from fs.client.patience import SlowPeerError
from fs.client.storage_reads import StorageReads
from fs.kernels.writes import block_checksums
from fs.rpc.api import Lending, ReadApart, Received
from fs.runtime.real import ThreadRunBlocking, real_runtime
from fs.runtime.simulated import simulated_runtime
from fs.schema.config import ClientSection
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import FsError, Status

from .test_read_table import Routing as Known
from .test_routing_math import CHUNK, ref

BLOCK = 64 << 10
SIZE = APART_BYTES_MIN
DATA = random.Random(1).randbytes(SIZE)


class Disk:
    """Answers when the test says so; `read` waits for it, in a thread."""

    def __init__(self):
        self.has_answered = threading.Event()
        self.is_asked = threading.Event()
        self.threads = set()

    def read(self):
        self.threads.add(threading.get_ident())
        self.is_asked.set()
        assert self.has_answered.wait(30)
        return True


@pytest.fixture
def disk():
    made = Disk()
    yield made
    made.has_answered.set()


@pytest.fixture
def hangs_soon(disk, monkeypatch):
    """It is not waited for for long; its thread is, which may be late where the machine is busy."""
    monkeypatch.setattr(direct_threads, "DIRECT_WAIT_S", 0.05)
    begin = ThreadRunBlocking.begin

    def begin_and_see(threads, function, on_end):
        begin(threads, function, on_end)
        assert disk.is_asked.wait(30)

    monkeypatch.setattr(ThreadRunBlocking, "begin", begin_and_see)


@pytest.fixture
def threads():
    return DirectThreads(real_runtime(None))


async def until(is_so):
    with trio.fail_after(30):
        while not is_so():  # noqa: ASYNC110 - a thread ends it
            await trio.sleep(0.01)


async def test_what_a_thread_returns_or_raises_is_told(threads, disk):
    disk.has_answered.set()
    assert await threads.run(disk.read) is True
    assert disk.threads.isdisjoint({threading.get_ident()})
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    assert threads.has_room
    assert await DirectThreads(simulated_runtime(None, 1)).run(lambda: True), "in place"


@pytest.mark.usefixtures("hangs_soon")
async def test_while_one_is_left_behind_there_is_no_room(threads, disk):
    with pytest.raises(LeftBehindError):
        await threads.run(disk.read)
    assert not threads.has_room
    disk.has_answered.set()
    await until(lambda: threads.has_room)


@pytest.mark.usefixtures("hangs_soon")
async def test_who_is_cancelled_leaves_his_thread_behind(threads, disk, monkeypatch):
    monkeypatch.setattr(direct_threads, "DIRECT_WAIT_S", 1e6)
    with trio.move_on_after(0.05):
        await threads.run(disk.read)
    assert not threads.has_room
    disk.has_answered.set()
    await until(lambda: threads.has_room)


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_what_no_thread_has_begun_is_withdrawn(disk, monkeypatch, is_cancelled):
    """Where memory is short a thread may die before its first step;
    nothing would be read so any more for good.
    """
    stillborn = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda function, _: stillborn.append(function))
    monkeypatch.setattr(direct_threads, "DIRECT_WAIT_S", 1e6 if is_cancelled else 0.01)
    threads = DirectThreads(real_runtime(None))
    if is_cancelled:
        with trio.move_on_after(0.01):
            await threads.run(disk.read)
    else:
        with pytest.raises(RuntimeError, match="no thread"):
            await threads.run(disk.read)
    assert threads.has_room
    monkeypatch.undo()
    (born_late,) = stillborn
    threading.Thread(target=born_late).start()
    assert await threads.run(lambda: True)
    assert threads.has_room and not disk.threads, "nobody reads into its memory any more"


async def test_there_is_room_for_so_many_as_a_disk_has_read_soon(threads, disk):
    async with trio.open_nursery() as nursery:
        for _ in range(DIRECT_COUNT_MAX):
            assert threads.has_room
            nursery.start_soon(threads.run, disk.read)
            await trio.testing.wait_all_tasks_blocked()
        assert not threads.has_room
        disk.has_answered.set()
    assert threads.has_room


class Node:
    """Lends what its disk has yet to read, if that may be; else it sends the bytes."""

    def __init__(self, disk, spoil=None):
        self.disk = disk
        self.spoil = spoil
        self.asked = []
        self.unreached = frozenset()

    async def call(self, _node_id, _method, request, *, into, may_be_lent):
        self.asked.append(may_be_lent)
        reply = pb.BatchReadRsp(lengths=request.lengths)
        if may_be_lent is not Lending.MEMORY:
            reply.block_bytes, reply.block_checksums = BLOCK, block_checksums(DATA, BLOCK)
        views = into(reply, SIZE)
        if may_be_lent is not Lending.DIRECT:
            self.fill(views)
        else:
            assert isinstance(views, ReadApart)
            await views.have_read_direct(partial(self.read, views))
        return Received(reply, SIZE)

    def read(self, views):
        self.disk.read()
        if isinstance(self.spoil, Exception):
            raise self.spoil
        self.fill(views)
        if self.spoil is not None:
            views[0][0] ^= 1

    @staticmethod
    def fill(views):
        start = 0
        for view in views:
            view[:] = DATA[start : start + len(view)]
            start += len(view)


async def asked(node, threads, view):
    views = [view]
    return await ask(
        node,
        1,
        pb.BatchReadReq(lengths=[SIZE]),
        lambda *_: views,
        lending=Lending.DIRECT,
        buffers_of=lambda: views,
        run_blocking=real_runtime(None).run_blocking,
        direct=threads,
    )


async def test_what_the_disk_has_put_there_is_matched(threads, disk):
    disk.has_answered.set()
    node, view = Node(disk), memoryview(bytearray(SIZE))
    assert await asked(node, threads, view) is None
    assert view == DATA and node.asked == [Lending.DIRECT]


@pytest.mark.parametrize("spoil", ["a byte", FsError(Status.RPC_NOT_LENT, "no more")])
async def test_what_does_not_match_or_cannot_be_read_is_asked_for_again(threads, disk, spoil):
    disk.has_answered.set()
    node, view = Node(disk, spoil), memoryview(bytearray(SIZE))
    assert await asked(node, threads, view) is not None
    assert view == DATA and node.asked == [Lending.DIRECT, Lending.MEMORY]


async def test_where_no_thread_is_to_be_had_it_is_asked_for_again(threads, disk, monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "_begin", refuse)
    node, view = Node(disk), memoryview(bytearray(SIZE))
    assert await asked(node, threads, view) is not None
    assert view == DATA and threads.has_room


async def test_where_no_thread_comes_it_is_asked_for_again(threads, disk, monkeypatch):
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: None)
    monkeypatch.setattr(direct_threads, "DIRECT_WAIT_S", 0.01)
    node, view = Node(disk), memoryview(bytearray(SIZE))
    assert await asked(node, threads, view) is not None
    assert view == DATA and node.asked == [Lending.DIRECT, Lending.MEMORY] and threads.has_room


@pytest.mark.usefixtures("hangs_soon")
@pytest.mark.parametrize("end", ["fails", "is left behind"])
async def test_a_read_that_fails_keeps_no_memory(threads, disk, end):
    """It did until somebody looked for cycles:
    its error knew the calls that it came through, and one of them the error.
    """

    class Memory(bytearray):
        """May be referred to weakly."""

    async def fail():
        memory = Memory(SIZE)
        kept = weakref.ref(memory)
        with suppress(LeftBehindError, ZeroDivisionError):
            await asked(node, threads, memoryview(memory))
        return kept

    node = Node(disk, ZeroDivisionError())
    if end == "fails":
        disk.has_answered.set()
    gc.disable()
    try:
        kept = await fail()
        node.spoil = None
        disk.has_answered.set()
        await until(lambda: threads.has_room)
        await until(lambda: kept() is None)
    finally:
        gc.enable()


@pytest.mark.usefixtures("hangs_soon")
async def test_into_buffers_that_are_left_behind_nothing_else_is_read(threads, disk):
    node, view = Node(disk), memoryview(bytearray(SIZE))
    with pytest.raises(LeftBehindError):
        await asked(node, threads, view)
    assert node.asked == [Lending.DIRECT] and bytes(view) == bytes(SIZE)
    disk.has_answered.set()
    await until(lambda: threads.has_room)
    assert view == DATA, "later, whoever looks at it"


@pytest.fixture
def reads_of(monkeypatch):
    """Return what reads of a node; chunks are large enough for threads."""
    monkeypatch.setattr(asked_reads, "APART_PIECE_BYTES_MIN", CHUNK)
    return _reads_of


@pytest.mark.usefixtures("hangs_soon")
async def test_nothing_is_read_into_them_whatever_the_failure_becomes_on_its_way(threads, disk):
    """A call that had waited for its node before fails as one to a slow peer,
    which is worth another try; so is one that somebody cuts off.
    """

    class Late(Node):
        async def call(self, *asked, **options):
            try:
                return await super().call(*asked, **options)
            except FsError as error:
                raise SlowPeerError(error.status, error.detail) from error

    class CutOff(Node):
        async def call(self, *asked, **options):
            with trio.move_on_after(0.01):
                return await super().call(*asked, **options)
            raise FsError(Status.RPC_NOT_LENT, "too late")

    for kind in (CutOff, Late):
        node, view = kind(disk), memoryview(bytearray(SIZE))
        with pytest.raises(LeftBehindError):
            await asked(node, threads, view)
        assert node.asked == [Lending.DIRECT]


def _reads_of(node):
    client = StorageReads(
        None, routing=Known(), runtime=real_runtime(None), section=ClientSection()
    )
    client._nodes = node
    return client


@pytest.mark.parametrize("kind", [ReadAhead, FileRead])
async def test_only_what_is_read_ahead_is_read_so(disk, reads_of, kind):
    """Of all other memory somebody would have to wait for a disk that hangs."""
    disk.has_answered.set()
    node, view = Node(disk), memoryview(bytearray(SIZE))
    await reads_of(node).read([kind(ref(), 0, view)])
    assert view == DATA
    assert set(node.asked) == {Lending.DIRECT if kind is ReadAhead else Lending.RANGES}


@pytest.mark.usefixtures("hangs_soon")
async def test_a_read_that_is_left_behind_fails_and_others_are_no_longer_read_so(disk, reads_of):
    node = Node(disk)
    client = reads_of(node)
    with pytest.raises(LeftBehindError):
        await client.read([ReadAhead(ref(), 0, memoryview(bytearray(SIZE)))])
    view = memoryview(bytearray(SIZE))
    await client.read([ReadAhead(ref(), 0, view)])
    assert view == DATA and node.asked == [Lending.DIRECT, Lending.RANGES]
