"""lookup, list, xattrs, paths, access, batches."""

import pytest

from fs.meta import records
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import Status
from tests.meta.harness import ROOT, refused


async def test_lookup(root, alice):
    d = (await root.mkdir(ROOT, b"d", 0o711)).inode_id
    f = await root.create(d, b"f")
    assert await alice.lookup(d, b"f") == f
    assert (await root.lookup(d, b".")).inode_id == d
    assert (await root.lookup(d, b"..")).inode_id == ROOT
    assert (await root.lookup(ROOT, b"..")).inode_id == ROOT
    with refused(Status.NOT_FOUND, "ENOENT"):
        await root.lookup(d, b"g")
    with refused(Status.NOT_DIRECTORY, "ENOTDIR"):
        await root.lookup(f.inode_id, b"x")
    await root.set_attr(d, mode=0o700)
    with refused(Status.ACCESS_DENIED, "EACCES"):
        await alice.lookup(d, b"f")
    with refused(Status.STALE):
        await root.lookup(0xABCDEF, b"x")


async def test_list_pages_by_name_while_entries_change(root):
    for number in range(10):
        await root.create(ROOT, b"%02d" % number)
    seen, after = [], b""
    while True:
        page = await root.list(ROOT, after=after, entry_count_max=3, with_inodes=True)
        seen.extend(entry.name for entry in page.entries)
        assert all(entry.inode.inode_id == entry.inode_id for entry in page.entries)
        if not page.has_more:
            break
        after = page.entries[-1].name
        if after == b"02":
            await root.unlink(ROOT, b"02")  # the cursor itself goes
            await root.unlink(ROOT, b"07")
            await root.create(ROOT, b"00a")
            await root.create(ROOT, b"08a")
    assert seen == [*[b"%02d" % n for n in range(10) if n != 7][:-1], b"08a", b"09"]
    assert page.parent_inode_id == ROOT


async def test_list_tells_the_directory_as_its_attributes_do_if_it_is_wanted(root):
    d = (await root.mkdir(ROOT, b"d")).inode_id
    await root.mkdir(d, b"sub")
    reply = await root.list(d, wants_directory=True)
    assert reply.directory == await root.attr(d) and reply.directory.nlink == 3
    assert not (await root.list(d)).HasField("directory")


async def test_list_joins_directories_with_their_counts(root, alice):
    d = (await root.mkdir(ROOT, b"d", 0o744)).inode_id
    sub = (await root.mkdir(d, b"sub")).inode_id
    await root.mkdir(sub, b"x")
    entry = (await root.list(d, with_inodes=True)).entries[0]
    assert entry.inode == await root.attr(sub) and entry.inode.nlink == 3
    blind = (await alice.list(d, with_inodes=True)).entries[0]  # may read, not search
    assert not blind.HasField("inode") and blind.type == pb.DIRECTORY
    await root.set_attr(d, mode=0o711)
    with refused(Status.ACCESS_DENIED):
        await alice.list(d)
    with refused(Status.NOT_DIRECTORY):
        await root.list((await root.create(d, b"f")).inode_id)


async def test_list_tells_of_directories_alone_where_names_are_wanted(root, alice):
    d = (await root.mkdir(ROOT, b"d", 0o744)).inode_id
    sub = (await root.mkdir(d, b"sub")).inode_id
    await root.mkdir(sub, b"x")
    for name in (b"a", b"z"):
        await root.create(d, name)
    a, found, z = (await root.list(d, with_directories=True)).entries
    assert (a.name, found.name, z.name) == (b"a", b"sub", b"z")
    assert found.inode == await root.attr(sub) and found.inode.nlink == 3
    assert not a.HasField("inode") and not z.HasField("inode")
    assert (a.type, found.type) == (pb.FILE, pb.DIRECTORY) and a.inode_id
    blind = (await alice.list(d, with_directories=True)).entries  # may read, not search
    assert not any(entry.HasField("inode") for entry in blind)
    every = (await root.list(d, with_directories=True, with_inodes=True)).entries
    assert all(entry.HasField("inode") for entry in every)


