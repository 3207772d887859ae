# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""The native client against the model cluster:
what it reports, what it refuses, what failures leave.
"""

import os
import random
from array import array
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from fs.client.blocking import BlockingFs
from fs.client.ending import PAUSE_S, EndingSessions
from fs.client.native import EmberFs, Identity
from fs.runtime.ports import Runtime
from fs.schema.inode import inode_to_pb
from fs.schema.status import FsError, Status

from .fake_inline import fetched
from .fakes import CHUNK, FakeClock, FakeCluster, run_inline


@pytest.fixture
def autojump_clock():
    return MockClock(autojump_threshold=0)


class PathMeta:
    """The model's meta service with paths of one component, which is all the model has."""

    def __init__(self, cluster, name):
        self.cluster = cluster
        self.inner = cluster.meta(name)
        self.client_id = name
        self.checks_reading = True
        """False: as a service of an earlier release."""

    async def call(self, method, request, *, timeout_s=None):
        reply = method.reply_type()
        if method.name == "ResolvePath":
            reply.inode.CopyFrom(inode_to_pb(self.found(request.path)))
            reply.may_read = request.wants_read and self.checks_reading
            self.bring(request, reply)
        elif method.name == "BatchResolvePath":
            for path in request.paths:
                slot = reply.resolved.add()
                try:
                    slot.inode.CopyFrom(inode_to_pb(self.found(path)))
                    slot.may_read = request.wants_read and self.checks_reading
                    self.bring(request, slot)
                except FsError as error:
                    slot.status, slot.detail = error.status, error.detail
        else:
            return await self.inner.call(method, request, timeout_s=timeout_s)
        return reply

    async def fetch(self, method, request):
        return await fetched(self, method, request)

    def bring(self, request, reply):
        if reply.may_read and reply.inode.HasField("file"):
            self.cluster.inline.leave_for(request, self.cluster.get(reply.inode.inode_id))
            self.cluster.inline.bring(request, "ResolvePath", reply)

    def found(self, path):
        name = path.lstrip(b"/")
        return self.cluster.child(1, name) if name else self.cluster.get(1)


@pytest.fixture
def cluster():
    return FakeCluster(FakeClock())


@pytest.fixture
def client(cluster):
    def make(name="native", ending=None):
        runtime = Runtime(cluster.clock, None, run_inline, random.Random(name))
        meta, identity = PathMeta(cluster, name), Identity(0, 0)
        return EmberFs(meta, cluster.store(), runtime=runtime, identity=identity, ending=ending)

    return make


async def test_what_one_client_closes_the_other_opens(autojump_clock, client):
    a, b = client("a"), client("b")
    data = os.urandom(5 * CHUNK + 17)
    await a.write_file("/f", data)
    assert await b.read_file("/f") == data
    async with await b.open("/f") as file:
        buffers = [bytearray(100), bytearray(100), bytearray(50)]
        offsets = (0, CHUNK - 50, len(data) - 20)
        reads = [(file, o, memoryview(x)) for o, x in zip(offsets, buffers, strict=True)]
        assert await b.read_batch(reads) == [100, 100, 20]
        for offset, buffer, count in zip(offsets, buffers, (100, 100, 20), strict=True):
            assert buffer[:count] == data[offset : offset + count]


async def test_a_file_that_was_removed_is_no_hole(autojump_clock, client, cluster):
    a, b = client("a"), client("b")
    await a.write_file("/f", b"x" * CHUNK)
    async with await b.open("/f") as file, await a.open("/f", is_writable=True) as kept:
        cluster.names[1].clear()  # the session of `kept` keeps its chunks
        assert await file.read(0, 10) == b"x" * 10
        (inode_id,) = (kept.ref.inode_id,)
        cluster.sessions[inode_id].clear()
        await cluster.drop_link(cluster.get(inode_id))
        buffer = memoryview(bytearray(10))
        for reading in (file.read(0, 10), b.read_batch([(file, 0, buffer)])):
            with pytest.raises(FsError) as e:
                await reading
            assert e.value.status is Status.STALE
        with pytest.raises(FsError):
            await kept.close()


