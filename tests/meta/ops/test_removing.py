"""unlink, rmdir, remove_tree: what goes, when, and what they refuse."""

import pytest

from fs.meta import permissions, records
from fs.meta.ops import tree_rights
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import Status
from tests.meta.harness import ROOT, refused, session


async def test_unlink_refusals(root, alice):
    d = (await root.mkdir(ROOT, b"d")).inode_id
    await root.create(d, b"f")
    with refused(Status.NOT_FOUND, "ENOENT"):
        await root.unlink(d, b"nothing")
    with refused(Status.IS_DIRECTORY, "EISDIR"):
        await root.unlink(ROOT, b"d")
    for name in (b".", b".."):
        with refused(Status.IS_DIRECTORY, "EISDIR"):
            await root.unlink(d, name)
    with refused(Status.ACCESS_DENIED, "EACCES"):
        await alice.unlink(d, b"f")
    with refused(Status.NOT_DIRECTORY):
        await root.unlink((await root.lookup(d, b"f")).inode_id, b"x")


async def test_sticky_directory(root, alice, bob):
    tmp = (await root.mkdir(ROOT, b"tmp", 0o1777)).inode_id
    await alice.create(tmp, b"a")
    with refused(Status.NOT_PERMITTED, "EPERM"):
        await bob.unlink(tmp, b"a")
    with refused(Status.NOT_PERMITTED, "EPERM"):
        await bob.rename(tmp, b"a", tmp, b"b")
    await bob.create(tmp, b"mine")
    with refused(Status.NOT_PERMITTED, "EPERM"):  # replacing counts as removing
        await bob.rename(tmp, b"mine", tmp, b"a")
    await alice.unlink(tmp, b"a")
    await root.unlink(tmp, b"mine")


async def test_last_link_leaves_an_inode_for_those_who_hold_it(root):
    file = await root.create(ROOT, b"f")
    await root.link(file.inode_id, ROOT, b"g")
    assert (await root.unlink(ROOT, b"f")).nlink == 1
    removed = await root.unlink(ROOT, b"g")
    assert removed.nlink == 0 and removed.ctime_ns > file.ctime_ns
    assert (await root.attr(file.inode_id)).nlink == 0
    await root.open(file.inode_id, wants_read=True)


async def test_keep_session_is_stored_with_the_last_link_only(world, root):
    file = await root.create(ROOT, b"f")
    await root.link(file.inode_id, ROOT, b"g")
    keep = {"keep_session": session(5, is_write=False), "keep_inode_id": file.inode_id}
    await root.unlink(ROOT, b"f", **keep)
    assert not await sessions(world)
    await root.unlink(ROOT, b"g", **keep)
    assert len(await sessions(world)) == 1
    other = await root.create(ROOT, b"h")
    await root.unlink(ROOT, b"h", **keep)  # it was another file than the caller thought
    assert len(await sessions(world)) == 1
    assert other.inode_id != file.inode_id


async def sessions(world):
    tr = world.engine.transaction()
    return await tr.get_range(b"INOS", b"INOT")


async def test_rmdir_rules(root, alice):
    d = (await root.mkdir(ROOT, b"d")).inode_id
    await root.mkdir(d, b"sub")
    await root.create(ROOT, b"f")
    with refused(Status.NOT_EMPTY, "ENOTEMPTY"):
        await root.rmdir(ROOT, b"d")
    with refused(Status.NOT_DIRECTORY, "ENOTDIR"):
        await root.rmdir(ROOT, b"f")
    with refused(Status.INVALID_ARGUMENT, "EINVAL"):
        await root.rmdir(d, b".")
    with refused(Status.NOT_EMPTY, "ENOTEMPTY"):
        await root.rmdir(d, b"..")
    with refused(Status.ACCESS_DENIED):
        await alice.rmdir(ROOT, b"d")
    assert (await root.rmdir(d, b"sub")).nlink == 0
    assert (await root.attr(d)).nlink == 2
    removed = await root.rmdir(ROOT, b"d")
    assert (await root.attr(removed.inode_id)).nlink == 0
    with refused(Status.NOT_FOUND):
        await root.lookup(removed.inode_id, b"..")
    assert await root.names(removed.inode_id) == []


async def test_remove_tree(root, alice, bob):
    home = (await root.mkdir(ROOT, b"home", 0o777)).inode_id
    top = (await alice.mkdir(home, b"t")).inode_id
    sub = (await alice.mkdir(top, b"sub")).inode_id
    await alice.create(sub, b"f")
    with refused(Status.NOT_PERMITTED, "EPERM"):
        await bob.remove_tree(home, b"t")
    with refused(Status.NOT_FOUND):
        await alice.remove_tree(home, b"t", inode_id=top + 1)
    with refused(Status.NOT_DIRECTORY):
        await alice.remove_tree(sub, b"f")
    await alice.remove_tree(home, b"t", inode_id=top)
    assert await root.names(home) == [] and (await root.attr(home)).nlink == 2
    with refused(Status.NOT_FOUND):
        await alice.create(top, b"late")
    with refused(Status.NOT_FOUND):
        await root.call("get_real_path", real_path(sub))
    await alice.create(sub, b"late")  # below: garbage collection takes it too
    with refused(Status.NOT_FOUND):
        await alice.rename(home, b"x", top, b"x")