@pytest.mark.slow
async def test_a_directory_of_100_000_entries(any_world):
    root = any_world.user()
    count = 100_000
    tr = any_world.engine.transaction()
    await root.create(ROOT, b"model")
    model = (await tr.get_range(b"DENT", b"DENU"))[0]
    # The names all lead to one inode: what is measured is the listing.
    for start in range(0, count, 20_000):
        tr = any_world.engine.transaction()
        for number in range(start, start + 20_000):
            tr.set(model[0][:12] + b"%08d" % number, model[1])
        await tr.commit()
    seen, after, page_count = 0, b"", 0
    while True:
        page = await root.list(ROOT, after=after, entry_count_max=4096)
        assert len(page.entries) <= 4096
        seen += len(page.entries)
        page_count += 1
        if not page.has_more:
            break
        after = page.entries[-1].name
    assert (seen, page_count) == (count + 1, 25)
    tr = any_world.engine.transaction()
    tr.clear_range(model[0][:12] + b"0", model[0][:12] + b"9")
    await tr.commit()


async def xattr(user, how, inode_id, name=b"", **fields):
    types = {
        "set_xattr": meta.SetXattrReq,
        "get_xattr": meta.GetXattrReq,
        "remove_xattr": meta.RemoveXattrReq,
        "list_xattrs": meta.ListXattrsReq,
    }
    if how != "list_xattrs":
        fields["name"] = name
    return await user.call(how, types[how](inode_id=inode_id, **fields))


async def test_who_may_write_may_take_capabilities_away(root, alice):
    """A kernel does so before it writes, in the name of who writes."""
    name = b"security.capability"
    for mode, is_allowed in ((0o644, False), (0o646, True)):
        i = (await root.create(ROOT, b"%o" % mode, mode)).inode_id
        await xattr(root, "set_xattr", i, name, value=b"much")
        await xattr(root, "set_xattr", i, b"security.other", value=b"1")
        for refused_how in ("set_xattr", *(() if is_allowed else ("remove_xattr",))):
            with refused(Status.NOT_PERMITTED):
                await xattr(alice, refused_how, i, name)
        with refused(Status.NOT_PERMITTED):
            await xattr(alice, "remove_xattr", i, b"security.other")
        if is_allowed:
            await xattr(alice, "remove_xattr", i, name)
            with refused(Status.NO_ATTRIBUTE):
                await xattr(root, "get_xattr", i, name)


async def test_xattrs(root, alice):
    f = await root.create(ROOT, b"f", 0o644)
    i = f.inode_id
    await xattr(root, "set_xattr", i, b"user.a", value=b"1")
    assert (await root.attr(i)).ctime_ns > f.ctime_ns
    await xattr(root, "set_xattr", i, b"trusted.t", value=b"")
    await xattr(root, "set_xattr", i, b"security.s", value=b"x" * 65536)
    assert (await xattr(alice, "get_xattr", i, b"user.a")).value == b"1"
    assert list((await xattr(root, "list_xattrs", i)).names) == [
        b"security.s",
        b"trusted.t",
        b"user.a",
    ]
    assert list((await xattr(alice, "list_xattrs", i)).names) == [b"security.s", b"user.a"]
    with refused(Status.NO_ATTRIBUTE, "ENODATA"):
        await xattr(alice, "get_xattr", i, b"trusted.t")
    with refused(Status.EXISTS):
        await xattr(root, "set_xattr", i, b"user.a", mode=meta.XATTR_CREATE)
    with refused(Status.NO_ATTRIBUTE):
        await xattr(root, "set_xattr", i, b"user.b", mode=meta.XATTR_REPLACE)
    with refused(Status.ACCESS_DENIED):
        await xattr(alice, "set_xattr", i, b"user.a", value=b"2")
    for name in (b"trusted.x", b"security.x"):
        with refused(Status.NOT_PERMITTED):
            await xattr(alice, "set_xattr", i, name)
    for name in (b"system.posix_acl_other", b"other", b""):
        with refused(Status.INVALID_ARGUMENT if not name else Status.NOT_SUPPORTED):
            await xattr(root, "set_xattr", i, name)
    with refused(Status.RANGE_TOO_SMALL, "ERANGE"):
        await xattr(root, "set_xattr", i, b"user." + b"n" * 251)
    with refused(Status.ARGUMENT_TOO_LARGE, "E2BIG"):
        await xattr(root, "set_xattr", i, b"user.big", value=b"x" * 65537)
    await xattr(root, "remove_xattr", i, b"user.a")
    with refused(Status.NO_ATTRIBUTE):
        await xattr(root, "remove_xattr", i, b"user.a")
    link = (await root.symlink(ROOT, b"l", b"f")).inode_id
    with refused(Status.NOT_PERMITTED, "EPERM"):
        await xattr(root, "set_xattr", link, b"user.a")
    d = (await root.mkdir(ROOT, b"d", 0o1777)).inode_id
    with refused(Status.NOT_PERMITTED):
        await xattr(alice, "set_xattr", d, b"user.a")
    pipe = (await root.mknod(ROOT, b"p", pb.FIFO, 0o600)).inode_id
    with refused(Status.NO_ATTRIBUTE):
        await xattr(alice, "get_xattr", pipe, b"user.a")