@pytest.mark.parametrize("length", [0, 4, 3 * CHUNK])
@pytest.mark.parametrize("way", ["read", "batch", "copy"])
async def test_what_another_client_has_cut_is_no_hole(autojump_clock, client, length, way):
    """Zeros were never in the file: it ends where it was cut,
    or has what was written after that.
    """
    a, b = client("a"), client("b")
    await a.write_file("/f", b"x" * 2 * CHUNK)
    async with await b.open("/f") as file:
        await a.write_file("/f", b"y" * length)
        if way == "read":
            assert await file.read(CHUNK, CHUNK) == b"y" * max(0, min(length - CHUNK, CHUNK))
            assert await file.read(0, 4 * CHUNK) == b"y" * min(length, 2 * CHUNK), (
                "no hole, none asked"
            )
        elif way == "batch":
            buffers = [memoryview(bytearray(CHUNK)) for _ in range(2)]
            reads = [(file, n * CHUNK, buffer) for n, buffer in enumerate(buffers)]
            counts = [max(0, min(length - n * CHUNK, CHUNK)) for n in range(2)]
            assert await b.read_batch(reads) == counts
            for count, buffer in zip(counts, buffers, strict=True):
                assert buffer[:count] == b"y" * count
    if way == "copy":
        await b.copy_file("/f", "/g")
        assert await a.read_file("/g") == b"y" * length


async def test_side_by_side_reads_of_what_was_cut_find_no_hole(autojump_clock, client, cluster):
    """What one of them learns makes the others look again."""
    a, b = client("a"), client("b")
    await a.write_file("/f", b"x" * 2 * CHUNK)
    async with await b.open("/f") as file:
        await a.write_file("/f", b"short")
        found = []

        async def read(offset):
            found.append(await file.read(offset, 10))

        async with trio.open_nursery() as nursery:
            for offset in (0, 3, 100, CHUNK, CHUNK + 1):
                nursery.start_soon(read, offset)
        assert sorted(found) == [b"", b"", b"", b"rt", b"short"]


async def test_who_writes_to_a_file_that_another_client_cuts_loses_nothing(autojump_clock, client):
    a, b = client("a"), client("b")
    await a.write_file("/f", b"x" * 2 * CHUNK)
    async with await b.open("/f", is_writable=True) as file:
        await a.write_file("/f", b"")
        await file.write(CHUNK, b"behind")
        await file.read(0, 10)
    assert await a.read_file("/f") == bytes(CHUNK) + b"behind"


async def test_a_client_that_was_stopped_for_longer_than_its_session_lasts_reads_no_hole(
    autojump_clock, client, cluster
):
    a = client("a")
    await a.write_file("/f", b"x" * CHUNK)
    async with await a.open("/f", is_writable=True) as file:
        inode_id = file.ref.inode_id
        await file.write(4 * CHUNK, b"behind a hole")
        assert await file.read(2 * CHUNK, 10) == bytes(10)
        cluster.names[1].clear()
        await trio.sleep(2.0)
        cluster.sessions[inode_id].clear()  # meta takes it for dead
        await cluster.drop_link(cluster.get(inode_id))
        with pytest.raises(FsError) as e:
            await file.read(0, 10)
        assert e.value.status is Status.STALE
        with pytest.raises(FsError):
            await file.close()


async def test_small_files_become_durable_on_their_way(autojump_clock, client, cluster):
    fs, chunks, cluster.chunks.can_flush = client(), cluster.chunks, True
    await fs.write_file("/f", b"x" * 10)
    assert (chunks.durable_writes, chunks.sync_count) == (1, 0)
    await fs.write_file("/f", b"y")  # what it cuts takes a sync
    assert (chunks.durable_writes, chunks.sync_count) == (1, 1)
    async with await fs.create("/g") as file:
        await file.write(0, b"x")
        await file.write(1, b"y", is_last=True)
    assert (chunks.durable_writes, chunks.sync_count) == (1, 2)
    chunks.can_flush = False
    await fs.write_file("/h", b"x")
    assert (chunks.durable_writes, chunks.sync_count) == (2, 3)


