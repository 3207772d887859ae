"""The trash: what goes there, who sees it, what comes back, and what goes for good and when."""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import struct

import trio

from fs.meta import records
from fs.meta.check import check
from fs.schema.ids import TRASH_ROOT_INODE_ID
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import FsError, Status
from tests.meta.harness import ROOT, World, hint, refused, session

HOUR_S = 3600


async def trash(user, parent, name, expire_s=HOUR_S, inode_id=0) -> meta.MoveToTrashRsp:
    request = meta.MoveToTrashReq(
        parent_inode_id=parent, name=name, expire_s=expire_s, inode_id=inode_id
    )
    return await user.call("move_to_trash", request)


async def home_of(root, user) -> int:
    """Return a directory that belongs to a user."""
    made = await root.mkdir(ROOT, b"home%d" % user.uid)
    await root.set_attr(made.inode_id, uid=user.uid, gid=user.gid)
    return made.inode_id


async def marks(world) -> list[bytes]:
    return [key for key in await world.dump() if key.startswith(records.TRASH)]


async def clean(world) -> None:
    while await world.meta.trash.step():
        assert await check(world.engine) == []


async def test_what_is_trashed_lies_in_a_directory_of_its_owner_alone(world, root, alice, bob):
    home = await home_of(root, alice)
    f = await alice.create(home, b"f")
    moved = await trash(alice, home, b"f")
    assert await alice.names(home) == []
    top = await root.lookup(ROOT, b".trash")
    assert (top.inode_id, top.uid, top.mode) == (TRASH_ROOT_INODE_ID, 0, 0o755)
    users = await bob.lookup(TRASH_ROOT_INODE_ID, b"1000")
    assert (users.inode_id, users.uid, users.gid) == (moved.trash_inode_id, 1000, 1000)
    assert users.mode == 0o700
    (entry,) = (await alice.list(users.inode_id)).entries
    assert (entry.name, entry.inode_id) == (b"f", f.inode_id)
    assert (entry.trash.path, entry.trash.uid) == (b"/home1000/f", 1000)
    assert (entry.trash.parent_inode_id, entry.trash.name) == (home, b"f")
    assert entry.trash.due_ns - entry.trash.removed_ns == HOUR_S * 10**9
    with refused(Status.ACCESS_DENIED, "EACCES"):
        await bob.names(users.inode_id)
    with refused(Status.ACCESS_DENIED):
        await bob.lookup(users.inode_id, b"f")


async def test_the_trash_itself_stays_and_users_change_nothing_in_it(world, root, alice):
    home = await home_of(root, alice)
    await alice.mkdir(home, b"d")
    users = (await trash(alice, home, b"d")).trash_inode_id
    with refused(Status.NOT_PERMITTED, "EPERM"):
        await root.rename(ROOT, b".trash", ROOT, b"other")
    with refused(Status.NOT_PERMITTED):
        await root.remove_tree(ROOT, b".trash")
    with refused(Status.NOT_PERMITTED):
        await trash(root, ROOT, b".trash")
    with refused(Status.ACCESS_DENIED, "EACCES"):
        await alice.rename(TRASH_ROOT_INODE_ID, b"1000", home, b"mine")
    with refused(Status.ACCESS_DENIED):
        await trash(alice, TRASH_ROOT_INODE_ID, b"1000")
    with refused(Status.ACCESS_DENIED):
        await alice.mkdir(TRASH_ROOT_INODE_ID, b"1001")
    assert (await root.lookup(TRASH_ROOT_INODE_ID, b"1000")).inode_id == users


async def test_names_that_clash_are_both_kept(world, root):
    long = b"n" * 255
    for name in (b"f", b"f", long, long):
        await root.create(ROOT, name)
        users = (await trash(root, ROOT, name)).trash_inode_id
    names = await root.names(users)
    assert len(names) == 4 and b"f" in names and long in names
    assert all(len(name) <= 255 for name in names)
    origins = sorted(entry.trash.name for entry in (await root.list(users)).entries)
    assert origins == [b"f", b"f", long, long]


