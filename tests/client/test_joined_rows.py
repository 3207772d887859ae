"""Rows of a table that lie one behind the other, in a chunk and in the memory, are one to storage;
what becomes of each is its own.
"""

import pytest

from fs.client.read_plans import ReadPlans
from fs.rpc.api import Lending
from fs.schema.config import ClientSection
from fs.schema.status import FsError, Status

from .test_read_table import (  # fmt: skip
    CHUNK,
    CONTENT,
    THREE,
    Begun,
    Nodes,
    assert_read,
    client_of,
    reply_of,
    table_of,
)

QUARTER = CHUNK // 4
IN_A_ROW = [(0, n * QUARTER, QUARTER) for n in range(8)]
"""Two chunks in quarters."""

pytestmark = pytest.mark.usefixtures("kernel")


def asked_of(nodes):
    """Return (node, [(chunk, offset, length)]) of each request."""
    return [
        (node_id, list(zip(one.chunk_indexes, one.offsets, one.lengths, strict=True)))
        for node_id, one in nodes.asked
    ]


async def test_neighbours_in_a_chunk_are_one_read(autojump_clock):  # noqa: ARG001
    nodes, table = Nodes(), table_of(IN_A_ROW)
    await client_of(nodes).read(table)
    assert sorted(row for _, rows in asked_of(nodes) for row in rows) == [
        (0, 0, CHUNK),
        (1, 0, CHUNK),
    ]
    assert not table.made
    assert set(nodes.lent) == {Lending.RANGES}
    assert_read(table)


async def test_what_lies_elsewhere_in_the_memory_or_the_file_is_not_joined(autojump_clock):  # noqa: ARG001
    for table in (
        table_of(IN_A_ROW, gap=1),
        table_of(IN_A_ROW[::-1]),
        table_of([(n % 2, n * QUARTER, QUARTER) for n in range(8)]),
    ):
        nodes = Nodes()
        await client_of(nodes).read(table)
        assert sum(len(rows) for _, rows in asked_of(nodes)) == 8
        assert_read(table)


def test_a_row_is_known_by_its_pieces():
    table = table_of([(0, 10, 20), (0, 30, CHUNK), (0, 30 + CHUNK, 5), (0, 500, 7)])
    plan = ReadPlans().plan(THREE, table, 1, ClientSection())
    (one,) = plan
    found = [
        [(piece.chunk_index, piece.offset, len(piece.buffer), piece.owner) for piece in pieces]
        for pieces in one.pieces_by_row(table)
    ]
    assert found == [
        [(0, 10, 20, table[0]), (0, 30, CHUNK - 30, table[1])],
        [(1, 0, 30, table[1]), (1, 30, 5, table[2])],
        [(0, 500, 7, table[3])],
    ]
    assert (one.row_count, one.byte_count) == (3, 32 + CHUNK)
    for piece in one.pieces(table):
        piece.buffer[:] = b"\1" * len(piece.buffer)
    assert bytes(table.view[: 32 + CHUNK]) == b"\1" * (32 + CHUNK)
    assert table.view[32 + CHUNK] == 0


@pytest.mark.parametrize("length", [0, 10, QUARTER, 2 * QUARTER + 10, CHUNK - 1])
@pytest.mark.parametrize("is_there", [True, False])
async def test_each_has_its_own_part_of_a_hole(autojump_clock, length, is_there):  # noqa: ARG001
    def spoil(_, request, reply, payload):
        (position,) = [n for n, index in enumerate(request.chunk_indexes) if index == 0] or [None]
        if position is None:
            return
        payload[position] = payload[position][: length if is_there else 0]
        reply.lengths[position] = len(payload[position])
        reply.checksums[position] = reply_of(payload[position]).message.checksums[0]
        if not is_there:
            reply.failures.add(position=position, status=Status.CHUNK_NOT_FOUND)

    table = table_of(IN_A_ROW)
    table.view[:] = b"\xff" * len(table.view)
    nodes = Nodes(spoil)
    await client_of(nodes).read(table)
    end = length if is_there else 0
    wanted = CONTENT[1, 0][:end] + bytes(CHUNK - end) + CONTENT[1, 1]
    assert bytes(table.view[: 2 * CHUNK]) == wanted
    holes = [QUARTER - max(0, min(QUARTER, end - n * QUARTER)) for n in range(4)]
    assert [one.hole_bytes for one in table] == [*holes, 0, 0, 0, 0]
    assert sum(len(rows) for _, rows in asked_of(nodes)) == 2, "nothing is asked for twice"