async def test_a_failed_write_has_the_chains_asked_for_the_length(autojump_clock, client, cluster):
    fs = client()
    file = await fs.create("/f")
    await file.write(0, b"x" * 10)
    real = cluster.chunks.write

    async def writes_and_fails(ref, offset, data, **options):
        await real(ref, offset, data, **options)
        raise FsError(Status.RPC_TIMEOUT, "the answer was lost")

    cluster.chunks.write = writes_and_fails
    with pytest.raises(FsError, match="lost"):
        await file.write(10, b"y" * 10)
    cluster.chunks.write = real
    await file.close()
    # The bytes are there: a length below them would let them show up when the file grows later.
    assert (await fs.stat("/f")).length == 20
    assert await fs.read_file("/f") == b"x" * 10 + b"y" * 10


async def test_a_write_during_fsync_is_reported_by_the_next_one(autojump_clock, client, cluster):
    fs = client()
    file = await fs.create("/f")
    await file.write(0, b"first")
    real, reached, go_on = cluster.chunks.sync, trio.Event(), trio.Event()

    async def slow_sync(files):
        reached.set()
        await go_on.wait()
        await real(files)

    cluster.chunks.sync = slow_sync
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.fsync)
        await reached.wait()
        await file.write(5, b" second")
        go_on.set()
    syncs = cluster.chunks.sync_count
    await file.close()
    assert cluster.chunks.sync_count == syncs + 1
    assert (await fs.stat("/f")).length == 12


async def test_bad_arguments(autojump_clock, client):
    fs = client()
    file = await fs.create("/f")
    for call in (
        lambda: file.write(-1, b"x"),
        lambda: file.read(-5, 10),
        lambda: file.read_into(-1, memoryview(bytearray(4))),
        lambda: fs.read_batch([(file, -1, memoryview(bytearray(4)))]),
    ):
        with pytest.raises(FsError) as caught:
            await call()
        assert caught.value.status is Status.INVALID_ARGUMENT
    with pytest.raises(FsError) as caught:
        await file.write(1 << 50, b"x")
    assert caught.value.status is Status.FILE_TOO_LARGE
    await file.close()
    await file.close()
    reader = await fs.open("/f")
    with pytest.raises(FsError) as caught:
        await reader.write(0, b"x")
    assert caught.value.status is Status.BAD_FILE


@pytest.mark.parametrize("limit", [0, 1 << 20], ids=["chunks", "inline"])
async def test_memory_of_any_type_is_its_bytes(autojump_clock, client, cluster, limit):
    """The items of an array of numbers were counted as bytes, and storage waited for the rest."""
    cluster.inline.bytes_max = limit
    fs, numbers = client(), array("H", range(1000))
    content = numbers.tobytes()
    await fs.write_file("/f", memoryview(content).cast("B", (20, 100)))
    async with await fs.open("/f") as file:
        found, rows, empty = array("H", bytes(len(content))), bytearray(2000), array("H")
        assert await file.read_into(0, found) == len(content)
        assert found == numbers
        wide = memoryview(rows).cast("B", (20, 100))
        wanted = [(file, 0, wide), (file, 3, memoryview(found)[:5]), (file, 0, empty)]
        assert await fs.read_batch(wanted) == [2000, 10, 0]
        assert rows == content
        assert found[:5].tobytes() == content[3:13]
        for wrong in (memoryview(rows)[::2], b"1234", memoryview(b"1234")):
            for read in (file.read_into(0, wrong), fs.read_batch([(file, 0, wrong)])):
                with pytest.raises(TypeError):
                    await read
    async with await fs.create("/f") as file:
        await file.write(2, numbers)
        assert await file.append(numbers) == 2 + len(content)
        for wrong in ("text", None, memoryview(rows)[::2]):
            with pytest.raises(TypeError):
                await file.write(0, wrong)
            with pytest.raises(TypeError):
                await file.append(wrong)
    for wrong in ("text", None, memoryview(rows)[::2]):
        with pytest.raises(TypeError):
            await fs.write_file("/f", wrong)
    assert await fs.read_file("/f") == bytes(2) + content + content


