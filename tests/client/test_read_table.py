"""Reads by rows: asked for as one by one, and whatever does not come whole
and good goes the ordinary way.
"""

import random
import struct
from dataclasses import replace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from fs.client import asked_reads
from fs.client.read_plans import ReadPlans
from fs.client.read_table import ReadTable
from fs.client.routing_math import TOGETHER_BYTES, cut_reads
from fs.client.storage_reads import BEGUN_TOGETHER_COUNT, StorageReads, _request
from fs.kernels.batches import ENTRY
from fs.rpc.api import Lending, ReadApart, Received
from fs.runtime.simulated import simulated_runtime
from fs.schema.config import ClientSection
from fs.schema.ids import ChainTableId, InodeId
from fs.schema.layout import FileRef, Layout
from fs.schema.proto import storage_pb2 as pb
from fs.schema.routing import PublicState, RoutingInfo
from fs.schema.status import FsError, Status

from .test_routing_math import CHUNK, THREE, make_info

CHUNK_COUNT = 12
FILES = {
    struct.pack("<IIII", n, 1, 1, 0): FileRef(
        InodeId(n), Layout(ChainTableId(1), 1, CHUNK, n, n, 77 * n), n
    )
    for n in (1, 3, 4)
}
KEYS = list(FILES)
CONTENT = {
    (file.inode_id, index): random.Random(file.inode_id * 100 + index).randbytes(CHUNK)
    for file in FILES.values()
    for index in range(CHUNK_COUNT)
}


def table_of(rows, memory_bytes=1 << 21, gap=0):
    """Return a table of (key number, offset in the file, length), one behind the other in memory,
    `gap` bytes apart.
    """
    place, entries = 0, []
    for user_data, (number, offset, length) in enumerate(rows):
        entries.append(ENTRY.pack(user_data, offset, place, length, KEYS[number]))
        place += length + gap
    table = ReadTable(b"".join(entries), memoryview(bytearray(memory_bytes)))
    table.files.update(FILES)
    return table


class Routing:
    def __init__(self, info: RoutingInfo = THREE):
        self.info = info

    async def refresh(self):
        return self.info


class Nodes:
    """Answer as storage would, but for what `spoil(node_id, request,
    reply, payload)` makes of it.
    """

    def __init__(self, spoil=None):
        self.spoil = spoil
        self.unreached = frozenset()
        self.asked = []
        self.lent = []

    async def call(self, node_id, method, request, *, into, may_be_lent):  # noqa: ARG002 - as NodeCalls has it
        self.lent.append(may_be_lent)
        message = request if isinstance(request, bytes) else request.SerializeToString()
        request = pb.BatchReadReq.FromString(message)
        self.asked.append((node_id, request))
        reply, payload = pb.BatchReadRsp(), []
        columns = request.inode_ids, request.chunk_indexes, request.offsets, request.lengths
        for inode_id, index, offset, length in zip(*columns, strict=True):
            payload.append(CONTENT[inode_id, index][offset : offset + length])
            reply.lengths.append(length)
            reply.commit_vers.append(1)
            if request.want_checksums:
                reply.checksums.append(xxh3_64_intdigest(payload[-1]))
        if self.spoil is not None:
            self.spoil(node_id, request, reply, payload)
        size = sum(map(len, payload))
        windows = into(reply, size) if size else []

        def fill():
            rest = b"".join(payload)
            for window in windows:
                window[:] = rest[: len(window)]
                rest = rest[len(window) :]

        if isinstance(windows, ReadApart):
            await windows.have_read(fill)
        else:
            fill()
        return Received(reply, size)


def client_of(nodes, info=THREE, seed=1, **settings):
    runtime, section = simulated_runtime(None, seed), ClientSection(**settings)
    return StorageReads(nodes, routing=Routing(info), runtime=runtime, section=section)


def assert_read(table, holes=()):
    for position, read in enumerate(table):
        index, offset = divmod(read.offset, CHUNK)
        wanted = CONTENT[read.file.inode_id, index][offset:][: len(read.buffer)]
        assert bytes(read.buffer) == (bytes(len(wanted)) if position in holes else wanted)
        assert read.hole_bytes == (len(wanted) if position in holes else 0)


