# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Inline files and the native client, against the model cluster:
what it reads, what it sends, what it never mixes up.
"""

import gc
import random
import weakref

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from fs.client import own_changes
from fs.client.ending import EndingSessions
from fs.client.native import EmberFs, Identity
from fs.runtime.ports import Runtime
from fs.schema.status import FsError, Status

from .fakes import CHUNK, FakeClock, FakeCluster, run_inline
from .test_native import PathMeta

LIMIT = 16 * 1024
OPENED_S = 1.0


@pytest.fixture
def autojump_clock():
    return MockClock(autojump_threshold=0)


@pytest.fixture(params=["many at once", "each alone"])
def cluster(request):
    """With metadata services of this release, or of one that knows of no payloads."""
    cluster = FakeCluster(FakeClock())
    cluster.inline.bytes_max = LIMIT
    cluster.inline.gives_many = request.param == "many at once"
    return cluster


@pytest.fixture
def client(cluster):
    def make(name="native", *, opened_s=OPENED_S, is_ending=False):
        runtime = Runtime(cluster.clock, None, run_inline, random.Random(name))
        meta, identity = PathMeta(cluster, name), Identity(0, 0)
        ending = EndingSessions(meta, identity.caller) if is_ending else None
        if ending is not None:
            ending._is_running = True
        return EmberFs(
            meta,
            cluster.store(),
            runtime=runtime,
            identity=identity,
            ending=ending,
            opened_s=opened_s,
        )

    return make


def inline_ids(cluster):
    return set(cluster.inline.data)


async def test_a_small_file_takes_two_calls_to_write_and_one_to_read(
    autojump_clock, client, cluster
):
    fs, other = client("a", is_ending=True), client("b")
    await fs.write_file("/f", b"small")
    assert cluster.calls == ["Create", "Sync"]
    assert cluster.durable_calls == 1
    assert len(inline_ids(cluster)) == 1
    cluster.calls.clear()
    assert await other.read_file("/f") == b"small"
    assert cluster.calls == []  # but for that of the path
    assert not cluster.chunks.writes and not cluster.chunks.reads
    found = await other.stat("/f")
    assert (found.length, found.file.is_inline, found.file.dyn_stripe) == (5, True, 0)


@pytest.mark.parametrize("length", [1, LIMIT - 1, LIMIT, LIMIT + 1, CHUNK + 1])
async def test_what_is_longer_than_allowed_goes_to_chunks(autojump_clock, client, cluster, length):
    fs, data = client(), random.Random(length).randbytes(length)
    await fs.write_file("/f", data)
    assert bool(inline_ids(cluster)) == (length <= LIMIT)
    assert await client("other").read_file("/f") == data
    await fs.write_file("/f", data[::-1])
    assert await client("other").read_file("/f") == data[::-1]
    assert bool(inline_ids(cluster)) == (length <= LIMIT)


async def test_many_files_are_opened_and_read_with_the_calls_that_open_them(
    autojump_clock, client, cluster
):
    fs = client()
    contents = {f"/{n}": bytes([n]) * (n + 1) for n in range(200)}
    contents["/large"] = bytes(range(256)) * 1024
    assert not await fs.write_files(contents)
    reader = client("reader")
    files = await reader.open_many(list(contents))
    cluster.calls.clear()
    buffers = [bytearray(len(data) + 10) for data in contents.values()]
    reads = [(file, 0, memoryview(b)) for file, b in zip(files, buffers, strict=True)]
    counts = await reader.read_batch(reads)
    assert counts == [len(data) for data in contents.values()]
    for buffer, data in zip(buffers, contents.values(), strict=True):
        assert buffer[: len(data)] == data
    assert cluster.calls == []
    assert len(cluster.chunks.reads) == 1
    # By parts, and beyond the end.
    part = memoryview(bytearray(10))
    assert await reader.read_batch([(files[150], 148, part), (files[3], 4, part)]) == [3, 0]
    assert bytes(part[:3]) == bytes([150]) * 3


async def test_what_was_opened_is_shown_for_a_while_and_asked_for_after_that(
    autojump_clock, client, cluster
):
    writer, reader = client("writer"), client("reader")
    await writer.write_file("/f", b"first")
    async with await reader.open("/f") as file:
        await writer.write_file("/f", b"again")
        assert await file.read(0, 5) == b"first"
        await trio.sleep(OPENED_S)
        assert await file.read(0, 5) == b"again"
        await writer.write_file("/f", b"third, and longer")
        assert await file.read(0, 50) == b"third, and longer"  # from now on it asks each time
        assert file.length == 17
        buffer = bytearray(50)
        assert await reader.read_batch([(file, 6, memoryview(buffer))]) == [11]
        assert buffer[:11] == b" and longer"
        await writer.write_file("/f", b"short")
        assert await file.read_into(0, memoryview(buffer)) == 5
        assert await file.read(7, 3) == b""


async def test_nothing_of_before_the_machine_slept_is_shown(autojump_clock, client, cluster):
    writer, reader = client("writer"), client("reader")
    await writer.write_file("/f", b"first")
    async with await reader.open("/f") as file:
        await writer.write_file("/f", b"again")
        cluster.clock.slept_s += 3600.0
        assert await file.read(0, 5) == b"again"


async def test_nothing_is_kept_where_nothing_may_be(autojump_clock, client):
    writer, reader = client("writer"), client("reader", opened_s=0.0)
    await writer.write_file("/f", b"first")
    async with await reader.open("/f") as file:
        await writer.write_file("/f", b"again")
        assert await file.read(0, 5) == b"again"


async def test_own_writes_are_seen_at_once(autojump_clock, client):
    fs = client()
    await fs.write_file("/f", b"first")
    await trio.sleep(0.01)
    async with await fs.open("/f") as reading:
        assert await reading.read(0, 5) == b"first"
        await fs.write_file("/f", b"again")
        assert await reading.read(0, 5) == b"again"
        async with await fs.open("/f", is_writable=True) as writing:
            await trio.sleep(0.01)
            async with await fs.open("/f") as late:
                await writing.write(1, b"###")
                assert await late.read(0, 5) == b"a###n"
                assert await writing.read(0, 5) == b"a###n"


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_reader_follows_the_bytes_into_chunks_and_back(
    autojump_clock, client, cluster, keeps
):
    writer, reader = client("writer"), client("reader", opened_s=OPENED_S if keeps else 0.0)
    await writer.write_file("/f", b"first")
    async with await reader.open("/f") as file:
        await trio.sleep(OPENED_S)
        async with await writer.open("/f", is_writable=True) as writing:
            await writing.write(5, b", and more")
            await writing.fsync()
            assert not inline_ids(cluster)
            assert await file.read(0, 100) == b"first, and more"
            assert not file.is_inline
            await writing.truncate(0)
        cluster.put_file(cluster.child(1, b"f"), dyn_stripe=0)  # as meta may have it
        await writer.write_file("/f", b"and inline again")
        assert inline_ids(cluster)
        buffer = bytearray(15)
        assert await reader.read_batch([(file, 0, memoryview(buffer))]) == [15]
        assert buffer == b"and inline agai"
        assert await file.read(0, 100) == b"and inline again"


async def test_an_answer_from_while_the_bytes_were_moved_is_late(autojump_clock, client, cluster):
    """It says that they are inline, and has the versions that they have in the chunk."""
    fs = client("a", opened_s=0.0)
    await fs.write_file("/f", b"0123456789")
    gate = trio.Event()

    class Late(PathMeta):
        async def call(self, method, request, *, timeout_s=None):
            reply = await super().call(method, request, timeout_s=timeout_s)
            if method.name == "GetAttr" and not gate.is_set():
                reply.inode.file.truncate_ver += 1
                reply.inode.file.truncate_pending = True
                await gate.wait()
            return reply

    async with await fs.open("/f", is_writable=True) as file:
        file._meta = Late(cluster, "a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.read, 0, 10)
            await wait_all_tasks_blocked()
            await file.write(20, b"end")
            gate.set()
        assert not file.is_inline
        assert file.length == 23
        assert await file.read(0, 50) == b"0123456789" + bytes(10) + b"end"
    assert await client("b").read_file("/f") == b"0123456789" + bytes(10) + b"end"


async def test_what_became_inline_is_no_hole(autojump_clock, client, cluster):
    """A reader knows of chunks; the file is emptied, and small after that."""
    writer, reader = client("writer"), client("reader")
    await writer.write_file("/f", b"x" * (LIMIT + 1))
    async with await reader.open("/f") as file:
        async with await writer.open("/f", is_writable=True) as writing:
            await writing.truncate(0)
        cluster.put_file(cluster.child(1, b"f"), dyn_stripe=0)
        await writer.write_file("/f", b"now it is small")
        assert inline_ids(cluster)
        assert await file.read(0, 4) == b"now "
        assert await file.read_into(4, memoryview(bytearray(100))) == 11


async def test_writing_a_part_of_a_small_file_moves_it_first(autojump_clock, client, cluster):
    fs = client()
    await fs.write_file("/f", b"0123456789")
    async with await fs.open("/f", is_writable=True) as file:
        await file.write(3, b"###")
        assert cluster.inline.moved_count == 1
        await file.write(8, b"longer")
    assert await client("other").read_file("/f") == b"012###67longer"
    assert cluster.get(file.ref.inode_id).length == 14


async def test_truncating_and_appending(autojump_clock, client, cluster):
    fs = client()
    for length in (4, 0, 10, 12):
        await fs.write_file("/f", b"0123456789")
        async with await fs.open("/f", is_writable=True) as file:
            await file.truncate(length)
            await file.write(length, b"end")
            await file.append(b"+")
        assert (
            await client("other").read_file("/f")
            == b"0123456789".ljust(12, b"\0")[:length] + b"end+"
        )
        cluster.names[1].clear()
    await fs.write_file("/f", b"0123456789")
    async with await fs.open("/f", is_writable=True) as file:
        assert await file.append(b"abc") == 10
    assert await client("other").read_file("/f") == b"0123456789abc"


async def test_who_writes_beside_another_has_its_bytes_in_chunks(autojump_clock, client, cluster):
    """Metadata judges other clients; of those of one client, it does itself."""
    one = client("one")
    for first, other in ((one, client("two")), (one, one)):
        cluster.names[1].clear()
        await other.write_file("/f", b"")
        async with await other.open("/f", is_writable=True) as beside:
            await first.write_file("/f", b"small")
            await beside.write(1, b"##")
        assert await client("reader").read_file("/f") == b"s##ll"


async def test_an_open_under_way_takes_no_stripe_for_granted(autojump_clock, client, cluster):
    """It is answered before bytes of the file go inline, and hears of the answer after that."""
    fs = client()

    class Late(PathMeta):
        async def call(self, method, request, *, timeout_s=None):
            reply = await super().call(method, request, timeout_s=timeout_s)
            if method.name == "Open":
                await gate.wait()
            return reply

    gate, fs._meta = trio.Event(), Late(cluster, "native")
    files = []

    async def open_it():
        files.append(await fs.open("/f", is_writable=True))

    async with trio.open_nursery() as nursery:
        file = await fs.create("/f")
        nursery.start_soon(open_it)
        await wait_all_tasks_blocked()
        await file.write(0, b"small", is_last=True)
        assert inline_ids(cluster)
        await file.close()
        gate.set()
    await files[0].write(1, b"##")  # the model refuses to write to a chunk of an inline file
    await files[0].close()
    assert await client("reader").read_file("/f") == b"s##ll"


@pytest.mark.parametrize("is_taken", [True, False])
@pytest.mark.parametrize("goes_on", ["writes", "closes", "fsyncs", "opens"])
async def test_a_report_of_unknown_outcome_is_not_taken_later(
    autojump_clock, client, cluster, is_taken, goes_on
):
    fs = client()
    late = []

    class Lossy(PathMeta):
        async def call(self, method, request, *, timeout_s=None):
            if method.name == "Sync" and request.HasField("inline_data"):
                late.append((method, request))
                if is_taken:
                    await super().call(method, request, timeout_s=timeout_s)
                raise FsError(Status.RPC_TIMEOUT, "nobody knows")
            return await super().call(method, request, timeout_s=timeout_s)

    fs._meta = Lossy(cluster, "native")
    file = await fs.create("/f")
    with pytest.raises(FsError) as e:
        await file.write(0, b"small", is_last=True)
    assert e.value.status is Status.RPC_TIMEOUT
    if goes_on == "writes":
        await file.write(0, b"SMALL", is_last=True)
    if goes_on == "fsyncs":
        await file.fsync()
    if goes_on == "opens":
        cluster.meta_faults["Close"] = [FsError(Status.RPC_TIMEOUT, "this neither")]
        with pytest.raises(FsError):
            await file.close()
        async with await fs.open("/f", is_writable=True) as again:
            await again.write(0, b"SMALL", is_last=True)
    method, request = late[0]
    if goes_on != "opens":
        await file.close()
    reply = await PathMeta(cluster, "native").call(method, request)  # the copy that was late
    assert reply.is_inline_refused is not is_taken and not inline_ids(cluster)
    expected = b"SMALL" if goes_on in {"writes", "opens"} else b"small" if is_taken else b""
    assert await client("reader").read_file("/f") == expected
    assert len(late) == 1


async def test_who_writes_while_bytes_are_on_their_way_ends_that_first(
    autojump_clock, client, cluster
):
    for is_first in (True, False):
        fs, gate = client(), trio.Event()

        class Slow(PathMeta):
            async def call(self, method, request, *, timeout_s=None):
                is_report = method.name == "Sync" and request.HasField("inline_data")
                if is_report and not is_first:  # noqa: B023 - it is called within this turn
                    await gate.wait()  # noqa: B023
                reply = await super().call(method, request, timeout_s=timeout_s)
                if is_report:
                    await gate.wait()  # noqa: B023
                return reply

        fs._meta = Slow(cluster, "native")
        cluster.names[1].clear()
        file = await fs.create("/f")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: file.write(0, b"small", is_last=True))  # noqa: B023
            await wait_all_tasks_blocked()
            await file.write(5, b" tail")
            gate.set()
        await file.close()
        assert await client("reader").read_file("/f") == b"small tail"
        assert not inline_ids(cluster)


async def test_bytes_that_are_not_what_was_written_are_an_error(autojump_clock, client, cluster):
    fs = client()
    await fs.write_file("/f", b"small")
    async with await fs.open("/f") as file:
        checksum = cluster.inline.checksum_of
        cluster.inline.checksum_of = lambda data: checksum(data) ^ 1
        await trio.sleep(OPENED_S)
        for read in (file.read(0, 5), fs.read_file("/f"), fs.open("/f", is_writable=True)):
            with pytest.raises(FsError) as e:
                await read
            assert e.value.status is Status.CHECKSUM_MISMATCH
        (error,) = await fs.open_many(["/f"])
        assert error.status is Status.CHECKSUM_MISMATCH
        (error,) = await fs.read_each([(file, 0, memoryview(bytearray(5)))])
        assert error.status is Status.CHECKSUM_MISMATCH


async def test_a_file_below_a_quota_is_written_to_chunks(autojump_clock, client, cluster):
    fs = client()
    file = await fs.create("/f")
    file.is_metered, file._promised_length = True, 1 << 40
    await file.write(0, b"small", is_last=True)
    await file.close()
    assert not inline_ids(cluster)
    assert await client("reader").read_file("/f") == b"small"


async def test_copying_and_prefetching(autojump_clock, client, cluster):
    fs = client()
    await fs.write_file("/f", b"small")
    assert await fs.copy_file("/f", "/g") == 5
    assert cluster.child(1, b"g").inode_id in cluster.inline
    assert await client("reader").read_file("/g") == b"small"
    await fs.write_file("/g", bytes(LIMIT + 1))
    assert await fs.copy_file("/f", "/g") == 5
    assert await client("reader").read_file("/g") == b"small"
    async with await fs.open("/f") as file:
        assert await fs.prefetch(file) == (0, [])
    assert cluster.inline.data


async def test_a_reader_of_a_removed_file_is_told(autojump_clock, client, cluster):
    writer, reader = client("writer"), client("reader")
    await writer.write_file("/f", b"small")
    async with await reader.open("/f") as file:
        (inode_id,) = inline_ids(cluster)
        cluster.names[1].clear()
        await cluster.drop_link(cluster.get(inode_id))
        await trio.sleep(OPENED_S)
        with pytest.raises(FsError) as e:
            await file.read(0, 5)
        assert e.value.status is Status.STALE


async def test_bytes_of_files_that_are_held_open_are_bounded(
    autojump_clock, client, cluster, monkeypatch
):
    monkeypatch.setattr(own_changes, "OPENED_BYTES_MAX", 10 * LIMIT)
    contents = {f"/f{n}": bytes([n]) * LIMIT for n in range(64)}
    writer, reader = client(), client("reader")
    for path, data in contents.items():
        await writer.write_file(path, data)
    files = await reader.open_many(list(contents))
    kept = reader._changes.opened
    assert kept.total == 10 * LIMIT == sum(len(f.take_opened() or b"") for f in files)
    assert [await f.read(0, LIMIT) for f in files] == list(contents.values())
    held = next(n for n, file in enumerate(files) if file.take_opened())
    await trio.sleep(2 * OPENED_S)
    assert await files[held].read(0, LIMIT) == contents[f"/f{held}"]
    assert kept.total == 9 * LIMIT, "they are too old"
    for file in files:
        await file.close()
    assert not kept.total


async def test_files_that_nobody_closes_are_not_kept_for_ever(
    autojump_clock, client, cluster, monkeypatch
):
    monkeypatch.setattr(own_changes, "OPENED_BYTES_MAX", 10 * own_changes.OPENED_FILE_BYTES)
    writer, reader = client(), client("reader")
    await writer.write_file("/f", b"1")
    opened = [weakref.ref(await reader.open("/f")) for _ in range(64)]
    gc.collect()
    assert sum(file() is not None for file in opened) <= 10


async def test_nobody_writes_to_a_chunk_before_the_move_to_it_is_over(
    autojump_clock, client, cluster
):
    fs = client(opened_s=0.0)
    await fs.write_file("/f", b"small")
    async with await fs.open("/f", is_writable=True) as file:
        moved = cluster.inline.move(cluster.child(1, b"f"))
        cluster.put_file(moved, truncate_pending=True, ctime_ns=moved.ctime_ns)
        assert await file.read(0, 0) == b"" and await file.inline_content() is None
        assert not file.is_inline
        cluster.put_file(moved, truncate_pending=False, ctime_ns=moved.ctime_ns)
        cluster.calls.clear()
        await file.write(0, b"S")
        await file.write(0, b"M")
        assert cluster.calls.count("ExtendStripe") == 1, "which waits for the end"
    assert await fs.read_file("/f") == b"Mmall"


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "reply lost"])
async def test_who_empties_a_file_by_its_name_is_shown_none_of_its_bytes(
    autojump_clock, client, cluster, is_told
):
    class Losing(PathMeta):
        async def call(self, method, request, *, timeout_s=None):
            reply = await super().call(method, request, timeout_s=timeout_s)
            if method.name == "Create":
                raise FsError(Status.RPC_TIMEOUT, "nobody knows")
            return reply

    fs = client()
    await fs.write_file("/f", b"small")
    await trio.sleep(0.01)
    async with await fs.open("/f") as file:
        assert await file.read(0, 9) == b"small"
        await trio.sleep(0.01)
        if is_told:
            await (await fs.create("/f")).close()
        else:
            fs._meta = Losing(cluster, "native")
            with pytest.raises(FsError):
                await fs.create("/f")
        assert await file.read(0, 9) == b""
