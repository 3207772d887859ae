# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""SetLock and FindLockConflict: over clients, over retries, over deaths."""

from functools import partial

import pytest
import trio

from fs.kv.transact import snapshot_read
from fs.meta import records
from fs.meta.ops import lock as lock_module
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.common_pb2 import FLOCK_LOCK, NO_LOCK_KIND, POSIX_LOCK, FileLockPb
from fs.schema.status import FsError, Status
from tests.meta.harness import ROOT, refused, session

OTHER = "d" * 32


def wish(owner=1, kind=POSIX_LOCK, first=0, last=99, *, is_write=True):
    return FileLockPb(owner=owner, kind=kind, first=first, last=last, is_write=is_write)


async def lock(user, inode_id, wanted, *, is_unlock=False):
    request = meta.SetLockReq(inode_id=inode_id, lock=wanted, is_unlock=is_unlock)
    return await user.call("set_lock", request)


async def conflict(user, inode_id, wanted, wait_ms=0):
    request = meta.FindLockConflictReq(inode_id=inode_id, lock=wanted, wait_ms=wait_ms)
    reply = await user.call("find_lock_conflict", request)
    return reply.conflict if reply.HasField("conflict") else None


@pytest.fixture
def other(world):
    return world.user(0, client=OTHER)


async def test_clients_exclude_each_other(any_world):
    mine, other = any_world.user(0), any_world.user(0, client=OTHER)
    inode_id = (await mine.create(ROOT, b"f")).inode_id
    assert (await lock(mine, inode_id, wish())).is_done
    refused_by = await lock(other, inode_id, wish(first=99, last=200))
    assert not refused_by.is_done
    assert (refused_by.conflict.client_id, refused_by.conflict.owner) == (mine.client, 1)
    assert (await lock(other, inode_id, wish(first=100, last=200))).is_done
    assert (await lock(other, inode_id, wish(kind=FLOCK_LOCK))).is_done
    assert (await conflict(mine, inode_id, wish(first=0, last=300))).client_id == OTHER
    await lock(mine, inode_id, wish(first=50, last=120), is_unlock=True)
    assert (await lock(other, inode_id, wish(first=50, last=99, is_write=False))).is_done
    assert (await conflict(other, inode_id, wish(first=0, last=60))).last == 49


async def test_a_repeated_request_does_not_lock_again(root, other):
    inode_id = (await root.create(ROOT, b"f")).inode_id
    root.request_id = b"r" * 16
    assert (await lock(root, inode_id, wish())).is_done
    root.request_id = None
    await lock(root, inode_id, wish(), is_unlock=True)
    root.request_id = b"r" * 16  # comes late, when its effect is history
    assert (await lock(root, inode_id, wish())).is_done
    assert await conflict(other, inode_id, wish()) is None


async def test_a_try_that_comes_late_does_not_take_what_its_repeat_could_not_have(root, other):
    """It stood still at another service; its client was told of the conflict,
    and that was long ago.
    """
    inode_id = (await root.create(ROOT, b"f")).inode_id
    await lock(root, inode_id, wish())
    other.request_id, other.is_repeat = b"r" * 16, True
    assert (await lock(other, inode_id, wish(owner=2))).conflict.owner == 1
    await lock(root, inode_id, wish(), is_unlock=True)
    other.is_repeat = False
    assert (await lock(other, inode_id, wish(owner=2))).conflict.owner == 1
    assert await conflict(root, inode_id, wish()) is None


async def test_a_try_that_comes_late_does_not_free_what_was_locked_since(root, other):
    """Its repeat found nothing to free."""
    inode_id = (await root.create(ROOT, b"f")).inode_id
    root.request_id, root.is_repeat = b"r" * 16, True
    assert (await lock(root, inode_id, wish(), is_unlock=True)).is_done
    root.request_id, root.is_repeat = None, False
    await lock(root, inode_id, wish())
    root.request_id = b"r" * 16
    assert (await lock(root, inode_id, wish(), is_unlock=True)).is_done
    assert (await conflict(other, inode_id, wish())).owner == 1


