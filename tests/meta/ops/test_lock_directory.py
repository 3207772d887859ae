"""Locks on directories: whom they stop, who takes and frees them,
and what becomes of a dead client's.
"""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import pytest
import trio

from fs.meta import records
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import Status
from tests.meta.harness import ROOT, refused

ONE, TWO = "1" * 32, "2" * 32


async def act(user, inode_id, action) -> pb.InodePb:
    request = meta.LockDirectoryReq(inode_id=inode_id, action=action)
    return (await user.call("lock_directory", request)).inode


async def holder(user, inode_id) -> bytes:
    request = meta.GetXattrReq(inode_id=inode_id, name=b"ember.lock")
    return (await user.call("get_xattr", request)).value


async def locks(world) -> list[bytes]:
    return [key for key in await world.dump() if key.startswith(records.DIRECTORY_LOCKS)]


@pytest.fixture
async def place(world, root, alice):
    """A directory of alice's with a file and a directory in it, which her client locks."""
    d = await root.mkdir(ROOT, b"d")
    await root.set_attr(d.inode_id, uid=1000, gid=1000, mode=0o777)
    await alice.create(d.inode_id, b"f")
    await alice.mkdir(d.inode_id, b"sub")
    return d.inode_id


async def test_names_in_it_are_the_holders_alone(world, root, place):
    one, two = world.user(1000, client=ONE), world.user(1000, client=TWO)
    f = await one.lookup(place, b"f")
    sub = (await one.lookup(place, b"sub")).inode_id
    await act(one, place, meta.LOCK_TAKE)
    before = await world.dump()
    attempts = (
        lambda u: u.create(place, b"new"),
        lambda u: u.mkdir(place, b"new"),
        lambda u: u.symlink(place, b"new", b"x"),
        lambda u: u.mknod(place, b"new", pb.FIFO),
        lambda u: u.link(f.inode_id, place, b"new"),
        lambda u: u.rename(place, b"new", ROOT, b"out"),
        lambda u: u.unlink(place, b"f"),
        lambda u: u.rmdir(place, b"sub"),
    )
    for attempt in attempts[:5] + attempts[6:]:
        with refused(Status.NO_LOCK, "ENOLCK"):
            await attempt(two)
    with refused(Status.NO_LOCK):
        await two.rename(place, b"f", place, b"g")
    with refused(Status.NO_LOCK):
        await two.remove_tree(place, b"sub")
    request = meta.MoveToTrashReq(parent_inode_id=place, name=b"f")
    with refused(Status.NO_LOCK):
        await two.call("move_to_trash", request)
    assert await world.dump() == before
    # Root has no more right than another client; what is in the names, and below, is free.
    with refused(Status.NO_LOCK):
        await world.user(0, client=TWO).unlink(place, b"f")
    await two.create(place, b"f")
    await two.set_attr(f.inode_id, length=10)
    await two.create(sub, b"below")
    await two.unlink(sub, b"below")
    await one.create(place, b"g")
    await one.unlink(place, b"g")


async def test_into_and_out_of_it_by_rename(world, root, place):
    one, two = world.user(0, client=ONE), world.user(0, client=TWO)
    await root.create(ROOT, b"outside")
    await act(one, place, meta.LOCK_TAKE)
    for old in ((ROOT, b"outside", place, b"in"), (place, b"f", ROOT, b"out")):
        with refused(Status.NO_LOCK):
            await two.rename(*old)
        await one.rename(*old)


