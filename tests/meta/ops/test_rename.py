"""rename: the replace table, the flags, loops, permissions, and what else must change with it."""

import itertools

import pytest
import trio

from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import FsError, Status
from tests.meta.harness import ROOT, refused, session

KINDS = ["file", "symlink", "empty", "full", "none"]


async def build(user, kind, name):
    if kind == "file":
        return (await user.create(ROOT, name)).inode_id
    if kind == "symlink":
        return (await user.symlink(ROOT, name, b"t")).inode_id
    if kind in ("empty", "full"):
        made = (await user.mkdir(ROOT, name)).inode_id
        if kind == "full":
            await user.create(made, b"inner")
        return made
    return 0


def expected_status(source, target, mode):
    if source == "none":
        return Status.NOT_FOUND
    if mode == "exchange":
        return Status.NOT_FOUND if target == "none" else None
    if target == "none":
        return None
    if mode == "no_replace":
        return Status.EXISTS
    is_directory = source in ("empty", "full")
    if target in ("empty", "full"):
        if not is_directory:
            return Status.IS_DIRECTORY
        return Status.NOT_EMPTY if target == "full" else None
    return Status.NOT_DIRECTORY if is_directory else None


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["replace", "no_replace", "exchange"])
@pytest.mark.parametrize(("source", "target"), list(itertools.product(KINDS, KINDS)))
async def test_every_pair_of_kinds(root, source, target, mode):
    source_id = await build(root, source, b"s")
    target_id = await build(root, target, b"t")
    flags = {} if mode == "replace" else {mode: True}
    status = expected_status(source, target, mode)
    if status is not None:
        with refused(status):
            await root.rename(ROOT, b"s", ROOT, b"t", **flags)
        return
    reply = await root.rename(ROOT, b"s", ROOT, b"t", **flags)
    assert reply.moved.inode_id == source_id
    assert (await root.lookup(ROOT, b"t")).inode_id == source_id
    assert reply.HasField("replaced") == (target != "none")
    if mode == "exchange":
        assert (await root.lookup(ROOT, b"s")).inode_id == target_id
        assert reply.replaced.nlink
    else:
        assert await root.names(ROOT) == [b"t"]
        assert target == "none" or reply.replaced.nlink == 0


async def test_moving_a_directory_changes_parent_counts_and_times(root):
    a = (await root.mkdir(ROOT, b"a")).inode_id
    b = (await root.mkdir(ROOT, b"b")).inode_id
    d = await root.mkdir(a, b"d")
    moved = (await root.rename(a, b"d", b, b"e")).moved
    assert (moved.directory.parent_inode_id, moved.directory.name) == (b, b"e")
    assert moved.ctime_ns > d.ctime_ns and moved.mtime_ns == d.mtime_ns
    assert [(await root.attr(i)).nlink for i in (a, b)] == [2, 3]
    assert (await root.lookup(d.inode_id, b"..")).inode_id == b
    times = [(await root.attr(i)).mtime_ns for i in (a, b)]
    assert times[0] == times[1] == moved.ctime_ns
    reply = await root.call("get_real_path", meta.GetRealPathReq(inode_id=d.inode_id))
    assert reply.path == b"/b/e"


async def test_exchange_across_directories(root):
    a = (await root.mkdir(ROOT, b"a")).inode_id
    b = (await root.mkdir(ROOT, b"b")).inode_id
    d = (await root.mkdir(a, b"d")).inode_id
    f = (await root.create(b, b"f")).inode_id
    await root.rename(a, b"d", b, b"f", exchange=True)
    assert (await root.lookup(a, b"d")).inode_id == f
    assert (await root.lookup(b, b"f")).inode_id == d
    assert [(await root.attr(i)).nlink for i in (a, b)] == [2, 3]
    assert (await root.lookup(d, b"..")).inode_id == b


async def test_loops_are_refused(root):
    a = (await root.mkdir(ROOT, b"a")).inode_id
    b = (await root.mkdir(a, b"b")).inode_id
    c = (await root.mkdir(b, b"c")).inode_id
    for goal in (a, b, c):
        with refused(Status.INVALID_ARGUMENT, "EINVAL"):
            await root.rename(ROOT, b"a", goal, b"x")
    with refused(Status.INVALID_ARGUMENT, "EINVAL"):
        await root.rename(ROOT, b"a", b, b"c", exchange=True)
    with refused(Status.INVALID_ARGUMENT, "EINVAL"):
        await root.rename(b, b"c", ROOT, b"a", exchange=True)
    with refused(Status.NOT_EMPTY, "ENOTEMPTY"):
        await root.rename(b, b"c", ROOT, b"a")


async def test_same_inode_is_a_no_op(root):
    f = await root.create(ROOT, b"f")
    await root.link(f.inode_id, ROOT, b"g")
    await root.rename(ROOT, b"f", ROOT, b"g")
    assert await root.names(ROOT) == [b"f", b"g"]
    assert not (await root.rename(ROOT, b"f", ROOT, b"f")).HasField("replaced")
    with refused(Status.EXISTS):
        await root.rename(ROOT, b"f", ROOT, b"g", no_replace=True)


