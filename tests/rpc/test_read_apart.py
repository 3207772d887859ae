"""Lent replies that threads read (`ReadApart`):
the event loop goes on, and whatever ends meanwhile, no byte counts that was not lent any more.
"""

import os
import threading

import pytest
import trio
from xxhash import xxh3_64_intdigest

from fs.client.asked_reads import ask
from fs.kernels.writes import block_checksums
from fs.rpc.api import FileRange, Lending, ReadApart, Reply
from fs.rpc.peer_memory import UnixPeerMemory
from fs.runtime.real import ThreadRunBlocking
from fs.schema import services
from fs.schema.proto import storage_pb2
from fs.schema.status import FsError, Status
from tests.chunkengine.workload import in_pages

from .lent_reads import noise, until

READ = services.STORAGE_BATCH_READ
SIZE = 5 << 20
"""More than a step of those that the event loop reads."""
BLOCK = 64 << 10
LENDINGS = [Lending.MEMORY, Lending.RANGES, Lending.DIRECT]


class Storage:
    """Lends one file, or memory; `lent` counts what it has not got back."""

    def __init__(self, folder):
        self.data = noise(SIZE)
        path = folder / "file"
        path.write_bytes(self.data)
        self.file = os.open(path, os.O_RDWR)
        os.fsync(self.file)
        self.direct_file = os.open(path, os.O_RDWR | os.O_DIRECT)
        self.lent = 0

    def batch_read(self, call, _request):
        sums = block_checksums(self.data, BLOCK)
        message = storage_pb2.BatchReadRsp(lengths=[SIZE], block_bytes=BLOCK, block_checksums=sums)
        self.lent += 1
        if call.takes_ranges is not None and call.takes_ranges(SIZE, 1, message.ByteSize()):
            file = self.direct_file if call.takes_direct else self.file
            ranges = [FileRange(file, 0, SIZE)]
            return Reply(message, (), self.give_back, ranges, is_direct=call.takes_direct)
        message = storage_pb2.BatchReadRsp(lengths=[SIZE], checksums=[xxh3_64_intdigest(self.data)])
        return Reply(message, [memoryview(self.data)], self.give_back)

    def give_back(self):
        self.lent -= 1


@pytest.fixture
def storage(disk_path):
    made = Storage(disk_path)
    yield made
    os.close(made.file)
    os.close(made.direct_file)


class Gate:
    """Where a thread waits before or behind its read until the test lets it go on."""

    def __init__(self, monkeypatch, *, is_behind=False):
        self.has_come, self.may_go = trio.Event(), threading.Event()
        self.threads = []
        token = trio.lowlevel.current_trio_token()

        def watched(read):
            def read_watched(memory, *args):
                if not args[0]:  # the nonce alone
                    return read(memory, *args)
                if is_behind:
                    read(memory, *args)
                self.threads.append(threading.get_ident())
                token.run_sync_soon(self.has_come.set)
                assert self.may_go.wait(20)
                return None if is_behind else read(memory, *args)

            return read_watched

        for name in ("read", "read_ranges", "read_direct"):
            monkeypatch.setattr(UnixPeerMemory, name, watched(getattr(UnixPeerMemory, name)))


@pytest.fixture
def gate(monkeypatch):
    """Return a maker of a `Gate` that is open in the end."""
    made = []

    def make(**options):
        made.append(Gate(monkeypatch, **options))
        return made[-1]

    yield make
    for one in made:
        one.may_go.set()


async def read_apart(p, lending, run=None):
    """Return what has come."""
    run = run or ThreadRunBlocking(1)
    memory = in_pages(bytes(SIZE))
    cut = 8192 if lending is Lending.DIRECT else SIZE - 7
    views = [memory[:cut], memory[cut:]]
    into = lambda _reply, _size: ReadApart(views, run, run)  # noqa: E731 - as callers have it
    await p.channel.call(
        READ, storage_pb2.BatchReadReq(lengths=[SIZE]), into=into, may_be_lent=lending
    )
    return b"".join(views)


async def connected(p):
    """Say hello first, so that the next reply may be lent."""
    await p.channel.call(services.CORE_ECHO, services.CORE_ECHO.request_type())


async def all_returned(p, storage):
    await until(lambda: not p.server.lent_replies.held_bytes and not storage.lent)


@pytest.mark.parametrize("lending", [Lending.NOT, *LENDINGS])
async def test_the_bytes_arrive_and_are_returned(unix, process, storage, lending):
    async with process(unix, services=[([READ], storage)]) as p:
        await connected(p)
        for _ in range(3):
            assert await read_apart(p, lending) == storage.data
        totals = p.server.lent_replies
        assert totals.lent_bytes == (3 * SIZE if lending else 0)
        assert totals.range_bytes == (3 * SIZE if lending >= Lending.RANGES else 0)
        await all_returned(p, storage)