async def test_converting_a_lock_of_flock_gives_up_the_old_one(root, other):
    """As in Linux; of fcntl's locks none is lost by asking for another one."""
    inode_id = (await root.create(ROOT, b"f")).inode_id
    for kind in (FLOCK_LOCK, POSIX_LOCK):
        shared = wish(kind=kind, is_write=False)
        assert (await lock(root, inode_id, shared)).is_done
        assert (await lock(other, inode_id, shared)).is_done
        reply = await lock(root, inode_id, wish(kind=kind))
        assert not reply.is_done and reply.conflict.client_id == OTHER
        assert reply.has_freed is (kind == FLOCK_LOCK)
        assert (await lock(other, inode_id, wish(kind=kind))).is_done is (kind == FLOCK_LOCK)
    assert (await lock(other, inode_id, wish(kind=FLOCK_LOCK), is_unlock=True)).is_done
    assert not (await lock(root, inode_id, wish(kind=FLOCK_LOCK), is_unlock=True)).has_freed


async def test_who_waits_hears_of_a_lock_that_was_given_up(root, other, autojump_clock):
    inode_id = (await root.create(ROOT, b"f")).inode_id
    shared, alone = (wish(kind=FLOCK_LOCK, is_write=how) for how in (False, True))
    await lock(root, inode_id, shared)
    await lock(other, inode_id, shared)
    assert not (await lock(root, inode_id, alone)).is_done
    await lock(root, inode_id, shared)
    async with trio.open_nursery() as nursery:

        async def wait():
            assert await conflict(root, inode_id, alone, wait_ms=5000) is None
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait)
        await trio.sleep(0.1)
        assert not (await lock(other, inode_id, alone)).is_done
        await trio.sleep(0.01)
        pytest.fail("nobody woke the waiting one")


async def test_bad_wishes(root, world):
    inode_id = (await root.create(ROOT, b"f")).inode_id
    with refused(Status.INVALID_ARGUMENT, "EINVAL"):
        await lock(root, inode_id, wish(first=7, last=6))
    with refused(Status.INVALID_ARGUMENT, "EINVAL"):
        await lock(root, inode_id, wish(last=2**63))
    for wanted in (wish(kind=NO_LOCK_KIND), FileLockPb(kind=POSIX_LOCK, client_id=OTHER, last=1)):
        with refused(Status.RPC_BAD_REQUEST):
            await lock(root, inode_id, wanted)
    with refused(Status.RPC_BAD_REQUEST):
        await lock(world.user(0, client=""), inode_id, wish())
    with refused(Status.STALE, "ESTALE"):
        await lock(root, 0xFFFF, wish())
    assert (await lock(root, 0xFFFF, wish(), is_unlock=True)).is_done


async def test_the_table_is_bounded_and_freeing_always_works(root, monkeypatch):
    monkeypatch.setattr(lock_module, "LOCK_COUNT_MAX", 20)
    inode_id = (await root.create(ROOT, b"f")).inode_id
    for i in range(20):
        assert (await lock(root, inode_id, wish(first=10 * i, last=10 * i + 5))).is_done
    with refused(Status.NO_LOCKS_LEFT, "ENOLCK"):
        await lock(root, inode_id, wish(first=10**6, last=10**6))
    assert (await lock(root, inode_id, wish(last=2**63 - 1), is_unlock=True)).is_done
    assert await conflict(root, inode_id, wish(owner=2)) is None


async def test_a_wait_ends_when_the_lock_goes(root, other, autojump_clock):
    inode_id = (await root.create(ROOT, b"f")).inode_id
    await lock(root, inode_id, wish())
    began_s = trio.current_time()
    assert (await conflict(other, inode_id, wish(), wait_ms=2000)).owner == 1
    assert trio.current_time() - began_s == pytest.approx(2.0, abs=0.01)
    async with trio.open_nursery() as nursery:

        async def wait():
            assert await conflict(other, inode_id, wish(), wait_ms=5000) is None
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait)
        await trio.sleep(0.1)
        await lock(root, inode_id, wish(), is_unlock=True)
        await trio.sleep(0.01)
        pytest.fail("nobody woke the waiting one")


