"""MakeDirectories: all that is missing of a path, or nothing."""

import pytest
import trio

from fs.kv.faulty import Fate, ScriptedFaults
from fs.meta.check import check
from fs.meta.ops.make_directories import NEW_COUNT_MAX
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import Status
from tests.meta.harness import ROOT, refused
from tests.posix.acl import DEFAULT
from tests.posix.acl import acl as value_of


async def test_makes_what_is_missing(world, root):
    a = (await root.mkdir(ROOT, b"a")).inode_id
    made = await root.makedirs(ROOT, b"/a//b/./c/d/")
    assert len(made.made_inode_ids) == 3
    b = await root.lookup(a, b"b")
    c = await root.lookup(b.inode_id, b"c")
    d = await root.lookup(c.inode_id, b"d")
    assert list(made.made_inode_ids) == [b.inode_id, c.inode_id, d.inode_id]
    assert made.inode == d
    assert [i.nlink for i in (b, c, d)] == [3, 3, 2]
    usages = [(await root.usage(i)).directory.usage.directories for i in (ROOT, a, b.inode_id)]
    assert usages == [4, 3, 2]
    again = await root.makedirs(a, b"b/c/d")
    assert again.inode.inode_id == d.inode_id and not again.made_inode_ids
    assert (await root.makedirs(a, b"")).inode.inode_id == a
    assert (await root.makedirs(ROOT, b"/")).inode.inode_id == ROOT
    assert (await root.makedirs(a, b"b/../e")).inode.directory.parent_inode_id == a
    assert await check(world.engine) == []


async def test_refusals_change_nothing(world, root, alice):
    a = (await root.mkdir(ROOT, b"a")).inode_id
    await root.create(a, b"f")
    await root.symlink(a, b"nowhere", b"none/x")
    await root.symlink(a, b"here", b".")
    before = await world.dump()
    for path, status in {
        b"a/f": Status.EXISTS,
        b"a/f/x": Status.NOT_DIRECTORY,
        b"a/nowhere": Status.NOT_FOUND,
        b"a/nowhere/y": Status.NOT_FOUND,
        b"a/x/../y": Status.NOT_FOUND,
        b"a/x/" + b"n" * 256: Status.NAME_TOO_LONG,
        b"a/" + b"x/" * 2100: Status.NAME_TOO_LONG,
        b"a/" + b"x/" * (NEW_COUNT_MAX + 1): Status.ARGUMENT_TOO_LARGE,
        b"a/x/\x00": Status.INVALID_ARGUMENT,
    }.items():
        with refused(status):
            await root.makedirs(ROOT, path)
    with refused(Status.ACCESS_DENIED):
        await alice.makedirs(ROOT, b"a/x/y")
    with refused(Status.STALE):
        await root.makedirs(0x999, b"x")
    after = await world.dump()
    assert {k for k in after if after[k] != before.get(k)} <= {
        k for k in after if b"inode-ids" in k
    }
    await root.makedirs(ROOT, b"a/here/x")
    assert await root.names(a) == [b"f", b"here", b"nowhere", b"x"]
    made = await root.makedirs(ROOT, b"a/" + b"y/" * NEW_COUNT_MAX)
    assert len(made.made_inode_ids) == NEW_COUNT_MAX


async def test_a_quota_counts_all_of_them_or_none(root):
    a = (await root.mkdir(ROOT, b"a")).inode_id
    await root.set_quota(a, 0, 3)
    with refused(Status.QUOTA_EXCEEDED):
        await root.makedirs(a, b"b/c/d/e")
    assert await root.names(a) == []
    await root.makedirs(a, b"b/c/d")
    assert (await root.usage(a)).directory.usage.directories == 3


async def test_modes_owners_and_lists(root, alice):
    a = (await root.mkdir(ROOT, b"a", 0o2777)).inode_id
    made = await alice.makedirs(a, b"b/c/d", 0o555, umask=0o222)
    modes = [(await root.attr(i)).mode for i in made.made_inode_ids]
    assert modes == [0o2755, 0o2755, 0o2555]
    assert {((await root.attr(i)).uid, (await root.attr(i)).gid) for i in made.made_inode_ids} == {
        (1000, 0)
    }
    default = value_of(7, 5, 0, 7, [(1001, 7)])
    request = meta.SetXattrReq(inode_id=a, name=DEFAULT.encode(), value=default)
    await root.call("set_xattr", request)
    made = await alice.makedirs(a, b"e/f", 0o777, umask=0o777)
    for inode_id in made.made_inode_ids:
        inode = await root.attr(inode_id)
        assert inode.mode == 0o2770
        assert [u.id for u in inode.acl.users] == [1001]
        assert inode.directory.HasField("default_acl")


async def test_two_at_once_share_what_both_want(world):
    async def make(user, path):
        replies.append(await user.makedirs(ROOT, path))

    for _ in range(5):
        replies: list = []
        world.engine.faults = ScriptedFaults([Fate.CONFLICT, Fate.UNKNOWN_COMMITTED])
        async with trio.open_nursery() as nursery:
            for number in range(4):
                user = world.user(client=f"{number:032x}")
                nursery.start_soon(make, user, b"a/b/%d" % (number % 2))
        world.engine.faults = None
        made = [i for reply in replies for i in reply.made_inode_ids]
        assert len(made) == len(set(made)) == 4
        assert await check(world.engine) == []
        await world.user().remove_tree(ROOT, b"a")


@pytest.mark.parametrize("is_before", [True, False])
async def test_a_directory_that_is_moved_meanwhile(root, is_before):
    a = (await root.mkdir(ROOT, b"a")).inode_id
    b = (await root.mkdir(a, b"b")).inode_id
    if is_before:
        await root.rename(a, b"b", ROOT, b"moved")
        await root.makedirs(ROOT, b"a/b/c")
        assert await root.names(b) == []
    else:
        await root.makedirs(ROOT, b"a/b/c")
        await root.rename(a, b"b", ROOT, b"moved")
        assert await root.names(b) == [b"c"]
