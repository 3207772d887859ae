# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Large reads that are lent: what the caller is told of,
and what becomes of a copy that it finds damaged.
"""

import random
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from fs.chunkengine.read_values import LentRows
from fs.kernels.writes import block_checksums
from fs.rpc.api import Lending, ReadApart
from fs.rpc.lent_replies import ReplyLender
from fs.rpc.simulated_memory import SimulatedMemory
from fs.schema import services
from fs.schema.ids import ChunkId, InodeId
from fs.schema.read_columns import WantedRead, read_request
from fs.schema.status import FsError
from fs.storage import read_lent, read_path

from .cluster import CHAIN, CHUNK, INODE, open_caller, open_cluster

COUNT = 5
"""Chunks that are large enough together."""


@asynccontextmanager
async def one_machine():
    """A cluster whose processes are of one machine, with some chunks, and who reads them."""
    async with open_cluster(3) as cluster:
        cluster.network.memory = SimulatedMemory(1)
        async with open_caller(cluster) as client:
            for index in range(COUNT):
                await client.write(0, content(index), index)
            yield cluster, client


def content(index):
    return random.Random(index).randbytes(CHUNK)


async def read(cluster, client, lengths=(CHUNK,) * COUNT, lending=Lending.RANGES, **options):
    version = cluster.chain.chain_version
    wanted = [
        WantedRead(INODE, index, CHAIN, version, 0, length) for index, length in enumerate(lengths)
    ]
    request = read_request(wanted, **{"want_checksums": True, **options})
    return await client.channel(1).call(services.STORAGE_BATCH_READ, request, may_be_lent=lending)


async def test_what_is_lent_has_the_checksums_that_are_stored(mock_clock):
    async with one_machine() as (cluster, client):
        received = await read(cluster, client)
        reply = received.message
        whole = b"".join(map(content, range(COUNT)))
        assert received.payload == whole and list(reply.lengths) == [CHUNK] * COUNT
        assert reply.block_checksums == block_checksums(whole, reply.block_bytes)
        assert list(reply.commit_vers) == [1] * COUNT and not reply.checksums
        assert cluster.network.memory.range_count == COUNT
        target = cluster.nodes[1].target
        assert target.read_bytes == COUNT * CHUNK


@pytest.mark.parametrize(
    "options",
    [
        {"lending": Lending.MEMORY},
        {"want_checksums": False},
        {"fills_cache": True},
        {"lengths": (CHUNK,) * 4 + (CHUNK - 1,)},
        {"lengths": (CHUNK,) * 5 + (1,)},
    ],
)
async def test_other_reads_are_read_by_the_node(mock_clock, options):
    async with one_machine() as (cluster, client):
        received = await read(cluster, client, **options)
        assert not received.message.block_bytes and cluster.network.memory.range_count == 0
        found = b"".join(map(content, range(COUNT)))
        assert received.payload == found[: received.payload_bytes]


async def test_small_rows_are_read_by_the_node(mock_clock, monkeypatch):
    async with one_machine() as (cluster, client):
        monkeypatch.setattr(read_lent, "ROW_BYTES_MIN", CHUNK + 1)
        assert not (await read(cluster, client)).message.block_bytes
        monkeypatch.setattr(read_lent, "ROW_BYTES_MIN", CHUNK)
        assert (await read(cluster, client)).message.block_bytes


@pytest.mark.parametrize("answers", [[False], [True, False]])
async def test_a_node_without_lease_lends_nothing(mock_clock, answers):
    """Also where it ends while the disk's books are waited for."""
    async with one_machine() as (cluster, client):
        node = cluster.nodes[1]
        node.lease.is_valid = partial(next, iter(answers), False)
        with pytest.raises(FsError, match="LEASE_EXPIRED"):
            await read(cluster, client)
        assert not node.engine._books.ledger.readers


async def test_a_chunk_with_an_update_inside_is_not_lent(mock_clock):
    async with one_machine() as (cluster, client):
        target = cluster.nodes[1].target
        chunk_id = ChunkId(InodeId(INODE), 2)
        target.unsettled[chunk_id] = None
        assert not (await read(cluster, client)).message.block_bytes
        del target.unsettled[chunk_id]
        assert (await read(cluster, client)).message.block_bytes


async def test_a_damaged_copy_that_was_lent_is_repaired_when_it_is_asked_for_again(mock_clock):
    async with one_machine() as (cluster, client):
        node = cluster.nodes[1]
        for file_id in node.disk.files:
            node.disk.flip_bit(file_id, 20_000)
        reply = await read(cluster, client)
        assert block_checksums(reply.payload, reply.message.block_bytes) != (
            reply.message.block_checksums
        )
        again = await read(cluster, client, lending=Lending.MEMORY)
        assert again.payload == b"".join(map(content, range(COUNT)))
        await trio.sleep(3)
        reply = await read(cluster, client)
        assert reply.message.block_bytes and reply.payload == again.payload


