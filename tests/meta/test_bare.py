"""Attributes tell that there are no extended ones:
never where there are, whatever release has set them.
"""

import pytest

from fs.kv.transact import transact
from fs.meta import records
from fs.schema.ids import ROOT_INODE_ID
from fs.schema.inode import is_bare
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from tests.meta.harness import ROOT, session
from tests.posix.acl import FULL

NAME = b"security.label"


async def set_label(user, inode_id, name=NAME, value=b"x"):
    await user.call("set_xattr", meta.SetXattrReq(inode_id=inode_id, name=name, value=value))


async def told(user, inode_id):
    """Return whether an object is bare, in which all ways of asking agree."""
    asked = await user.attr(inode_id)
    batch = await user.call("batch_get_attr", meta.BatchGetAttrReq(inode_ids=[inode_id]))
    listing = await user.list(ROOT, with_inodes=True)
    listed = [entry.inode for entry in listing.entries if entry.inode_id == inode_id]
    found = {is_bare(inode) for inode in (asked, batch.inodes[0].inode, *listed)}
    assert len(found) == 1 and len(listed) == 1
    return found.pop()


async def make(user, kind):
    if kind == "file":
        return (await user.create(ROOT, b"x")).inode_id
    if kind == "directory":
        return (await user.mkdir(ROOT, b"x")).inode_id
    return (await user.symlink(ROOT, b"x", b"there")).inode_id


@pytest.mark.parametrize("kind", ["file", "directory", "symlink"])
async def test_from_the_making_until_one_is_set_and_again_after_the_last_is_removed(root, kind):
    inode_id = await make(root, kind)
    assert await told(root, inode_id)
    await root.set_attr(inode_id, uid=5)
    assert await told(root, inode_id)
    await set_label(root, inode_id)
    await set_label(root, inode_id, b"trusted.other")
    assert not await told(root, inode_id)
    await root.set_attr(inode_id, uid=6)
    assert not await told(root, inode_id)
    for name, is_last in ((NAME, False), (b"trusted.other", True)):
        await root.call("remove_xattr", meta.RemoveXattrReq(inode_id=inode_id, name=name))
        assert await told(root, inode_id) is is_last


async def test_it_outlives_what_else_changes_a_file(root):
    inode_id = (await root.create(ROOT, b"x", wants_write=True, session=session(1))).inode_id
    now_ns = (await root.attr(inode_id)).ctime_ns
    await root.sync(inode_id, has_new_data=True, mtime_ns=now_ns + 1)
    assert await told(root, inode_id)
    await root.close(inode_id, session(1).session_id)
    await root.link(inode_id, ROOT, b"y")
    await root.unlink(ROOT, b"y")
    await root.rename(ROOT, b"x", ROOT, b"z")
    await set_label(root, inode_id, b"system.posix_acl_access", FULL)
    assert await told(root, inode_id)
    assert (await root.attr(inode_id)).HasField("acl")


async def test_it_outlives_changes_of_names_in_a_directory(root):
    inode_id = await make(root, "directory")
    await root.create(inode_id, b"f")
    await root.mkdir(inode_id, b"d")
    assert await told(root, inode_id)
    reply = await root.rename(inode_id, b"f", inode_id, b"g")
    assert [is_bare(directory) for directory in reply.directories] == [True]
    assert is_bare(await root.attr(ROOT_INODE_ID))


@pytest.mark.parametrize("kind", ["file", "directory"])
async def test_a_release_that_knows_nothing_of_it_cannot_make_it_wrong(world, root, kind):
    """It keeps the field as it is, and lets ctime grow; a directory's also where its times are."""
    inode_id = await make(root, kind)

    async def as_earlier(tr):
        inode = pb.InodePb.FromString(await tr.get(records.inode_key(inode_id)))
        if kind == "directory":
            times = await tr.get(records.directory_times_key(inode_id))
            inode.mtime_ns, inode.ctime_ns = records.unpack_times(times)
        inode.ctime_ns += 1
        if kind == "directory":
            times = records.pack_times(inode.mtime_ns, inode.ctime_ns)
            tr.set(records.directory_times_key(inode_id), times)
        tr.set(records.inode_key(inode_id), inode.SerializeToString())
        tr.set(records.xattr_key(inode_id, NAME), b"x")

    if kind == "directory":
        await root.create(inode_id, b"f")
    await transact(world.engine, as_earlier, runtime=world.runtime)
    assert not await told(root, inode_id)
    await root.set_attr(inode_id, uid=5)
    if kind == "directory":
        await root.create(inode_id, b"g")
    assert not await told(root, inode_id)


async def test_what_an_earlier_release_made_is_not_told_of(world, root):
    inode_id = await make(root, "file")

    async def forget(tr):
        inode = pb.InodePb.FromString(await tr.get(records.inode_key(inode_id)))
        inode.ClearField("bare_ctime_ns")
        tr.set(records.inode_key(inode_id), inode.SerializeToString())

    await transact(world.engine, forget, runtime=world.runtime)
    await root.set_attr(inode_id, uid=5)
    assert not await told(root, inode_id)
