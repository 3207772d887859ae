# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Reads that have to wait for the disk: one call for the rows of a request,
and whatever may have changed when it is over.
"""

from dataclasses import replace

import pytest
import trio

from fs.schema.ids import ChainId
from fs.schema.status import FsError, Status
from fs.storage import read_path

from .cluster import CHAIN, open_caller, open_cluster

WORDS = [bytes([65 + index]) * 30_000 for index in range(3)]
IOS = [(0, 0, 30_000), (1, 5, 100), (2, 10_000, 20_000), (1, 5000, 4096)]


def wanted():
    return [(Status.OK, WORDS[index][offset : offset + length]) for index, offset, length in IOS]


def begin_later(function, on_end):
    """Do what a thread would."""

    async def work():
        await trio.lowlevel.checkpoint()
        error = None
        try:
            function()
        except Exception as raised:  # noqa: BLE001 - as threads tell it
            error = raised
        on_end(error)

    trio.lowlevel.spawn_system_task(work)


@pytest.fixture(params=["by a task", "begun"])
async def cold(mock_clock, request):
    """A cluster whose memory holds nothing of what it has written; its caller."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        for index, words in enumerate(WORDS):
            await client.write(0, words, index)
        for node in cluster.nodes.values():
            node.disk.is_cached = lambda: False
            if request.param == "begun":
                calls = disk_of(node).calls
                calls._begin, calls.can_begin = begin_later, True
        yield cluster, client
        assert [disk_of(n).read_limiter.value for n in cluster.nodes.values()] == [4, 4]
        assert [n.storage._context.buffers._used_bytes for n in cluster.nodes.values()] == [0, 0]


def disk_of(node):
    return node.storage._disks[0]


def count_calls(monkeypatch, engine, name):
    calls, real = [], getattr(engine, name)

    def counted(*arguments, **options):
        calls.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(engine, name, counted)
    return calls


async def test_one_call_reads_all_rows(cold, monkeypatch, mock_clock):
    cluster, client = cold
    engine = cluster.nodes[2].engine
    together = count_calls(monkeypatch, engine, "read_rows")
    singly = count_calls(monkeypatch, engine, "read_batch")
    before = cluster.nodes[2].target.read_bytes
    assert await client.read_attempt(2, IOS) == wanted()
    assert (len(together), len(singly)) == (1, 0)
    assert cluster.nodes[2].target.read_bytes - before == sum(length for *_, length in IOS)


async def test_reads_of_one_moment_are_done_as_many_at_a_time_as_may_be(
    cold, monkeypatch, mock_clock
):
    cluster, client = cold
    together = count_calls(monkeypatch, cluster.nodes[2].engine, "read_rows")
    async with trio.open_nursery() as nursery:

        async def ask():
            assert await client.read_attempt(2, IOS) == wanted()

        for _ in range(9):
            nursery.start_soon(ask)
    assert len(together) == 9


@pytest.mark.parametrize("io_count", [1, 4])
async def test_a_bug_is_told_and_ends_one_request(cold, monkeypatch, mock_clock, io_count):
    cluster, client = cold
    engine, errors = cluster.nodes[2].engine, [RuntimeError("injected bug"), None]
    real, ios = engine.read_rows, IOS[:io_count]

    def read_rows(*arguments, **options):
        error = errors.pop(0)
        if error is not None:
            raise error
        return real(*arguments, **options)

    monkeypatch.setattr(engine, "read_rows", read_rows)
    monkeypatch.setattr(disk_of(cluster.nodes[2]), "on_failure", lambda *_: None)
    with pytest.raises(FsError) as caught:
        await client.read_attempt(2, ios)
    assert caught.value.status is Status.INTERNAL_ERROR
    ((_, bug),) = cluster.bugs
    assert str(bug) == "injected bug"
    cluster.bugs.clear()
    assert await client.read_attempt(2, ios) == wanted()[:io_count]