async def test_names_of_attributes_are_bounded_by_what_the_kernel_lists(root):
    d = (await root.mkdir(ROOT, b"d")).inode_id
    names = [b"user.%03d" % number + b"n" * 247 for number in range(255)]
    for name in names:
        await xattr(root, "set_xattr", d, name)
    with refused(Status.NO_SPACE, "ENOSPC"):
        await xattr(root, "set_xattr", d, b"user." + b"m" * 250)
    await xattr(root, "set_xattr", d, names[1], value=b"still")
    listed = (await xattr(root, "list_xattrs", d)).names
    assert list(listed) == names
    assert sum(len(name) + 1 for name in listed) <= 65536 - len("system.posix_acl_default") * 2 - 2


async def test_values_of_attributes_are_bounded(root):
    d = (await root.mkdir(ROOT, b"d")).inode_id
    for number in range(64):
        await xattr(root, "set_xattr", d, b"user.%d" % number, value=bytes(65536))
    with refused(Status.NO_SPACE):
        await xattr(root, "set_xattr", d, b"user.more", value=b"x")
    await xattr(root, "set_xattr", d, b"user.empty")
    await xattr(root, "set_xattr", d, b"user.1", value=b"less")
    await xattr(root, "set_xattr", d, b"user.more", value=b"x")
    with refused(Status.NO_SPACE):
        await xattr(root, "set_xattr", d, b"user.1", value=bytes(65536))


async def resolve(user, path, *, follow_last=True):
    request = meta.ResolvePathReq(path=path, follow_last=follow_last)
    return (await user.call("resolve_path", request)).inode.inode_id


async def test_resolve_path(root, alice):
    a = (await root.mkdir(ROOT, b"a")).inode_id
    b = (await root.mkdir(a, b"b")).inode_id
    f = (await root.create(b, b"f")).inode_id
    link = (await root.symlink(ROOT, b"l", b"a/b")).inode_id
    await root.symlink(b, b"up", b"../../l/f")
    await root.symlink(b, b"abs", b"/a/./b/f")
    await root.symlink(ROOT, b"loop", b"loop")
    for path in (b"/a/b/f", b"a//b/./f", b"/l/f", b"/a/b/up", b"/l/abs", b"/../a/b/../b/f"):
        assert await resolve(root, path) == f, path
    assert await resolve(root, b"/") == await resolve(root, b"/a/..") == ROOT
    assert await resolve(root, b"/l", follow_last=False) == link
    assert await resolve(root, b"/l/", follow_last=False) == b
    with refused(Status.TOO_MANY_SYMLINKS, "ELOOP"):
        await resolve(root, b"/loop")
    with refused(Status.NOT_DIRECTORY):
        await resolve(root, b"/a/b/f/")
    for path in (b"", b"/a/x", b"/x/y"):
        with refused(Status.NOT_FOUND):
            await resolve(root, path)
    with refused(Status.NAME_TOO_LONG):
        await resolve(root, b"/a" * 2049)
    await root.set_attr(a, mode=0o700)
    with refused(Status.ACCESS_DENIED):
        await resolve(alice, b"/l/f")
    path = (await root.call("get_real_path", meta.GetRealPathReq(inode_id=b))).path
    assert path == b"/a/b"
    path = (await root.call("get_real_path", meta.GetRealPathReq(inode_id=ROOT))).path
    assert path == b"/"
    with refused(Status.NOT_DIRECTORY):
        await root.call("get_real_path", meta.GetRealPathReq(inode_id=f))
    with refused(Status.ACCESS_DENIED):
        await alice.call("get_real_path", meta.GetRealPathReq(inode_id=b))
    assert (await alice.call("get_real_path", meta.GetRealPathReq(inode_id=a))).path == b"/a"
    reply = await alice.call("batch_resolve_path", meta.BatchResolvePathReq(paths=[b"/a", b"/a/b"]))
    assert [r.status for r in reply.resolved] == [0, Status.ACCESS_DENIED]
    assert (await alice.usage(b)).directory.path == b""
    assert (await root.usage(b)).directory.path == b"/a/b"