def blocking(client):
    @asynccontextmanager
    async def connected():
        yield client()

    return BlockingFs(connected)


@pytest.mark.parametrize("way", ["read_batch", "read_each", "write_each"])
def test_a_file_of_another_client_is_refused(client, way):
    """It may be of another cluster, where its number is another file;
    and of a thread that this client's event loop must not touch.
    """
    with blocking(client) as one, blocking(client) as other:
        one.write_file("/f", bytes(2 * CHUNK))
        with one.open("/f", is_writable=True) as file:
            with pytest.raises(TypeError, match="'/f' was not opened by this client"):
                getattr(other, way)([(file, 0, memoryview(bytearray(9)))])
            getattr(one, way)([(file, 0, memoryview(bytearray(9)))])


def test_blocking_client_is_used_from_threads_and_refused_after_close(client):
    with blocking(client) as fs:
        fs.write_file("/f", b"hello")
        with fs.open("/f") as file:
            assert file.read(1, 3) == b"ell"
            assert fs.read_batch([(file, 0, memoryview(bytearray(9)))]) == [5]
        with pytest.raises(FsError) as caught:
            fs.open("/missing")
        assert caught.value.status is Status.NOT_FOUND
    fs.close()
    with pytest.raises(FsError) as caught:
        fs.stat("/f")
    assert caught.value.status is Status.NOT_RUNNING


def test_the_child_of_a_fork_is_told_and_can_leave_the_block(client):
    pid = 0
    with blocking(client) as fs:
        fs.write_file("/f", b"hello")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                fs.read_file("/f")
            except FsError as error:
                code = 0 if error.status is Status.NOT_RUNNING else 2
            fs.close()  # what leaving the block does; must not wait for a thread that is not there
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert fs.read_file("/f") == b"hello"


def test_a_client_whose_event_loop_has_failed_says_so(client):
    broken = trio.Event()

    @asynccontextmanager
    async def connected():
        async with trio.open_nursery() as nursery:

            async def fail():
                await broken.wait()
                raise AssertionError("a bug")

            nursery.start_soon(fail)
            yield client()

    async def breaking():
        broken.set()

    with BlockingFs(connected) as fs:
        fs.run(breaking)
        fs._thread.join(10)
        with pytest.raises(FsError) as caught:
            fs.stat("/")
    assert caught.value.status is Status.NOT_RUNNING
    assert "a bug" in repr(caught.value.__cause__)


async def test_an_open_file_is_appended_to_and_cut(autojump_clock, client):
    a, b = client("a"), client("b")
    await a.write_file("/f", b"head ")
    async with (
        await a.open("/f", is_writable=True) as one,
        await b.open("/f", is_writable=True) as two,
    ):
        assert await one.append(b"one ") == 5
        assert await two.append(b"two ") == 9
        assert await one.append(b"three") == 13
        assert await one.append(b"") == one.length == 18
    assert await b.read_file("/f") == b"head one two three"
    async with await b.open("/f", is_writable=True) as file:
        await file.write(18, b" and what is cut off")
        await file.truncate(4)
        assert file.length == 4
        await file.write(CHUNK + 5, b"end")
        await file.truncate(2 * CHUNK)
    assert await a.read_file("/f") == (b"head".ljust(CHUNK + 5, b"\0") + b"end").ljust(
        2 * CHUNK, b"\0"
    )
    async with await a.open("/f") as reader:
        for refused in (reader.append(b"x"), reader.truncate(0)):
            with pytest.raises(FsError) as caught:
                await refused
            assert caught.value.status is Status.BAD_FILE