@pytest.mark.parametrize("lending", LENDINGS)
async def test_others_have_their_turn_while_a_thread_reads(unix, process, storage, gate, lending):
    async with process(unix, services=[([READ], storage)]) as p:
        await connected(p)
        thread = gate()
        found = []

        async def read():
            found.append(await read_apart(p, lending))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await thread.has_come.wait()
            await connected(p)  # over the same connection
            assert storage.lent == 1 and not found
            thread.may_go.set()
        assert found == [storage.data]
        assert threading.get_ident() not in thread.threads
        await all_returned(p, storage)


@pytest.mark.parametrize("lending", LENDINGS)
async def test_who_is_cancelled_keeps_what_is_lent_until_the_thread_has_read(
    unix, process, storage, gate, lending
):
    async with process(unix, services=[([READ], storage)]) as p:
        await connected(p)
        thread = gate()
        scope, has_ended = trio.CancelScope(), False

        async def read():
            nonlocal has_ended
            with scope:
                await read_apart(p, lending)
            has_ended = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await thread.has_come.wait()
            scope.cancel()
            await trio.sleep(0.1)
            assert storage.lent == 1 and not has_ended
            thread.may_go.set()
        await all_returned(p, storage)


@pytest.mark.parametrize("lending", LENDINGS)
async def test_what_is_read_after_the_connection_has_ended_does_not_count(
    unix, process, storage, gate, lending
):
    """The server has taken everything back, and uses it for something else."""
    async with process(unix, services=[([READ], storage)]) as p:
        await connected(p)
        thread = gate()

        async def read():
            with pytest.raises(FsError) as caught:
                await read_apart(p, lending)
            assert caught.value.status is Status.RPC_NOT_LENT

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await thread.has_come.wait()
            await p.channel.aclose()
            await all_returned(p, storage)
            os.pwrite(storage.file, bytes(SIZE), 0)
            thread.may_go.set()


@pytest.mark.parametrize("lending", LENDINGS)
async def test_what_was_read_before_the_connection_ended_counts(
    unix, process, storage, gate, lending
):
    async with process(unix, services=[([READ], storage)]) as p:
        await connected(p)
        thread = gate(is_behind=True)
        thread.may_go.set()
        run = ThreadRunBlocking(1)

        async def end_behind(read):
            await run(read)
            await p.channel.aclose()
            await all_returned(p, storage)
            os.pwrite(storage.file, bytes(SIZE), 0)

        assert await read_apart(p, lending, end_behind) == storage.data


async def test_after_a_read_that_failed_in_a_thread_no_more_is_lent(
    unix, process, storage, monkeypatch
):
    async with process(unix, services=[([READ], storage)]) as p:
        await connected(p)

        def refuse(*_):
            raise PermissionError(1, "not yours")

        names = ["read_direct", "read_ranges", "read"]
        for lending, name in zip(reversed(LENDINGS), names, strict=True):
            monkeypatch.setattr(UnixPeerMemory, name, refuse)
            with pytest.raises(FsError) as caught:
                await read_apart(p, lending)
            assert caught.value.status is Status.RPC_NOT_LENT
        lent_bytes = p.server.lent_replies.lent_bytes
        assert await read_apart(p, Lending.RANGES) == storage.data
        assert p.server.lent_replies.lent_bytes == lent_bytes == 3 * SIZE
        await all_returned(p, storage)


class Nodes:
    """Calls one node, as clients of storage do."""

    def __init__(self, channel):
        self._channel = channel

    async def call(self, _node_id, method, request, **options):
        return await self._channel.call(method, request, **options)


@pytest.mark.thorough
async def test_of_a_file_that_is_written_beside_the_reads_nothing_is_read_but_what_matches(
    unix, process, storage, caplog
):
    """What no server may do: its file is written while it is lent."""
    caplog.set_level("INFO")
    async with process(unix, services=[([READ], storage)]) as p:
        await connected(p)
        is_over, run = threading.Event(), ThreadRunBlocking(2)

        def write():
            other = noise(SIZE, 2)
            while not is_over.is_set():
                for data in (other, storage.data):
                    os.pwrite(storage.file, data, 0)

        writer = threading.Thread(target=write)
        writer.start()
        request = storage_pb2.BatchReadReq(lengths=[SIZE])
        try:
            for _ in range(20):
                views = [memoryview(bytearray(SIZE))]
                options = {"buffers_of": lambda views=views: views, "run_blocking": run}
                into = lambda _reply, _size, views=views: views  # noqa: E731 - as callers have it
                reply = await ask(
                    Nodes(p.channel), 1, request, into, lending=Lending.RANGES, **options
                )
                assert reply is None and views[0] == storage.data
        finally:
            is_over.set()
            writer.join()
        assert "do not match" in caplog.text
        await all_returned(p, storage)