async def test_a_lack_at_the_end_of_a_read_is_told_and_ends_one_request(
    cold, monkeypatch, mock_clock
):
    """What was begun ends in no task: what it raises would end the process."""
    cluster, client = cold
    real, errors = read_path._reply_of, [MemoryError("injected")]

    def reply_of(*arguments):
        if errors:
            raise errors.pop()
        return real(*arguments)

    monkeypatch.setattr(read_path, "_reply_of", reply_of)
    with pytest.raises(FsError) as caught:
        await client.read_attempt(2, IOS)
    assert caught.value.status is Status.OUT_OF_RESOURCES
    assert await client.read_attempt(2, IOS) == wanted()
    assert cluster.bugs == []


async def test_what_is_short_missing_or_damaged_is_said_of_each(cold, mock_clock):
    cluster, client = cold
    for file_id in cluster.nodes[2].disk.files:
        cluster.nodes[2].disk.flip_bit(file_id, 20_000)
    ios = [*IOS, (1, 29_000, 4096), (9, 0, 10)]
    found = await client.read_attempt(2, ios, is_passed_on=True)
    assert found[1] == wanted()[1]
    assert found[4:] == [(Status.OK, WORDS[1][29_000:]), (Status.CHUNK_NOT_FOUND, b"")]
    assert found[0] == (Status.CHECKSUM_MISMATCH, b"")
    again = await client.read_attempt(2, ios)  # not passed on: from another replica
    assert again[:5] == [*wanted(), found[4]]


async def test_the_chain_may_have_moved_on_during_the_wait(cold, monkeypatch, mock_clock):
    """What was left is then refused by the new version of the chain, and so is all else of it."""
    cluster, client = cold
    node = cluster.nodes[2]
    for file_id in node.disk.files:
        node.disk.flip_bit(file_id, 20_000)
    real = node.engine.read_rows

    def moved(*arguments, **options):
        chain = replace(cluster.chain, chain_version=cluster.chain.chain_version + 1)
        info = replace(cluster.info, routing_version=10**6, chains={ChainId(CHAIN): chain})
        node.routing.deliver(info)
        return real(*arguments, **options)

    monkeypatch.setattr(node.engine, "read_rows", moved)
    found = await client.read_attempt(2, [(1, 0, 10), (0, 0, 30_000)])
    assert [status for status, _ in found] == [Status.ROUTING_MISMATCH] * 2
    node.routing.info = cluster.info


async def test_an_update_that_comes_in_meanwhile_leaves_whole_versions(cold, mock_clock):
    """The one before it or the one that it makes, at every replica."""
    _, client = cold
    new = b"n" * 30_000
    found = []

    async def read(node_id):
        found.extend(await client.read_attempt(node_id, [(0, 0, 30_000)]))

    async with trio.open_nursery() as nursery:
        for node_id in (1, 2, 1, 2):
            nursery.start_soon(read, node_id)
            await trio.sleep(0.0005)
        nursery.start_soon(client.write, 0, new)
        for node_id in (1, 2, 1, 2):
            await trio.sleep(0.0005)
            nursery.start_soon(read, node_id)
    assert set(found) <= {(Status.OK, WORDS[0]), (Status.OK, new)}
    assert len(found) == 8
    for node_id in (1, 2):
        assert await client.read_attempt(node_id, [(0, 0, 30_000)]) == [(Status.OK, new)]


async def test_only_what_was_not_asked_of_the_page_cache_may_pass_it(cold, monkeypatch, mock_clock):
    """Asking for more than is there has the kernel fill the page cache:
    whoever then passes it reads the disk twice.
    """
    cluster, client = cold
    engine, told = cluster.nodes[2].engine, []
    real = engine.read_rows

    def note(*arguments, **options):
        told.append(options["may_pass_cache"])
        return real(*arguments, **options)

    monkeypatch.setattr(engine, "read_rows", note)
    assert await client.read_attempt(2, IOS) == wanted()
    monkeypatch.setattr(read_path, "INLINE_BYTES_MAX", 50_000)
    assert await client.read_attempt(2, IOS) == wanted()
    assert await client.read_attempt(2, IOS, fills_cache=True) == wanted()
    assert told == [False, True, False]