async def test_argument_errors(root):
    await root.create(ROOT, b"f")
    for name in (b".", b".."):
        with refused(Status.BUSY, "EBUSY"):
            await root.rename(ROOT, name, ROOT, b"x")
        with refused(Status.BUSY, "EBUSY"):
            await root.rename(ROOT, b"f", ROOT, name)
        with refused(Status.EXISTS):
            await root.rename(ROOT, b"f", ROOT, name, no_replace=True)
    with refused(Status.INVALID_ARGUMENT):
        await root.rename(ROOT, b"f", ROOT, b"g", no_replace=True, exchange=True)
    with refused(Status.NAME_TOO_LONG):
        await root.rename(ROOT, b"f", ROOT, b"n" * 256)


async def test_permissions(root, alice, bob):
    a = (await root.mkdir(ROOT, b"a", 0o777)).inode_id
    b = (await root.mkdir(ROOT, b"b", 0o777)).inode_id
    closed = (await root.mkdir(ROOT, b"closed", 0o755)).inode_id
    await alice.mkdir(a, b"d", 0o755)
    with refused(Status.ACCESS_DENIED, "EACCES"):
        await alice.rename(a, b"d", closed, b"d")
    with refused(Status.ACCESS_DENIED, "EACCES"):  # its `..` would change, and it is alice's
        await bob.rename(a, b"d", b, b"d")
    await bob.rename(a, b"d", a, b"e")  # within one directory `..` stays
    await alice.rename(a, b"e", b, b"d")


async def test_replaced_file_stays_for_its_session(world, root):
    old = await root.create(ROOT, b"old")
    await root.create(ROOT, b"new")
    keep = {"keep_session": session(3, is_write=False), "keep_inode_id": old.inode_id}
    await root.rename(ROOT, b"new", ROOT, b"old", **keep)
    tr = world.engine.transaction()
    assert len(await tr.get_range(b"INOS", b"INOT")) == 1


async def test_concurrent_renames_cannot_close_a_loop(world, root, nursery):
    a = (await root.mkdir(ROOT, b"a")).inode_id
    b = (await root.mkdir(ROOT, b"b")).inode_id
    outcomes = []

    async def move(source, goal):
        try:
            await world.user().rename(ROOT, source, goal, source)
            outcomes.append("moved")
        except FsError as error:
            outcomes.append(error.status)

    nursery.start_soon(move, b"a", b)
    nursery.start_soon(move, b"b", a)
    while len(outcomes) < 2:  # noqa: ASYNC110 - two lists fill, nobody can signal
        await trio.sleep(0.01)
    # The loser finds either a loop or its name gone from the root; check() runs at the end.
    assert outcomes.count("moved") == 1


async def test_a_whiteout_is_left_in_place_of_what_moves(root, alice):
    """Its owner is who moves, it counts, and the other operations meet what they would."""
    d = (await root.mkdir(ROOT, b"d", 0o777)).inode_id
    await root.set_quota(d, 0, 3)
    await alice.create(d, b"f")
    sub = (await alice.mkdir(d, b"sub")).inode_id
    moved = await alice.rename(d, b"f", d, b"g", leaves_whiteout=True)
    left = await root.lookup(d, b"f")
    assert left.inode_id == moved.whiteout_inode_id
    assert (left.type, left.rdev, left.mode, left.uid, left.nlink) == (
        pb.CHAR_DEVICE, 0, 0, alice.uid, 1,
    )  # fmt: skip
    assert (await root.usage(d)).directory.usage.files == 2
    with refused(Status.QUOTA_EXCEEDED, "EDQUOT"):
        await alice.rename(d, b"sub", d, b"sub2", leaves_whiteout=True)
    assert (await root.lookup(d, b"sub")).inode_id == sub
    await alice.rename(d, b"g", d, b"f")
    await alice.rename(d, b"sub", d, b"sub2", leaves_whiteout=True)
    assert (await root.attr(d)).nlink == 3
    with refused(Status.EXISTS, "EEXIST"):
        await alice.rename(d, b"f", d, b"sub", leaves_whiteout=True, no_replace=True)
    with refused(Status.INVALID_ARGUMENT, "EINVAL"):
        await alice.rename(d, b"f", d, b"sub", leaves_whiteout=True, exchange=True)
    assert await root.names(d) == [b"f", b"sub", b"sub2"]


async def test_a_repeat_leaves_no_second_whiteout(world, root):
    await root.create(ROOT, b"f")
    first = await root.rename(ROOT, b"f", ROOT, b"g", leaves_whiteout=True)
    root.request_id, root.is_repeat = root.last_request_id, True
    again = await root.rename(ROOT, b"f", ROOT, b"g", leaves_whiteout=True)
    assert again.whiteout_inode_id == first.whiteout_inode_id
    assert await world.user().names(ROOT) == [b"f", b"g"]


async def test_two_names_of_one_file_leave_no_whiteout(root):
    made = await root.create(ROOT, b"f")
    await root.link(made.inode_id, ROOT, b"g")
    assert not (await root.rename(ROOT, b"f", ROOT, b"g", leaves_whiteout=True)).whiteout_inode_id
    assert (await root.lookup(ROOT, b"f")).inode_id == made.inode_id
