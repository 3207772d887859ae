"""Does a successor have the same bytes?  Only what is of the same version can be compared."""

import pytest

from fs.chunkengine.api import ChunkState
from fs.schema.ids import ChunkId, InodeId
from fs.schema.proto import storage_pb2 as pb
from fs.storage.forward import _agrees
from fs.storage.outgoing import Outgoing
from fs.storage.replica import UpdateType

ID = ChunkId(InodeId(5), 0)
PREPARED = ChunkState(ID, 3, 1, 50, 7, 65536, 4, pending_length=100, pending_checksum=9)


@pytest.mark.parametrize(
    ("version", "checksum", "length", "agrees"),
    [(4, 9, 100, True), (4, 8, 100, False), (4, 9, 99, False), (5, 8, 99, True)],
)
def test_digests_of_the_same_version_are_compared(version, checksum, length, agrees):
    reply = pb.UpdateRsp(commit_ver=version, chunk_checksum=checksum, chunk_length=length)
    assert _agrees(reply, Outgoing(ID, UpdateType.WRITE, 4, 0), PREPARED) is agrees


def test_a_removal_leaves_nothing_to_compare():
    reply = pb.UpdateRsp(commit_ver=4)
    assert _agrees(reply, Outgoing(ID, UpdateType.REMOVE, 4, 0), PREPARED)
    assert _agrees(reply, Outgoing(ID, UpdateType.WRITE, 4, 0), None)