async def test_locks_of_dead_clients_are_freed(world, root, other):
    inode_id = (await root.create(ROOT, b"f")).inode_id
    await lock(root, inode_id, wish())
    await lock(other, inode_id, wish(first=200, last=300))
    service, config = world.meta.service, world.config.meta
    late_ns = int(config.session_grace_s * 2e9)
    pruner = world.pruner(lambda: service.now_ns() + late_ns)
    world.mgmtd.client_ids = [root.client]
    await pruner.step()
    assert await conflict(other, inode_id, wish(first=200, last=300)) is None
    assert await conflict(other, inode_id, wish()) is not None
    key = records.client_locks_key(OTHER, inode_id)
    assert await snapshot_read(world.engine, lambda tr: tr.get(key)) is None
    world.mgmtd.client_ids = []
    await pruner.step()
    assert await conflict(other, inode_id, wish()) is None


async def test_what_a_client_held_that_is_gone_is_freed_however_young(world, root, other):
    """Of other clients nothing; lengths before locks, and no lock while a length is unknown."""
    inode_id = (await root.create(ROOT, b"f", session=session(1), wants_write=True)).inode_id
    await other.open(inode_id, session=session(2), wants_write=True)
    for user, first in ((root, 0), (other, 200)):
        await lock(user, inode_id, wish(first=first, last=first + 9))
    directory = (await root.mkdir(ROOT, b"d")).inode_id
    request = meta.LockDirectoryReq(inode_id=directory, action=meta.LOCK_TAKE)
    await root.call("lock_directory", request)
    world.chunks.lengths[inode_id] = 777
    world.chunks.error = FsError(Status.RPC_TIMEOUT, "a chain")
    free = partial(other.call, "free_client", meta.FreeClientReq(client_id=root.client))
    with pytest.raises(FsError):
        await free()
    assert await conflict(other, inode_id, wish()) is not None
    world.chunks.error = None
    for _ in range(2):
        await free()
        assert await conflict(other, inode_id, wish()) is None
        assert (await other.attr(inode_id)).file.length == 777
        assert await conflict(root, inode_id, wish(first=200, last=300)) is not None
        await other.create(directory, b"g")
        await other.unlink(directory, b"g")
    sessions = await snapshot_read(
        world.engine, lambda tr: tr.get_range(b"INOS", b"INOT", snapshot=True)
    )
    assert [key[-32:] for key, _ in sessions] == [session(2).session_id.encode()]


async def test_nobody_frees_itself_or_nobody(root):
    for named in ("", root.client):
        with pytest.raises(FsError, match="RPC_BAD_REQUEST"):
            await root.call("free_client", meta.FreeClientReq(client_id=named))


@pytest.mark.parametrize("ahead_s", [3600, 10**7])
async def test_a_clock_that_was_set_back_keeps_no_dead_client_for_long(
    world, root, autojump_clock, ahead_s
):
    inode_id = (await root.create(ROOT, b"f")).inode_id
    await lock(root, inode_id, wish())
    service, config = world.meta.service, world.config.meta
    pruner = world.pruner(lambda: service.now_ns() - int(ahead_s * 1e9))
    world.mgmtd.client_ids = []
    await pruner.step()
    await trio.sleep(config.session_grace_s - 1)
    await pruner.step()
    key = records.client_locks_key(root.client, inode_id)
    assert await snapshot_read(world.engine, lambda tr: tr.get(key)) is not None
    await trio.sleep(2)
    await pruner.step()
    assert await snapshot_read(world.engine, lambda tr: tr.get(key)) is None


async def test_locks_go_with_the_file(world, autojump_clock):
    """Who has it open for reading only has no session, and may hold locks when it is deleted."""
    mine, other = world.user(0), world.user(0, client=OTHER)
    f = (await mine.create(ROOT, b"f")).inode_id
    await lock(mine, f, wish(is_write=False))
    await lock(other, f, wish(is_write=False))
    await mine.unlink(ROOT, b"f")
    await trio.sleep(100)
    await world.meta.gc.step()
    rows = await world.dump()
    assert not [key for key in rows if key[:4] in {records.FILE_LOCKS, records.CLIENT_LOCKS}]
    await lock(mine, f, wish(), is_unlock=True)
    with refused(Status.STALE):
        await lock(mine, f, wish())