async def test_who_may_take_and_free_it(world, place):
    one, two = world.user(1000, client=ONE), world.user(1000, client=TWO)
    other = world.user(1001, client=TWO)
    await act(one, place, meta.LOCK_TAKE)
    await act(one, place, meta.LOCK_TAKE)
    for action in (meta.LOCK_TAKE, meta.LOCK_FREE):
        with refused(Status.NO_LOCK):
            await act(two, place, action)
    for action in (meta.LOCK_PREEMPT, meta.LOCK_CLEAR):
        with refused(Status.NOT_PERMITTED, "EPERM"):
            await act(other, place, action)
    assert await holder(other, place) == ONE.encode()
    await act(two, place, meta.LOCK_PREEMPT)
    with refused(Status.NO_LOCK):
        await one.create(place, b"late")
    assert len(await locks(world)) == 1
    await act(one, place, meta.LOCK_CLEAR)
    with refused(Status.NO_ATTRIBUTE, "ENODATA"):
        await holder(one, place)
    await act(one, place, meta.LOCK_FREE)
    await act(other, place, meta.LOCK_TAKE)
    await act(other, place, meta.LOCK_FREE)
    assert await locks(world) == []
    await one.set_attr(place, mode=0o755)
    with refused(Status.ACCESS_DENIED, "EACCES"):
        await act(other, place, meta.LOCK_TAKE)


async def test_a_sticky_directory_is_its_owners_to_lock(world, root, place):
    await root.set_attr(place, mode=0o1777)
    other, owner = world.user(1001, client=ONE), world.user(1000, client=TWO)
    with refused(Status.NOT_PERMITTED, "EPERM"):
        await act(other, place, meta.LOCK_TAKE)
    await act(owner, place, meta.LOCK_TAKE)
    with refused(Status.NO_LOCK):
        await other.create(place, b"g")


async def test_what_makes_no_sense_is_refused(world, root, place):
    f = (await root.lookup(place, b"f")).inode_id
    with refused(Status.NOT_DIRECTORY):
        await act(root, f, meta.LOCK_TAKE)
    with refused(Status.INVALID_ARGUMENT):
        await act(root, place, meta.NO_LOCK_ACTION)
    with refused(Status.INVALID_ARGUMENT):
        await act(world.user(0, client=""), place, meta.LOCK_TAKE)
    with refused(Status.INVALID_ARGUMENT):
        await root.call(
            "set_xattr", meta.SetXattrReq(inode_id=place, name=b"ember.lock", value=b"yes")
        )


async def test_the_attribute_does_the_same(world, place):
    one, two = world.user(1000, client=ONE), world.user(1000, client=TWO)

    async def write(user, value):
        request = meta.SetXattrReq(inode_id=place, name=b"ember.lock", value=value)
        await user.call("set_xattr", request)

    await write(one, b"lock")
    with refused(Status.NO_LOCK):
        await write(two, b"unlock")
    await write(two, b"preempt")
    assert await holder(one, place) == TWO.encode()
    await write(two, b"unlock")
    await write(two, b"lock")
    await write(one, b"clear")
    assert await locks(world) == []


async def test_the_lock_of_a_dead_client_is_freed(world, root, place, autojump_clock):
    one, two = world.user(0, client=ONE), world.user(0, client=TWO)
    await act(one, place, meta.LOCK_TAKE)
    gone = await root.mkdir(ROOT, b"gone")
    await act(one, gone.inode_id, meta.LOCK_TAKE)
    await root.rmdir(ROOT, b"gone")
    world.mgmtd.client_ids = [TWO]
    await world.meta.sessions.step()
    with refused(Status.NO_LOCK):  # too young to be judged
        await two.create(place, b"g")
    await trio.sleep(61)
    world.mgmtd.client_ids = [ONE, TWO]
    await world.meta.sessions.step()
    assert len(await locks(world)) == 2
    world.mgmtd.client_ids = [TWO]
    await world.meta.sessions.step()
    await two.create(place, b"g")
    assert await locks(world) == []


async def test_a_lock_goes_with_its_directory(world, root, place, autojump_clock):
    await act(world.user(0, client=ONE), place, meta.LOCK_TAKE)
    await root.remove_tree(ROOT, b"d")
    await trio.sleep(61)
    while await world.meta.gc.step():
        pass
    assert await locks(world) == []
