"""What a read makes of the replies: bytes count only when whole, holes are zeros,
replies must fit.
"""

import random

import pytest
from xxhash import xxh3_64_intdigest

from fs.client.asked_reads import _finish_one, finish, scatter
from fs.client.file_read import FileRead, ReadAhead
from fs.client.retry import RetryBudget
from fs.client.routing_math import (
    NEIGHBOUR_BYTES,
    TOGETHER_BYTES,
    Piece,
    cut_reads,
    neighbour_bytes_of,
)
from fs.client.storage_reads import StorageReads
from fs.client.vfs.readahead import BLOCK_BYTES_MAX
from fs.runtime.simulated import simulated_runtime
from fs.schema.config import ClientSection
from fs.schema.ids import ChainId, TargetId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.read_columns import ReadResult
from fs.schema.routing import Chain, ChainTarget, PublicState, RoutingInfo
from fs.schema.status import FsError, Status

from .test_read_table import Routing as Known
from .test_routing_math import CHUNK, THREE, ref


def piece(content: bytes = b"\xffgarbage") -> Piece:
    buffer = memoryview(bytearray(content))
    return Piece(9, 0, 1, 0, buffer, 65536, FileRead(ref(), 0, buffer))


def result_of(content: bytes = b"", *, status: int = 0, detail: str = "") -> ReadResult:
    checksum = xxh3_64_intdigest(content) if content else 0
    return ReadResult(status, len(content), checksum, 1, detail)


def test_whole_bytes_are_taken():
    got = piece(b"content")
    result = result_of(b"content")
    assert _finish_one(got, result) is None
    assert bytes(got.buffer) == b"content"
    assert got.owner.hole_bytes == 0


def test_a_status_of_a_newer_release_is_an_error_as_any():
    error = _finish_one(piece(), result_of(status=60_000, detail="too new"))
    assert error.status is Status.INTERNAL_ERROR
    assert "60000" in error.detail
    assert "too new" in error.detail


def test_changed_bytes_are_refused():
    result = result_of(b"content")
    error = _finish_one(piece(b"contend"), result)
    assert error.status is Status.CHECKSUM_MISMATCH


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        (result_of(status=Status.CHUNK_NOT_FOUND), 0),
        (result_of(), 0),
        (result_of(b"\xffga"), 3),
    ],
)
def test_what_was_never_written_is_zero(result, kept):
    got = piece()
    assert _finish_one(got, result) is None
    assert bytes(got.buffer) == b"\xffgarbage"[:kept] + bytes(8 - kept)
    assert got.owner.hole_bytes == 8 - kept


def test_an_error_is_passed_on():
    error = _finish_one(piece(), result_of(status=Status.IO_ERROR, detail="disk 3"))
    assert error.status is Status.IO_ERROR
    assert "disk 3" in str(error)


@pytest.mark.parametrize(("lengths", "payload_bytes"), [([8], 9), ([9], 9), ([4, 4], 8), ([], 0)])
def test_replies_that_do_not_fit_are_refused(lengths, payload_bytes):
    reply = pb.BatchReadRsp(lengths=lengths)
    with pytest.raises(FsError) as caught:
        scatter([piece().buffer], reply, payload_bytes)
    assert caught.value.status is Status.RPC_BAD_FRAME


def reply_of(*results: ReadResult) -> pb.BatchReadRsp:
    reply = pb.BatchReadRsp()
    for position, result in enumerate(results):
        reply.lengths.append(result.length)
        reply.checksums.append(result.checksum)
        reply.commit_vers.append(result.commit_ver)
        if result.status:
            reply.failures.add(position=position, status=result.status, detail=result.detail)
    return reply


def test_each_read_of_a_batch_has_its_own_outcome():
    pieces = [piece(content) for content in (b"one", b"changed", b"short..", b"hole", b"two")]
    results = [
        result_of(b"one"),
        result_of(b"Changed"),
        result_of(b"short"),
        result_of(status=Status.CHUNK_NOT_FOUND),
        result_of(status=Status.NOT_SERVING, detail="out"),
    ]
    failures = finish(pieces, reply_of(*results))
    assert [(pieces.index(p), e.status) for p, e in failures] == [
        (1, Status.CHECKSUM_MISMATCH),
        (4, Status.NOT_SERVING),
    ]
    assert [bytes(p.buffer) for p in pieces[:4]] == [b"one", b"changed", b"short\0\0", bytes(4)]
    assert [p.owner.hole_bytes for p in pieces] == [0, 0, 2, 4, 0]
    good = reply_of(*(result_of(bytes(p.buffer)) for p in pieces))
    assert not finish(pieces, good)