async def test_a_tree_that_holds_what_its_owner_may_not_remove_stays(root, alice, bob):
    """As `rm -r` leaves it: the owner of a directory may not empty those of others in it."""
    home = (await root.mkdir(ROOT, b"home", 0o777)).inode_id

    async def remove(status: Status) -> None:
        for request in (
            alice.remove_tree(home, b"t"),
            alice.call("move_to_trash", meta.MoveToTrashReq(parent_inode_id=home, name=b"t")),
        ):
            with refused(status):
                await request

    top = (await alice.mkdir(home, b"t", 0o777)).inode_id
    sub = (await alice.mkdir(top, b"sub", 0o777)).inode_id
    theirs = await bob.mkdir(sub, b"theirs", 0o755)
    await bob.create(theirs.inode_id, b"f")
    await remove(Status.ACCESS_DENIED)
    await bob.unlink(theirs.inode_id, b"f")
    await bob.create(sub, b"f")  # alice may, in her directory
    await alice.set_attr(sub, mode=0o1777)
    shared = await bob.mkdir(sub, b"shared", 0o1777)
    await bob.create(shared.inode_id, b"g")
    await remove(Status.NOT_PERMITTED)
    await bob.set_attr(shared.inode_id, mode=0o777)
    g = await root.create(shared.inode_id, b"i")
    await root.set_attr(g.inode_id, iflags=permissions.IMMUTABLE)
    await remove(Status.NOT_PERMITTED)
    await root.set_attr(g.inode_id, iflags=0)
    await alice.set_attr(sub, mode=0o500)  # hers: she could change it
    await alice.remove_tree(home, b"t")


async def test_what_cannot_be_read_keeps_a_tree_from_all_but_root(world, root, alice):
    home = (await root.mkdir(ROOT, b"home", 0o777)).inode_id
    top = (await alice.mkdir(home, b"t")).inode_id
    for name in (b"f", b"g"):
        await alice.create(top, name)
    sound = await world.dump()
    harmed = (
        records.inode_key((await alice.lookup(top, b"g")).inode_id),
        records.dentry_key(top, b"f"),
    )
    for key in harmed:
        await put(world, key, b"\xff")
        with refused(Status.METADATA_DAMAGED):
            await alice.remove_tree(home, b"t")
    await root.remove_tree(home, b"t")
    for key in harmed:
        await put(world, key, sound[key])


async def put(world, key, value):
    tr = world.engine.transaction()
    tr.set(key, value)
    await tr.commit()


async def test_as_much_of_a_tree_is_asked_about_as_takes_little_time(root, alice, bob, monkeypatch):
    monkeypatch.setattr(tree_rights, "DIRECTORIES_MAX", 4)
    home = (await root.mkdir(ROOT, b"home", 0o777)).inode_id
    for depth in (3, 4):
        below = (await alice.mkdir(home, b"t", 0o777)).inode_id
        for _ in range(depth - 1):
            below = (await alice.mkdir(below, b"d", 0o777)).inode_id
        theirs = await bob.mkdir(below, b"theirs", 0o755)
        await bob.create(theirs.inode_id, b"f")
        if depth == 3:
            with refused(Status.ACCESS_DENIED):
                await alice.remove_tree(home, b"t")
            await root.remove_tree(home, b"t")
        else:
            await alice.remove_tree(home, b"t")


def real_path(inode_id):
    return meta.GetRealPathReq(inode_id=inode_id)


@pytest.mark.parametrize(
    ("mode", "is_linked"),
    [(0o666, True), (0o644, False), (0o622, False), (0o4666, False), (0o2676, False)],
)
async def test_what_another_owns_is_linked_only_if_it_may_be_written(root, alice, mode, is_linked):
    """Found by tests/meta/fuzz.py: strangers gave names to files in directories
    that they could not search.
    """
    private = (await root.mkdir(ROOT, b"private", 0o700)).inode_id
    f = (await root.create(private, b"f")).inode_id
    await root.set_attr(f, mode=mode)
    home = (await root.mkdir(ROOT, b"home", 0o777)).inode_id
    if is_linked:
        assert (await alice.link(f, home, b"g")).nlink == 2
        return
    with refused(Status.NOT_PERMITTED, "EPERM"):
        await alice.link(f, home, b"g")
    assert (await root.link(f, home, b"g")).nlink == 2


@pytest.mark.parametrize("flag", [0x10])
async def test_immutable(root, alice, flag):
    d = (await root.mkdir(ROOT, b"d", 0o777)).inode_id
    f = (await alice.create(d, b"f")).inode_id
    with refused(Status.NOT_PERMITTED):
        await alice.set_attr(f, iflags=flag)
    await root.set_attr(f, iflags=flag)
    for attempt in (
        root.unlink(d, b"f"),
        root.rename(d, b"f", d, b"g"),
        root.link(f, d, b"g"),
        root.set_attr(f, mode=0o600),
        root.open(f, wants_write=True, session=session(1)),
    ):
        with refused(Status.NOT_PERMITTED, "EPERM"):
            await attempt
    await root.set_attr(d, iflags=flag)
    with refused(Status.NOT_PERMITTED):
        await root.create(d, b"new")
    with refused(Status.NOT_SUPPORTED):
        await root.set_attr(f, iflags=1)