@pytest.mark.parametrize("what", ["bytes", "damaged", "elsewhere"])
async def test_pieces_of_what_is_wrong_are_asked_for_by_themselves(autojump_clock, what):  # noqa: ARG001
    """So that a damaged block concerns whoever reads it, and no neighbour."""

    def spoil(_, request, reply, payload):
        for position, length in enumerate(request.lengths):
            if length != CHUNK or request.chunk_indexes[position]:
                continue
            if what == "bytes":
                payload[position] = bytes(length)
                continue
            payload[position] = b""
            reply.lengths[position] = reply.checksums[position] = 0
            status = Status.CHUNK_DAMAGED if what == "damaged" else Status.NOT_SERVING
            reply.failures.add(position=position, status=status)

    nodes, table = Nodes(spoil), table_of(IN_A_ROW)
    await client_of(nodes).read(table)
    assert_read(table)
    whole = [row for _, rows in asked_of(nodes) for row in rows]
    parts = [(0, n * QUARTER, QUARTER) for n in range(4)]
    assert sorted(whole) == sorted([(0, 0, CHUNK), (1, 0, CHUNK), *parts])


async def test_what_is_damaged_everywhere_is_an_error_though_its_neighbours_are_not(
    autojump_clock,  # noqa: ARG001
):
    def spoil(_, request, reply, payload):
        for position, (index, begin, length) in enumerate(
            zip(request.chunk_indexes, request.offsets, request.lengths, strict=True)
        ):
            if index == 0 and begin <= QUARTER < begin + length:
                payload[position] = b""
                reply.lengths[position] = reply.checksums[position] = 0
                reply.failures.add(position=position, status=Status.CHUNK_DAMAGED)

    client = client_of(Nodes(spoil))
    with pytest.raises(FsError, match="CHUNK_DAMAGED"):
        await client.read(table_of(IN_A_ROW))
    for position, one in enumerate(table_of(IN_A_ROW)):
        if position == 1:
            with pytest.raises(FsError, match="CHUNK_DAMAGED"):
                await client.read([one])
        else:
            await client.read([one])


async def test_a_node_that_is_gone_is_not_asked_again(autojump_clock):  # noqa: ARG001
    gone = []

    def spoil(node_id, *_):
        if not gone or node_id == gone[0]:
            gone.append(node_id)
            raise FsError(Status.RPC_CONNECTION_LOST, "gone")

    nodes, table = Nodes(spoil), table_of(IN_A_ROW)
    await client_of(nodes).read(table)
    assert_read(table)
    assert len(gone) == 1


def test_begun_reads_are_joined_and_told_of_by_themselves():
    for sent, is_done, holes in (
        (b"content", True, [0, 0]),
        (b"conte", True, [0, 2]),
        (b"co", True, [1, 4]),
    ):
        nodes, ended, table = Begun(), [], table_of([(0, 5, 3), (0, 8, 4)])
        table.view[:] = b"\xff" * len(table.view)
        assert client_of(nodes).begin(table, ended.append, is_relaxed=False)
        ((request, on_end),) = nodes.asked
        assert (request.offsets[:], request.lengths[:]) == ([5], [7])
        on_end(reply_of(sent), None)
        assert ended == [is_done]
        assert bytes(table.view[:7]) == sent.ljust(7, b"\0")
        assert [one.hole_bytes for one in table] == holes
    nodes, ended, table = Begun(), [], table_of([(0, 5, 3), (0, 8, 4)])
    assert client_of(nodes).begin(table, ended.append, is_relaxed=False)
    wrong = reply_of(b"content")
    wrong.message.checksums[0] ^= 1
    nodes.asked[0][1](wrong, None)
    assert ended == [False]