@asynccontextmanager
async def cold_machine(monkeypatch):
    """As `one_machine`, whose memory holds nothing of what was written;
    chunks are read past the page cache.
    """
    for module in (read_path, read_lent):
        monkeypatch.setattr(module, "INLINE_BYTES_MAX", CHUNK)
    async with one_machine() as (cluster, client):
        for node in cluster.nodes.values():
            node.disk.is_cached = lambda: False
            node.engine._rows._direct._bytes_min = CHUNK
        yield cluster, client


async def test_of_cold_rows_it_is_the_caller_who_matches_them(mock_clock, monkeypatch):
    async with cold_machine(monkeypatch) as (cluster, client):
        received = await read(cluster, client)
        reply, whole = received.message, b"".join(map(content, range(COUNT)))
        assert received.payload == whole and list(reply.lengths) == [CHUNK] * COUNT
        assert reply.block_checksums == block_checksums(whole, reply.block_bytes)
        assert list(reply.commit_vers) == [1] * COUNT and not reply.checksums
        assert cluster.network.memory.range_count == 0
        assert cluster.nodes[1].target.read_bytes == COUNT * CHUNK


async def read_direct(cluster, client, **options):
    """Do as `read` for a caller that has disks read;
    return the bytes, the reply, and whether they came so.
    """
    version, memory, view = cluster.chain.chain_version, cluster.network.memory, bytearray(0)
    wanted = [WantedRead(INODE, index, CHAIN, version, 0, CHUNK) for index in range(COUNT)]
    request = read_request(wanted, **{"want_checksums": True, **options})
    before = memory.direct_count

    def into(_reply, size):
        view.extend(bytes(size))
        return ReadApart([memoryview(view)], in_place, in_place)

    received = await client.channel(1).call(
        services.STORAGE_BATCH_READ, request, into=into, may_be_lent=Lending.DIRECT
    )
    return bytes(view), received.message, memory.direct_count > before


async def in_place(read):
    read()


async def test_cold_rows_are_read_from_the_disk_by_who_says_that_he_does(mock_clock, monkeypatch):
    """Once: the second time they are read here, through the page cache,
    for those who come third.
    """
    async with cold_machine(monkeypatch) as (cluster, client):
        whole = b"".join(map(content, range(COUNT)))
        data, reply, is_direct = await read_direct(cluster, client)
        assert is_direct and data == whole and list(reply.lengths) == [CHUNK] * COUNT
        assert reply.block_checksums == block_checksums(whole, reply.block_bytes)
        assert list(reply.commit_vers) == [1] * COUNT and not reply.checksums
        assert cluster.nodes[1].target.read_bytes == COUNT * CHUNK
        data, _, is_direct = await read_direct(cluster, client)
        assert not is_direct and data == whole
        await trio.sleep(1)
        assert not cluster.nodes[1].engine._books.ledger.readers


@pytest.mark.parametrize("case", ["warm", "small", "not verified", "fills"])
async def test_what_is_read_by_who_waits_for_no_disk(mock_clock, monkeypatch, case):
    async with cold_machine(monkeypatch) as (cluster, client):
        options = {}
        if case == "warm":
            cluster.nodes[1].disk.is_cached = lambda: True
        elif case == "small":
            monkeypatch.setattr(read_lent, "INLINE_BYTES_MAX", COUNT * CHUNK)
        else:
            options = {"fills_cache": True} if case == "fills" else {"want_checksums": False}
        data, reply, is_direct = await read_direct(cluster, client, **options)
        assert not is_direct and data == b"".join(map(content, range(COUNT)))
        assert bool(reply.block_bytes) == (case in {"warm", "small"})


async def test_a_damaged_copy_that_the_disk_was_asked_for_is_repaired(mock_clock, monkeypatch):
    async with cold_machine(monkeypatch) as (cluster, client):
        node = cluster.nodes[1]
        for file_id in node.disk.files:
            node.disk.flip_bit(file_id, 20_000)
        data, reply, is_direct = await read_direct(cluster, client)
        assert is_direct and block_checksums(data, reply.block_bytes) != reply.block_checksums
        again = await read(cluster, client, lending=Lending.MEMORY)
        assert again.payload == b"".join(map(content, range(COUNT)))
        await trio.sleep(3)
        assert (await read(cluster, client, lending=Lending.NOT)).payload == again.payload


@pytest.mark.parametrize(
    "options",
    [
        {"lending": Lending.MEMORY},
        {"lending": Lending.NOT},
        {"want_checksums": False},
        {"fills_cache": True},
        {"lengths": (CHUNK,) * 4 + (CHUNK - 1,)},
    ],
)
async def test_other_cold_reads_are_matched_by_the_node(mock_clock, monkeypatch, options):
    async with cold_machine(monkeypatch) as (cluster, client):
        received = await read(cluster, client, **options)
        assert not received.message.block_bytes
        found = b"".join(map(content, range(COUNT)))
        assert received.payload == found[: received.payload_bytes]