async def test_a_cut_after_a_failed_write_leaves_nothing_behind(autojump_clock, client, cluster):
    fs = client()
    file = await fs.create("/f")
    real = cluster.chunks.write

    async def writes_and_fails(ref, offset, data, **options):
        await real(ref, offset, data, **options)
        raise FsError(Status.RPC_TIMEOUT, "the answer was lost")

    cluster.chunks.write = writes_and_fails
    with pytest.raises(FsError, match="lost"):
        await file.write(0, b"y" * 10)
    cluster.chunks.write = real
    await file.truncate(3)
    assert await file.append(b"end") == 3
    await file.close()
    assert await fs.read_file("/f") == b"yyyend"


@pytest.mark.parametrize("length", [0, 1, CHUNK, 5 * CHUNK + 7])
async def test_a_copy(autojump_clock, client, monkeypatch, length):
    monkeypatch.setattr("fs.client.native.COPY_PIECE_BYTES", 2 * CHUNK)
    fs, data = client(), os.urandom(length)
    await fs.write_file("/f", data)
    await fs.write_file("/longer", bytes(range(256)) * CHUNK)
    assert await fs.copy_file("/f", "/new") == length
    assert await fs.copy_file("/f", "/longer") == length
    assert await fs.read_file("/new") == await fs.read_file("/longer") == data
    with pytest.raises(FsError) as caught:
        await fs.copy_file("/f", "/f")
    assert caught.value.status is Status.INVALID_ARGUMENT
    assert await fs.read_file("/f") == data


async def test_a_copy_keeps_holes_and_tells_failures(autojump_clock, client, cluster, monkeypatch):
    monkeypatch.setattr("fs.client.native.COPY_PIECE_BYTES", CHUNK)
    fs = client()
    async with await fs.create("/f") as file:
        await file.write(3 * CHUNK, b"data")
        await file.truncate(9 * CHUNK)
    written = []
    real = cluster.chunks.write

    async def noting(ref, offset, data, **options):
        written.append(offset)
        return await real(ref, offset, data, **options)

    cluster.chunks.write = noting
    await fs.copy_file("/f", "/g")
    assert written == [3 * CHUNK]
    assert await fs.read_file("/g") == b"".ljust(3 * CHUNK, b"\0") + b"data".ljust(6 * CHUNK, b"\0")

    async def fails(ref, offset, data, **options):
        raise FsError(Status.NO_SPACE, "full")

    cluster.chunks.write = fails
    with pytest.raises(FsError, match="full"):
        await fs.copy_file("/f", "/h")


@pytest.mark.parametrize("checks_reading", [True, False])
async def test_reading_a_file_asks_meta_once(autojump_clock, client, cluster, checks_reading):
    fs = client()
    fs._meta.checks_reading = checks_reading
    contents = {"/f": b"one", "/g": b"two"}
    assert await fs.write_files(contents) == {}
    cluster.calls.clear()
    assert await fs.read_file("/f") == b"one"
    opened = await fs.open_many(list(contents))
    assert [await file.read(0, 9) for file in opened] == list(contents.values())
    # What finds paths is no call of the model.  A service that does not
    # know of it is asked to open, too.
    assert cluster.calls == ([] if checks_reading else ["Open"] * 3)
    async with await fs.open("/f", is_writable=True):
        assert cluster.calls[-1:] == ["Open"]
    with pytest.raises(FsError) as caught:
        await fs.open("/")
    assert caught.value.status is Status.IS_DIRECTORY


async def test_many_files_are_opened_and_written_at_once(autojump_clock, client):
    fs = client()
    contents = {f"/f{i}": bytes([i]) * i for i in range(100)}
    assert await fs.write_files(contents) == {}
    opened = await fs.open_many([*contents, "/missing"])
    assert opened[-1].status is Status.NOT_FOUND
    assert [file.length for file in opened[:-1]] == list(range(100))
    failed = await fs.write_files({"/": b"x", "/good": b"y"})
    assert [error.status for error in failed.values()] == [Status.INVALID_ARGUMENT]
    assert await fs.read_file("/good") == b"y"