def random_rows(count, seed=1):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        length = rng.choice([1, 100, 4096])
        offset = rng.randrange(CHUNK_COUNT) * CHUNK + rng.randrange(CHUNK - length + 1)
        rows.append((rng.randrange(3), offset, length))
    return rows


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, CHUNK_COUNT * CHUNK - 1),
            st.sampled_from([1, 4096, CHUNK // 2, CHUNK]),
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from([4096, CHUNK, 10 * CHUNK]),
    st.lists(st.sampled_from([PublicState.SERVING, PublicState.OFFLINE]), min_size=2, max_size=4),
)
def test_the_same_is_asked_of_the_same_nodes(rows, start, count_max, bytes_max, states):
    info = make_info(4, (PublicState.SERVING, *states))
    section = ClientSection(batch_count_max=count_max, batch_bytes_max=bytes_max)
    client = client_of(None, info, batch_count_max=count_max, batch_bytes_max=bytes_max)
    client._start = start - 1
    table = table_of(rows, gap=1)  # else neighbours would be joined
    found = ReadPlans().plan(info, table, start, section)
    pieces = cut_reads(info, table)
    batches, failures = client._plan(pieces, ())
    assert not failures
    assert [(one.node_id, one.message) for one in found] == [
        (
            batch.node_id,
            _request(batch.pieces, is_relaxed=False, want_checksums=False).SerializeToString(),
        )
        for batch in batches
    ]
    assert [one.pieces(table) for one in found] == [batch.pieces for batch in batches]


def test_a_newer_snapshot_counts(kernel):  # noqa: ARG001
    plans, section = ReadPlans(), ClientSection()
    table = table_of(random_rows(20))
    assert len(plans.plan(THREE, table, 1, section)) == 1
    unavailable = make_info(4, (PublicState.OFFLINE,) * 3)
    assert plans.plan(unavailable, table, 1, section) is None
    assert plans.plan(THREE, table, 1, section) is not None


@pytest.mark.parametrize("verifies", [True, False])
async def test_rows_are_read_without_an_object_for_each(autojump_clock, kernel, verifies):  # noqa: ARG001
    nodes, table = Nodes(), table_of(random_rows(500, seed=4))
    await client_of(nodes, verify_reads=verifies).read(table, is_relaxed=True)
    assert not table.made
    assert sum(len(one.buffer) for one in table) > TOGETHER_BYTES
    assert len({node_id for node_id, _ in nodes.asked}) > 1
    for _, request in nodes.asked:
        assert request.is_relaxed
        assert request.want_checksums == verifies
    assert_read(table)


async def test_holes_are_zeros_and_counted(autojump_clock, kernel):  # noqa: ARG001
    def spoil(_, request, reply, payload):
        found = list(zip(request.inode_ids, request.chunk_indexes, strict=True))
        for position, (_, index) in enumerate(found):
            if index == 5:
                payload[position] = b""
                reply.lengths[position] = reply.checksums[position] = 0
                reply.failures.add(position=position, status=Status.CHUNK_NOT_FOUND)

    table = table_of(random_rows(100))
    table.view[:] = b"\xff" * len(table.view)
    nodes = Nodes(spoil)
    await client_of(nodes).read(table)
    holes = {position for position, one in enumerate(table) if one.offset // CHUNK == 5}
    assert holes
    assert_read(table, holes)
    assert len(nodes.asked) == 1


@pytest.mark.parametrize("what", ["bytes", "status", "call"])
async def test_what_one_node_spoils_is_asked_of_another(autojump_clock, kernel, what):  # noqa: ARG001
    spoilt = []

    def spoil(node_id, request, reply, payload):  # noqa: ARG001
        if spoilt and spoilt != [node_id]:
            return
        spoilt[:] = [node_id]
        if what == "bytes":
            payload[3] = bytes([payload[3][0] ^ 1]) + payload[3][1:]
        elif what == "status":
            reply.failures.add(position=3, status=Status.NOT_SERVING)
            reply.lengths[3] = reply.checksums[3] = 0
            payload[3] = b""
        else:
            raise FsError(Status.RPC_CONNECTION_LOST, "gone")

    table, nodes = table_of(random_rows(50)), Nodes(spoil)
    await client_of(nodes).read(table)
    assert_read(table)
    (first, whole), (second, rest) = nodes.asked
    assert first != second
    assert len(whole.lengths) == 50
    assert len(rest.lengths) == (1 if what in {"bytes", "status"} else 50)


async def test_lengths_that_do_not_fit_are_refused(autojump_clock, kernel):  # noqa: ARG001
    def spoil(_, request, reply, payload):  # noqa: ARG001
        reply.lengths[3] += 1

    with pytest.raises(FsError, match="RPC_BAD_FRAME"):
        await client_of(Nodes(spoil)).read(table_of(random_rows(10)))


async def test_what_every_replica_has_damaged_fails(autojump_clock, kernel):  # noqa: ARG001
    def spoil(_, request, reply, payload):  # noqa: ARG001
        payload[0] = bytes(len(payload[0]))

    with pytest.raises(FsError, match="CHECKSUM_MISMATCH"):
        await client_of(Nodes(spoil)).read(table_of(random_rows(10)))


async def test_rows_over_the_end_of_a_chunk_are_cut(autojump_clock, kernel):  # noqa: ARG001
    table = table_of([(0, CHUNK - 50, 100), (1, 0, 10)])
    nodes = Nodes()
    await client_of(nodes).read(table)
    ((_, request),) = nodes.asked
    assert not table.made
    assert list(request.lengths) == [50, 50, 10]
    first = CONTENT[1, 0][-50:] + CONTENT[1, 1][:50]
    assert bytes(table[0].buffer) == first


async def test_a_piece_that_is_wrong_is_asked_for_alone(autojump_clock, kernel):  # noqa: ARG001
    """A hole in one chunk, and changed bytes of another one, below one read."""
    spoilt = []

    def spoil(_, request, reply, payload):
        for position, index in enumerate(request.chunk_indexes):
            if index == 5:
                payload[position] = b""
                reply.lengths[position] = reply.checksums[position] = 0
                reply.failures.add(position=position, status=Status.CHUNK_NOT_FOUND)
            elif index == 7 and not spoilt:
                spoilt.append(position)
                payload[position] = bytes(len(payload[position]))

    begin = 4 * CHUNK + 1000
    table = table_of([(0, begin, 3 * CHUNK), (2, 0, 10)])
    table.view[:] = b"\xff" * len(table.view)
    nodes = Nodes(spoil)
    await client_of(nodes).read(table)
    wanted = [bytes(CHUNK) if index == 5 else CONTENT[1, index] for index in range(4, 8)]
    assert bytes(table[0].buffer) == b"".join(wanted)[1000:][: 3 * CHUNK]
    assert [one.hole_bytes for one in table] == [CHUNK, 0]
    assert [len(request.lengths) for _, request in nodes.asked] == [5, 1]


def test_a_table_is_a_sequence():
    table = table_of([(0, 0, 10), (1, 5, 20), (2, 9, 30)])
    assert len(table) == 3
    assert [one.offset for one in table] == [0, 5, 9]
    assert [len(one.buffer) for one in table[1:]] == [20, 30]
    assert table[1] is table[1]
    with pytest.raises(IndexError):
        table[3]


class Begun:
    """Nodes that are asked without waiting; each request is told of by its message,
    and what is called with the reply.
    """

    def __init__(self):
        self.unreached = frozenset()
        self.asked, self.node_ids = [], []

    def begin(self, node_id, _method, message, on_end, *, is_packed, reply_bytes_max):
        assert is_packed
        asked = pb.BatchReadReq.FromString(message)
        assert sum(asked.lengths) <= reply_bytes_max
        self.node_ids.append(node_id)

        def end(received, error):
            if received is not None and not isinstance(received.message, bytes):
                message = received.message.SerializeToString()
                received = Received(message, received.payload_bytes, received.payload)
            on_end(received, error)

        self.asked.append((pb.BatchReadReq.FromString(message), end))
        return on_end


def reply_of(*parts, want_checksums=True):
    reply = pb.BatchReadRsp(lengths=map(len, parts), commit_vers=[1] * len(parts))
    if want_checksums:
        reply.checksums.extend(map(xxh3_64_intdigest, parts))
    payload = b"".join(parts)
    return Received(reply, len(payload), memoryview(payload))


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("verifies", [True, False])
def test_a_begun_read_is_done_when_its_bytes_have_come_checked_or_not(verifies):
    nodes, ended, table = Begun(), [], table_of([(0, 5, 7), (0, 100, 3)])
    client = client_of(nodes, verify_reads=verifies)
    assert client.begin(table, ended.append, is_relaxed=True)
    ((request, on_end),) = nodes.asked
    assert (request.want_checksums, request.is_relaxed) == (verifies, True)
    assert (request.offsets[:], request.lengths[:]) == ([5, 100], [7, 3])
    client.adopt(ClientSection(verify_reads=not verifies))  # concerns the next one only
    on_end(reply_of(b"content", b"end", want_checksums=verifies), None)
    assert ended == [True]
    assert bytes(table.view[:10]) == b"contentend"
    assert not table.made


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("is_table", [True, False])
async def test_after_a_begun_read_that_a_node_kept_for_a_whole_limit_others_are_asked(
    autojump_clock,  # noqa: ARG001 - acts by being there
    is_table,
):
    """The same node was asked again where its turn came:
    what is done again cost the limit of a call once more.
    """
    nodes, ended, rows = Begun(), [], [(0, 5, 7)]
    client = client_of(nodes)
    assert client.begin(table_of(rows), ended.append, is_relaxed=True)
    nodes.asked[0][1](None, FsError(Status.RPC_TIMEOUT, "no reply in 10 s"))
    assert ended == [False]
    (silent,) = nodes.node_ids
    for _ in range(9):
        if client.begin(table_of(rows), ended.append):
            nodes.asked[-1][1](reply_of(b"content"), None)
            client._begun_left = 0
    assert len(nodes.node_ids) == 1 + 6
    assert nodes.node_ids.count(silent) == 1
    others = client._nodes = Nodes()
    for _ in range(9):
        table = table_of(rows)
        await client.read(table if is_table else list(table))
        assert bytes(table[0].buffer) == CONTENT[1, 0][5:12]
    assert silent not in {node_id for node_id, _ in others.asked}
    await trio.sleep(ClientSection().call_timeout_s + 1)
    for _ in range(9):
        await client.read(table_of(rows))
    assert silent in {node_id for node_id, _ in others.asked}
    assert not client._silent_until_s


@pytest.mark.usefixtures("kernel")
async def test_a_silent_node_is_asked_where_nobody_else_has_it(autojump_clock):  # noqa: ARG001
    nodes, rows = Nodes(), [(0, 5, 7)]
    client = client_of(nodes)
    client._silent_until_s = dict.fromkeys(THREE.nodes, 1e9)
    await client.read(table_of(rows))
    assert len(nodes.asked) == 1


async def test_who_gave_a_begun_read_up_says_nothing_of_its_node():
    nodes, ended = Begun(), []
    client = client_of(nodes)
    assert client.begin(table_of([(0, 5, 7)]), ended.append)
    nodes.asked[0][1](None, FsError(Status.RPC_CANCELLED, "reads were given up"))
    assert ended == [False]
    assert not client._silent_until_s


@pytest.mark.usefixtures("kernel")
def test_begun_reads_are_small_and_of_one_node():
    nodes = Begun()
    client = client_of(nodes)
    for rows in ([(0, 0, 4097)], [(0, 0, 4000), (0, 0, 97)]):
        assert client.begin(table_of(rows), None, is_relaxed=False) is None
    assert (
        client_of(nodes, info=RoutingInfo(1)).begin(table_of([(0, 0, 1)]), None, is_relaxed=False)
        is None
    )
    assert not nodes.asked
    assert client.begin(table_of([(0, 0, 4096)]), None, is_relaxed=False)


@pytest.mark.usefixtures("kernel")
def test_more_is_begun_where_that_is_said_but_not_what_may_be_lent():
    nodes, ended = Begun(), []
    client = client_of(nodes)
    few, many = [(0, 0, 64 * 1024)], [(0, 8192 * n, 4096) for n in range(32)]
    assert client.begin(table_of(few), None, bytes_max=128 * 1024) is None
    assert client.begin(table_of(many), None, bytes_max=128 * 1024 - 1) is None
    table = table_of(many)
    assert client.begin(table, ended.append, bytes_max=128 * 1024)
    ((request, on_end),) = nodes.asked
    parts = [bytes([n]) * 4096 for n in range(32)]
    assert request.lengths[:] == [4096] * 32
    on_end(reply_of(*parts), None)
    assert ended == [True]
    assert bytes(table.view[: 128 * 1024]) == b"".join(parts)


async def test_what_cannot_be_begun_is_asked_of_the_same_node_and_so_of_each_in_turn(
    autojump_clock,  # noqa: ARG001
):
    """Else nodes that are not connected yet would be passed over for ever:
    who waits for a read connects.
    """
    nodes = Nodes()
    refused = []
    nodes.begin = lambda node_id, *_, **__: refused.append(node_id)
    client = client_of(nodes)
    for _ in range(6):
        table = table_of([(0, 0, 100)])
        assert client.begin(table, None, is_relaxed=False) is None
        await client.read(table)
        assert_read(table)
    assert refused == [node_id for node_id, _ in nodes.asked]
    assert len(set(refused)) == 3


def test_begun_reads_one_after_the_other_ask_the_same_node_for_a_while_and_others_in_turn():
    nodes = Begun()
    client = client_of(nodes)

    def begin():
        assert client.begin(table_of([(0, 0, 100)]), lambda _: None, is_relaxed=False)

    def end():
        nodes.asked.pop()[1](reply_of(bytes(100)), None)

    for _ in range(3 * BEGUN_TOGETHER_COUNT):
        begin()
        end()
    parts = [
        set(nodes.node_ids[n * BEGUN_TOGETHER_COUNT :][:BEGUN_TOGETHER_COUNT]) for n in range(3)
    ]
    assert [len(part) for part in parts] == [1, 1, 1]
    assert len(set.union(*parts)) == 3
    for _ in range(3):
        begin()
    assert len(set(nodes.node_ids[-3:])) == 3


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("how", ["no reply", "spoilt", "damaged"])
def test_after_a_begun_read_that_failed_another_node_is_asked(how):
    """Else a node that is gone, or a damaged copy,
    would cost each of many reads in a row what it costs one.
    """
    nodes = Begun()
    client = client_of(nodes)
    failure, reply = FsError(Status.RPC_CONNECTION_LOST, "gone"), None
    if how != "no reply":
        failure, reply = None, reply_of(bytes(100))
        if how == "spoilt":
            reply = Received(reply.message, 100, memoryview(b"\1" * 100))
        else:
            reply.message.failures.add(position=0, status=Status.CHUNK_DAMAGED)
    for _ in range(6):
        table, ended = table_of([(0, 0, 100)]), []
        assert client.begin(table, ended.append, is_relaxed=False)
        nodes.asked.pop()[1](reply, failure)
        assert ended == [False]
    assert len(set(nodes.node_ids[:3])) == len(set(nodes.node_ids[3:])) == 3


def test_clients_that_begin_at_once_ask_different_nodes():
    asked = set()
    for seed in range(30):
        nodes = Begun()
        client = client_of(nodes, seed=seed)
        assert client.begin(table_of([(0, 0, 100)]), lambda _: None, is_relaxed=False)
        asked |= set(nodes.node_ids)
    assert len(asked) == 3


@pytest.mark.parametrize("as_table", [True, False])
@pytest.mark.parametrize(
    ("count", "length", "may_be_lent"),
    [(300, 4096, False), (3, 16384, False), (4, 16384, True), (1, 65536, True), (20, 16383, False)],
)
async def test_replies_in_many_small_pieces_are_not_asked_for_as_lent(
    autojump_clock,  # noqa: ARG001
    as_table,
    count,
    length,
    may_be_lent,
):
    """Each piece would be a system call of its own."""
    nodes = Nodes()
    table = table_of([(0, 0, length)] * count, memory_bytes=count * length)
    await client_of(nodes).read(table if as_table else list(table))
    assert set(nodes.lent) == {Lending.RANGES if may_be_lent else Lending.NOT}


@pytest.mark.parametrize("as_table", [True, False])
@pytest.mark.parametrize(("count", "is_apart"), [(9, True), (1, False)])
async def test_large_replies_are_read_by_threads_of_their_own(
    autojump_clock,  # noqa: ARG001
    monkeypatch,
    as_table,
    count,
    is_apart,
):
    """Those of the process may all wait for what a reply is to bring."""
    monkeypatch.setattr(asked_reads, "APART_BYTES_MIN", 2 * CHUNK)
    monkeypatch.setattr(asked_reads, "APART_PIECE_BYTES_MIN", CHUNK)
    apart = []

    async def run_apart(function, *args):
        await trio.sleep(1)
        apart.append(function(*args))
        return apart[-1]

    async def wait(*_):
        await trio.sleep_forever()

    runtime = replace(
        simulated_runtime(None, 1), run_blocking=wait, own_threads=lambda _: (run_apart, wait)
    )
    client = StorageReads(
        Nodes(), routing=Routing(), runtime=runtime, section=ClientSection(verify_reads=True)
    )
    rows = [(0, n * CHUNK, CHUNK) for n in range(count)]
    table = table_of(rows)
    with trio.fail_after(10):
        await client.read(table if as_table else list(table))
    assert_read(table)
    assert bool(apart) == is_apart and all(apart)

    apart.clear()
    client.adopt(ClientSection(verify_reads=False))
    await client.read(table if as_table else list(table))
    assert not apart, "nothing is lent to who verifies nothing"


def begun(reply, *rows):
    """Return whether a begun read of some rows is done by a reply, and its table."""
    nodes, ended, table = Begun(), [], table_of(rows)
    assert client_of(nodes).begin(table, ended.append, is_relaxed=False)
    nodes.asked[0][1](reply, None)
    (is_done,) = ended
    return is_done, table


@pytest.mark.usefixtures("kernel")
def test_holes_of_a_begun_read_are_zeros_and_told_of():
    is_done, table = begun(reply_of(b"con"), (0, 0, 7))
    assert is_done
    assert bytes(table.view[:7]) == b"con\0\0\0\0"
    assert table[0].hole_bytes == 4
    nothing = reply_of()
    nothing.message.lengths.append(0)
    nothing.message.commit_vers.append(0)
    nothing.message.checksums.append(0)
    nothing.message.failures.add(position=0, status=Status.CHUNK_NOT_FOUND)
    is_done, table = begun(nothing, (0, 0, 7))
    assert is_done
    assert table[0].hole_bytes == 7


@pytest.mark.usefixtures("kernel")
def test_a_begun_read_is_not_done_by_a_reply_that_does_not_fit():
    damaged = reply_of(b"content")
    damaged.message.checksums[0] += 1
    refused = reply_of()
    refused.message.CopyFrom(pb.BatchReadRsp(lengths=[0], commit_vers=[0], checksums=[0]))
    refused.message.failures.add(position=0, status=Status.NOT_SERVING)
    garbled = Received(b"\xff", 7, memoryview(b"content"))
    more, too_much = reply_of(b"content", b"more"), reply_of(b"too much")
    for reply in (None, damaged, refused, garbled, more, too_much):
        assert begun(reply, (0, 0, 7))[0] is False