@pytest.mark.parametrize("lending", [Lending.MEMORY, Lending.RANGES])
@pytest.mark.parametrize(("start", "is_past"), [(0, True), (1, False)])
async def test_a_lone_large_row_that_is_not_lent_is_not_asked_of_the_page_cache_first(
    mock_clock, monkeypatch, lending, start, is_past
):
    """That would have the page cache read it, while the event loop waits."""
    async with cold_machine(monkeypatch) as (cluster, client):
        monkeypatch.setattr(read_path, "INLINE_BYTES_MAX", CHUNK - start)
        direct, version = cluster.nodes[1].engine._rows._direct, cluster.chain.chain_version
        direct._bytes_min = direct._block = CHUNK // 16
        length = CHUNK - start
        wanted = [WantedRead(INODE, 2, CHAIN, version, start, length)]
        request = read_request(wanted, want_checksums=True)
        method = services.STORAGE_BATCH_READ
        reply = await client.channel(1).call(method, request, may_be_lent=lending)
        assert reply.payload == content(2)[start:]
        assert bool(direct._remembered) == (is_past and lending is Lending.RANGES)


async def test_a_message_that_would_be_too_long_has_no_checksums_of_blocks(mock_clock, monkeypatch):
    """Else no read of so many blocks would ever be answered."""
    async with cold_machine(monkeypatch) as (cluster, client):
        asked, real, allowed = [], ReplyLender.takes_ranges, [True, False]

        def takes(self, header, size, row_count, message_bytes):
            asked.append((size, row_count, message_bytes))
            return real(self, header, size, row_count, message_bytes) and allowed[0]

        monkeypatch.setattr(ReplyLender, "takes_ranges", takes)
        reply = (await read(cluster, client)).message
        *_, (size, row_count, message_bytes) = asked
        assert (size, row_count) == (COUNT * CHUNK, COUNT)
        assert reply.block_bytes and reply.ByteSize() <= message_bytes
        del allowed[0]
        for node in cluster.nodes.values():
            node.engine._rows._direct._remembered.clear()
        received = await read(cluster, client)
        assert not received.message.block_bytes and received.message.checksums
        assert received.payload == b"".join(map(content, range(COUNT)))


async def test_a_cold_damaged_copy_is_repaired_when_it_is_asked_for_again(mock_clock, monkeypatch):
    async with cold_machine(monkeypatch) as (cluster, client):
        node = cluster.nodes[1]
        for file_id in node.disk.files:
            node.disk.flip_bit(file_id, 20_000)
        reply = await read(cluster, client)
        wanted = reply.message.block_checksums
        assert block_checksums(reply.payload, reply.message.block_bytes) != wanted
        again = await read(cluster, client, lending=Lending.MEMORY)
        assert again.payload == b"".join(map(content, range(COUNT)))
        await trio.sleep(3)
        assert (await read(cluster, client, lending=Lending.NOT)).payload == again.payload


async def test_blocks_that_are_lent_are_free_once_they_are_returned(mock_clock):
    async with one_machine() as (cluster, client):
        ledger = cluster.nodes[1].engine._books.ledger
        await read(cluster, client)
        assert len(ledger.readers) == COUNT
        await trio.sleep(1)
        assert not ledger.readers


class LendingDisk:
    """Lends whatever it is asked for; with `lacks`, it has no memory for that."""

    def __init__(self, *, lacks):
        self.engine, self.lacks = self, lacks
        self.lent_count = 0

    def run_inline(self, function, *arguments):
        return function(*arguments)

    def lend_rows(self, _keys, rows, **_options):
        if self.lacks:
            raise MemoryError("injected")
        self.lent_count += 1
        return LentRows([(0, 0, 1)] * len(rows), [1] * len(rows), 4096, [b""] * len(rows), self.end)

    def end(self):
        self.lent_count -= 1


class RowsOfDisks:
    """A row of each of some disks."""

    def __init__(self, *disks):
        self.disks = self.chains = self.keys = disks
        self.rows = self

    def by_disk(self, positions):
        return {self.disks[position]: [position] for position in positions}

    def some(self, positions):
        return positions


def test_what_one_disk_lends_is_given_back_where_another_one_lacks_memory():
    first, second = LendingDisk(lacks=False), LendingDisk(lacks=True)
    with pytest.raises(MemoryError):
        read_lent._lent(RowsOfDisks(first, second))
    assert first.lent_count == 0
    second.lacks = False
    assert len(read_lent._lent(RowsOfDisks(first, second))) == 2
    assert (first.lent_count, second.lent_count) == (1, 1)
