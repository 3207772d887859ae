"""Append-only files and directories: what the service takes of them, whoever asks and however.

What programs see of it is in tests/posix/test_append_only.py.
"""

import pytest

from fs.schema.inode import APPEND_ONLY, IMMUTABLE
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import Status
from tests.meta.harness import ROOT, hint, inline_report, refused, session

EPERM = Status.NOT_PERMITTED, "EPERM"


@pytest.fixture
def owner(world):
    return world.user(7)


@pytest.fixture
async def place(root):
    """A directory that everybody may write to."""
    inode_id = (await root.mkdir(ROOT, b"place")).inode_id
    await root.set_attr(inode_id, mode=0o777)
    return inode_id


@pytest.fixture
async def file(root, owner, place):
    """An append-only file of the owner."""
    inode_id = (await owner.create(place, b"f", 0o666)).inode_id
    await owner.sync(inode_id, has_new_data=True, length_hint=hint(4))
    await root.set_attr(inode_id, iflags=APPEND_ONLY)
    return inode_id


def opening(number=1, **fields):
    return {"wants_write": True, "session": session(number), **fields}


async def test_only_root_sets_and_takes_it(root, owner, file):
    for flags in (0, IMMUTABLE, APPEND_ONLY):
        with refused(*EPERM):
            await owner.set_attr(file, iflags=flags)
    with refused(Status.NOT_SUPPORTED):
        await root.set_attr(file, iflags=APPEND_ONLY | 0x40)
    assert (await root.attr(file)).iflags == APPEND_ONLY
    await root.set_attr(file, iflags=0)
    await owner.set_attr(file, mode=0o600)


async def test_it_is_opened_for_writing_only_to_append(root, owner, place, file):
    for user in (root, owner):
        for fields in ({}, {"is_truncate": True}, {"is_append": True, "is_truncate": True}):
            with refused(*EPERM):
                await user.open(file, **opening(**fields))
            with refused(*EPERM):
                await user.create(place, b"f", **opening(**fields))
        await user.open(file, wants_read=True)
        await user.open(file, **opening(is_append=True))
        await user.create(place, b"f", **opening(2, is_append=True))
    assert (await owner.attr(file)).file.length == 4


async def test_who_has_not_opened_it_to_append_reports_nothing(world, owner, file):
    """As clients of earlier releases, which do not say how they open it."""
    stranger = world.user(7, client="d" * 32)
    for user in (owner, stranger):
        with refused(Status.ACCESS_DENIED):
            await user.append(file, 3)
        with refused(Status.ACCESS_DENIED):
            await user.sync(file, **inline_report(b"other", 1))
    await owner.open(file, **opening(is_append=True))
    assert (await owner.append(file, 3)).offset == 4
    with refused(Status.ACCESS_DENIED):
        await stranger.append(file, 3)


async def test_a_length_only_grows(owner, file):
    await owner.open(file, **opening(is_append=True))
    for fields in ({"length": 0}, {"length": 9}, {"length": 9, "only_lengthens": True}):
        with refused(*EPERM):
            await owner.set_attr(file, **fields)
    with refused(*EPERM):
        await owner.set_attr(file, length=9, has_open_file=True)
    for length, left in ((2, 4), (9, 9)):
        found = await owner.set_attr(file, length=length, has_open_file=True, only_lengthens=True)
        assert found.file.length == left


async def test_attributes_stay_but_for_times_that_become_now(root, owner, file):
    for user in (root, owner):
        for fields in ({"mode": 0o666}, {"uid": 7}, {"gid": 7}, {"mtime_ns": 1}, {"atime_ns": 1}):
            with refused(*EPERM):
                await user.set_attr(file, **fields)
        with refused(*EPERM):
            await user.set_attr(file, mtime_now=True, mode=0o666)
        for which in ("mtime_now", "atime_now"):  # the other one stays: that is chosen
            with refused(*EPERM):
                await user.set_attr(file, **{which: True})
        await user.set_attr(file, mtime_now=True, atime_now=True)
        await user.set_attr(file)
        for name in (b"user.x", b"system.posix_acl_access"):
            with refused(*EPERM):
                await user.call("set_xattr", meta.SetXattrReq(inode_id=file, name=name))


async def test_its_name_stays_and_it_gets_no_other(root, owner, place, file):
    await owner.create(place, b"other")
    for user in (root, owner):
        with refused(*EPERM):
            await user.unlink(place, b"f")
        with refused(*EPERM):
            await user.link(file, place, b"g")
        with refused(*EPERM):
            await user.call("move_to_trash", meta.MoveToTrashReq(parent_inode_id=place, name=b"f"))
        for old, new, fields in (
            (b"f", b"g", {}),
            (b"other", b"f", {}),
            (b"other", b"f", {"exchange": True}),
            (b"f", b"other", {"exchange": True}),
            (b"f", b"g", {"leaves_whiteout": True}),
        ):
            with refused(*EPERM):
                await user.rename(place, old, place, new, **fields)
    assert await root.names(place) == [b"f", b"other"]


async def test_names_stay_in_a_directory_and_more_are_added(root, owner, place):
    d = (await owner.mkdir(place, b"d", 0o777)).inode_id
    old = (await owner.create(d, b"old")).inode_id
    await owner.mkdir(d, b"sub")
    await owner.create(place, b"other")
    await root.set_attr(d, iflags=APPEND_ONLY)
    for user in (root, owner):
        with refused(*EPERM):
            await user.unlink(d, b"old")
        for call in (user.rmdir, user.remove_tree):
            with refused(*EPERM):
                await call(d, b"sub")
            with refused(*EPERM):
                await call(place, b"d")
        with refused(*EPERM):
            await user.call("move_to_trash", meta.MoveToTrashReq(parent_inode_id=d, name=b"sub"))
        for names in (
            (d, b"old", d, b"new"),
            (d, b"old", place, b"new"),
            (place, b"d", place, b"e"),
        ):
            with refused(*EPERM):
                await user.rename(*names)
        with refused(*EPERM):
            await user.rename(place, b"other", d, b"old")
        with refused(*EPERM):
            await user.set_attr(d, mode=0o700)
    await owner.create(d, b"1")
    await owner.mkdir(d, b"2")
    await owner.symlink(d, b"3", b"x")
    await owner.link(old, d, b"4")
    await owner.rename(place, b"other", d, b"5")
    await owner.open(old, **opening())  # what is in it is not append-only
    assert await root.names(d) == [b"1", b"2", b"3", b"4", b"5", b"old", b"sub"]


@pytest.mark.parametrize("flag", [APPEND_ONLY, IMMUTABLE])
async def test_a_tree_with_one_is_removed_by_nobody(root, owner, place, flag):
    """As by `rm -r`, also of root: who wants to remove it takes the flag away first."""
    for name in (b"one", b"two"):
        tree = (await owner.mkdir(place, name)).inode_id
        below = (await owner.mkdir(tree, b"below")).inode_id
        await owner.create(below, b"f")
        flagged = below if name == b"one" else (await owner.lookup(below, b"f")).inode_id
        await root.set_attr(flagged, iflags=flag)
        for user in (owner, root):
            with refused(*EPERM):
                await user.remove_tree(place, name)
            with refused(*EPERM):
                await user.call(
                    "move_to_trash", meta.MoveToTrashReq(parent_inode_id=place, name=name)
                )
        await root.set_attr(flagged, iflags=0)
        await root.remove_tree(place, name)
