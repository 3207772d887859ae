"""create, mkdir, mknod, symlink, link: what they make, and what they refuse."""

import pytest

from fs.schema.proto import common_pb2 as pb
from fs.schema.proto.common_pb2 import LayoutPb
from fs.schema.status import Status
from tests.meta.harness import ROOT, refused, session

MAKERS = ["create", "mkdir", "mknod", "symlink", "link"]


async def make(user, how, parent, name, donor=0):
    if how == "create":
        return await user.create(parent, name, is_exclusive=True)
    if how == "mkdir":
        return await user.mkdir(parent, name)
    if how == "mknod":
        return await user.mknod(parent, name, pb.FIFO)
    if how == "symlink":
        return await user.symlink(parent, name, b"target")
    return await user.link(donor, parent, name)


@pytest.mark.parametrize("how", MAKERS)
async def test_refusals_common_to_all(root, alice, how):
    donor = (await root.create(ROOT, b"donor")).inode_id
    await root.create(ROOT, b"taken")
    with refused(Status.EXISTS, "EEXIST"):
        await make(root, how, ROOT, b"taken", donor)
    for name in (b"", b"a/b", b"a\x00b"):
        with refused(Status.INVALID_ARGUMENT, "EINVAL"):
            await make(root, how, ROOT, name, donor)
    with refused(Status.NAME_TOO_LONG, "ENAMETOOLONG"):
        await make(root, how, ROOT, b"n" * 256, donor)
    for name in (b".", b".."):
        with refused(Status.EXISTS, "EEXIST"):
            await make(root, how, ROOT, name, donor)
    with refused(Status.NOT_DIRECTORY, "ENOTDIR"):
        await make(root, how, donor, b"x", donor)
    with refused(Status.STALE, "ESTALE"):
        await make(root, how, 0xFFFF, b"x", donor)
    with refused(Status.ACCESS_DENIED, "EACCES"):
        await make(alice, how, ROOT, b"x", donor)
    with refused(Status.EXISTS, "EEXIST"):  # before the question of permission, as in Linux
        await make(alice, how, ROOT, b"taken", donor)
    closed = (await root.mkdir(ROOT, b"closed", 0o766)).inode_id
    with refused(Status.ACCESS_DENIED, "EACCES"):
        await make(alice, how, closed, b"x", donor)
    gone = (await root.mkdir(ROOT, b"gone")).inode_id
    await root.rmdir(ROOT, b"gone")
    with refused(Status.NOT_FOUND, "ENOENT"):
        await make(root, how, gone, b"x", donor)
    await make(root, how, ROOT, b"n" * 255, donor)


async def test_parent_times_and_link_counts(root):
    before = await root.attr(ROOT)
    assert before.nlink == 2
    child = await root.mkdir(ROOT, b"d")
    after = await root.attr(ROOT)
    assert (child.nlink, after.nlink) == (2, 3)
    assert after.mtime_ns == after.ctime_ns > before.ctime_ns
    made = await root.create(child.inode_id, b"f")
    assert made.nlink == 1
    assert (await root.attr(child.inode_id)).nlink == 2
    assert (await root.lookup(child.inode_id, b"..")).nlink == 3
    assert made.atime_ns == made.mtime_ns == made.ctime_ns == made.btime_ns > 0


async def test_setgid_directory_passes_on_its_group(root, alice):
    shared = await root.mkdir(ROOT, b"s", 0o3777)
    await root.set_attr(shared.inode_id, gid=500, mode=0o2777)
    sub = await alice.mkdir(shared.inode_id, b"sub", 0o755)
    assert (sub.gid, sub.mode) == (500, 0o2755)
    file = await alice.create(shared.inode_id, b"f", 0o2755)
    assert (file.gid, file.mode) == (500, 0o755)  # not alice's group: no set-group-id program
    plain = await alice.mknod(shared.inode_id, b"p", pb.FIFO, 0o2644)
    assert plain.mode == 0o2644


async def test_layouts_are_inherited_from_the_nearest_directory(root):
    own = LayoutPb(table_id=1, chunk_size_bytes=1 << 18, stripe_size=2)
    sub = await root.mkdir(ROOT, b"d", default_layout=own)
    deep = await root.mkdir(sub.inode_id, b"deep")
    first = (await root.create(deep.inode_id, b"f")).file
    second = (await root.create(deep.inode_id, b"g")).file
    assert (first.layout.chunk_size_bytes, first.layout.stripe_size) == (1 << 18, 2)
    assert first.layout.table_version == 1 and first.dyn_stripe == 1
    assert (first.layout.first_chain_index + 1) % 4 == second.layout.first_chain_index
    assert first.layout.shuffle_seed != second.layout.shuffle_seed
    top = (await root.create(ROOT, b"f")).file.layout
    assert (top.chunk_size_bytes, top.stripe_size) == (1 << 20, 4)  # cut to the table
    given = LayoutPb(table_id=1, chunk_size_bytes=1 << 16, stripe_size=1)
    assert (await root.create(ROOT, b"h", layout=given)).file.layout.chunk_size_bytes == 1 << 16
    for bad in (LayoutPb(table_id=1, chunk_size_bytes=1000, stripe_size=1), LayoutPb(table_id=1)):
        with refused(Status.INVALID_ARGUMENT):
            await root.create(ROOT, b"bad", layout=bad)
        with refused(Status.INVALID_ARGUMENT):
            await root.mkdir(ROOT, b"bad", default_layout=bad)
    unknown = LayoutPb(table_id=9, chunk_size_bytes=1 << 16, stripe_size=1)
    with refused(Status.CHAIN_TABLE_UNKNOWN):
        await root.create(ROOT, b"bad", layout=unknown)