@pytest.fixture
async def ending(cluster, nursery):
    made = EndingSessions(PathMeta(cluster, "native"), Identity(0, 0).caller)
    nursery.start_soon(made.run)
    await wait_all_tasks_blocked()
    return made


async def test_what_was_not_written_to_waits_for_nobody_at_its_close(
    autojump_clock, client, cluster, ending
):
    fs = client(ending=ending)
    for i in range(20):
        await (await fs.create(f"/f{i}")).close()
    again = await fs.open("/f0", is_writable=True)
    await again.write(0, b"data")
    await again.fsync()
    cluster.calls.clear()
    await again.close()
    assert cluster.calls == []
    assert sum(map(len, cluster.sessions.values())) == 21
    await trio.sleep(2 * PAUSE_S)
    assert cluster.calls == ["PruneSessions"]
    assert not any(cluster.sessions.values())


async def test_a_session_whose_report_was_not_taken_is_ended_later(
    autojump_clock, client, cluster, ending
):
    fs = client(ending=ending)
    file = await fs.create("/f")
    await file.write(0, b"data")
    cluster.meta_faults["Close"] = [FsError(Status.NO_SPACE, "full")]
    with pytest.raises(FsError):
        await file.close()
    assert any(cluster.sessions.values())
    await trio.sleep(2 * PAUSE_S)
    assert not any(cluster.sessions.values())
    assert await fs.read_file("/f") == b"data"


@pytest.mark.parametrize("way", ["cancelled", "not answered", "refused"])
async def test_a_session_whose_open_is_not_answered_is_ended(
    autojump_clock, client, cluster, ending, way
):
    """It stayed open for as long as the client lived, and nobody had it."""
    fs = client(ending=ending)
    await fs.write_file("/f", b"data")
    call = fs._meta.call

    async def open_unheard(method, request, **options):
        if way == "refused" and method.name == "Open":
            raise FsError(Status.ACCESS_DENIED, "test")
        reply = await call(method, request, **options)
        if method.name == "Open":
            await (trio.sleep_forever if way == "cancelled" else partial(trio.sleep, 1))()
            raise FsError(Status.RPC_TIMEOUT, "the answer was lost")
        return reply

    fs._meta.call = open_unheard
    cluster.calls.clear()
    with suppress(FsError), trio.move_on_after(5):
        await fs.open("/f", is_writable=True)
        pytest.fail("it is open")
    assert any(cluster.sessions.values()) is (way != "refused")
    await trio.sleep(2 * PAUSE_S)
    assert not any(cluster.sessions.values())
    assert ("PruneSessions" in cluster.calls) is (way != "refused")


async def test_a_session_whose_close_is_cancelled_is_ended_later(
    autojump_clock, client, cluster, ending
):
    """It stayed open for as long as the client lived, and with it what a removed file takes."""
    fs = client(ending=ending)
    with trio.CancelScope() as scope:
        async with await fs.create("/f") as file:
            await file.write(0, b"data")
            scope.cancel()
    assert scope.cancelled_caught
    assert any(cluster.sessions.values())
    await trio.sleep(2 * PAUSE_S)
    assert not any(cluster.sessions.values())
    assert await fs.read_file("/f") == b"data"


@pytest.mark.parametrize("way", ["synced", "write failed", "append failed", "append cut off"])
async def test_what_a_file_takes_is_counted_when_it_is_closed(
    autojump_clock, client, cluster, ending, way
):
    """After a sync of a hole, or where an append left one, it counted as its length."""

    async def endless(*_):
        await trio.sleep_forever()

    fs = client(ending=ending)
    async with await fs.create("/f") as file:
        await file.write(0, bytes(CHUNK))
        if way == "synced":
            await file.write(3 * CHUNK, b"tail")
        elif way == "append cut off":
            file._cover = endless
            with trio.move_on_after(1):
                await file.append(bytes(CHUNK))
        else:
            cluster.chunks.write_faults = [FsError(Status.NO_SPACE, "test")]
            with pytest.raises(FsError):
                await (file.append if way == "append failed" else partial(file.write, 2 * CHUNK))(
                    bytes(CHUNK)
                )
        await file.fsync()
    found = await fs.stat("/f")
    assert cluster.counted == [found.inode_id]
    assert found.used_bytes == CHUNK + (4 if way == "synced" else 0)


