# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Asking for the bytes of many inline files:
how many calls that takes, and what replies may be like.
"""

import random
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from fs.client import many_inline
from fs.client.many_inline import CALLS_AT_ONCE, REPLY_COUNT_MAX, Told, Wanted, ask_many, cut
from fs.schema.proto.common_pb2 import CallerPb
from fs.schema.status import FsError, Status

from .fakes import FakeClock, FakeCluster
from .test_native_inline import LIMIT, client  # noqa: F401 - a fixture

SMALL = 100


@pytest.fixture
def autojump_clock():
    return MockClock(autojump_threshold=0)


@pytest.fixture
def cluster():
    cluster = FakeCluster(FakeClock())
    cluster.inline.bytes_max = LIMIT
    return cluster


@pytest.fixture
def made(cluster, client):  # noqa: F811 - pytest's way
    """Makes so many inline files; returns what is wanted of them, and their bytes."""

    async def make(count, length=SMALL):
        contents = {f"/{n}": random.Random(n).randbytes(length) for n in range(count)}
        assert not await client("writer").write_files(contents)
        cluster.calls.clear()
        ids = [cluster.child(1, path[1:].encode()).inode_id for path in contents]
        return [Wanted(inode_id, length) for inode_id in ids], list(contents.values())

    return make


async def ask(cluster, wanted):
    return await ask_many(cluster.meta("reader"), partial(CallerPb, uid=0), wanted)


def bytes_of(told):
    assert all(isinstance(one, Told) for one in told), told
    return [None if one.data is None else bytes(one.data) for one in told]


def test_batches_are_cut_by_count_and_by_bytes(monkeypatch):
    monkeypatch.setattr(many_inline, "REPLY_BYTES_MAX", 1000)
    monkeypatch.setattr(many_inline, "REPLY_COUNT_MAX", 4)
    wanted = [Wanted(n, length) for n, length in enumerate((1, 1, 1, 1, 1, 999, 1, 5000, 400, 600))]
    assert cut(wanted, range(10)) == [[0, 1, 2, 3], [4, 5], [6], [7], [8, 9]]
    assert cut(wanted, [9, 0]) == [[9, 0]]
    assert cut(wanted, []) == []


@pytest.mark.parametrize("count", [0, 1, 2, REPLY_COUNT_MAX, REPLY_COUNT_MAX + 1])
async def test_it_takes_one_call_for_many(autojump_clock, cluster, made, count):
    wanted, contents = await made(count)
    assert bytes_of(await ask(cluster, wanted)) == contents
    calls = ["GetAttr"] if count == 1 else ["BatchGetAttr"] * -(-count // REPLY_COUNT_MAX)
    assert cluster.calls == calls


async def test_few_calls_are_under_way_at_a_time(autojump_clock, cluster, made):
    wanted, contents = await made(REPLY_COUNT_MAX)
    wanted, contents = wanted * 10, contents * 10
    cluster.meta_gate = trio.Event()
    async with trio.open_nursery() as nursery:
        found = []

        async def run():
            found.extend(await ask(cluster, wanted))

        nursery.start_soon(run)
        await trio.sleep(1.0)
        assert len(cluster.calls) == CALLS_AT_ONCE
        cluster.meta_gate.set()
    assert bytes_of(found) == contents
    assert len(cluster.calls) == 10


@pytest.mark.parametrize("reply_bytes_max", [0, SMALL - 1, SMALL, 7 * SMALL + 1])
async def test_what_is_left_out_is_asked_for_again(autojump_clock, cluster, made, reply_bytes_max):
    wanted, contents = await made(30)
    cluster.inline.reply_bytes_max = reply_bytes_max
    assert bytes_of(await ask(cluster, wanted)) == contents
    each = reply_bytes_max // SMALL
    alone = 0 if each else 30
    assert cluster.calls.count("GetAttr") == alone
    assert cluster.calls.count("BatchGetAttr") == (-(-30 // each) if each else 1)


async def test_of_an_earlier_release_each_file_is_asked_for(autojump_clock, cluster, made):
    wanted, contents = await made(REPLY_COUNT_MAX + 5)
    cluster.inline.gives_many = False
    assert bytes_of(await ask(cluster, wanted)) == contents
    assert cluster.calls.count("GetAttr") == len(wanted)
    assert cluster.calls.count("BatchGetAttr") == 2


async def test_files_that_grew_are_brought_all_the_same(autojump_clock, cluster, made):
    wanted, contents = await made(20, LIMIT)
    cluster.inline.reply_bytes_max = 5 * LIMIT
    wanted = [Wanted(one.inode_id, 1) for one in wanted]
    assert bytes_of(await ask(cluster, wanted)) == contents
    assert cluster.calls == ["BatchGetAttr"] * 4


async def test_each_file_is_told_of_by_itself(autojump_clock, cluster, made):
    wanted, contents = await made(6)
    moved = cluster.inline.move(cluster.get(wanted[1].inode_id))
    assert not moved.file.is_inline
    del cluster.inodes[wanted[2].inode_id]
    pack = cluster.inline.pack

    def pack_some(request, slots):
        payload = pack(request, slots)
        for slot in slots:
            if slot.inode.inode_id == wanted[3].inode_id:
                slot.inline_checksum ^= 1
        return payload

    cluster.inline.pack = pack_some
    told = await ask(cluster, wanted)
    assert bytes_of(told[:2] + told[4:]) == [contents[0], None, *contents[4:]]
    assert [told[n].status for n in (2, 3)] == [Status.STALE, Status.CHECKSUM_MISMATCH]
    cluster.meta_faults["BatchGetAttr"] = [FsError(Status.RPC_TIMEOUT, "silent")]
    told = await ask(cluster, wanted)
    assert {one.status for one in told} == {Status.RPC_TIMEOUT}
    assert len(set(map(id, told))) == 6, "each has its own"


@pytest.mark.parametrize("how", ["short", "long", "fewer files"])
async def test_a_reply_that_contradicts_itself_is_an_error(autojump_clock, cluster, made, how):
    wanted, _ = await made(3)
    meta = cluster.meta("reader")
    fetch = meta.fetch

    async def wrong(method, request):
        reply, payload = await fetch(method, request)
        if how == "fewer files":
            gone = reply.inodes.pop()
            return reply, payload[: len(payload) - gone.inode.file.length]
        payload = bytes(payload)[:-1] if how == "short" else bytes(payload) + b"x"
        return reply, memoryview(payload)

    meta.fetch = wrong
    told = await ask_many(meta, partial(CallerPb, uid=0), wanted)
    assert {one.status for one in told} == {Status.RPC_BAD_FRAME}


async def test_opens_ask_for_no_more_bytes_than_may_be_kept(
    autojump_clock,
    cluster,
    client,  # noqa: F811 - pytest's way
    monkeypatch,
):
    monkeypatch.setattr("fs.client.own_changes.OPENED_BYTES_MAX", 40_000)
    monkeypatch.setattr("fs.client.native.OPEN_BATCH_COUNT", 16)
    contents = {f"/{n}": bytes([n]) * 2000 for n in range(100)}
    assert not await client("writer").write_files(contents)
    asked = []
    reader, unkept = client("reader"), client("unkept", opened_s=0.0)
    for fs in (reader, unkept):
        fetch = fs._meta.fetch

        async def note(method, request, fetch=fetch):
            reply, payload = await fetch(method, request)
            asked.append(request.payload_bytes_max)
            assert len(payload) <= request.payload_bytes_max
            return reply, payload

        fs._meta.fetch = note
    files = await reader.open_many(list(contents))
    assert reader._changes.opened.total == 40_000 and 0 in asked
    assert sum(file.fresh_content() is not None for file in files) == 20
    asked.clear()
    assert len(await unkept.open_many(list(contents))) == 100
    assert asked == [0] * 7

    buffer = memoryview(bytearray(200_000))
    reads = [(file, 0, buffer[n * 2000 :][:2000]) for n, file in enumerate(files)]
    assert await reader.read_batch(reads) == [2000] * 100
    assert bytes(buffer) == b"".join(contents.values())