async def test_a_path_is_resolved_only_for_who_may_read_it(root, alice):
    f = (await root.create(ROOT, b"f", 0o600)).inode_id
    await root.create(ROOT, b"g", 0o644)
    await root.symlink(ROOT, b"l", b"f")
    request = meta.ResolvePathReq(path=b"/l", follow_last=True, wants_read=True)
    reply = await root.call("resolve_path", request)
    assert (reply.inode.inode_id, reply.may_read) == (f, True)
    with refused(Status.ACCESS_DENIED):
        await alice.call("resolve_path", request)
    request.wants_read = False
    assert not (await alice.call("resolve_path", request)).may_read
    with refused(Status.TOO_MANY_SYMLINKS):
        await root.call("resolve_path", meta.ResolvePathReq(path=b"/l", wants_read=True))
    many = meta.BatchResolvePathReq(paths=[b"/f", b"/g", b"/x"], follow_last=True, wants_read=True)
    slots = (await alice.call("batch_resolve_path", many)).resolved
    assert [slot.status for slot in slots] == [Status.ACCESS_DENIED, 0, Status.NOT_FOUND]
    assert [slot.may_read for slot in slots] == [False, True, False]
    many.wants_read = False
    slots = (await alice.call("batch_resolve_path", many)).resolved
    assert [(slot.status, slot.may_read) for slot in slots[:2]] == [(0, False)] * 2


async def test_access_and_batches(root, alice):
    f = (await root.create(ROOT, b"f", 0o604)).inode_id
    await alice.call("access", meta.AccessReq(inode_id=f, mask=4))
    for user, mask in ((alice, 2), (alice, 1), (root, 1)):
        with refused(Status.ACCESS_DENIED):
            await user.call("access", meta.AccessReq(inode_id=f, mask=mask))
    await root.call("access", meta.AccessReq(inode_id=f, mask=6))
    reply = await root.call("batch_get_attr", meta.BatchGetAttrReq(inode_ids=[f, 999, ROOT]))
    assert [r.inode.inode_id for r in reply.inodes] == [f, 0, ROOT]
    assert not reply.inodes[1].HasField("inode")
    with refused(Status.RPC_BAD_REQUEST):
        await root.call("batch_get_attr", meta.BatchGetAttrReq(inode_ids=[1] * 5000))


async def test_a_damaged_record_hides_no_other_name(world, root):
    """Names could not be listed where the record of one file could not be read (EINVAL)."""
    d = (await root.mkdir(ROOT, b"d")).inode_id
    ids = {name: (await root.create(d, name)).inode_id for name in (b"a", b"b")}
    ids[b"e"] = (await root.mkdir(d, b"e")).inode_id
    before = await world.dump()
    keys = [records.inode_key(ids[b"a"]), records.inode_key(ids[b"e"])]
    await write(world, dict.fromkeys(keys, b"\xff"))
    for with_inodes, told in ((True, {b"b"}), (False, set())):
        listed = (await root.list(d, with_inodes=with_inodes)).entries
        assert [entry.name for entry in listed] == [b"a", b"b", b"e"]
        assert {entry.name for entry in listed if entry.HasField("inode")} == told
    with refused(Status.METADATA_DAMAGED, "EIO"):
        await root.call("batch_get_attr", meta.BatchGetAttrReq(inode_ids=[*ids.values()]))
    dentry = records.dentry_key(d, b"b")
    await write(world, {dentry: b"\xff"})
    assert await root.names(d) == [b"a", b"b", b"e"]
    with refused(Status.METADATA_DAMAGED, "EIO"):
        await root.lookup(d, b"b")
    await write(world, {key: before[key] for key in (*keys, dentry)})


async def write(world, values) -> None:
    tr = world.engine.transaction()
    for key, value in values.items():
        tr.set(key, value)
    await tr.commit()


async def test_stat_fs(root):
    await root.create(ROOT, b"f")
    await root.mkdir(ROOT, b"d")
    reply = await root.call("stat_fs", meta.StatFsReq())
    assert (reply.capacity_bytes, reply.free_bytes, reply.inode_count) == (1000, 400, 3)


async def test_a_removed_directory_is_told_apart_to_who_knows_of_that(root):
    d = (await root.mkdir(ROOT, b"d")).inode_id
    await root.rmdir(ROOT, b"d")
    never = 0xABCDEF  # as one of which garbage collection has left nothing
    for directory, before in ((d, Status.NOT_FOUND), (never, Status.STALE)):
        with refused(before):
            await root.lookup(directory, b"x")
        with refused(Status.DIRECTORY_REMOVED, "ENOENT"):
            await root.lookup(directory, b"x", tells_removed=True)
    with refused(Status.NOT_FOUND):
        await root.lookup(ROOT, b"x", tells_removed=True)