async def test_a_rename_brings_it_back_and_nothing_removes_it_later(
    world, root, alice, autojump_clock
):
    home = await home_of(root, alice)
    d = await alice.mkdir(home, b"d")
    await alice.create(d.inode_id, b"inside")
    users = (await trash(alice, home, b"d")).trash_inode_id
    await alice.mkdir(home, b"d")
    with refused(Status.EXISTS, "EEXIST"):
        await alice.rename(users, b"d", home, b"d", no_replace=True)
    await alice.rename(users, b"d", home, b"again", no_replace=True)
    # There and back again under the old name: the old mark means nothing to it.
    await alice.rename(home, b"again", users, b"d")
    await alice.rename(users, b"d", home, b"again")
    await trio.sleep(2 * HOUR_S)
    await clean(world)
    assert await alice.names((await alice.lookup(home, b"again")).inode_id) == [b"inside"]
    await trio.sleep(4 * 24 * HOUR_S)
    await clean(world)
    assert await alice.names(home) == [b"again", b"d"]
    assert await marks(world) == []


async def test_each_goes_when_its_time_is_over_and_no_sooner(world, root, autojump_clock):
    d = await root.mkdir(ROOT, b"d")
    for number in range(3):
        await root.create(d.inode_id, b"%d" % number)
    await root.create(ROOT, b"f")
    await trash(root, ROOT, b"d", expire_s=HOUR_S)
    users = (await trash(root, ROOT, b"f", expire_s=3 * HOUR_S)).trash_inode_id
    await trio.sleep(HOUR_S - 60)
    await clean(world)
    assert await root.names(users) == [b"d", b"f"]
    await trio.sleep(120)
    await clean(world)
    assert await root.names(users) == [b"f"]
    await trio.sleep(2 * HOUR_S)
    await clean(world)
    assert await root.names(users) == []
    while await world.meta.gc.step():
        pass
    await trio.sleep(61)
    while await world.meta.gc.step():
        pass
    with refused(Status.STALE):
        await root.attr(d.inode_id)
    usage = (await root.usage(ROOT)).directory.usage
    assert (usage.files, usage.directories) == (0, 2)  # the trash and root's in it


async def test_what_is_in_the_trash_is_removed_at_once(world, root, alice):
    home = await home_of(root, alice)
    d = await alice.mkdir(home, b"d")
    await alice.mkdir(d.inode_id, b"sub")
    await alice.create(d.inode_id, b"f")
    users = (await trash(alice, home, b"d")).trash_inode_id
    assert (await trash(alice, d.inode_id, b"f")).trash_inode_id == 0
    assert await alice.names(d.inode_id) == [b"sub"]
    reply = await trash(alice, users, b"d")
    assert (reply.trash_inode_id, reply.moved.nlink) == (0, 0)
    assert await alice.names(users) == []


async def test_who_may_not_remove_may_not_trash(world, root, alice, bob):
    home = await home_of(root, alice)
    await alice.create(home, b"f")
    with refused(Status.ACCESS_DENIED, "EACCES"):
        await trash(bob, home, b"f")
    await root.mkdir(ROOT, b"tmp", 0o1777)
    tmp = (await root.lookup(ROOT, b"tmp")).inode_id
    await root.set_attr(tmp, mode=0o1777)
    await alice.create(tmp, b"f")
    with refused(Status.NOT_PERMITTED, "EPERM"):
        await trash(bob, tmp, b"f")
    await root.set_attr(tmp, mode=0o777)
    await alice.mkdir(tmp, b"d")
    with refused(Status.NOT_PERMITTED):
        await trash(bob, tmp, b"d")
    # As with unlink, the file of another may go; to the trash of who removes it.
    users = (await trash(bob, tmp, b"f")).trash_inode_id
    assert (await bob.attr(users)).uid == 1001
    assert (await bob.lookup(users, b"f")).uid == 1000
    with refused(Status.NOT_FOUND):
        await trash(alice, tmp, b"d", inode_id=0x9999)
    with refused(Status.INVALID_ARGUMENT):
        await trash(alice, tmp, b"d", expire_s=31 * 24 * HOUR_S)
    with refused(Status.INVALID_ARGUMENT):
        await trash(alice, tmp, b"..")
    assert await alice.names(tmp) == [b"d"]