async def test_create_opens_what_exists(world, root, alice):
    d = (await root.mkdir(ROOT, b"d", 0o777)).inode_id
    made = await alice.create_rsp(d, b"f", 0o600)
    assert made.was_created
    again = await alice.create_rsp(d, b"f", 0o777)
    assert not again.was_created and again.inode == made.inode
    with refused(Status.ACCESS_DENIED):
        await world.user(7).create(d, b"f", wants_read=True)
    with refused(Status.EXISTS):
        await alice.create(d, b"f", is_exclusive=True)
    await root.mkdir(d, b"sub")
    with refused(Status.IS_DIRECTORY, "EISDIR"):
        await alice.create(d, b"sub")
    with refused(Status.IS_DIRECTORY):
        await alice.create(d, b".")
    await root.symlink(d, b"l", b"f")
    with refused(Status.EXISTS):
        await alice.create(d, b"l")
    # The mode of a new file does not bind the one who makes it.
    fresh = await alice.create(d, b"ro", 0o444, wants_write=True, session=session(1))
    assert fresh.mode == 0o444
    with refused(Status.ACCESS_DENIED):
        await alice.create(d, b"ro", wants_write=True, session=session(2))
    with refused(Status.INVALID_ARGUMENT):
        await alice.create(d, b"nosession", wants_write=True)
    await alice.close(fresh.inode_id, session(1).session_id)


async def test_mknod_types(root, alice):
    d = (await root.mkdir(ROOT, b"d", 0o777)).inode_id
    assert (await root.mknod(d, b"c", pb.CHAR_DEVICE, rdev=0x105)).rdev == 0x105
    for type_ in (pb.FIFO, pb.SOCKET):
        assert (await alice.mknod(d, b"%d" % type_, type_)).type == type_
    file = await alice.mknod(d, b"f", pb.FILE)
    assert file.file.layout.chunk_size_bytes and file.file.dyn_stripe == 1
    with refused(Status.NOT_PERMITTED, "EPERM"):
        await alice.mknod(d, b"b", pb.BLOCK_DEVICE)
    with refused(Status.NOT_PERMITTED, "EPERM"):
        await alice.mknod(d, b"b", pb.CHAR_DEVICE, rdev=0x105)
    whiteout = await alice.mknod(d, b"w", pb.CHAR_DEVICE, 0)
    assert (whiteout.rdev, whiteout.uid) == (0, alice.uid)
    for type_ in (pb.DIRECTORY, pb.SYMLINK, pb.TYPE_NONE):
        with refused(Status.INVALID_ARGUMENT):
            await root.mknod(d, b"x", type_)


async def test_symlink_targets(root):
    made = await root.symlink(ROOT, b"l", b"../x" * 3)
    assert (made.symlink_target, made.mode) == (b"../x" * 3, 0o777)
    with refused(Status.NOT_FOUND, "ENOENT"):
        await root.symlink(ROOT, b"e", b"")
    with refused(Status.NAME_TOO_LONG):
        await root.symlink(ROOT, b"e", b"x" * 4096)


async def test_link_rules(root):
    file = await root.create(ROOT, b"f")
    linked = await root.link(file.inode_id, ROOT, b"g")
    assert linked.nlink == 2 and linked.ctime_ns > file.ctime_ns
    d = await root.mkdir(ROOT, b"d")
    with refused(Status.NOT_PERMITTED, "EPERM"):
        await root.link(d.inode_id, ROOT, b"h")
    await root.unlink(ROOT, b"f")
    await root.unlink(ROOT, b"g")
    with refused(Status.NOT_FOUND, "ENOENT"):
        await root.link(file.inode_id, ROOT, b"back")
    with refused(Status.STALE):
        await root.link(0xDEAD, ROOT, b"h")


async def test_too_many_links(root, monkeypatch):
    monkeypatch.setattr("fs.meta.ops.link.NLINK_MAX", 2)
    file = await root.create(ROOT, b"f")
    await root.link(file.inode_id, ROOT, b"g")
    with refused(Status.TOO_MANY_LINKS, "EMLINK"):
        await root.link(file.inode_id, ROOT, b"h")