async def test_a_written_file_is_durable_when_it_is_closed(autojump_clock, client, cluster, ending):
    fs = client(ending=ending)
    file = await fs.create("/f")
    await file.write(0, b"data")
    cluster.calls.clear()
    await file.close()
    assert (cluster.calls, cluster.durable_calls) == (["Close"], 1)
    assert not any(cluster.sessions.values())
    await fs.write_file("/empty", b"")
    assert cluster.durable_calls == 2
    await fs.copy_file("/empty", "/g")
    assert cluster.durable_calls == 3


@pytest.mark.parametrize("is_writable", [True, False])
async def test_a_closed_file_neither_reads_nor_writes(client, is_writable):
    fs = client()
    await fs.write_file("/f", b"data")
    async with await fs.open("/f", is_writable=is_writable) as file:
        assert await file.read(0, 4) == b"data"
    await file.close()
    view = memoryview(bytearray(4))
    for call in (
        lambda: file.read(0, 4),
        lambda: file.read_into(0, view),
        lambda: file.write(0, b"x"),
        lambda: file.append(b"x"),
        lambda: file.append(b""),
        lambda: file.truncate(0),
        file.fsync,
        lambda: fs.prefetch(file),
        lambda: fs.read_batch([(file, 0, view)]),
        lambda: fs.read_each([(file, 0, view)]),
        lambda: fs.write_each([(file, 0, b"x")]),
    ):
        with pytest.raises(ValueError, match="/f: the file is closed"):
            await call()
    assert bytes(view) == bytes(4)
    assert (file.length, await fs.read_file("/f")) == (4, b"data")


async def test_a_reply_that_comes_late_takes_no_chain_from_what_an_fsync_covers(
    autojump_clock, client, cluster
):
    fs = client()
    synced = []
    async with await fs.create("/f") as file:
        call, later = file._meta.call, trio.Event()

        async def record(refs):
            synced.extend(ref.dyn_stripe for ref in refs)

        async def call_late(method, request, **options):
            reply = await call(method, request, **options)
            if method.name == "ExtendStripe" and request.dyn_stripe_min == 2:
                await later.wait()
            return reply

        file._meta.call, file._chunks.sync = call_late, record
        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.write, CHUNK, b"second")
            await wait_all_tasks_blocked()
            await file.write(3 * CHUNK, b"fourth")
            later.set()
        await file.fsync()
    assert synced == [4]


async def test_a_length_that_meta_has_lost_is_told_again(autojump_clock, client, cluster):
    fs = client("a")
    await fs.write_file("/f", b"head")
    async with await fs.open("/f", is_writable=True) as file:
        (inode_id,) = [i for i, inode in cluster.inodes.items() if inode.file is not None]
        before = cluster.inodes[inode_id]
        await file.truncate(CHUNK)
        cluster.inodes[inode_id] = before
    assert cluster.inodes[inode_id].length == CHUNK


async def test_what_a_file_with_holes_takes_is_counted_when_it_is_closed(
    autojump_clock, client, cluster
):
    fs = client("a")
    await fs.write_file("/f", b"whole")
    assert not cluster.counted
    async with await fs.open("/f", is_writable=True) as file:
        await file.write(2 * CHUNK, b"end")
    (inode,) = [i for i in cluster.inodes.values() if i.file is not None]
    assert (inode.file.has_holes, inode.used_bytes) == (True, 8)
    async with await fs.open("/f", is_writable=True) as file:
        await file.write(CHUNK, b"more")
    assert cluster.inodes[inode.inode_id].used_bytes == 12
