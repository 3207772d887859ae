"""What a mount learns of directories that were removed elsewhere."""

import pytest

from fs.client.vfs.ports import Caller
from fs.client.vfs.removed import Removed
from fs.schema.ids import ROOT_INODE_ID, VIRTUAL_INODE_ID_MIN
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2
from fs.schema.status import FsError, Status

WORKER = Caller(1000, 1000)
REMOVED, MADE, PARENT = 10, 11, 5


class Core:
    """Meta with a directory that was removed, and another in its place."""

    def __init__(self):
        place = pb.DirectoryPartPb(parent_inode_id=PARENT, name=b"d")
        self.inodes = {
            REMOVED: pb.InodePb(inode_id=REMOVED, type=pb.DIRECTORY, nlink=0, directory=place),
            MADE: pb.InodePb(inode_id=MADE, type=pb.DIRECTORY, nlink=2, directory=place),
            20: pb.InodePb(inode_id=20, type=pb.FILE, nlink=1),
        }
        self.names = {(PARENT, b"d"): MADE, (MADE, b"f"): 20}
        self.failure = None

    async def call(self, method, request):
        assert request.caller.uid == WORKER.uid
        if self.failure is not None:
            raise self.failure
        if method.name == "GetAttr":
            inode = self.inodes.get(request.inode_id)
            if inode is None:
                raise FsError(Status.STALE, f"{request.inode_id}")
            return meta_pb2.InodeRsp(inode=inode)
        found = self.names.get((request.parent_inode_id, request.name))
        if found is None:
            raise FsError(Status.NOT_FOUND, repr(request.name))
        return meta_pb2.InodeRsp(inode=self.inodes[found])


async def test_one_without_a_name_is_removed_and_so_is_one_that_is_forgotten():
    removed = Removed(Core())
    assert await removed.is_removed(REMOVED, WORKER)
    assert await removed.is_removed(12, WORKER)
    assert not await removed.is_removed(MADE, WORKER)


async def test_of_some_nobody_is_asked():
    core = Core()
    core.failure = AssertionError("asked")
    assert not await Removed(core).is_removed(ROOT_INODE_ID, WORKER)
    assert not await Removed(core).is_removed(VIRTUAL_INODE_ID_MIN + 1, WORKER)


async def test_a_name_is_there_again_where_the_new_directory_has_it():
    core = Core()
    removed = Removed(core)
    assert await removed.is_there_again(REMOVED, b"f", WORKER)
    assert not await removed.is_there_again(REMOVED, b"g", WORKER)
    assert not await removed.is_there_again(12, b"f", WORKER)
    del core.names[PARENT, b"d"]
    assert not await removed.is_there_again(REMOVED, b"f", WORKER)


async def test_what_cannot_be_learned_is_raised():
    core = Core()
    core.failure = FsError(Status.RPC_TIMEOUT, "late")
    with pytest.raises(FsError, match="RPC_TIMEOUT"):
        await Removed(core).is_removed(MADE, WORKER)
    with pytest.raises(FsError, match="RPC_TIMEOUT"):
        await Removed(core).is_there_again(REMOVED, b"f", WORKER)