async def test_usage_moves_along_and_a_quota_on_the_trash_holds(world, root, alice):
    home = await home_of(root, alice)
    await root.set_quota(home, 0, 2)
    d = await alice.mkdir(home, b"d")
    await alice.create(d.inode_id, b"f")
    with refused(Status.QUOTA_EXCEEDED, "EDQUOT"):
        await alice.create(home, b"g")
    users = (await trash(alice, home, b"d")).trash_inode_id
    assert (await root.usage(home)).directory.usage == meta.UsagePb()
    assert (await alice.usage(users)).directory.usage == meta.UsagePb(files=1, directories=1)
    await alice.create(home, b"g")
    await root.set_quota(users, 0, 2)
    with refused(Status.QUOTA_EXCEEDED):
        await trash(alice, home, b"g")
    assert await alice.names(home) == [b"g"]
    await trash(alice, users, b"d")
    await trash(alice, home, b"g")


async def test_one_of_two_names_is_trashed_and_expires_alone(world, root, autojump_clock):
    f = await root.create(ROOT, b"f")
    await root.link(f.inode_id, ROOT, b"g")
    await trash(root, ROOT, b"f")
    await trash(root, ROOT, b"g", expire_s=3 * HOUR_S)
    await trio.sleep(HOUR_S + 1)
    await clean(world)
    assert (await root.attr(f.inode_id)).nlink == 1
    await trio.sleep(2 * HOUR_S)
    await clean(world)
    assert (await root.attr(f.inode_id)).nlink == 0


async def test_an_open_file_can_be_written_in_the_trash(world, root):
    f = await root.create(ROOT, b"f", wants_write=True, session=session(1))
    await trash(root, ROOT, b"f")
    world.chunks.lengths[f.inode_id] = 10
    await root.close(f.inode_id, session(1).session_id, length_hint=hint(10), has_new_data=True)
    assert (await root.attr(f.inode_id)).file.length == 10


async def test_mv_into_the_trash_is_kept_for_as_long_as_is_configured(world, root, autojump_clock):
    for name in (b"first", b"f", b"g"):
        await root.create(ROOT, name)
    users = (await trash(root, ROOT, b"first")).trash_inode_id
    await root.rename(ROOT, b"f", users, b"f")
    await root.rename(users, b"f", users, b"renamed")
    await root.rename(ROOT, b"g", users, b"first", exchange=True)
    found = {entry.name: entry.trash for entry in (await root.list(users)).entries}
    assert found[b"renamed"].path == b"/f" and found[b"first"].path == b"/g"
    await root.create(users, b"made here")
    await trio.sleep(3 * 24 * HOUR_S + 1)
    await clean(world)
    assert await root.names(users) == [b"made here"]
    assert b"g" in await root.names(ROOT)  # what came out by the exchange


async def test_a_repeat_moves_nothing_twice(world, root):
    await root.create(ROOT, b"f")
    first = world.user(0)
    first.request_id = b"r" * 16
    one = await trash(first, ROOT, b"f")
    await root.create(ROOT, b"f")
    world.meta = world.new_meta()
    first.is_repeat = True
    assert await trash(first, ROOT, b"f") == one
    assert await root.names(ROOT) == [b".trash", b"f"]
    assert await root.names(one.trash_inode_id) == [b"f"]


async def test_a_foreign_name_in_the_way_is_told(world, root):
    await root.mkdir(ROOT, b".trash")
    await root.create(ROOT, b"f")
    with refused(Status.EXISTS) as info:
        await trash(root, ROOT, b"f")
    assert "rename it" in info.value.detail
    await root.rename(ROOT, b".trash", ROOT, b"old")
    await trash(root, ROOT, b"f")


async def test_two_cleaners_remove_each_name_once(world, root, autojump_clock):
    for number in range(20):
        await root.create(ROOT, b"%d" % number)
        await trash(root, ROOT, b"%d" % number)
    await trio.sleep(HOUR_S + 1)
    done = []
    for meta_service in (world.meta, world.new_meta()):
        expire = meta_service.trash._expire

        async def counted(key, expire=expire):
            if await expire(key):
                done.append(key)
            return True

        meta_service.trash._expire = counted
        world.cleaners = [*getattr(world, "cleaners", []), meta_service.trash]
    async with trio.open_nursery() as nursery:
        for cleaner in world.cleaners:
            nursery.start_soon(cleaner.step)
    assert len(done) == len(set(done)) == 20
    assert await marks(world) == []