@pytest.mark.parametrize("column", ["lengths", "checksums", "commit_vers"])
def test_columns_of_other_sizes_are_refused(column):
    reply = reply_of(result_of(b"one"), result_of(b"two"))
    getattr(reply, column).append(1)
    with pytest.raises(FsError, match="RPC_BAD_FRAME"):
        finish([piece(b"one"), piece(b"2..")], reply)


def test_a_reply_without_checksums_is_not_believed():
    reply = reply_of(result_of(b"one"))
    del reply.checksums[:]
    ((_, error),) = finish([piece(b"one")], reply)
    assert error.status is Status.CHECKSUM_MISMATCH


class Routing:
    def __init__(self, *target_ids):
        members = tuple(ChainTarget(TargetId(t), PublicState.SERVING) for t in target_ids)
        self.info = RoutingInfo(1, chains={ChainId(1): Chain(ChainId(1), 1, members)})

    async def refresh(self):
        return self.info


async def test_damage_is_final_only_when_every_replica_has_it(autojump_clock):  # noqa: ARG001
    runtime = simulated_runtime(None, 1)
    client = StorageReads(None, routing=Routing(7, 8, 9), runtime=runtime, section=ClientSection())
    budget = RetryBudget(ClientSection(), runtime)
    avoid, damaged = set(), set()
    order = random.Random(2)

    async def judge(target_id, status):
        got = piece()
        got.target_id = TargetId(target_id)
        return await client._judge([(got, FsError(status))], avoid, damaged, budget)

    assert await judge(7, Status.RPC_TIMEOUT)
    for _ in range(20):
        assert await judge(order.choice([8, 9]), Status.CHECKSUM_MISMATCH)
    assert await judge(7, Status.IO_ERROR)  # its disk failed; the bytes may still be there
    with pytest.raises(FsError, match="CHECKSUM_MISMATCH"):
        await judge(7, Status.CHECKSUM_MISMATCH)


def large_read(count: int) -> tuple[StorageReads, list[Piece]]:
    """Return what plans reads of chains that three nodes hold,
    and the pieces of one read of `count` chunks.
    """
    client = StorageReads(
        None, routing=Known(), runtime=simulated_runtime(None, 1), section=ClientSection()
    )
    owner = FileRead(ref(), 0, memoryview(bytearray(count * CHUNK)))
    return client, cut_reads(THREE, [owner])


def test_neighbours_of_one_read_are_one_request_as_far_as_that_pays():
    client, pieces = large_read(20)
    batches, failures = client._plan(pieces, (), TOGETHER_BYTES)
    assert not failures
    assert [len(batch.pieces) for batch in batches] == [8, 8, 4]
    assert len({batch.node_id for batch in batches}) == 3


def test_what_is_read_ahead_is_one_request_for_each_block():
    (ahead,) = reads = [ReadAhead(ref(), 0, memoryview(bytearray(BLOCK_BYTES_MAX)))]
    client, _ = large_read(1)
    info = THREE
    batches, failures = client._plan(cut_reads(info, reads), (), neighbour_bytes_of(reads))
    assert not failures and len(batches) == 1
    awaited = FileRead(ref(), 0, ahead.buffer)
    assert neighbour_bytes_of([awaited]) == neighbour_bytes_of([ahead, awaited]) == NEIGHBOUR_BYTES
    batches, _ = client._plan(cut_reads(info, [awaited]), (), neighbour_bytes_of([awaited]))
    assert len(batches) == 2


def test_reads_of_others_are_no_neighbours():
    client, _ = large_read(1)
    much = NEIGHBOUR_BYTES // CHUNK
    wanted = [FileRead(ref(), n * CHUNK, memoryview(bytearray(CHUNK))) for n in range(much)]
    batches, _ = client._plan(cut_reads(THREE, wanted), (), NEIGHBOUR_BYTES)
    assert len(batches) > 1


def test_neighbours_go_elsewhere_where_their_node_is_to_be_avoided():
    client, pieces = large_read(4)
    first, _ = client._plan(pieces[:1], ())
    client._start -= 1
    gone = first[0].pieces[0].target_id
    version = THREE.chain(pieces[0].chain_id).chain_version
    batches, failures = client._plan(pieces, {(gone, version)}, 5 * CHUNK)
    assert not failures
    assert gone not in {piece.target_id for batch in batches for piece in batch.pieces}
    assert sum(len(batch.pieces) for batch in batches) == 4
