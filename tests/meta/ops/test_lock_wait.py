# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Waits for locks: who would wait for itself is told, over clients, services,
retries and deaths.
"""

import pytest
import trio

from fs.meta import records
from fs.meta.ops.lock_wait import WAIT_COUNT_MAX
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.common_pb2 import FLOCK_LOCK, POSIX_LOCK, FileLockPb
from fs.schema.status import FsError, Status
from tests.meta.harness import ROOT, refused

OTHER = "d" * 32


async def lock(user, inode_id, owner=1, *, wait_id=0, kind=POSIX_LOCK, first=0, is_unlock=False):
    wanted = FileLockPb(owner=owner, kind=kind, first=first, last=99, is_write=True)
    request = meta.SetLockReq(inode_id=inode_id, lock=wanted, wait_id=wait_id, is_unlock=is_unlock)
    return (await user.call("set_lock", request)).is_done


async def end_wait(user, wait_id, owner=1):
    await user.call("end_lock_wait", meta.EndLockWaitReq(owner=owner, wait_id=wait_id))


async def waits(world):
    return [key for key in await world.dump() if key.startswith(records.LOCK_WAITS)]


async def files(user, count):
    return [(await user.create(ROOT, b"f%d" % n)).inode_id for n in range(count)]


async def test_two_clients_that_would_wait_crosswise(any_world):
    one, two = any_world.user(0), any_world.user(0, client=OTHER)
    a, b = await files(one, 2)
    assert await lock(one, a)
    assert await lock(two, b)
    assert not await lock(one, b, wait_id=1)
    with refused(Status.DEADLOCK):
        await lock(two, a, wait_id=1)
    assert not await lock(two, a)  # who does not wait closes no circle
    await lock(two, b, is_unlock=True)
    assert await lock(one, b, wait_id=1)
    assert not await lock(two, a, wait_id=2)
    await end_wait(two, 2)
    assert await waits(any_world) == []


async def test_a_circle_of_three_owners_of_one_client(any_world):
    user = any_world.user(0)
    ids = await files(user, 3)
    for owner, inode_id in enumerate(ids):
        assert await lock(user, inode_id, owner)
    assert not await lock(user, ids[1], 0, wait_id=1)
    assert not await lock(user, ids[2], 1, wait_id=2)
    with refused(Status.DEADLOCK):
        await lock(user, ids[0], 2, wait_id=3)
    await end_wait(user, 2, owner=1)
    assert not await lock(user, ids[0], 2, wait_id=3)


async def test_two_readers_that_both_want_to_write(world, root):
    (f,) = await files(root, 1)
    for owner in (1, 2):
        held = FileLockPb(owner=owner, kind=POSIX_LOCK, first=0, last=9)
        await root.call("set_lock", meta.SetLockReq(inode_id=f, lock=held))
    assert not await lock(root, f, 1, wait_id=1)
    with refused(Status.DEADLOCK):
        await lock(root, f, 2, wait_id=2)


async def test_flock_is_not_looked_at(world, root):
    a, b = await files(root, 2)
    assert await lock(root, a, 1, kind=FLOCK_LOCK)
    assert await lock(root, b, 2, kind=FLOCK_LOCK)
    assert not await lock(root, b, 1, kind=FLOCK_LOCK, wait_id=1)
    assert not await lock(root, a, 2, kind=FLOCK_LOCK, wait_id=2)
    assert await waits(world) == []


async def test_of_two_waits_at_once_one_closes_the_circle(any_world):
    """Each finds the other not yet waiting; the store lets one of them commit,
    and runs the other again.
    """
    one, two = any_world.user(0), any_world.user(0, client=OTHER)
    services = [any_world.meta, any_world.new_meta()]
    for turn in range(20):
        a, b = [(await one.create(ROOT, b"%d-%d" % (turn, n))).inode_id for n in range(2)]
        assert await lock(one, a)
        assert await lock(two, b)
        told = []

        async def wait(user, inode_id, service, told=told, turn=turn):
            wanted = FileLockPb(owner=1, kind=POSIX_LOCK, first=0, last=9, is_write=True)
            request = meta.SetLockReq(
                caller=user.caller(), inode_id=inode_id, lock=wanted, wait_id=turn + 1
            )
            try:
                await service.service.set_lock(None, request)
                told.append(None)
            except FsError as error:
                told.append(error.status)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, one, b, services[0])
            nursery.start_soon(wait, two, a, services[1])
        assert set(told) == {None, Status.DEADLOCK}, turn
        for user, held in ((one, a), (two, b)):
            await end_wait(user, turn + 1)
            await lock(user, held, is_unlock=True)


async def test_a_wait_is_noted_once_and_ended_once(world, root):
    a, b = await files(root, 2)
    other = world.user(0, client=OTHER)
    assert await lock(root, a)
    assert await lock(root, b)
    assert not await lock(other, a, wait_id=1)
    before = await world.dump()
    assert not await lock(other, a, wait_id=1)
    assert await world.dump() == before
    assert not await lock(other, b, wait_id=2)  # another thread of the same process
    await lock(root, a, is_unlock=True)
    assert await lock(other, a, wait_id=1)
    with refused(Status.DEADLOCK):
        await lock(root, a, wait_id=1)
    await end_wait(other, 2)
    await end_wait(other, 2)
    assert await waits(world) == []
    assert not await lock(root, a, wait_id=1)


async def test_an_owner_has_no_more_waits_than_a_record_holds(world, root):
    (f,) = await files(root, 1)
    other = world.user(0, client=OTHER)
    assert await lock(root, f)
    for wait_id in range(1, WAIT_COUNT_MAX + 5):
        assert not await lock(other, f, wait_id=wait_id)
    for wait_id in range(1, WAIT_COUNT_MAX + 1):
        assert await waits(world)
        await end_wait(other, wait_id)
    assert await waits(world) == []


async def test_a_file_that_is_gone_keeps_nobody(world, autojump_clock, root):
    a, b = await files(root, 2)
    other = world.user(0, client=OTHER)
    assert await lock(root, a)
    assert await lock(other, b)
    assert not await lock(other, a, wait_id=1)
    await root.unlink(ROOT, b"f0")
    await trio.sleep(100)
    await world.meta.gc.step()
    assert not await lock(root, b, wait_id=1)


async def test_waits_of_dead_clients_are_forgotten(world, root):
    a, b = await files(root, 2)
    other = world.user(0, client=OTHER)
    assert await lock(root, a)
    assert await lock(other, b)
    assert not await lock(other, a, wait_id=1)
    service, config = world.meta.service, world.config.meta
    late_ns = 0
    pruner = world.pruner(lambda: service.now_ns() + late_ns)
    world.mgmtd.client_ids = [root.client, OTHER]
    late_ns = int(config.session_grace_s * 2e9)
    await pruner.step()
    assert await waits(world) == [records.lock_waits_key(OTHER, 1)]
    world.mgmtd.client_ids = [root.client]
    late_ns = 0
    await pruner.step()
    assert len(await waits(world)) == 1
    late_ns = int(config.session_grace_s * 2e9)
    await pruner.step()
    assert await waits(world) == []
    assert await lock(root, b, wait_id=1)


@pytest.mark.parametrize("owner", [0, 1, 2**52, 2**64 - 1])
def test_the_key_tells_client_and_owner(owner):
    key = records.lock_waits_key(OTHER, owner)
    assert records.client_locks_parts(key) == (OTHER, owner)