async def test_a_name_that_cannot_be_removed_holds_up_no_other(world, root, autojump_clock):
    for name in (b"bad", b"good"):
        await root.create(ROOT, name)
        users = (await trash(root, ROOT, name)).trash_inode_id
    await trio.sleep(HOUR_S + 1)
    expire = world.meta.trash._expire
    failing = {b"bad"}

    async def fails(key):
        if records.trash_parts(key)[2] in failing:
            raise FsError(Status.KV_CONFLICT, "changed all the time")
        return await expire(key)

    world.meta.trash._expire = fails
    assert await world.meta.trash.step() == 1
    assert await root.names(users) == [b"bad"]
    failing.clear()
    assert await world.meta.trash.step() == 1
    assert await root.names(users) == []


async def test_a_store_that_is_away_is_not_asked_for_each_name(world, root, autojump_clock):
    for number in range(5):
        await root.create(ROOT, b"%d" % number)
        await trash(root, ROOT, b"%d" % number)
    await trio.sleep(HOUR_S + 1)
    asked = []

    async def away(key):
        asked.append(key)
        raise FsError(Status.KV_UNAVAILABLE, "away")

    world.meta.trash._expire = away
    with refused(Status.KV_UNAVAILABLE):
        await world.meta.trash.step()
    assert len(asked) == 3


async def test_low_space_empties_what_is_due_first_if_configured(open_lab, autojump_clock):
    world = World(await open_lab(), trash_free_fraction_min=0.5)  # 400 of 1000 are free
    await world.initialise()
    root = world.user(0)
    for name, hours in ((b"a", 3), (b"b", 1), (b"c", 2)):
        await root.create(ROOT, name)
        users = (await trash(root, ROOT, name, expire_s=hours * HOUR_S)).trash_inode_id
    assert await world.meta.trash.step() == 1
    assert await root.names(users) == [b"a", b"c"]


async def test_by_default_low_space_empties_nothing(world, root):
    await root.create(ROOT, b"f")
    users = (await trash(root, ROOT, b"f")).trash_inode_id
    assert await world.meta.trash.step() == 0
    assert await root.names(users) == [b"f"]
    assert (await root.lookup(users, b"f")).type == pb.FILE


async def test_a_tree_of_a_removed_directory_is_not_trashed(world, root):
    d = await root.mkdir(ROOT, b"d")
    await root.mkdir(d.inode_id, b"sub")
    await root.create((await root.lookup(d.inode_id, b"sub")).inode_id, b"f")
    sub = (await root.lookup(d.inode_id, b"sub")).inode_id
    await root.remove_tree(ROOT, b"d")
    with refused(Status.NOT_FOUND):
        await trash(root, sub, b"f")


async def test_a_default_access_list_of_the_root_opens_no_trash(world, root, alice, bob):
    entries = ((1, 7, 0), (2, 7, bob.uid), (4, 7, 0), (0x10, 7, 0), (0x20, 7, 0))
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    request = meta.SetXattrReq(inode_id=ROOT, name=b"system.posix_acl_default", value=value)
    await root.call("set_xattr", request)
    home = await home_of(root, alice)
    await alice.create(home, b"f")
    users = (await trash(alice, home, b"f")).trash_inode_id
    for inode_id, mode in ((TRASH_ROOT_INODE_ID, 0o755), (users, 0o700)):
        found = await root.attr(inode_id)
        assert found.mode == mode and not found.HasField("acl")
        assert not found.directory.HasField("default_acl")
    with refused(Status.ACCESS_DENIED):
        await bob.lookup(users, b"f")


async def test_a_trash_that_is_no_directory(world, root, alice):
    """Root may put anything there; nothing may come to lie in a file."""
    d = (await root.mkdir(ROOT, b"open", 0o777)).inode_id
    await alice.create(d, b"f")
    await root.create(d, b"g")
    await trash(root, d, b"g")
    top = (await root.lookup(ROOT, b".trash")).inode_id
    await root.create(top, b"1000")
    with refused(Status.EXISTS):
        await trash(alice, d, b"f")
    assert await root.names(d) == [b"f"]
    await root.unlink(top, b"1000")
    await trash(alice, d, b"f")
    assert await check(world.engine) == []
